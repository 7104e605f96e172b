"""The named data sets: how each is loaded, fetched and checked."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedaccord.core.errors import DataError, SettingsError
from fedaccord.data import cifar10, digits, fashion_mnist, mnist, shakespeare, sources, speech_commands, tabular
from fedaccord.data.sets import DataSet
from fedaccord.data.sources import Source


@dataclass(frozen=True)
class Entry:
    about: str
    load: Callable[[], DataSet]
    source: Source | None  # None: nothing to fetch


CATALOG = {
    "digits": Entry("1,797 handwritten digits, 8x8, inside scikit-learn", digits.load, None),
    "mnist": Entry("60,000 + 10,000 handwritten digits, 28x28", mnist.load, mnist.SOURCE),
    "fashion_mnist": Entry("60,000 + 10,000 clothes, 28x28", fashion_mnist.load, fashion_mnist.SOURCE),
    "cifar10": Entry("50,000 + 10,000 colour pictures, 32x32", cifar10.load, cifar10.SOURCE),
    "speech_commands": Entry(
        "18,538 + 2,567 spoken keywords, 32x32 spectrograms", speech_commands.load, speech_commands.SOURCE
    ),
    "shakespeare": Entry("38,001 + 5,517 pieces of 80 characters, 715 roles", shakespeare.load, shakespeare.SOURCE),
    "diabetes": Entry("442 patients, 10 measurements, inside scikit-learn", tabular.diabetes, None),
    "breast_cancer": Entry("569 tumours, 30 measurements, inside scikit-learn", tabular.breast_cancer, None),
}


ABSENT = "not here yet"
"""What `where` says of a data set that is not on this machine."""


def entry(name: str) -> Entry:
    if name not in CATALOG:
        raise SettingsError(f"unknown data set '{name}': expected one of {', '.join(CATALOG)}")
    return CATALOG[name]


def where(name: str) -> str:
    """Return, in one phrase, where a data set is on this machine."""
    source = entry(name).source
    if source is None:
        return "built in"
    found = sources.where(source)
    if found is None and name == "speech_commands" and speech_commands.derived_file().exists():
        found = speech_commands.derived_file().parent
    return ABSENT if found is None else str(found)


def fetch(name: str, wavs: Path | None = None) -> str:
    """Make sure that a data set is on this machine, and return where it is."""
    source = entry(name).source
    if wavs is not None and name != "speech_commands":
        raise SettingsError("--from makes features from recordings: it goes with speech_commands only")
    if source is None:
        return "built in"
    if name == "speech_commands":
        return str(speech_commands.fetch(wavs)) if wavs or where(name) == ABSENT else where(name)
    try:
        if sources.find(source):
            return str(sources.where(source))
    except DataError as error:
        if sources.elsewhere(source):  # it is looked at first, and is not ours to mend
            raise DataError(f"{error}; or remove it, and fetch {name} again") from None
    return str(sources.fetch(source))


def verify(name: str) -> list[str]:
    """Check every byte of a data set, then parse it; return a line for each file and one for the whole.

    Raises DataError at the first fault.
    """
    source = entry(name).source
    if where(name) == ABSENT:
        raise DataError(f"{name}: not on this machine; `fedaccord data fetch {name}` gets it")
    files = (sources.find(source) if source else None) or {}
    lines = [f"{file}: {len(data):,} bytes, SHA-256 as pinned" for file, data in files.items()]
    data = entry(name).load()
    shape = "x".join(map(str, data.train.inputs.shape[1:]))
    whole = f"{name}: {len(data.train):,} + {len(data.test):,} examples of {shape}, {len(data.classes)} classes"
    return [*lines, whole]
