# Two commands for a newcomer: `make run` and `make test`. Both set up whatever is missing first.
# While working: `make quick`. Before a release, after `make test`: `make portable`, `make docs`, `make dist`, `make chaos`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest

# also for the build environment of the package itself
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: run test quick quick-tests portable check browser chaos chaos-full strace mutants pictures notebook docs dist clean

run: $(VENV)/.core
	$(BIN)/fedaccord compare --task digits --methods FA,FA+RM+AH --results runs/first-look

# three processes on two cores: many tests wait for others that they started
test: check browser strace
	$(PYTEST) -n 3

# under a minute: all but the tests that take a second or more
quick: $(VENV)/.dev
	$(MAKE) --jobs=2 --output-sync check quick-tests

quick-tests: $(VENV)/.dev
	$(PYTEST) -n 2 -m "not slow"

# once more with the instructions of a processor of long ago: whatever compares numbers must hold on any processor
portable: $(VENV)/.dev
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE $(PYTEST) -n 3 -m "not anywhere"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# for the tests of the report page; without one they are skipped
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium here, and it cannot be installed: the page will not be tested in a browser"

# make trouble and print what was tried and what was lost: a sample of about 20 minutes, and all of docs/reliability.md,
# which takes hours and goes on where it was cut off (CHAOS=build/mine makes all of it anew)
CHAOS ?= results/chaos
chaos: $(VENV)/.dev strace
	rm -rf build/chaos/sample
	$(BIN)/python -m benchmarks.chaos --results build/chaos/sample
chaos-full: $(VENV)/.dev strace
	$(BIN)/python -m benchmarks.chaos --full --results $(CHAOS)

# for watching the order in which a run writes; without it that part is skipped
strace:
	@command -v strace >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install -y -qq strace >/dev/null; } || \
	  echo "no strace here, and it cannot be installed: the order of writes will not be watched"

# mutation tests of policy, server and run folder: hours; what was done is kept in mutants/ and not done again
mutants: $(VENV)/.dev
	$(PIP) mutmut
	$(BIN)/mutmut run
	$(BIN)/mutmut export-cicd-stats

pictures: $(VENV)/.dev
	$(BIN)/python docs/make_pictures.py

# run docs/own_data.ipynb anew and keep what its cells show
notebook: $(VENV)/.dev
	$(BIN)/python docs/make_notebook.py

# build/site; a warning is an error
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# dist/: wheel and sdist, checked, and the wheel tried in an environment that has nothing else
dist: $(VENV)/.core
	rm -rf dist build/lib build/empty build/try
	$(PIP) build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_dist.py dist
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	mkdir build/try && cd build/try && ../empty/bin/fedaccord run digits --rounds 3

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info

# torch by itself first: a build for the CPU that is here already is taken as it is
$(VENV)/.core: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (a few minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[report]'
	touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "adding the tools for development"
	$(PIP) --editable '.[dev,report,notebook,audio,ray,trackers,flower,export,docs]'
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --editable '.[docs]'
	touch $@
