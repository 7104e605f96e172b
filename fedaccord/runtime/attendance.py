"""Which clients count in a run and which do not, since when and why: read off the round logs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedaccord.core.records import RoundLog

NAMED = 5
"""A sentence names at most this many clients; of more it gives the number, and names the first."""
NO_DATA = "it has no data"
MOST_EMPTY = 3
"""A run ends with an error after so many rounds in a row without a usable update, or a rate that a tuner halved."""


@dataclass(frozen=True)
class Absence:
    """The round since which a client has not counted, and the newest reason."""

    since: int
    why: str


@dataclass
class Attendance:
    """A record of who counts, which takes in one round after the other; it ignores clients outside a round's cohort."""

    counted: set[int] = field(default_factory=set)  # clients whose update was used at least once
    absent: dict[int, Absence] = field(default_factory=dict)
    empty_rounds: int = 0  # in a row, in which clients were refused and nobody counted; 0 after a tuner halved the rate
    rate: float = 0.0  # the learning rate of the last round

    def add(self, log: RoundLog) -> list[str]:
        """Take in a round, and return a sentence for every change."""
        reasons = {entry["client"]: entry["why"] for entry in log.refused}
        rate = log.hyper.get("lr", 0.0)
        if log.policy and rate < self.rate / 2:  # a tuner that brings it down may yet find one that nobody blows up at
            self.empty_rounds = 0
        self.rate = rate
        return self.note(log.round, log.cohort, {int(client) for client in log.clients}, reasons)

    def note(self, round: int, cohort: Iterable[int], present: set[int], reasons: Mapping[int, str]) -> list[str]:
        """Take in who was asked in a round, who counted and why others did not; return a sentence for every change."""
        lost, back = {}, sorted(present & self.absent.keys())
        for client in cohort:
            if client not in present:
                why = reasons.get(client, NO_DATA)
                if client not in self.absent:
                    lost[client] = why
                since = self.absent[client].since if client in self.absent else round
                self.absent[client] = Absence(since, why)
        said = [
            f"{names(group)} {'does' if len(group) == 1 else 'do'} not count from round {round} on: {why}"
            for why, group in by_reason(lost)
        ]
        if back:
            said.append(f"{names(back)} {'counts' if len(back) == 1 else 'count'} again from round {round} on")
        for client in back:
            del self.absent[client]
        self.counted |= present
        self.empty_rounds = 0 if present else self.empty_rounds + bool(reasons)
        return said

    def never(self) -> list[str]:
        """Return a sentence for each reason why clients that were asked have never counted."""
        missing = {client: gone.why for client, gone in self.absent.items() if client not in self.counted}
        return [f"{names(group)} never counted: {why}" for why, group in by_reason(missing)]

    def sentences(self) -> list[str]:
        """Return sentences on all absent clients: those that never counted, then the others and since when."""
        gone = {
            client: f"since round {gone.since}: {gone.why}"
            for client, gone in self.absent.items()
            if client in self.counted
        }
        return self.never() + [f"{names(group)} did not count {when}" for when, group in by_reason(gone)]

    def now(self) -> str:
        """Name the absent clients in a few words; return an empty string if there are none."""
        return f"without {names(sorted(self.absent))}" if self.absent else ""


def attendance(logs: Iterable[RoundLog]) -> Attendance:
    """Return the record of who counts after all these rounds."""
    found = Attendance()
    for log in logs:
        found.add(log)
    return found


def by_reason(clients: dict[int, str]) -> list[tuple[str, list[int]]]:
    """Group the clients that have the same reason, so that they share a sentence."""
    groups: dict[str, list[int]] = {}
    for client in sorted(clients):
        groups.setdefault(clients[client], []).append(client)
    return list(groups.items())


def names(clients: Sequence[int]) -> str:
    """Name clients in a sentence: 'client 3', 'clients 3, 4 and 7', '120 clients (0, 1, 2, 3, 4 ...)'."""
    if len(clients) == 1:
        return f"client {clients[0]}"
    if len(clients) > NAMED:
        return f"{len(clients):,} clients ({', '.join(map(str, clients[:NAMED]))} ...)"
    return f"clients {', '.join(map(str, clients[:-1]))} and {clients[-1]}"
