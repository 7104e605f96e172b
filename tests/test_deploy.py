"""The files under deploy/ and the commands of its pages: every option that they use exists, and they can be built."""

import configparser
import functools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedaccord.cli import make_parser

pytest.importorskip("flwr")

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
PAGES = [ROOT / "docs" / "deploy.md", ROOT / "docs" / "operate.md"]


def of_unit(file: Path) -> list[str]:
    """The words of ExecStart, with the number of a client in place of %i."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string(file.read_text().replace("\\\n", " "))
    words = shlex.split(unit["Service"]["ExecStart"].replace("%i", "0"))
    return [Path(words[0]).name, *words[1:]]


def of_service(name: str) -> list[str]:
    """A service's command, with the defaults of its variables."""
    service = compose()["services"][name]
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in service["command"]]


@functools.cache
def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def of_page(file: Path) -> list[list[str]]:
    """Every command of ours in a page's blocks."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", file.read_text(), re.DOTALL)
    lines = [line for kind, block in blocks if not kind for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("fedaccord ")]


COMMANDS = {
    **{file.name: of_unit(file) for file in UNITS},
    **{f"compose {name}": of_service(name) for name in compose()["services"]},
    **{f"{file.name} {number}": words for file in PAGES for number, words in enumerate(of_page(file))},
}


def test_there_is_something_to_check():
    kinds = [" ".join(words[:3]) for words in COMMANDS.values()]
    for kind in ("server", "node", "status", "renew", "register", "revoke", "certificates", "key"):
        assert f"fedaccord federation {kind}" in kinds


@pytest.mark.parametrize("name", [name for name, words in COMMANDS.items() if words[0] == "fedaccord"])
def test_our_commands_and_options_exist(name):
    words = [word.replace("${SUPERLINK}", "superlink.example.org:8443") for word in COMMANDS[name][1:]]
    make_parser(words).parse_args(words)


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_options_of_the_superlink_exist():
    program = str(Path(sys.executable).with_name("flower-superlink"))
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    theirs = [words for words in COMMANDS.values() if words[0] == "flower-superlink"]
    assert len(theirs) == 2
    for words in theirs:
        for word in words:
            assert not word.startswith("--") or f"{word} " in said.replace("\n", " ").replace(",", " "), word


def test_every_file_that_the_image_copies_is_there():
    copied = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    names = [name for line in copied for name in line.split()]
    assert "constraints.txt" in names
    assert all((ROOT / name).exists() for name in names)
    dockerfile = compose()["x-part"]["build"]["dockerfile"]
    assert (ROOT / dockerfile).is_file()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_units(tmp_path):
    here = Path(sys.executable).parent
    for file in UNITS:
        text = file.read_text().replace("/opt/fedaccord/bin", str(here)).replace("/etc/fedaccord/node.env", "/dev/null")
        (tmp_path / file.name.replace("@", "@0")).write_text(text)
    words = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())]
    done = subprocess.run(words, capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "fedaccord" in line]
    assert not complaints, complaints


def engine() -> str | None:
    """A container engine that answers and has, or can get, the image that ours begins with."""
    base = re.search(r"^FROM (\S+)", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)[1]
    for name in ("podman", "docker"):
        if shutil.which(name) and not subprocess.run([name, "pull", "--quiet", base], capture_output=True).returncode:
            return name
    return None


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_image_builds_and_runs():
    if (name := engine()) is None:
        pytest.skip("no container engine that can get the base image")
    build = [name, "build", "--quiet", "-f", str(DEPLOY / "Containerfile"), "-t", "fedaccord-test", str(ROOT)]
    subprocess.run(build, check=True)
    said = subprocess.run([name, "run", "--rm", "fedaccord-test", "fedaccord", "federation", "--help"],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "status" in said
