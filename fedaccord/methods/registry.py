"""The methods that there are. A name is one or more parts joined by +: FA+RM+AH. Only this file takes it apart."""

from importlib import import_module
from pathlib import Path

from fedaccord.core.errors import SettingsError
from fedaccord.core.modules import described, load_variable
from fedaccord.core.protocols import Method, Part

LISTED = (
    "fedavg.FedAvg",
    "fedprox.FedProx",
    "matching.part.RepresentationMatching",
    "adaptive.AdaptiveHyper",
    "scaffold.Scaffold",
    "fedopt.FedAvgM",
    "fedopt.FedAdam",
    "fedopt.FedYogi",
    "fedexp.FedExP",
    "fednova.FedNova",
    "feddyn.FedDyn",
    "moon.Moon",
    "fedntd.FedNTD",
    "deltasgd.DeltaSGD",
    "fixedhead.FixedHead",
    "calibration.FedLC",
    "calibration.FedRS",
    "fedex.FedEx",
    "fathom.Fathom",
)
"""Each part's file and class in this package: to add one, add a line here."""


def listed(place: str) -> Part:
    file, _, name = place.rpartition(".")
    made: Part = getattr(import_module(f"fedaccord.methods.{file}"), name)()
    return made


PARTS: dict[str, Part] = {part.name: part for part in map(listed, LISTED)}

PAPER = ("FA", "FA+WD", "FA+RM", "FA+AH", "FA+RM+AH")
METHODS = (*PAPER, *(name for name in PARTS if not any(name in method.split("+") for method in PAPER)))
"""The combinations that are listed; others that make sense work too, such as SCAFFOLD+AH."""


ELSEWHERE = {"fedavg": "FA", "fedprox": "FA+WD"}
"""Names that methods have elsewhere -> their names here."""

RENAMED = {"rm_store": "store"}
"""Names that settings had in version 0.1 -> their names now."""


def find(name: str) -> Method:
    """Return the method with this name: parts joined by +, each known here or given as file.py:variable."""
    found = [from_file(word) if is_file(word) else Method(word, (known(word, name),)) for word in words_of(name)]
    parts = tuple(part for method in found for part in method.parts)
    if len({part.name for part in parts}) < len(parts):
        raise SettingsError(f"method = {name!r}: a part is named twice")
    return Method("+".join(method.name for method in found), parts)


def words_of(name: str) -> list[str]:
    """Split a name into the parts that it joins; the path of a file may have a + in it."""
    found: list[str] = []
    for word in name.split("+"):
        found.append(word)
        for first in range(len(found) - 1):  # the longest path that there is wins
            path = "+".join(found[first:])
            if is_file(path) and Path(path.rpartition(":")[0]).exists():
                found[first:] = [path]
                break
    return found


def is_file(word: str) -> bool:
    file, _, variable = word.rpartition(":")
    return file.endswith(".py") and variable.isidentifier()


def from_file(word: str) -> Method:
    file, _, variable = word.rpartition(":")
    return as_method(load_variable(Path(file), variable, (Method, Part), "a fedaccord Method or Part"))


def known(word: str, name: str) -> Part:
    if word.lower() in ELSEWHERE:
        raise SettingsError(f"method = {name!r}: {word} is called {ELSEWHERE[word.lower()]} here")
    if word not in PARTS:
        raise SettingsError(
            f"method = {name!r}: there is no {word!r}; methods are {', '.join(METHODS)}, parts that may be joined "
            f"by + are {', '.join(PARTS)}; or file.py:name"
        )
    return PARTS[word]


def as_method(given: "str | Method | Part") -> Method:
    """Return a name, a method or a single part as a method."""
    if isinstance(given, str):
        return find(given)
    if not isinstance(given, Method | Part):
        made = f"; an object of it: {given.__name__}()" if isinstance(given, type) and issubclass(given, Part) else ""
        raise SettingsError(f"method: expected a name, a Method or a Part, not {described(given)}{made}")
    return Method(given.name, (given,)) if isinstance(given, Part) else given
