"""How many examples each client may claim: a count is a weight in the mean, and no client may raise its own."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.files import read_json, write_durably

MAX_EXAMPLES = 10**9
"""The most examples that any client may claim; a larger claim would let it outvote all others."""
SIZES = "sizes.json"
"""The file in the run folder of a real federation: client -> its registered number of examples."""


class Sizes:
    """The registered numbers of examples. A client is registered with its first claim; later it may claim less.

    `stated`: the numbers that an operator gives, or a simulation knows; they count instead of any claim.
    """

    def __init__(self, stated: Mapping[int, int] | None = None):
        self.known = dict(stated or {})
        self.file: Path | None = None

    def limit(self, client: int) -> int:
        """Return the most examples that this client may claim."""
        return self.known.get(client, MAX_EXAMPLES)

    def register(self, client: int, examples: int) -> None:
        """Register a client's claim, unless the client is registered already."""
        if client not in self.known and 1 <= examples <= MAX_EXAMPLES:
            self.known[client] = examples
            self.write()

    def keep_in(self, file: Path) -> None:
        """Keep the sizes in a file from now on, with those that it has already, so that a resumed run knows them."""
        self.file, self.known = file, {**read_sizes(file), **self.known}
        self.write()

    def write(self) -> None:
        """Write the sizes to their file, if there is one; they are on disk when this returns."""
        if self.file is not None:
            write_durably(self.file, json.dumps({str(each): n for each, n in sorted(self.known.items())}).encode())


def read_sizes(file: Path) -> dict[int, int]:
    """Return the sizes in a file, none if it is missing; raise RunError if it is damaged."""
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
    """Return the sizes that an operator types as CLIENT=N; raise SettingsError for any other word."""
    found = {}
    for word in words:
        client, _, examples = word.partition("=")
        if not (client.isascii() and client.isdigit() and examples.isascii() and examples.isdigit() and int(examples)):
            raise SettingsError(f"--examples {word}: expected CLIENT=N, such as 3=1200")
        found[int(client)] = int(examples)
    return found
