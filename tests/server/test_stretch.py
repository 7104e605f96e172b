"""How far the server goes along the clients' mean step."""

import math

import pytest
import torch

from fedaccord.core.protocols import Measured
from fedaccord.core.records import Accepted, ServerState, Snapshot, Stretch
from fedaccord.server.chain import Aggregate
from fedaccord.server.guard import Rules, guard, late_guard
from fedaccord.server.stretch import reach, recorded, searched, unmeasured

LENGTHS = [2.0**power for power in range(-5, 5)]


def step(step_norm, norms=(1.0, 1.0)):
    """A mean step of this length, of clients whose own have these lengths; a model is known by how far it went."""
    models = {length: Snapshot({"w": torch.tensor([length])}) for length in LENGTHS}
    clients = [Accepted(number, 5, 0.1, norm) for number, norm in enumerate(norms)]
    return Aggregate(models[1.0], clients, [], step_norm, scaled=models.get)


def parabola(best):
    """A loss that is the smaller, the nearer a step's length is to the best one."""
    return lambda model: 1 + math.log2(model.params["w"].item() / best) ** 2


@pytest.mark.parametrize(("step_norm", "norms", "longest"), [
    (1.0, (1.0, 1.0), 2.0),  # all agree: half of 1 / 1, and two at least
    (0.3, (1.0, 1.0), 0.5 / 0.09),
    (0.5, (1.0, 3.0), 0.5 * 5.0 / 0.25),  # the mean of the squares
    (0.01, (1.0, 1.0), 16.0),
    (0.0, (0.0, 0.0), 2.0),
])  # fmt: skip
def test_the_reach_is_fedexps_number_within_bounds(step_norm, norms, longest):
    assert reach(step(step_norm, norms)) == pytest.approx(longest)


@pytest.mark.parametrize(("best", "shortest", "taken", "wanted"), [
    (1.0, 0.5, 1.0, 1.0),
    (4.0, 0.5, 4.0, 4.0),
    (16.0, 0.5, 4.0, 4.0),  # beyond its reach, 0.5 / 0.09 = 5.6
    (0.5, 0.5, 0.5, 0.5),
    (0.1, 0.5, 0.5, 0.5),
    (0.1, 1.0, 1.0, 0.5),  # wanted, but not to be taken
])  # fmt: skip
def test_the_length_is_doubled_or_halved_as_long_as_that_pays(best, shortest, taken, wanted):
    model, stretch = searched(shortest)(1, step(0.3), parabola(best))
    assert (stretch.taken, stretch.wanted) == (taken, wanted)
    assert model.params["w"].item() == taken


@pytest.mark.parametrize("bad", [math.inf, math.nan, None])
def test_a_length_whose_loss_is_not_finite_is_not_taken(bad):
    _, stretch = searched(0.5)(1, step(0.3), lambda model: bad if model.params["w"].item() > 1 else 1.0)
    assert stretch.taken == 1.0


@pytest.mark.parametrize(("step_norm", "taken"), [(0.25, 8.0), (0.9, None)])  # 0.5 / 0.0625; and clients that agree
def test_without_a_set_fedexps_number_is_taken_where_the_steps_cancel(step_norm, taken):
    model, stretch = unmeasured(1, step(step_norm), lambda model: None)
    assert model.params["w"].item() == (taken or 1.0)
    assert stretch == (None if taken is None else Stretch(taken, taken, taken))


def test_where_the_clients_report_the_step_is_stretched_and_the_model_before_is_kept():
    """The loss of the stretched model is known a round late; until then there must be a way back."""
    state = ServerState(4, Snapshot({"w": torch.tensor([0.0])}), 2.0, {}, last_loss=2.0)
    verdict = late_guard(length=unmeasured)(state, step(0.25), lambda model, which: Measured(1.5))
    assert (verdict.model.params["w"].item(), verdict.stretch.taken, verdict.carried_out) == (8.0, 8.0, True)


def test_recorded_lengths_are_taken_again_round_by_round():
    again = recorded([2.0, None, 0.25])
    found = [again(number, step(0.3), None) for number in (1, 2, 3, 4)]
    assert [model.params["w"].item() for model, _ in found] == [2.0, 1.0, 0.25, 1.0]
    assert [stretch and stretch.taken for _, stretch in found] == [2.0, None, 0.25, None]


OLD = Snapshot({"w": torch.tensor([0.0])})


def judged(last, state, everyone=True):
    """What becomes of a step that the running mean wants four times as long; `last`: the last loss by its length."""

    def measure(model, which):
        length = model.params["w"].item()
        return Measured(last(length) if which == "last" else parabola(4.0)(model))

    judge = guard(Rules(everyone=everyone, follows=True), "short", searched(0.5))
    return judge(state, step(0.3), measure)


def test_where_the_longer_step_blows_up_the_clients_mean_is_taken():
    state = ServerState(4, OLD, 9.0, {}, None, 2.0, 2.0, 2.0)
    verdict = judged(lambda length: 9.0 if length > 1 else 1.9, state)
    assert (verdict.stretch, verdict.guard) == (Stretch(1.0, 4.0, pytest.approx(0.5 / 0.09)), None)
    assert verdict.last_loss == 1.9


@pytest.mark.parametrize(
    ("everyone", "told"), [(True, "shortened to 1/4: the loss rose from 1.2 to 2.3"), (False, None)]
)
def test_a_step_that_loses_half_of_all_that_was_gained_is_shortened_if_everyone_was_in_it(everyone, told):
    """From 2.3, a guess among ten, to 1.2; then a network that dies. A part of the clients may do that by itself."""
    state = ServerState(4, OLD, 20.0, {}, None, last_loss=1.2, first_loss=2.3, best_loss=1.1)
    verdict = judged(lambda length: 2.3 if length > 1 / 4 else 1.15, state, everyone)
    assert verdict.guard == told
    assert verdict.stretch.taken == (1 / 4 if everyone else 4.0)
    if everyone:
        assert verdict.reward == 1 / 4 - 1


@pytest.mark.parametrize(("everyone", "loss", "undone"), [
    (True, 2.31, True),  # more than a thousandth above 2.3
    (False, 4.5, False),  # a part of the clients may raise it by itself
    (False, 4.7, True),  # more than twice 2.3
])  # fmt: skip
def test_as_long_as_nothing_was_gained_a_bad_round_is_undone_not_shortened(everyone, loss, undone):
    """A quarter of it would do no harm that can be seen: a network that died has the loss of a guess."""
    state = ServerState(0, OLD, 9.0, {}, None, last_loss=2.3, first_loss=2.3, best_loss=2.3)
    verdict = judged(lambda length: loss if length > 1 / 4 else 2.3, state, everyone)
    assert (verdict.model is OLD) == undone
    assert (verdict.reward == -1.0) == undone
