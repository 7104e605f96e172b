# Two commands for a newcomer: `make run` and `make test`. Both set up whatever is missing first.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# also for the build environment of the package itself
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: run test browser pictures clean

run: $(VENV)/.core
	$(BIN)/fedaccord compare --task digits --methods FA,FA+RM+AH --results runs/first-look

test: $(VENV)/.dev browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

# for the tests of the report page; without one they are skipped
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium here, and it cannot be installed: the page will not be tested in a browser"

pictures: $(VENV)/.dev
	$(BIN)/python docs/make_pictures.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

# torch by itself first: its pin is what keeps gigabytes of GPU libraries away
$(VENV)/.core: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (a few minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[report]'
	touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "adding the tools for development"
	$(PIP) --editable '.[dev,report,audio,ray,trackers,flower]'
	touch $@
