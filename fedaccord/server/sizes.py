"""How many examples each client may claim: a count is a weight in the mean, and nobody shall raise his own."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.files import read_json, write_durably

MAX_EXAMPLES = 10**9
"""No single client holds more than this; a larger claim would let it outvote all others."""
SIZES = "sizes.json"
"""In the run folder of a real federation: client -> its registered number of examples."""


class Sizes:
    """The registered sizes. Whoever is not stated is registered by what it says first; later it may say less.

    `stated`: what an operator says, or a simulation knows; it counts in any case.
    """

    def __init__(self, stated: Mapping[int, int] | None = None):
        self.known = dict(stated or {})
        self.file: Path | None = None

    def limit(self, client: int) -> int:
        """The most examples that this client may claim."""
        return self.known.get(client, MAX_EXAMPLES)

    def register(self, client: int, examples: int) -> None:
        """Note what a client says; only its first word counts."""
        if client not in self.known and 1 <= examples <= MAX_EXAMPLES:
            self.known[client] = examples
            self.write()

    def keep_in(self, file: Path) -> None:
        """Keep all of it in a file from now on, with what is there already: a run that is resumed knows it again."""
        self.file, self.known = file, {**read_sizes(file), **self.known}
        self.write()

    def write(self) -> None:
        """On disk when this returns, if there is a file for it."""
        if self.file is not None:
            write_durably(self.file, json.dumps({str(each): n for each, n in sorted(self.known.items())}).encode())


def read_sizes(file: Path) -> dict[int, int]:
    """What the file has; nothing if there is none."""
    try:
        found = {int(client): int(examples) for client, examples in read_json(file).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise RunError(
            f"{file}: damaged, so nobody knows how many examples a client may claim ({error}); delete it and state "
            "them: federation server --examples CLIENT=N"
        ) from None
    return found


def parse_sizes(words: Sequence[str]) -> dict[int, int]:
    """CLIENT=N, as an operator types it."""
    found = {}
    for word in words:
        client, _, examples = word.partition("=")
        if not (client.isascii() and client.isdigit() and examples.isascii() and examples.isdigit() and int(examples)):
            raise SettingsError(f"--examples {word}: expected CLIENT=N, such as 3=1200")
        found[int(client)] = int(examples)
    return found
