"""Who counts in a run, who does not, since when and why: read off the round logs, for every view and for the end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedaccord.core.records import RoundLog

NAMED = 5
"""More clients than this are counted in a sentence, not named."""
NO_DATA = "it has no data"
NOBODY = 3
"""Rounds in a row without a single usable update, nor half the rate, after which a run ends with an error."""


@dataclass(frozen=True)
class Absence:
    """Since which round a client has not counted, and the newest reason."""

    since: int
    why: str


@dataclass
class Attendance:
    """Folds one round after the other; a client that was not drawn in a round changes nothing."""

    counted: set[int] = field(default_factory=set)  # clients whose update was used at least once
    absent: dict[int, Absence] = field(default_factory=dict)
    empty_rounds: int = 0  # in a row, in which clients were refused and nobody counted; anew where the rate falls
    rate: float = 0.0  # of the last round, where it is tuned

    def add(self, log: RoundLog) -> list[str]:
        """Take in a round; return a sentence for every change."""
        reasons = {entry["client"]: entry["why"] for entry in log.refused}
        rate = log.hyper.get("lr", 0.0)
        if rate < self.rate / 2:  # a tuner that brings it down may yet find one at which nobody blows up
            self.empty_rounds = 0
        self.rate = rate
        return self.note(log.round, log.cohort, {int(client) for client in log.clients}, reasons)

    def note(self, round: int, cohort: Iterable[int], present: set[int], reasons: Mapping[int, str]) -> list[str]:
        """The same from its parts: who was asked, who counted, and why others did not."""
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
        """A sentence for each reason why clients of the cohorts have never counted."""
        missing = {client: gone.why for client, gone in self.absent.items() if client not in self.counted}
        return [f"{names(group)} never counted: {why}" for why, group in by_reason(missing)]

    def sentences(self) -> list[str]:
        """All who do not count at the end: those who never did, then the others with the round they were lost in."""
        gone = {
            client: f"since round {gone.since}: {gone.why}"
            for client, gone in self.absent.items()
            if client in self.counted
        }
        return self.never() + [f"{names(group)} did not count {when}" for when, group in by_reason(gone)]

    def now(self) -> str:
        """The absent clients in a few words, or nothing."""
        return f"without {names(sorted(self.absent))}" if self.absent else ""


def attendance(logs: Iterable[RoundLog]) -> Attendance:
    """Of a whole run so far."""
    found = Attendance()
    for log in logs:
        found.add(log)
    return found


def by_reason(clients: dict[int, str]) -> list[tuple[str, list[int]]]:
    """Clients with the same reason share a sentence."""
    groups: dict[str, list[int]] = {}
    for client in sorted(clients):
        groups.setdefault(clients[client], []).append(client)
    return list(groups.items())


def names(clients: Sequence[int]) -> str:
    """'client 3', 'clients 3, 4 and 7', '120 clients (0, 1, 2, 3, 4 ...)'."""
    if len(clients) == 1:
        return f"client {clients[0]}"
    if len(clients) > NAMED:
        return f"{len(clients):,} clients ({', '.join(map(str, clients[:NAMED]))} ...)"
    return f"clients {', '.join(map(str, clients[:-1]))} and {clients[-1]}"
