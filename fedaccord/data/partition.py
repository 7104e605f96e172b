"""Splits of a data set among clients.

A split is one array, the owner of each example, so every example is used exactly once by construction. The draw
depends only on the seed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedaccord.core.errors import SplitError

Rng = np.random.Generator

DRAWS = 10_000
"""How often a split is drawn again, at most, to give every client `min_examples`."""


@dataclass(frozen=True)
class Split:
    """A way to divide data among clients, with the parameters of all the ways."""

    kind: str = "non-iid"
    clients: int = 10
    classes_per_client: int = 2
    alpha: float = 0.5
    shards_per_client: int = 2
    allow_empty: bool = False
    min_examples: int = 0


def partition(split: Split, labels: np.ndarray, rng: Rng, natural: np.ndarray | None = None) -> np.ndarray:
    """Return the owner (0 ... clients - 1) of each example; `natural` says who it came from, for the natural split."""
    if split.kind == "natural":
        if natural is None:
            raise SplitError("this data does not say whom each example came from; choose another split")
        return sized(split, grouped(natural, split.clients, rng))
    if split.kind not in KINDS:
        raise SplitError(f"unknown split '{split.kind}', expected one of {', '.join([*KINDS, 'natural'])}")
    if split.clients > len(labels) and not split.allow_empty:
        raise SplitError(
            f"{split.clients:,} clients but only {len(labels):,} examples: some clients would be empty "
            "(allow_empty permits that)"
        )
    owner = KINDS[split.kind](split, labels, rng)
    for _ in range(DRAWS if split.kind in UNEVEN else 0):
        if np.bincount(owner, minlength=split.clients).min() >= split.min_examples:
            break
        owner = KINDS[split.kind](split, labels, rng)
    owner = sized(split, owner)
    return owner if split.allow_empty else fill_empty(owner, split.clients, rng)


def sized(split: Split, owner: np.ndarray) -> np.ndarray:
    """Return the owners; raise SplitError if a client has fewer examples than the split promises."""
    least = int(np.bincount(owner, minlength=split.clients).min())
    if least < split.min_examples:
        drawn = f" in {DRAWS:,} draws; lower it, or raise alpha" if split.kind in UNEVEN else "; lower it"
        raise SplitError(
            f"min_examples = {split.min_examples}: split {split.kind} of {len(owner):,} examples among "
            f"{split.clients:,} clients leaves one with {least}{drawn}"
        )
    return owner


def grouped(natural: np.ndarray, clients: int, rng: Rng) -> np.ndarray:
    """Make each natural owner one client, in order; with fewer clients, deal whole owners to them at random.

    The clients' numbers of owners then differ by one at most.
    """
    owners, number = np.unique(natural, return_inverse=True)
    if clients >= len(owners):
        return number
    client: np.ndarray = rng.permutation(np.arange(len(owners)) % clients)[number]
    return client


def iid(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Assign examples at random, in client sizes equal to within one (the paper's iid split)."""
    return rng.permutation(np.arange(len(labels)) % split.clients)


def one_class(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Give each client one class (the paper's non-iid split); several clients of the same class share it evenly."""
    classes = np.unique(labels)
    if split.clients < len(classes):
        raise SplitError(
            f"one class per client needs a client for each of the {len(classes)} classes, got {split.clients} clients; "
            "use split 'classes' to give a client several"
        )
    return deal([[int(classes[c % len(classes)])] for c in range(split.clients)], labels, rng)


def k_classes(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Give each client k classes, dealt in random order so that every class is held about equally often."""
    classes, k = np.unique(labels), split.classes_per_client
    if not 1 <= k <= len(classes):
        raise SplitError(f"classes_per_client is {k}, expected 1 to {len(classes)}")
    if split.clients * k < len(classes):
        raise SplitError(f"{split.clients} clients with {k} classes each cannot hold all {len(classes)} classes")
    held: list[list[int]] = []
    pack: list[int] = []
    for _ in range(split.clients):
        own: list[int] = []
        while len(own) < k:
            choice = next((c for c in pack if c not in own), None)  # what it has already is left for the next one
            if choice is None:
                pack += rng.permutation(classes).tolist()
                continue
            pack.remove(choice)
            own.append(choice)
        held.append(own)
    return deal(held, labels, rng)


def random_classes(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Give each client k classes as NIID-Bench draws them: client i has class i, and k - 1 others at random.

    A class may thus have one holder or many, and clients differ in size too.
    """
    classes, k = np.unique(labels), split.classes_per_client
    if not 1 <= k <= len(classes):
        raise SplitError(f"classes_per_client is {k}, expected 1 to {len(classes)}")
    if split.clients < len(classes):
        raise SplitError(f"split = classes-random: needs a client for each of the {len(classes)} classes")
    held = []
    for client in range(split.clients):
        first = int(classes[client % len(classes)])
        held.append([first, *rng.permutation(classes[classes != first])[: k - 1].tolist()])
    return deal(held, labels, rng)


def deal(held: list[list[int]], labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Share each class's examples evenly among the clients that hold it."""
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        holders = np.array([client for client, classes in enumerate(held) if label in classes])
        index = rng.permutation(np.flatnonzero(labels == label))
        owner[index] = holders[np.arange(len(index)) % len(holders)]
    return owner


def dirichlet(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Share each class in proportions drawn from Dirichlet(alpha); the smaller alpha, the fewer holders."""
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        index = rng.permutation(np.flatnonzero(labels == label))
        owner[index] = by_shares(draw_shares(split, rng), len(index))
    return owner


def capped_dirichlet(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Share each class by Dirichlet(alpha), among those clients that have less than an even share of all data so far.

    This is how NIID-Bench does it.
    """
    owner = np.empty(len(labels), np.int64)
    sizes = np.zeros(split.clients, np.int64)
    for label in np.unique(labels):
        index = rng.permutation(np.flatnonzero(labels == label))
        below = sizes < len(labels) / split.clients
        shares = draw_shares(split, rng) * below
        owner[index] = by_shares(shares if shares.sum() > 0 else below, len(index))
        sizes += np.bincount(owner[index], minlength=split.clients)
    return owner


def shards(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Sort examples by class, cut them into equal shards and give each client a few at random (McMahan et al.)."""
    count = split.clients * split.shards_per_client
    if count > len(labels) and not split.allow_empty:
        raise SplitError(f"{count:,} shards but only {len(labels):,} examples")
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    holder = rng.permutation(np.arange(count) % split.clients)
    owner = np.empty(len(labels), np.int64)
    owner[order] = holder[np.arange(len(labels)) * count // len(labels)]
    return owner


def quantity(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Assign examples at random, with client sizes drawn from Dirichlet(alpha): alike in classes, unlike in size."""
    owner = by_shares(draw_shares(split, rng), len(labels))
    return rng.permutation(owner)


def by_target(split: Split, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Sort by target, equal targets in random order, and cut into equal parts: the most unlike that clients can be."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    owner = np.empty(len(labels), np.int64)
    owner[order] = np.arange(len(labels)) * split.clients // len(labels)
    return owner


def draw_shares(split: Split, rng: Rng) -> np.ndarray:
    if not 0 < split.alpha < 1e100:  # beyond that the draw overflows
        raise SplitError(f"alpha is {split.alpha}, expected a number above 0 and below 1e100")
    return rng.dirichlet(np.full(split.clients, split.alpha))


def by_shares(shares: np.ndarray, count: int) -> np.ndarray:
    """Return `count` owners in proportion to the shares, in client order."""
    ends = np.rint(np.cumsum(shares) / shares.sum() * count).astype(np.int64)
    return np.repeat(np.arange(len(shares)), np.diff(ends, prepend=0))


def fill_empty(owner: np.ndarray, clients: int, rng: Rng) -> np.ndarray:
    """Give each empty client one example of the client that has most at that moment."""
    counts = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(counts == 0)
    if len(empty) == 0:
        return owner
    shuffled = rng.permutation(len(owner))
    grouped = shuffled[np.argsort(owner[shuffled], kind="stable")]  # examples by owner
    left = np.repeat(np.cumsum(counts), counts) - np.arange(len(owner))  # within an owner n, n - 1, ... 1
    given = grouped[np.argsort(-left, kind="stable")[: len(empty)]]  # so an owner's last one (left = 1) is never given
    owner = owner.copy()
    owner[given] = empty
    return owner


KINDS: dict[str, Callable[[Split, np.ndarray, Rng], np.ndarray]] = {
    "iid": iid,
    "non-iid": one_class,
    "classes": k_classes,
    "classes-random": random_classes,
    "dirichlet": dirichlet,
    "dirichlet-capped": capped_dirichlet,
    "shards": shards,
    "quantity": quantity,
    "sorted": by_target,
}

UNEVEN = ("dirichlet", "dirichlet-capped", "quantity")
"""Splits that may give a client very few examples, so that drawing again can help."""


def hold_out(labels: np.ndarray, per_class: int, rng: Rng) -> np.ndarray:
    """Return the indices of the server's validation set: `per_class` examples of each class, at random."""
    chosen = []
    for label in np.unique(labels):
        index = np.flatnonzero(labels == label)
        if per_class >= len(index):
            raise SplitError(
                f"class {label} has {len(index)} training examples, the server's set would take {per_class}; "
                "lower validation_per_class"
            )
        chosen.append(rng.permutation(index)[:per_class])
    return np.sort(np.concatenate(chosen))


def counts(owner: np.ndarray, labels: np.ndarray, clients: int, classes: int) -> np.ndarray:
    """Count the examples by client and class, as an array (clients, classes)."""
    return np.bincount(owner * classes + labels, minlength=clients * classes).reshape(clients, classes)
