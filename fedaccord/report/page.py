"""The report page: one HTML file with everything in it, made from run folders alone."""

import base64
import functools
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedaccord.core.files import write_durably
from fedaccord.report.condense import page_data
from fedaccord.report.words import PYTHON

LIBRARY = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
OURS = ("dom", "state", "charts", "results", "tuner", "clients", "live")
"""Our files, joined into one script in this order: each defines what later ones use."""


def page(runs: Sequence[Path], live: bool = False) -> str:
    """Return the whole page; a live one asks its own server for new rounds (see watch.py)."""
    library, script = scripts()
    data = page_data(runs)
    return Template(part("web/page.html")).substitute(
        policy=html.escape(content_policy(live)),
        title=html.escape(title_of(data)),
        style=part("web/page.css"),
        live="yes" if live else "no",
        data=embedded(data),
        library=library,
        script=script,
    )


def write_page(runs: Sequence[Path], path: Path) -> None:
    """Write the page to a file that is whole or absent."""
    write_durably(path, page(runs).encode())


def content_policy(live: bool) -> str:
    """Return the page's content security policy: run these two scripts and no others, and connect to nobody.

    A live page may connect to the server that it came from. Inline styles are allowed, because the charts have them.
    """
    allowed = " ".join(f"'sha256-{digest}'" for digest in map(sha256, scripts()))
    server = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {server}; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def scripts() -> tuple[str, str]:
    """Return the library's script, which is Observable Plot on d3, and ours."""
    library = "\n".join(map(part, LIBRARY))
    ours = "\n".join(part(f"web/{name}.js") for name in OURS)
    return library, f'"use strict";\n(() => {{\n{ours}}})();'


@functools.cache
def sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def part(name: str) -> str:
    return (resources.files("fedaccord.report") / name).read_text(encoding="utf-8")


def title_of(data: dict[str, Any]) -> str:
    """Return the page's title: task and method of one run; of several, how many and their tasks: '3 runs: digits'."""
    runs = data["runs"]
    tasks = list(dict.fromkeys(run["name"] if run["task"] == PYTHON else run["task"] for run in runs))
    if len(runs) == 1:
        return f"{tasks[0]}, {runs[0]['method']}"
    return f"{len(runs)} runs: {', '.join(tasks)}"


def embedded(data: dict[str, Any]) -> str:
    """Return the data as JSON that ends no script element, whatever a run is called."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
