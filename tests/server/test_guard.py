import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedaccord.core.protocols import Measured
from fedaccord.core.records import Accepted, Refusal, ServerState, Snapshot
from fedaccord.server.chain import Aggregate
from fedaccord.server.evaluate import ClientLosses
from fedaccord.server.guard import SHARES, Rules, guard, late_guard

OLD, NEW, OLDER = (Snapshot({"w": torch.tensor([float(value)])}) for value in (1, 2, 3))
STATE = ServerState(4, OLD, 2.0, {}, last_loss=2.0)


def judge(state, model, measured, accepted, guards, shares=(), relative=0.1, follows=False, trained=0.1):
    """`measured`: of the model, or of what the clients received; `shares`: the loss of each share of its step."""
    parts = {share: Snapshot({"w": torch.tensor([share])}) for share in SHARES}
    losses = {id(model): measured, id(state.model): measured}
    losses |= {id(part): Measured(loss) for part, loss in zip(parts.values(), shares or [math.inf] * 5, strict=True)}
    clients = [Accepted(n, 5, trained, 1.0) for n in range(accepted)]
    mean = Aggregate(model, clients, [], model_norm=1.0 / relative, scaled=parts.get)
    late = state.previous is not None or measured.before is not None
    made = (late_guard if late else guard)(Rules(guards, follows=follows))
    return made(state, mean, lambda each, which: losses[id(each)])


def test_the_longest_share_of_a_bad_step_that_does_no_harm_is_taken():
    verdict = judge(STATE, NEW, Measured(9.0), 3, guards=True, shares=(5.0, 3.0, 1.9, 1.0, 1.0))
    assert verdict.model.params["w"].item() == 1 / 8
    assert (verdict.loss, verdict.last_loss, verdict.reward) == (1.9, 1.9, 1 / 8 - 1)
    assert verdict.guard == "shortened to 1/8: the loss rose from 2 to 9"


def test_the_guard_watches_the_last_model_and_the_reward_is_that_of_the_mean():
    mean = Aggregate(NEW, [Accepted(0, 5, 0.1, 1.0)], [], scaled=lambda share: NEW)
    state = ServerState(4, OLD, 1.0, {}, last_loss=2.0)
    verdict = guard(rewarded="short")(state, mean, lambda model, which: Measured({"last": 3.0, "short": 0.75}[which]))
    assert (verdict.model, verdict.loss, verdict.last_loss, verdict.reward) == (NEW, 0.75, 3.0, 0.25)


def test_the_reward_is_the_relative_reduction():
    verdict = judge(STATE, NEW, Measured(1.5), 3, guards=True)
    assert (verdict.model, verdict.loss, verdict.reward, verdict.guard) == (NEW, 1.5, 0.25, None)


@pytest.mark.parametrize(("before", "loss", "reward"), [
    (-0.6, -1.1, 0.5 / 1.0),  # better by half of what was gained before, 0.4 - (-0.6)
    (-0.6, -0.4, -0.2 / 1.0),
    (0.01, -0.2, 1.0),  # the first that is negative: clipped
    (-0.6, 0.5, -1.0),  # worse by more than all of it: that is what doubling means here
])  # fmt: skip
def test_losses_may_be_negative(before, loss, reward):
    """Likelihoods of densities, and similarities, are."""
    state = ServerState(4, OLD, before, {}, None, before, first_loss=0.4, best_loss=before)
    verdict = judge(state, NEW, Measured(loss), 3, guards=True)
    assert verdict.reward == pytest.approx(reward)
    assert (verdict.guard is not None) == (loss == 0.5)
    fixed = guard(Rules(tuned=False))(
        state, Aggregate(NEW, [Accepted(0, 5, 0.1, 1.0)], [], scaled=lambda share: OLD), lambda *_: Measured(loss)
    )
    assert fixed.guard is None


@pytest.mark.parametrize("loss", [4.1, math.inf, math.nan])
def test_a_round_that_blew_up_is_rolled_back_unless_as_printed(loss):
    verdict = judge(STATE, NEW, Measured(loss), 3, guards=True)
    assert verdict.model is OLD
    assert (verdict.loss, verdict.reward, verdict.carried_out) == (2.0, -1.0, True)
    assert "rolled back" in verdict.guard
    printed = judge(STATE, NEW, Measured(loss), 3, guards=False)
    assert printed.model is NEW
    assert printed.guard is None
    assert printed.reward is None if not math.isfinite(loss) else printed.reward == pytest.approx(-1.05)


def test_where_clients_report_the_bad_model_is_the_one_they_received():
    """A quarter of its step is left, the reward goes to the round that made it, and this round had no effect."""
    state = ServerState(4, OLD, 2.0, {}, previous=OLDER, last_loss=2.0)
    verdict = judge(state, NEW, Measured(9.0), 3, guards=True)
    assert verdict.model.params["w"].item() == 3 + (1 - 3) / 4  # a quarter of the way from it to the bad one
    assert verdict.model.accepted is OLDER.accepted
    assert (verdict.loss, verdict.reward, verdict.carried_out) == (None, 1 / 4 - 1, False)


LEARNED = ServerState(9, OLD, 1.2, {}, OLDER, 1.2, first_loss=2.3, best_loss=1.1)


@pytest.mark.parametrize(("loss", "trained", "state", "dead"), [
    (2.31, 2.3, LEARNED, True),  # the loss of a guess again, also after the clients' training: the network has died
    (2.25, 2.3, LEARNED, True),
    (2.31, 1.2, LEARNED, False),  # opposed clients: each learns its own class at once
    (2.1, 2.3, LEARNED, False),
    (2.31, 2.3, replace(LEARNED, best_loss=2.2), False),  # there was next to nothing to lose
    (24.0, 2.0, LEARNED, True),  # more than ten times the first
    (math.nan, 2.0, LEARNED, True),
])  # fmt: skip
def test_where_clients_report_a_dead_model_is_taken_back_whole_if_the_rate_comes_down(loss, trained, state, dead):
    verdict = judge(state, NEW, Measured(loss, 1.2), 3, guards=True, follows=True, trained=trained)
    assert (verdict.guard or "").startswith("taken back: ") == dead
    if dead:
        assert torch.equal(verdict.model.params["w"], OLDER.params["w"])
        assert (verdict.loss, verdict.reward, verdict.carried_out) == (None, -1.0, False)
    same_rate = judge(state, NEW, Measured(loss, 1.2), 3, guards=True, trained=trained)
    assert (same_rate.guard or "").startswith("taken back to a quarter") == dead


@pytest.mark.parametrize("lie", [1e14, math.nan, math.inf])
def test_one_liar_cannot_have_a_model_taken_back_by_what_it_says_of_its_training(lie):
    """Opposed clients that have overshot: nine of ten learn their class at once."""
    clients = [Accepted(n, 5, lie if n == 0 else 1.2, 1.0) for n in range(10)]
    mean = Aggregate(NEW, clients, [], model_norm=1.0, scaled=lambda share: NEW)
    verdict = late_guard(Rules(follows=True))(LEARNED, mean, lambda model, which: Measured(2.31, 1.2))
    assert verdict.guard is None


@pytest.mark.parametrize(
    ("accepted", "diverged", "taken_back"), [(0, 3, True), (0, 0, False), (2, 1, False), (0, 1, False)]
)
def test_a_model_from_which_nobody_can_train_is_taken_back(accepted, diverged, taken_back):
    """It may have been poisoned in the round before: without that, no honest round could ever mend it."""
    refused = [Refusal(n, "a value is not finite", True) for n in range(diverged)] + [Refusal(9, "no reply in time")]
    mean = Aggregate(NEW, [Accepted(n, 5, 0.1, 1.0) for n in range(accepted)], refused, scaled=lambda share: NEW)
    verdict = late_guard(Rules(minimum=3))(LEARNED, mean, lambda model, which: pytest.fail("measured"))
    assert verdict.model is (OLDER if taken_back else OLD)
    assert verdict.guard.startswith("taken back: 3 of 4 clients" if taken_back else "skipped")
    assert (verdict.reward, verdict.carried_out) == (-1.0 if taken_back else None, False)
    read = replace(OLDER, params={name: value.clone() for name, value in OLDER.params.items()})  # after a resume
    again = replace(LEARNED, model=read, loss=None)
    once = late_guard(Rules(minimum=3))(again, mean, lambda model, which: pytest.fail("measured"))
    assert once.guard.startswith("skipped")  # it was taken back in the round before: nothing is left to do


def test_after_a_model_was_taken_back_the_next_reports_are_no_choices_reward_but_still_guarded():
    """What made the bad model has had its reward, and what the clients report is of a quarter of that step."""
    state = ServerState(5, OLD, None, {}, previous=OLDER, last_loss=2.0)
    assert judge(state, NEW, Measured(2.5), 3, guards=True).reward is None
    again = judge(state, NEW, Measured(9.0), 3, guards=True)
    assert "taken back" in again.guard
    assert again.reward is None


FIRST = ServerState(0, OLD, 2.0, {}, last_loss=2.0, first_loss=2.0, best_loss=2.0)


@pytest.mark.parametrize(("state", "relative", "loss", "follows", "undone"), [
    (FIRST, 0.3, 1.99, True, True),
    (FIRST, 0.3, 1.99, False, False),  # the rate would be the same in every round
    (FIRST, 0.1, 1.99, True, False),
    (FIRST, 0.3, 1.5, True, False),  # a small model: its norm says nothing
    (replace(FIRST, round=4), 0.3, 1.99, True, False),  # it was tried often enough
    (replace(FIRST, round=1, model=replace(OLD, accepted={0: 1})), 0.3, 1.99, True, False),  # a round has counted
])  # fmt: skip
def test_a_first_step_out_of_all_proportion_that_gains_nothing_is_undone(state, relative, loss, follows, undone):
    verdict = judge(state, NEW, Measured(loss), 3, guards=True, relative=relative, follows=follows)
    assert (verdict.model is state.model, verdict.carried_out) == (undone, not undone)
    told = "undone: the clients went 0.3 times as far as the model is from zero"
    assert verdict.guard == (told if undone else None)


@pytest.mark.parametrize(
    ("loss", "told"), [(9.0, None), (19.0, None), (21.0, "rolled back"), (math.nan, "rolled back")]
)
def test_with_a_fixed_rate_only_ruin_counts(loss, told):
    """The next step would be as bad: a guard that mends every one stops the training."""
    fixed = guard(Rules(tuned=False, everyone=True))
    mean = Aggregate(NEW, [Accepted(0, 5, 0.1, 1.0)], [], model_norm=1.0, scaled=lambda share: NEW)
    verdict = fixed(FIRST, mean, lambda model, which: Measured(loss))
    assert (verdict.guard and verdict.guard.split(":")[0]) == told


def test_with_a_fixed_rate_ruin_is_also_what_comes_about_step_by_step():
    """Nine times the loss before is more than ten times the first."""
    mean = Aggregate(NEW, [Accepted(0, 5, 0.1, 1.0)], [], model_norm=1.0, scaled=lambda share: NEW)
    state = replace(FIRST, round=1, last_loss=18.0)
    assert guard(Rules(tuned=False))(state, mean, lambda model, which: Measured(162.0)).guard.startswith("rolled back")


def test_bad_rounds_are_not_undone_for_ever():
    """A rate that cannot come down any more must not lock the run: in the end a share of the step is taken."""
    states = [replace(FIRST, round=round) for round in (31, 32)]
    told = [judge(state, NEW, Measured(9.0), 3, True, shares=(1.9,) * 5, follows=True).guard for state in states]
    assert [each.split(":")[0] for each in told] == ["rolled back", "shortened to 1/2"]


def test_without_updates_or_without_a_loss_there_is_no_reward():
    skipped = judge(STATE, NEW, Measured(1.0), 0, guards=True)
    assert skipped.model is OLD
    assert (skipped.reward, skipped.carried_out) == (None, False)
    early = judge(ServerState(0, OLD, None, {}), NEW, Measured(1.0), 3, guards=True)
    assert early.model is NEW
    assert early.reward is None


def test_too_few_updates_are_skipped_where_the_server_measures_too():
    mean = Aggregate(NEW, [Accepted(n, 5, 0.1, 1.0) for n in (0, 1)], [], scaled=lambda share: NEW)
    verdict = guard(Rules(minimum=3))(STATE, mean, lambda *_: pytest.fail("measured"))
    assert verdict.model is OLD
    assert (verdict.reward, verdict.carried_out) == (None, False)
    assert verdict.guard == "skipped: 2 usable updates, at least 3 are wanted"
    assert guard(Rules(minimum=2))(STATE, mean, lambda *_: Measured(1.0)).model is NEW


def test_a_pair_measured_on_the_same_examples_is_compared_with_itself():
    assert judge(STATE, NEW, Measured(1.0, before=4.0), 3, guards=True).reward == 0.75


@pytest.mark.slow
def test_liars_cannot_move_a_robust_reward_out_of_the_honest_range():
    """1e4 random rounds; 1 to 4 of 10 clients report what they like, also what is not a number (dropped before)."""
    rng = np.random.default_rng(0)
    losses = ClientLosses(robust=True)
    before = 2.0
    for _ in range(10_000 // 10):
        honest = rng.uniform(0.5, 2.5, (10, 10))  # ten rounds at once
        for row in honest:
            count = rng.integers(1, 5)
            lies = rng.choice([-1e30, 0.0, 1e-30, 1e30, np.nan, np.inf, 5.0], count)
            low, high = row[count:].min(), row[count:].max()
            reports = [Accepted(0, 5, 0.1, 1.0, received_loss=float(value)) for value in (*lies, *row[count:])]
            loss = losses({}, reports).loss
            assert low <= loss <= high
            state = ServerState(1, OLD, before, {}, previous=OLDER, last_loss=before)
            reward = judge(state, NEW, Measured(loss), 10, guards=True).reward
            # of a step after which the loss has doubled, -1, a quarter is left, which is worth -0.75
            ends = [-0.75 if end > 2 * before else max(-1.0, (before - end) / before) for end in (low, high)]
            worst = -1.0 if low <= 2 * before < high else min(ends)
            assert worst - 1e-12 <= reward <= max(ends) + 1e-12
            before = loss  # the next round starts from what was believed


def test_no_loss_is_said_to_have_risen_that_fell():
    """A dead model's loss may be a little lower than the one before, which was bad already."""
    worse = replace(LEARNED, last_loss=2.31)
    verdict = judge(worse, NEW, Measured(2.29), 3, guards=True, follows=True, trained=2.3)
    assert verdict.guard == "taken back: the loss went from 2.31 to 2.29"
