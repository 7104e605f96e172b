"""Which methods there are. A name is one or more parts, joined by +: FA+RM+AH. This file alone takes it apart."""

from pathlib import Path

from fedaccord.core.errors import SettingsError
from fedaccord.core.modules import load_variable
from fedaccord.core.protocols import Method, Part
from fedaccord.methods.adaptive import AdaptiveHyper
from fedaccord.methods.fedavg import FedAvg
from fedaccord.methods.fedopt import FedAdam, FedAvgM, FedYogi
from fedaccord.methods.fedprox import FedProx
from fedaccord.methods.matching.part import RepresentationMatching
from fedaccord.methods.scaffold import Scaffold

PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        FedAvg(),
        FedProx(),
        RepresentationMatching(),
        AdaptiveHyper(),
        Scaffold(),
        FedAvgM(),
        FedAdam(),
        FedYogi(),
    )
}

METHODS = ("FA", "FA+WD", "FA+RM", "FA+AH", "FA+RM+AH", "SCAFFOLD", "FedAvgM", "FedAdam", "FedYogi")
"""The combinations that are listed; others that make sense work too, such as SCAFFOLD+AH."""


RENAMED = {"rm_store": "store"}
"""What settings were called in version 0.1."""


def find(name: str) -> Method:
    """A method by its name, or by file.py:variable."""
    file, colon, variable = name.rpartition(":")
    if colon and file.endswith(".py"):
        return as_method(load_variable(Path(file), variable, (Method, Part), "a fedaccord Method or Part"))
    words = name.split("+")
    for word in words:
        if word not in PARTS:
            raise SettingsError(
                f"method = {name!r}: there is no {word!r}; methods are {', '.join(METHODS)}, parts that may be joined "
                f"by + are {', '.join(PARTS)}; or file.py:name"
            )
    if len(set(words)) < len(words):
        raise SettingsError(f"method = {name!r}: a part is named twice")
    return Method(name, tuple(PARTS[word] for word in words))


def as_method(given: "str | Method | Part") -> Method:
    """A name, a method or a single part, as a method."""
    if isinstance(given, str):
        return find(given)
    return Method(given.name, (given,)) if isinstance(given, Part) else given
