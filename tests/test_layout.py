"""Who may import whom (the design's rule), and what a plain import must not pull in."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedaccord.methods.registry import PARTS

PACKAGE = Path(__file__).parent.parent / "fedaccord"
EXTRAS = {"flwr", "ray", "librosa", "soundfile", "matplotlib", "pandas", "IPython", "wandb"}

BASE = {"core"}
"""Imports nothing of ours; everybody may import it."""
BESIDE = {"methods", "policy", "client", "server", "data"}
"""Stand side by side: they meet in the protocols of core."""
ENGINES = {"engines", "flower"}
DEFINITIONS = {"tasks", "models", "config", "objectives", "metrics", "api"}
"""Stand beside runtime."""

# part -> the parts of fedaccord that it may import besides itself and core
ALLOWED = {
    "core": set(),
    "methods": {"policy"},  # a part of a method may bring a policy
    "policy": set(),
    "client": set(),
    "server": set(),
    "data": set(),
    "models": set(),
    "objectives": set(),
    "metrics": set(),
    "adapters": set(),
    "engines": BESIDE,
    "flower": BESIDE,
    "config": BESIDE,
    "tasks": BESIDE | {"models", "config", "metrics"},
    "runtime": BESIDE | ENGINES | DEFINITIONS,
    "api": BESIDE | ENGINES | DEFINITIONS | {"runtime"},
    "report": {"runtime", "config", "policy", "methods"},
    "experiments": BESIDE | ENGINES | DEFINITIONS | {"runtime", "report"},
    "cli": BESIDE | ENGINES | DEFINITIONS | {"runtime", "report", "experiments"},
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def part_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def test_the_rule_is_about_every_part():
    there = [path for path in PACKAGE.iterdir() if not path.name.startswith("__") and path.name != "py.typed"]
    found = {path.stem if path.is_file() else path.name for path in there}
    assert found == set(ALLOWED)


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_a_part_imports_only_what_the_design_allows(part):
    files = sorted((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]
    for file in files:
        names = {part_of(name) for name in imports_of(file) if name.startswith("fedaccord.")}
        inside = {name for name in names if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()}
        assert inside <= ALLOWED[part] | BASE | {part}, file


ELSEWHERE = {
    "report/paper.py",
    "report/speed.py",
    "experiments/bench.py",
    "experiments/paper.py",
    "experiments/long.py",
    "experiments/lab.py",
    "experiments/field.py",
    "experiments/niid_bench.py",
}
"""The paper's tables (the run-time table too), NIID-Bench's, the lab for tuners and the field of methods name methods
and their settings."""
POLICYS_OWN = {"psi", "baseline"}
"""Names of settings that are also names in a tuner's state and in its lines of the log."""


PLAIN = "FA"
"""What every other method is a change of: it may be named."""


def names_of_methods() -> re.Pattern[str]:
    """Whatever the registry knows, in quotes or as an attribute of settings: part names (but the plain one's) and
    combinations of them, settings, slots as part.slot."""
    parts = [re.escape(name) for name in PARTS if name != PLAIN]
    settings = {each.name for part in PARTS.values() for each in part.settings}
    slots = {
        f"{part.name}.{slot.name}" for part in PARTS.values() for kind in vars(part.slots).values() for slot in kind
    }
    words = "|".join([*map(re.escape, sorted((settings - POLICYS_OWN) | slots)), *parts])
    attributes = "|".join(sorted(settings))
    return re.compile(rf"""["'](?:\w+\+)*(?:{words})(?:\+\w+)*["']|settings\.(?:{attributes})\b|\b(?:rm|wd)_[a-z]+""")


@pytest.mark.parametrize(
    "line",
    [
        'method == "FA+RM"',
        "x = 'SCAFFOLD'",
        'settings["hyper_lr"]',
        "settings.rm_step",
        'state["SCAFFOLD.c"]',
        "wd_weight",
    ],
)
def test_the_rule_would_find_them(line):
    assert names_of_methods().search(line)


def test_nothing_outside_methods_names_a_method_or_its_settings():
    NAMES = names_of_methods()
    for file in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js")]):
        where = file.relative_to(PACKAGE).as_posix()
        if where.startswith("methods/") or where in ELSEWHERE:
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            code = "" if line.startswith("RECOMMENDED = ") else line.split("#")[0]
            assert not NAMES.search(code), f"{where}:{number}: {line.strip()}"


def test_only_the_flower_folder_may_import_flwr():
    for file in PACKAGE.rglob("*.py"):
        if any(name.split(".")[0] == "flwr" for name in imports_of(file)):
            assert file.parent == PACKAGE / "flower", file


def test_the_flower_folder_imports_nothing_from_above_it():
    for file in (PACKAGE / "flower").glob("*.py"):
        inside = {part_of(name) for name in imports_of(file) if name.startswith("fedaccord.")}
        assert not inside & {"runtime", "experiments", "report", "cli"}, file


def test_importing_fedaccord_imports_no_extra():
    code = "import sys, fedaccord, fedaccord.cli; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not EXTRAS & set(loaded)


def test_nothing_draws_from_a_global_generator():
    """Random numbers come from seeds.py alone."""
    for file in PACKAGE.rglob("*.py"):
        if file.name != "seeds.py":
            text = file.read_text()
            assert "import random" not in text, file
            assert "np.random." not in text.replace("np.random.Generator", ""), file
            assert "manual_seed" not in text, file


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_public_names_are_there_and_torch_waits_until_it_is_needed():
    code = """
import sys, fedaccord, fedaccord.cli
assert set(fedaccord.HOMES) == set(fedaccord.__all__)
assert "torch" not in sys.modules
for name in fedaccord.__all__:
    assert getattr(fedaccord, name).__module__ == "fedaccord." + fedaccord.HOMES[name], name
assert not hasattr(fedaccord, "nothing")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


MOST_LINES = 120


def test_a_method_fits_in_a_short_file():
    """Matching is a folder, of which the method itself is one file."""
    files = [*PACKAGE.glob("methods/*.py"), *PACKAGE.glob("methods/*/part.py")]
    assert {file.name: n for file in files if (n := len(file.read_text().splitlines())) > MOST_LINES} == {}
