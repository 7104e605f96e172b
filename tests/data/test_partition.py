"""Who holds what: properties of every way to split, on small random labels and on sixty thousand."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedaccord.core.errors import SplitError
from fedaccord.data.partition import KINDS, Split, by_shares, counts, fill_empty, hold_out, partition

pytestmark = pytest.mark.anywhere

ALL_KINDS = [*KINDS, "natural"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(classes: int, each: int) -> np.ndarray:
    """Sorted by class: a split that does not shuffle shows."""
    return np.repeat(np.arange(classes), each)


def table(split: Split, labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """(clients, classes)"""
    return counts(partition(split, labels, rng(seed)), labels, split.clients, int(labels.max()) + 1)


labels_of = hnp.arrays(np.int64, st.integers(1, 120), elements=st.integers(0, 5))
seeds = st.integers(0, 2**32)


@st.composite
def splits(draw: st.DrawFn, kinds: list[str] = ALL_KINDS) -> tuple[Split, np.ndarray, np.ndarray]:
    """A split, labels that it can divide, and a natural owner for each."""
    labels = draw(labels_of)
    classes = len(np.unique(labels))
    kind = draw(st.sampled_from(kinds))
    per_client = draw(st.integers(1, classes))
    least = {"non-iid": classes, "classes-random": classes, "classes": -(-classes // per_client)}.get(kind, 1)
    clients = draw(st.integers(least, len(labels)))
    split = Split(
        kind,
        clients,
        per_client,
        draw(st.floats(1e-3, 1e3)),
        draw(st.integers(1, len(labels) // clients)),
        allow_empty=draw(st.booleans()),
    )
    return split, labels, draw(hnp.arrays(np.int64, len(labels), elements=st.integers(-3, 40)))


# --- what holds for every kind ---


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_example_has_one_owner_and_no_client_is_empty(kind):
    @given(splits([kind]), seeds)
    def check(drawn, seed):
        split, labels, natural = drawn
        owner = partition(split, labels, rng(seed), natural)
        clients = min(split.clients, len(set(natural.tolist()))) if kind == "natural" else split.clients
        assert owner.shape == labels.shape
        assert np.issubdtype(owner.dtype, np.integer)
        assert owner.min() >= 0
        assert owner.max() < clients
        if kind == "natural" or not split.allow_empty:
            assert np.bincount(owner, minlength=clients).min() >= 1

    check()


@given(splits(), seeds)
def test_the_same_seed_gives_the_same_split_and_the_labels_are_left_alone(drawn, seed):
    split, labels, natural = drawn
    before = labels.copy()
    first, second = (partition(split, labels, rng(seed), natural) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(labels, before)


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_split(kind):
    """Twenty clients: with one client for each class, one class a client leaves nothing to chance."""
    labels = balanced(10, 100)
    assert not np.array_equal(*(partition(Split(kind, 20), labels, rng(seed)) for seed in (1, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_clients_share_sixty_thousand_examples(kind):
    labels = rng().integers(0, 10, 60_000)
    owner = partition(Split(kind, 10_000), labels, rng())
    assert np.bincount(owner, minlength=10_000).min() >= 1
    assert owner.max() == 9_999


@pytest.mark.parametrize("kind", KINDS)
def test_with_allow_empty_there_may_be_more_clients_than_examples(kind):
    owner = partition(Split(kind, 50, allow_empty=True), balanced(10, 2), rng())
    assert owner.shape == (20,)
    assert owner.max() < 50


@pytest.mark.parametrize(
    ("split", "complaint"),
    [
        (Split("non-iid", 9), "a client for each of the 10 classes, got 9 clients"),
        *((Split(kind, 101), "101 clients but only 100 examples.*allow_empty") for kind in KINDS),
        (Split("classes", 10, classes_per_client=0), "classes_per_client is 0, expected 1 to 10"),
        (Split("classes", 10, classes_per_client=11), "classes_per_client is 11, expected 1 to 10"),
        (Split("classes", 4, classes_per_client=2), "4 clients with 2 classes each cannot hold all 10 classes"),
        (Split("shards", 40, shards_per_client=3), "120 shards but only 100 examples"),
        (Split("natural"), "does not say whom each example came from"),
        (Split("no-such"), "unknown split 'no-such', expected one of iid, .*, natural"),
        *(
            (Split(kind, alpha=alpha), f"alpha is {alpha}, expected a number above 0")
            for kind in ("dirichlet", "quantity")
            for alpha in (0.0, -1.0, float("inf"), float("nan"))
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Split) else "",
)
def test_a_split_that_the_data_does_not_allow_is_refused(split, complaint):
    with pytest.raises(SplitError, match=complaint):
        partition(split, balanced(10, 10), rng())


# --- iid ---


@given(splits(["iid"]), seeds)
def test_iid_sizes_are_equal_to_within_one(drawn, seed):
    split, labels, _ = drawn
    sizes = np.bincount(partition(split, labels, rng(seed)), minlength=split.clients)
    assert sizes.max() - sizes.min() <= 1


def test_iid_clients_hold_all_classes_alike():
    """A cell is hypergeometric: mean 100, variance below 1000 * 0.1 * 0.9 = 90; five deviations are 47."""
    assert np.abs(table(Split("iid", 10), balanced(10, 1000)) - 100).max() <= 47


# --- one class a client ---


@given(splits(["non-iid"]), seeds)
def test_non_iid_clients_hold_one_class(drawn, seed):
    split, labels, _ = drawn
    held = (table(split, labels, seed) > 0).sum(axis=1)
    assert (held <= 1 if split.allow_empty else held == 1).all()


@pytest.mark.parametrize("clients", [10, 20, 23])
def test_non_iid_shares_a_class_evenly_among_its_holders(clients):
    """With 23 clients, classes 0 to 2 have three holders and the others two: 120 / 3 = 40, 120 / 2 = 60."""
    got = table(Split("non-iid", clients), balanced(10, 120))
    expected = np.zeros((clients, 10), int)
    for client in range(clients):
        holders = clients // 10 + (client % 10 < clients % 10)
        expected[client, client % 10] = 120 // holders
    np.testing.assert_array_equal(got, expected)


# --- k classes a client ---


@given(splits(["classes"]), seeds)
def test_clients_hold_at_most_k_classes(drawn, seed):
    split, labels, _ = drawn
    held = (table(split, labels, seed) > 0).sum(axis=1)
    assert held.max() <= split.classes_per_client


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 6), seeds)
def test_clients_hold_exactly_k_classes_where_there_are_examples_enough(clients, classes, k, seed):
    """As many examples of each class as clients: whoever holds the class gets one at least."""
    assume(k <= classes <= clients * k)
    got = table(Split("classes", clients, k), balanced(classes, clients), seed)
    assert ((got > 0).sum(axis=1) == k).all()
    holders = (got > 0).sum(axis=0)
    assert holders.min() >= 1
    assert holders.max() - holders.min() <= 1  # "about equally often"


# --- Dirichlet ---


def concentration(shares: np.ndarray) -> np.ndarray:
    """The sum of squared shares of each row: 1 if one has all, 1/K if all have the same."""
    return (shares**2).sum(axis=1)


def assert_like_dirichlet(shares: np.ndarray, alpha: float, total: int) -> None:
    """For Dirichlet(alpha, ..., alpha) of K parts, E[sum p^2] = (alpha + 1) / (K alpha + 1).

    The mean over the rows may be off by five standard errors, and by what rounding to whole examples does: a share
    moves by at most 1 / total, so the sum of squares by at most 2 / total + K / total^2.
    """
    rows, parts = shares.shape
    got = concentration(shares)
    expected = (alpha + 1) / (parts * alpha + 1)
    allowed = 5 * got.std() / np.sqrt(rows) + 2 / total + parts / total**2
    assert abs(got.mean() - expected) <= allowed


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 1.0, 10.0])
def test_dirichlet_is_as_concentrated_as_its_alpha_says(alpha):
    """Three hundred classes are three hundred draws."""
    got = table(Split("dirichlet", 10, alpha=alpha, allow_empty=True), balanced(300, 500))
    assert_like_dirichlet(got.T / 500, alpha, 500)


def test_dirichlet_with_a_large_alpha_is_uniform():
    """A share's deviation is sqrt((1/K)(1 - 1/K) / (K alpha + 1)) = 9.5e-5 for K = 10, alpha = 1e6.

    Six of them are 0.57 of a class's 1,000 examples; the two roundings of an interval's ends add one at most.
    """
    got = table(Split("dirichlet", 10, alpha=1e6), balanced(10, 1000))
    assert np.abs(got - 100).max() <= 1.57


def test_dirichlet_with_a_small_alpha_gives_a_class_to_one_client():
    """E[sum p^2] = 1.0001 / 1.001 for alpha = 1e-4: nearly all of nearly every class is at one client."""
    got = table(Split("dirichlet", 10, alpha=1e-4, allow_empty=True), balanced(10, 1000))
    assert (np.sort(got, axis=0)[-1] > 990).sum() >= 9


# --- shards ---


@given(splits(["shards"]), seeds)
def test_each_boundary_between_classes_adds_at_most_one_class_to_one_client(drawn, seed):
    """A shard without a boundary inside has one class, so all have clients * shards, plus one for each boundary."""
    split, labels, _ = drawn
    got = table(split, labels, seed)
    classes = len(np.unique(labels))
    assert (got > 0).sum() <= split.clients * split.shards_per_client + classes - 1
    # a shard is len/count examples, rounded down or up
    size = len(labels) // (split.clients * split.shards_per_client)
    sizes = got.sum(axis=1)
    assert sizes.min() >= size * split.shards_per_client
    assert sizes.max() <= (size + 1) * split.shards_per_client


@pytest.mark.parametrize("shards_per_client", [1, 2, 5])
def test_where_shards_fit_the_classes_a_client_has_one_class_a_shard(shards_per_client):
    """McMahan's setting in small: 20 clients, and the number of shards divides each class."""
    got = table(Split("shards", 20, shards_per_client=shards_per_client), balanced(10, 100))
    assert (got > 0).sum(axis=1).max() <= shards_per_client
    assert (got.sum(axis=1) == 50).all()


# --- quantity ---


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_quantity_sizes_are_as_uneven_as_alpha_says(alpha):
    """Two hundred seeds are two hundred draws."""
    labels = balanced(10, 100)
    split = Split("quantity", 8, alpha=alpha, allow_empty=True)
    sizes = np.stack([table(split, labels, seed).sum(axis=1) for seed in range(200)])
    assert_like_dirichlet(sizes / 1000, alpha, 1000)


def test_quantity_clients_hold_all_classes_alike():
    """A cell is hypergeometric with mean size/10 and variance below size * 0.09: five deviations are allowed."""
    got = table(Split("quantity", 10, alpha=0.5), balanced(10, 1000))
    sizes = got.sum(axis=1, keepdims=True)
    assert sizes.max() > 3 * sizes.min()  # uneven
    assert (np.abs(got - sizes / 10) <= 5 * np.sqrt(0.09 * sizes)).all()


# --- natural ---


@pytest.mark.parametrize(
    ("natural", "expected"),
    [([30, 10, 30, 20], [2, 0, 2, 1]), (["eve", "bob", "bob", "eve"], [1, 0, 0, 1])],
)
def test_natural_numbers_the_known_clients_in_order(natural, expected):
    assert partition(Split("natural"), np.zeros(4, int), rng(), np.array(natural)).tolist() == expected


@given(hnp.arrays(np.int64, st.integers(1, 120), elements=st.integers(-3, 40)), st.data(), seeds)
def test_fewer_clients_than_natural_owners_share_whole_owners_evenly(natural, data, seed):
    owners = len(set(natural.tolist()))
    clients = data.draw(st.integers(1, owners))
    got = partition(Split("natural", clients), np.zeros(len(natural), int), rng(seed), natural)
    pairs = set(zip(natural.tolist(), got.tolist(), strict=True))
    assert len(pairs) == owners  # nobody's examples are torn apart
    sizes = np.bincount([client for _, client in pairs], minlength=clients)
    assert len(sizes) == clients
    assert sizes.max() - sizes.min() <= 1


def test_natural_owners_are_grouped_by_the_seed():
    natural = np.arange(100)
    first, second = (partition(Split("natural", 20), np.zeros(100, int), rng(seed), natural) for seed in (1, 2))
    assert not np.array_equal(first, second)


# --- the parts they are made of ---


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 500))
def test_owners_by_shares_are_within_one_of_the_exact_number(shares, count):
    assume(sum(shares) > 1e-6)
    exact = np.array(shares) / sum(shares) * count
    got = np.bincount(by_shares(np.array(shares), count), minlength=len(shares))
    assert got.sum() == count
    assert np.abs(got - exact).max() <= 1 + 1e-9


def slow_fill(sizes: list[int]) -> list[int]:
    """As the docstring says: one by one, from whoever has most at that moment."""
    sizes = list(sizes)
    for client in [client for client, size in enumerate(sizes) if size == 0]:
        sizes[int(np.argmax(sizes))] -= 1
        sizes[client] = 1
    return sizes


@given(st.lists(st.just(0) | st.integers(0, 12), min_size=1, max_size=15), seeds)
@example([5, 4, 0, 0, 0], 0)  # 4 4, 4 3, 3 3: not all three of the first
def test_empty_clients_get_one_example_each_of_whoever_has_most_then(sizes, seed):
    assume(sum(sizes) >= len(sizes))
    owner = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    before = owner.copy()
    got = fill_empty(owner, len(sizes), rng(seed))
    assert sorted(np.bincount(got, minlength=len(sizes))) == sorted(slow_fill(sizes))
    assert (got != owner).sum() == sizes.count(0)  # nothing else moves
    np.testing.assert_array_equal(owner, before)


@given(st.integers(1, 6), st.integers(1, 5), st.data())
def test_counts_equal_a_loop(clients, classes, data):
    pairs = data.draw(st.lists(st.tuples(st.integers(0, clients - 1), st.integers(0, classes - 1)), max_size=40))
    expected = np.zeros((clients, classes), int)
    for client, label in pairs:
        expected[client, label] += 1
    owner, labels = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    np.testing.assert_array_equal(counts(owner, labels, clients, classes), expected)


# --- the server's own set ---


@given(labels_of, st.integers(0, 5), seeds)
def test_hold_out_takes_so_many_of_each_class_and_leaves_the_rest(labels, per_class, seed):
    sizes = np.bincount(labels)
    assume(sizes[sizes > 0].min() > per_class)
    held = hold_out(labels, per_class, rng(seed))
    assert (np.diff(held) > 0).all()  # in order, none twice
    np.testing.assert_array_equal(np.bincount(labels[held], minlength=len(sizes)), np.where(sizes > 0, per_class, 0))
    np.testing.assert_array_equal(held, hold_out(labels, per_class, rng(seed)))


def test_hold_out_depends_on_the_seed():
    labels = balanced(10, 100)
    assert not np.array_equal(hold_out(labels, 5, rng(1)), hold_out(labels, 5, rng(2)))


@pytest.mark.parametrize("per_class", [3, 4])
def test_hold_out_refuses_to_take_all_of_a_class(per_class):
    labels = np.array([0] * 10 + [7] * 3)
    with pytest.raises(SplitError, match=f"class 7 has 3 training examples, the server's set would take {per_class}"):
        hold_out(labels, per_class, rng())


# --- as NIID-Bench draws them ---


def test_random_classes_give_client_i_class_i_and_others_at_random():
    drawn = [table(Split("classes-random", 10, classes_per_client=2), balanced(10, 60), seed) for seed in range(20)]
    for got in drawn:
        assert ((got > 0).sum(axis=1) == 2).all()
        assert (np.diag(got) > 0).all()
        holders = (got > 0).sum(axis=0)
        for label in range(10):  # shared evenly among those who have it
            shares = got[got[:, label] > 0, label]
            assert shares.sum() == 60
            assert np.ptp(shares) <= 1
            assert len(shares) == holders[label]
    assert len({tuple((got > 0).sum(axis=0)) for got in drawn}) > 1  # a class has one holder or several


def test_a_capped_client_gets_no_further_class():
    """Going through the classes in order, as they were dealt: nobody who had an even share gets any of the next."""
    for seed in range(20):
        got = table(Split("dirichlet-capped", 10, alpha=0.5), balanced(10, 500), seed)
        before = got.cumsum(axis=1) - got
        assert (got[before >= 500] == 0).all()
    uncapped = table(Split("dirichlet", 10, alpha=0.5), balanced(10, 500), 0)
    assert uncapped.sum(axis=1).max() > 500


@pytest.mark.parametrize(("kind", "alpha"), [("dirichlet", 0.1), ("dirichlet-capped", 0.1), ("quantity", 0.5)])
def test_a_split_is_drawn_anew_until_everybody_has_enough(kind, alpha):
    few, enough = (
        [
            table(Split(kind, 10, 2, alpha, min_examples=n), balanced(10, 50), seed).sum(axis=1).min()
            for seed in range(9)
        ]
        for n in (0, 5)
    )
    assert min(few) < 5 <= min(enough)
    for without, bound in zip(few, enough, strict=True):
        assert without < 5 or bound == without  # a draw that will do is not changed


def test_too_many_examples_a_client_are_refused():
    with pytest.raises(SplitError, match="min_examples = 11: split quantity of 100 examples among 10 clients"):
        partition(Split("quantity", 10, alpha=0.5, min_examples=11), balanced(10, 10), rng())


@pytest.mark.parametrize("kind", ["natural", "non-iid", "shards"])
def test_too_few_examples_are_told_also_where_nothing_would_be_drawn_anew(kind):
    natural = np.repeat(np.arange(10), [1, 19, *[10] * 8]) if kind == "natural" else None
    with pytest.raises(SplitError, match=rf"min_examples = 11: split {kind} of .* leaves one with \d+; lower it$"):
        partition(Split(kind, 10, min_examples=11), balanced(10, 10), rng(), natural)
