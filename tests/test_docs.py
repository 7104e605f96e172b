"""The site is built without a warning, needs nothing from elsewhere and has every public name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedaccord

ROOT = Path(__file__).parents[1]


def test_the_reference_has_every_public_name():
    named = re.findall(r"^::: fedaccord\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(fedaccord.__all__)


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text() for path in tmp_path.glob("*.html")}
    assert {"index.html", "own_data.html", "federation.html", "add_method.html", "settings.html"} <= pages.keys()
    for name, text in pages.items():
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?([^\" >]+)", text)
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], name
    assert "any torch.nn.Module; it is copied" in pages["api.html"]
