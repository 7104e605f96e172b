"""The run-in, and how the rate and the iterations follow what the server sees."""

import math
from dataclasses import replace

import pytest
from helpers import seen

from fedaccord.core.records import Hyper, Stretch
from fedaccord.core.seeds import generator
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.pace import BACK, Pace
from fedaccord.policy.reinforce import Reinforce

GRID = HyperGrid.parse("lr = 0.001..1/25 log; steps = 1, 2, 3, 5, 8, 13, 20, 32, 50 log")
OPPOSED, ALIKE = -0.07, 0.79  # mean cosines between two clients


def round_of(wanted, cosine=ALIKE, reward=0.01, reach=2.0, **changes):
    """What a policy sees of a round in which the server wanted a step of this length."""
    stretch = None if wanted is None else Stretch(max(1.0, wanted), wanted, reach)
    return replace(seen(reward), cosine=cosine, stretch=stretch, **changes)


def play(rounds, lap=1, hold=2, start="", late=False, **changes):
    """Rates and iterations that were chosen, what was told of each round, and the state in the end."""
    tuner = Reinforce(
        Hyper(lr=0.1, steps=10), GRID, 0.0, hold=hold, pace=Pace(GRID, lap, late), start_at=GRID.place(start), **changes
    )
    state, chosen, told = tuner.start(), [], []
    for t, each in enumerate(rounds, 1):
        proposal, sampled = tuner.propose(state, t, tuple(range(10)), generator(0, "policy", t))
        state = tuner.learn(sampled, each)
        chosen.append((round(proposal.hyper.lr, 3), proposal.hyper.steps))
        told.append(tuner.describe(sampled, state)["why"])
    return chosen, told, state


def rate(state):
    return GRID.axes[0].value_at(state["mu"][0])


def test_the_rate_doubles_until_the_server_wants_no_more_twice():
    chosen, told, state = play([round_of(2.0)] * 3 + [round_of(1.0)] * 2)
    assert [lr for lr, _ in chosen] == pytest.approx([0.032, 0.056, 0.133, 0.237, 0.237])  # 0.03 doubled, on the grid
    assert told[0] == "run-in: learning rate 0.0316 to 0.0632: the server wanted longer steps"
    assert told[4].startswith("run-in: learning rate 0.253 to 0.178: the run-in is over")
    assert not state["pace"]["run_in"]
    assert state["window"] == []  # nothing of it was a draw, so REINFORCE learns nothing from it


def test_one_pass_that_speaks_against_a_higher_rate_may_be_chance():
    chosen, _, _ = play([round_of(each) for each in (2.0, 0.5, 2.0, 2.0)])
    assert [lr for lr, _ in chosen] == pytest.approx([0.032, 0.056, 0.056, 0.133])


@pytest.mark.parametrize(("wanted", "reward"), [(0.5, 0.01), (2.0, -0.01)])  # shorter steps, or a loss that rises
def test_a_rate_that_is_too_high_halves_and_does_not_rise_again_in_the_run_in(wanted, reward):
    too_high = round_of(wanted, reward=reward)
    chosen, _, state = play([round_of(2.0), too_high, too_high, round_of(2.0), round_of(1.0)])
    assert [lr for lr, _ in chosen[:4]] == pytest.approx([0.032, 0.056, 0.056, 0.032])
    assert not state["pace"]["run_in"]


def test_from_a_corner_where_every_round_blows_up_it_comes_down_by_fours():
    chosen, told, state = play([round_of(None, reward=-1.0)] * 3, start="lr = 1, steps = 50")
    assert [lr for lr, _ in chosen] == pytest.approx([1.0, 0.237, 0.056])
    assert told[0] == "run-in: learning rate 1 to 0.25: its last step did harm"
    assert state["pending"] == []


@pytest.mark.parametrize(("alignments", "steps"), [
    ((OPPOSED,) * 4, 3),
    ((ALIKE,) * 4, 32),
    ((ALIKE, OPPOSED, ALIKE, ALIKE), 3),  # once opposed, always opposed: they may all mend the same overshoot
    ((0.085,) * 4, 13),  # between: 0.61 of the way, 3 * (32 / 3) ** 0.61
])  # fmt: skip
def test_the_iterations_follow_the_smallest_cosine(alignments, steps):
    chosen, told, state = play([round_of(1.0, each) for each in alignments])
    assert [each for _, each in chosen[:2]] == [8, 8]  # the middle of the grid: the first pass says too little
    assert GRID.axes[1].value_at(state["mu"][1]) == pytest.approx(steps, rel=0.1)
    assert f"about {steps}" in told[1]


@pytest.mark.parametrize(("alignment", "wanted", "moves"), [(ALIKE, 2.0, 1), (ALIKE, 0.5, -1), (OPPOSED, 2.0, 0)])
def test_after_the_run_in_the_rate_goes_on_following_alike_clients_only(alignment, wanted, moves):
    ends = [play([round_of(1.0, alignment)] * 4 + [round_of(wanted, alignment)] * more)[2] for more in (0, 2)]
    assert [each["pace"]["run_in"] for each in ends] == [False, False]
    before, after = map(rate, ends)
    assert (after > before) - (after < before) == moves


def test_opposed_clients_always_want_longer_steps_so_only_much_longer_ones_count():
    """Of a reach of 16, four lengths are usual: a step of four leaves the rate where it is, one of eight doubles it."""
    _, _, usual = play([round_of(4.0, OPPOSED, reach=16.0)])
    _, _, beyond = play([round_of(8.0, OPPOSED, reach=16.0)])
    assert (rate(usual), rate(beyond)) == (pytest.approx(0.0316, rel=1e-2), pytest.approx(0.0632, rel=1e-2))


def test_lengths_that_contradict_each_other_say_nothing():
    _, _, state = play([round_of(1.0)] * 4 + [round_of(2.0), round_of(0.5)])
    assert rate(state) == pytest.approx(rate(play([round_of(1.0)] * 4)[2]))


def test_a_pass_of_several_rounds_is_judged_as_a_whole():
    chosen, _, _ = play([round_of(2.0)] * 4, lap=2)
    assert [lr for lr, _ in chosen] == pytest.approx([0.032, 0.032, 0.056, 0.056])


@pytest.mark.parametrize(("alignment", "ends"), [(ALIKE, 0.0632), (OPPOSED, 0.1265 * math.exp(-BACK))])
def test_a_part_of_opposed_clients_stops_the_rate_from_rising_but_does_not_lower_it(alignment, ends):
    """Two doublings from 0.0316. Those who were not in it are always forgotten a little; alike clients mean it."""
    wanted = (2.0, 2.0, 2.0, 2.0, 0.5, 0.5, 0.5, 0.5)  # two rounds a pass
    _, _, state = play([round_of(each, alignment) for each in wanted], lap=2)
    assert rate(state) == pytest.approx(ends, rel=2e-2)


def test_without_a_search_the_run_in_only_places_the_iterations():
    """No server's set: rewards come a round late, and nobody knows what length would have been best."""
    rounds = [round_of(None, OPPOSED, reward) for reward in (None, 0.1, 0.1, 0.1, 0.2, 0.3, 0.4)]
    chosen, _, state = play(rounds, late=True)
    assert rate(state) == pytest.approx(0.0316, rel=1e-2)
    assert [steps for _, steps in chosen[2:4]] == [3, 3]
    assert [entry["rewards"] for entry in state["window"]] == [[0.3, 0.4]]  # of rounds 5 and 6, the first draw


def test_rewards_that_come_a_round_late_do_not_move_the_rate():
    """They are another choice's; its successor is not given up for them either."""
    rounds = [round_of(None, OPPOSED, reward) for reward in (None, 0.1, 0.1, 0.1, 0.1, -0.6)]
    _, _, state = play(rounds, late=True)
    assert rate(state) == pytest.approx(0.0316, rel=1e-2)
    assert state["pending"][-1]["until"] == 2


@pytest.mark.parametrize(("wanted", "reward", "start"), [(2.0, 0.01, "lr = 1"), (1.0, -0.01, "lr = 0.001")])
def test_a_run_in_ends_also_at_the_edge_of_the_grid(wanted, reward, start):
    _, told, state = play([round_of(wanted, reward=reward)] * 17, start=start)
    assert not state["pace"]["run_in"]
    assert not any("1 to 1:" in each for each in told)


def test_a_run_in_ends_without_a_rate_in_the_grid():
    grid = HyperGrid.parse("steps = 1, 2, 4, 8, 16, 32 log")
    tuner = Reinforce(Hyper(lr=0.1, steps=10), grid, hold=2, pace=Pace(grid))
    state = tuner.start()
    for t in range(1, 6):
        _, state = tuner.propose(state, t, (0,), generator(0, "policy", t))
        state = tuner.learn(state, round_of(2.0))
    assert not state["pace"]["run_in"]


def test_a_doubt_does_not_outlive_a_blow_up_or_a_pass_that_wants_more():
    _, told, _ = play([round_of(2.0), round_of(0.5), round_of(None, reward=-1.0), round_of(1.0)])
    assert told[3] == "run-in: goes on"
    _, told, _ = play([round_of(None, reward=-1.0), *(round_of(each) for each in (0.5, 2.0, 1.0))], hold=4)
    assert not any("spoke against it" in each for each in told)


def test_a_skipped_round_shows_nothing():
    _, _, state = play([round_of(None, reward=None, carried_out=False)] * 3)
    assert (state["pace"]["rounds"], state["pace"]["cosine"]) == (0, None)
