"""What the source never does: unpickle, run text as code, unpack archives to disk, open connections.

By the syntax tree, so that a comment cannot trip it and an alias cannot hide it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fedaccord"
FILES = sorted(PACKAGE.rglob("*.py"))

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "codeop"}
"""Which turn bytes into code or objects of any kind."""
CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load", "numpy.fromfile", "pandas.read_pickle",
    "tarfile.open", "shutil.unpack_archive", "os.system", "os.popen",
}  # fmt: skip
NETWORK = {
    "socket", "ssl", "http.client", "urllib.request", "urllib.error", "requests", "httpx", "aiohttp", "ftplib",
    "smtplib", "telnetlib", "xmlrpc", "http.server", "socketserver", "asyncio",
}  # fmt: skip
METHODS = {"extractall", "extract", "extractfile", "unpack_archive"}
ALLOWED = {
    ("engines/pool.py", "pickle"),  # would an exception survive a pipe? dumps only
    *(("data/sources.py", name) for name in ("http.client", "urllib.request", "urllib.error")),  # data fetch
    ("flower/adapter.py", "httpx"),  # its exceptions, which Flower lets through
    ("engines/ray.py", "socket"),  # looks for the cluster that --address names
    ("flower/superlink.py", "socket"), ("flower/local.py", "socket"),  # a free port, and whether it answers
    ("flower/expiry.py", "ssl"),  # looks at the certificate of the SuperLink that is named
    ("report/watch.py", "http.server"), ("runtime/monitor.py", "http.server"),  # answer on loopback
}  # fmt: skip


def names_in(tree: ast.AST) -> dict[str, str]:
    """What each name of a module stands for: `import numpy as np` -> np: numpy; `from a import b as c` -> c: a.b."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):  # load = torch.load
            for target in node.targets:
                if isinstance(target, ast.Name) and (meant := dotted(node.value, found)):
                    found.setdefault(target.id, meant)
    return found


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """The full name of what an expression calls, as far as it is one: np.load -> numpy.load."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def faults_in(source: str) -> Iterator[str]:
    """What a source does of all this; the name of a module, or of a call with what is wrong with it."""
    tree = ast.parse(source)
    names = names_in(tree)
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            if module.partition(".")[0] in MODULES or module in NETWORK:
                yield module
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            full = dotted(node, names)
            if full in CALLS or full.removeprefix("builtins.") in CALLS:
                yield full
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                yield node.attr
        if isinstance(node, ast.Call):
            full = dotted(node.func, names)
            if full in ("importlib.import_module", "getattr") and any(
                isinstance(each, ast.Constant) and each.value in MODULES | CALLS for each in node.args
            ):
                yield full
            if full in ("numpy.load", "numpy.lib.format.read_array", "numpy.lib.format.open_memmap"):
                said = [each.value for each in node.keywords if each.arg == "allow_pickle"]
                if len(said) != 1 or not (isinstance(said[0], ast.Constant) and said[0].value is False):
                    yield f"{full} without allow_pickle=False"
            for each in node.keywords:
                if each.arg in ("allow_pickle", "weights_only"):
                    safe = each.arg == "weights_only"
                    if not (isinstance(each.value, ast.Constant) and each.value.value is safe):
                        yield f"{each.arg} is not {safe}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_the_source_keeps_its_promises(file):
    here = file.relative_to(PACKAGE).as_posix()
    assert {each for each in faults_in(file.read_text()) if (here, each) not in ALLOWED} == set()


def test_every_exception_is_still_needed():
    done = {(file.relative_to(PACKAGE).as_posix(), each) for file in FILES for each in faults_in(file.read_text())}
    assert done >= ALLOWED


def test_the_pool_only_writes_pickles():
    """Its workers are its own forks; what it reads comes from them by multiprocessing."""
    tree = ast.parse((PACKAGE / "engines/pool.py").read_text())
    owned = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    used = {node.attr for node in owned if node.value.id == "pickle"}
    assert used == {"dumps", "UnpicklingError"}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads as read",
        "import yaml as y\ny.load(x)",
        "import torch as t\nt.load(f)",
        "from torch import load\nload(f)",
        "import torch\nread = torch.load\nread(f)",
        "import torch\nmap(torch.load, files)",
        "import torch\ntorch.load(f, weights_only=True)",
        "f(x, weights_only=False)",
        "f(x, weights_only=flag)",
        "import numpy as np\nnp.load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "from numpy.lib import format as npy\nnpy.read_array(f)",
        "eval('1')",
        "import builtins\nbuiltins.exec('1')",
        "tar.extractall(p)",
        "import tarfile\ntarfile.open(f)",
        "import importlib\nimportlib.import_module('pickle')",
        "import requests",
        "from urllib import request\nfrom urllib.request import urlopen",
        "import marshal, shelve",
    ],
)
def test_it_would_be_seen(source):
    assert list(faults_in(source))


@pytest.mark.parametrize("source", ["# pickle\n'eval(1)'", "model.eval()", "f(x, weights_only=True)", "x.loads()"])
def test_what_is_harmless_is_left_alone(source):
    assert not list(faults_in(source))
