"""The run-in, and how the rate and the iterations follow what the server sees."""

import math
import re
from dataclasses import replace

import pytest
from helpers import seen

from fedaccord.core.records import Hyper, Stretch
from fedaccord.core.seeds import generator
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.pace import BACK, Pace
from fedaccord.policy.reinforce import Reinforce

GRID = HyperGrid.parse("lr = 0.001..1/25 log; steps = 1, 2, 3, 5, 8, 13, 20, 32, 50, 80 log")
OPPOSED, ALIKE = -0.07, 0.79  # mean cosines between two clients
MANY, MIDDLE = "steps = 80", ""  # where the iterations begin: 80, and the middle of the grid, 8


def round_of(wanted, cosine=ALIKE, reward=0.01, reach=2.0, **changes):
    """What a policy sees of a round in which the server wanted a step of this length."""
    stretch = None if wanted is None else Stretch(max(1.0, wanted), wanted, reach)
    return replace(seen(reward), cosine=cosine, stretch=stretch, **changes)


def play(rounds, lap=1, hold=2, start=MANY, late=False, **changes):
    """Rates and iterations that were chosen, what was told of each round, and the state in the end.

    It begins with as many iterations as alike clients have in the end, so that the rate alone is moved.
    """
    tuner = Reinforce(
        Hyper(lr=0.1, steps=10),
        GRID,
        0.0,
        hold=hold,
        late=late,
        pace=Pace(GRID, lap, late),
        start_at=GRID.place(start),
        **changes,
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


@pytest.mark.parametrize(("doubt", "goes_on"), [(1.0, True), (0.5, False)])
def test_one_pass_that_does_not_want_more_may_be_chance_but_one_that_wants_less_outweighs_one_that_wants_more(
    doubt, goes_on
):
    chosen, _, state = play([round_of(each) for each in (2.0, 2.0, doubt, 2.0, 1.0)])
    assert [lr for lr, _ in chosen[:4]] == pytest.approx([0.032, 0.056, 0.133, 0.133])
    assert state["pace"]["run_in"] == goes_on
    assert not goes_on or chosen[4][0] == pytest.approx(0.237)


@pytest.mark.parametrize(("wanted", "reward"), [(0.5, 0.01), (2.0, -0.01)])  # shorter steps, or a loss that rises
def test_a_rate_that_is_too_high_halves_and_does_not_rise_again_in_the_run_in(wanted, reward):
    too_high = round_of(wanted, reward=reward)
    chosen, _, state = play([round_of(2.0), too_high, too_high, round_of(2.0), round_of(1.0)])
    assert [lr for lr, _ in chosen[:4]] == pytest.approx([0.032, 0.056, 0.056, 0.032])
    assert not state["pace"]["run_in"]


@pytest.mark.parametrize(("start", "relative", "rate_then"), [
    ("lr = 0.001, steps = 1", 0.0003, 0.001 * 0.015 / (8 * 0.0003)),  # eight iterations go eight times as far
    ("lr = 1, steps = 50", 3.0, 0.015 / 3.0),  # fewer iterations need not go less far
])  # fmt: skip
def test_a_first_round_out_of_proportion_puts_the_rate_where_clients_go_a_small_part_of_the_model(
    start, relative, rate_then
):
    undone = relative > 1
    first = round_of(None if undone else 16.0, reward=0.0003, relative=relative, carried_out=not undone)
    _, told, state = play([first], start=start)
    assert rate(state) == pytest.approx(rate_then, rel=1e-6)
    assert GRID.axes[1].value_at(state["mu"][1]) == pytest.approx(8, rel=1e-6)
    assert f"the clients went {relative:.2g} times as far as the model is from zero" in told[0]
    chosen, _, state = play([first, round_of(2.0, relative=0.03), round_of(2.0, relative=0.06)], start=start)
    assert [steps for _, steps in chosen[1:]] == [8, 8]
    assert rate(state) == pytest.approx(2 * rate_then, rel=1e-6)  # as always: doubled, then more iterations


@pytest.mark.parametrize(("relative", "reward"), [(0.0003, 0.01), (3.0, 0.3), (None, 0.01)])
def test_a_norm_that_says_nothing_of_the_model_is_not_gone_by(relative, reward):
    """The loss moves although the clients hardly do, or falls although they go far: a start near zero, for example."""
    first = round_of(2.0, reward=reward, relative=relative)
    chosen, _, _ = play([first, *[round_of(2.0, relative=0.9)] * 3])
    assert [lr for lr, _ in chosen] == pytest.approx([0.032, 0.056, 0.133, 0.237])


def test_a_checkpoint_of_an_earlier_version_goes_on():
    """Its pace does not know of all that this one's does."""
    _, _, state = play([round_of(2.0)])
    pace = {name: value for name, value in state["pace"].items() if name not in ("sized", "relative", "lost")}
    after, _, _ = Pace(GRID).follow(pace, state["mu"], round_of(2.0, relative=0.05), over=True)
    assert after.keys() == state["pace"].keys()


def test_a_choice_that_is_given_up_without_a_reward_has_all_it_will_get():
    """Its clients diverged in its third round: what the next choice earns is that one's."""
    diverged = round_of(None, None, None, carried_out=False, diverged=1.0)
    rounds = [round_of(1.0)] * 4 + [round_of(1.0, reward=0.02)] * 2 + [diverged] + [round_of(1.0, reward=0.03)] * 4
    _, _, state = play(rounds, hold=4)
    assert [entry["rewards"] for entry in state["window"]] == [[0.02, 0.02], [0.03] * 4]
    assert state["pending"] == []


def test_a_rate_out_of_proportion_is_put_right_in_the_first_rounds_only():
    _, _, state = play([replace(round_of(1.0, relative=0.5), round=t) for t in range(1, 12)])
    assert not state["pace"]["run_in"]


@pytest.mark.parametrize(("round", "corrected"), [(4, True), (5, False)])
def test_a_round_that_was_undone_for_its_length_is_put_right_in_the_first_rounds_only(round, corrected):
    tuner, (_, _, state) = Pace(GRID), play([])
    undone = replace(round_of(1.0, relative=3.0, carried_out=False), round=round)
    _, mu, given_up = tuner.follow(state["pace"], state["mu"], undone, over=True)
    assert given_up == corrected
    assert (mu != state["mu"]) == corrected


def test_the_rate_does_not_double_where_the_clients_would_go_too_far():
    chosen, _, state = play([round_of(2.0, relative=each) for each in (0.04, 0.06, 0.09, 0.11)])
    assert [lr for lr, _ in chosen] == pytest.approx([0.032, 0.056, 0.133, 0.237])
    assert rate(state) == pytest.approx(0.253 * math.exp(-BACK), rel=2e-3)
    assert not state["pace"]["run_in"]


@pytest.mark.parametrize(("relative", "moves"), [(0.01, 1), (0.03, -1)])
def test_clients_that_hardly_move_shall_go_further_unless_the_loss_rises(relative, moves):
    """On a plateau the server may want shorter steps at any rate: what it goes by is noise."""
    _, told, state = play([round_of(0.5, OPPOSED, reward=-0.0002, relative=relative)] * 2)
    assert rate(state) == pytest.approx(0.0316 * (4 if moves > 0 else 0.5), rel=1e-2)
    assert ("the clients hardly moved" if moves > 0 else "the loss has risen") in told[1]


def test_between_a_rate_that_was_too_high_and_one_that_is_too_low_the_run_in_ends_in_the_middle():
    wanted = (2.0, 0.5, 0.5, 2.0)  # 0.0316, 0.0632 twice, 0.0316 again
    _, _, state = play([round_of(each) for each in wanted])
    assert rate(state) == pytest.approx(0.0316 * math.sqrt(2), rel=1e-2)


@pytest.mark.parametrize(("share", "moves"), [(1.0, True), (0.5, False)])
def test_clients_that_diverge_bring_the_rate_down_unless_they_are_a_minority(share, moves):
    """The round has no usable update, and is skipped; waiting for a better one would wait for ever."""
    diverged = round_of(None, cosine=None, reward=None, carried_out=False, diverged=share)
    chosen, told, state = play([diverged, diverged, diverged])
    assert [lr for lr, _ in chosen] == pytest.approx([0.032, 0.007, 0.001] if moves else [0.032] * 3)  # 1/4, then 1/16
    assert ("not finite" in told[0]) == moves
    assert state["pending"] == []


@pytest.mark.parametrize(("before", "rises"), [((), True), ((2.0,), False)])
def test_a_blow_up_before_any_good_pass_does_not_keep_the_rate_from_rising_again(before, rises):
    """The first steps from a fresh start are the longest: what blows up then need not do so later."""
    rounds = [*(round_of(each) for each in before), round_of(None, reward=-1.0), round_of(2.0), round_of(2.0)]
    _, _, state = play(rounds)
    lowest = 0.0316 / 4 * 2 ** len(before)
    assert rate(state) == pytest.approx(lowest * (4 if rises else math.sqrt(2)), rel=1e-2)


def test_a_round_that_blew_up_shows_at_once_that_clients_are_opposed():
    """That they are alike is only believed after a pass or two."""
    for cosine, steps in ((OPPOSED, 3), (ALIKE, 8)):
        chosen, _, _ = play([round_of(None, cosine, reward=-1.0), round_of(1.0, cosine)], start=MIDDLE)
        assert chosen[1] == (0.007, steps)


def test_from_a_corner_where_every_round_blows_up_it_comes_down_by_fours():
    chosen, told, state = play([round_of(None, reward=-1.0)] * 3, start="lr = 1, steps = 50")
    assert [lr for lr, _ in chosen] == pytest.approx([1.0, 0.237, 0.056])
    assert told[0] == "run-in: learning rate 1 to 0.25: its last step did harm"
    assert state["pending"] == []


@pytest.mark.parametrize(("alignments", "lap", "steps", "done"), [
    ((OPPOSED,) * 4, 1, 3, 3),
    ((ALIKE,) * 4, 1, 64, 80),  # in the logarithm 64 is nearer to the grid's 80 than to its 50
    ((ALIKE, OPPOSED, ALIKE, ALIKE), 1, 3, 3),  # once opposed, always opposed: they may all mend the same overshoot
    ((ALIKE, OPPOSED) * 2, 2, 64, 80),  # but two halves of alike clients may differ: a pass counts as a whole
    ((ALIKE, ALIKE, OPPOSED, OPPOSED), 2, 3, 3),
    ((0.09,) * 4, 1, 14, 13),  # between: half of the way, 3 * (64 / 3) ** 0.5
])  # fmt: skip
def test_the_iterations_follow_the_pass_with_the_smallest_cosine(alignments, lap, steps, done):
    """And the sentence names the value of the grid that is done next."""
    rounds = [round_of(1.0, each) for each in alignments]
    chosen, told, state = play([*rounds, round_of(1.0)], lap, start=MIDDLE, precision=2500.0)
    assert [each for _, each in chosen[:2]] == [8, 8]  # the middle of the grid: the first pass says too little
    assert GRID.axes[1].value_at(state["mu"][1]) == pytest.approx(steps, rel=0.1)
    assert re.findall(r"\w+ SGD iterations, about \d+", "".join(told))[-1].endswith(f" {done}")
    assert chosen[-1][1] == done


def test_iterations_that_move_between_two_values_of_the_grid_are_told_as_what_they_are():
    """From 9.8, the middle of the grid, to 8: that is what was done before, too."""
    chosen, told, _ = play([round_of(2.0, relative=0.0003, reward=0.0), round_of(2.0)], start=MIDDLE)
    assert told[0].startswith("run-in: as many SGD iterations, about 8; learning rate ")
    assert [steps for _, steps in chosen] == [8, 8]


@pytest.mark.parametrize(("cosine", "rates"), [
    (ALIKE, [0.032, 0.056, 0.056, 0.133]),  # 8, 8, then 64 iterations at the same rate, and only then a higher one
    (OPPOSED, [0.032, 0.056, 0.133, 0.237]),  # fewer iterations make no step longer
])  # fmt: skip
def test_the_rate_waits_while_the_iterations_go_up(cosine, rates):
    """What the pass before said of the rate was said of far fewer iterations."""
    chosen, told, _ = play([round_of(2.0, cosine)] * 4, start=MIDDLE)
    assert [lr for lr, _ in chosen] == pytest.approx(rates)
    assert ("learning rate" in told[1]) == (cosine == OPPOSED)


@pytest.mark.parametrize(("lap", "telling"), [(1, 8), (4, 16)])
def test_cosines_count_for_some_rounds_only(lap, telling):
    """Later on alike clients, too, mostly send noise."""
    _, _, state = play([round_of(2.0)] * 2 + [round_of(None, reward=-1.0)] * 20, lap=lap)
    assert len(state["pace"]["cosines"]) == telling


@pytest.mark.parametrize(("alignment", "wanted", "moves"), [(ALIKE, 2.0, 1), (ALIKE, 0.5, -1), (OPPOSED, 2.0, 0)])
def test_after_the_run_in_the_rate_goes_on_following_alike_clients_only(alignment, wanted, moves):
    ends = [play([round_of(1.0, alignment)] * 4 + [round_of(wanted, alignment)] * more)[2] for more in (0, 2)]
    assert [each["pace"]["run_in"] for each in ends] == [False, False]
    before, after = map(rate, ends)
    assert (after > before) - (after < before) == moves


def test_what_following_moved_is_not_said_to_have_stood_still():
    """Four rounds of run-in, then two of a draw's: the rate follows, and REINFORCE has no reason to move anything."""
    _, told, _ = play([round_of(1.0)] * 4 + [round_of(2.0)] * 4, start="steps = 64")
    assert told[5] == "learning rate 0.0223 to 0.0332: the server wanted longer steps"
    assert told[7] == "learning rate 0.0332 to 0.0496: the server wanted longer steps"  # both draws paid alike
    rewards = (0.01, 0.01, 0.02, 0.02)
    _, told, _ = play([round_of(1.0)] * 4 + [round_of(2.0, reward=each) for each in rewards], start="steps = 64")
    followed, *rest = told[7].split("; ")
    assert followed == "learning rate 0.0332 to 0.0496: the server wanted longer steps"
    assert rest == ["SGD iterations stood still: its step was below 0.01 % of the grid"]


def test_opposed_clients_always_want_longer_steps_so_only_much_longer_ones_count():
    """Of a reach of 16, four lengths are usual: a step of four leaves the rate where it is, one of eight doubles it."""
    _, _, usual = play([round_of(4.0, OPPOSED, reach=16.0)])
    _, _, beyond = play([round_of(8.0, OPPOSED, reach=16.0)])
    assert (rate(usual), rate(beyond)) == (pytest.approx(0.0316, rel=1e-2), pytest.approx(0.0632, rel=1e-2))


def test_lengths_that_contradict_each_other_say_nothing():
    _, _, state = play([round_of(1.0)] * 4 + [round_of(2.0), round_of(0.5)])
    assert rate(state) == pytest.approx(rate(play([round_of(1.0)] * 4)[2]))
    _, _, state = play([round_of(1.0)] * 4 + [round_of(8.0), round_of(0.5)])  # 3 and -1: a mean of 1, a deviation of 2
    assert rate(state) == pytest.approx(rate(play([round_of(1.0)] * 4)[2]))


@pytest.mark.parametrize(
    ("alignment", "wanted", "rates"),
    [
        (OPPOSED, 8.0, [0.032, 0.032, 0.056, 0.056, 0.133]),  # 8 is beyond what opposed clients always want
        (ALIKE, 1.5, [0.032, 0.032, 0.056, 0.056, 0.133]),
        (ALIKE, 2.0, [0.032, 0.032, 0.056, 0.133, 0.237]),  # after a pass that showed them to be alike, a round will do
    ],
)
def test_a_pass_of_several_rounds_is_judged_as_a_whole(alignment, wanted, rates):
    chosen, _, _ = play([round_of(wanted, alignment)] * 5, lap=2)
    assert [lr for lr, _ in chosen] == pytest.approx(rates)


def test_a_pass_of_the_run_in_ends_with_the_cohorts_pass():
    """A round that blew up ends its choice; the next one is held for what is left of the pass."""
    rounds = [round_of(2.0), round_of(2.0), round_of(None, reward=-1.0), round_of(1.0), round_of(1.0), round_of(1.0)]
    chosen, _, _ = play(rounds, lap=2)
    assert [lr for lr, _ in chosen] == pytest.approx([0.032, 0.032, 0.056, 0.018, 0.018, 0.018], abs=1e-3)
    assert [Pace(GRID, lap=3).lasts(round) for round in (1, 2, 3, 4)] == [3, 2, 1, 3]


@pytest.mark.parametrize(("alignment", "ends"), [(ALIKE, 0.1265), (OPPOSED, 0.1265 * math.exp(-BACK))])
def test_a_part_of_opposed_clients_stops_the_rate_from_rising_but_does_not_lower_it(alignment, ends):
    """Two doublings from 0.0316, of alike clients three and a halving: after the first pass each round counts for them.

    Those who were not in it are always forgotten a little; alike clients mean it.
    """
    wanted = (2.0, 2.0, 2.0, 2.0, 0.5, 0.5, 0.5, 0.5)  # two rounds a pass
    _, _, state = play([round_of(each, alignment) for each in wanted], lap=2)
    assert rate(state) == pytest.approx(ends, rel=2e-2)


def test_without_a_set_the_rate_rises_as_long_as_the_model_goes_on_as_before():
    """Rewards come a round late, and nobody knows what length would have been best: two steps in a row must do."""
    turns = [None, 0.9, 0.8] + [0.5] * 3 + [0.1, 0.0, -0.2] * 2
    chosen, told, state = play([round_of(None, turn=each) for each in turns], late=True)
    assert [lr for lr, _ in chosen] == pytest.approx([0.032] * 3 + [0.056] * 3 + [0.133] * 6)  # three rounds a choice
    assert told[2].endswith("learning rate 0.0316 to 0.0632: the model goes on as before")
    assert rate(state) == pytest.approx(0.0316 * 4 * math.exp(-BACK), rel=1e-2)
    assert not state["pace"]["run_in"]


def test_steps_that_were_stretched_far_say_nothing_of_the_rate():
    far = replace(round_of(None, OPPOSED, turn=0.9), stretch=Stretch(8.0, 8.0, 8.0))
    chosen, _, state = play([far] * 9, late=True)
    assert rate(state) == pytest.approx(0.0316, rel=1e-2)
    assert [steps for _, steps in chosen[3:6]] == [3, 3, 3]
    assert not state["pace"]["run_in"]


def test_where_rewards_are_late_the_rate_comes_down_once_after_a_model_was_killed():
    killed = round_of(None, reward=-1.0, carried_out=False)
    quarter = round_of(None, reward=-0.75, carried_out=False)  # of the step was left: opposed clients overshoot
    rises = [round_of(None, turn=each) for each in (None, 0.9, 0.8)]
    _, told, _ = play([*rises, killed], late=True)
    assert told[-1].endswith("learning rate 0.0632 to 0.0158: its last step did harm")
    assert rate(play([*rises, quarter], late=True)[2]) == pytest.approx(0.0632, rel=1e-2)
    _, told, _ = play([*rises, replace(quarter, round=4), round_of(None), replace(quarter, round=6)], late=True)
    assert told[-1].endswith("learning rate 0.0632 to 0.0158: its last step did harm")  # for the second time so soon
    lost = replace(round_of(None), diverged=0.6)
    assert rate(play([*rises, lost, killed], late=True)[2]) == pytest.approx(0.0158, rel=1e-2)  # not twice


def test_rewards_that_come_a_round_late_do_not_move_the_rate():
    """They are another choice's; its successor is not given up for them either."""
    rewards = (None, 0.1, 0.1, 0.1, 0.1, -0.6, 0.2, 0.3, 0.4)
    _, _, state = play([round_of(None, OPPOSED, reward) for reward in rewards], late=True)
    assert rate(state) == pytest.approx(0.0316, rel=1e-2)
    assert [entry["rewards"] for entry in state["window"]] == [[0.3, 0.4]]  # of rounds 7 and 8, the first draw


@pytest.mark.parametrize(("wanted", "reward", "start"), [(2.0, 0.01, "lr = 1"), (1.0, -0.01, "lr = 0.001")])
def test_a_run_in_ends_also_at_the_edge_of_the_grid(wanted, reward, start):
    _, told, state = play([round_of(wanted, reward=reward)] * 17, start=start)
    assert not state["pace"]["run_in"]
    assert not any("1 to 1:" in each for each in told)
    assert sum(each.startswith("run-in:") and each.endswith("is over") for each in told) == 1


@pytest.mark.parametrize(("cosine", "said"), [
    (ALIKE, "run-in: it is over"),
    (0.1, "run-in: fewer SGD iterations, about 20: the clients' steps agree in part; it is over"),
])  # fmt: skip
def test_a_run_in_that_ends_without_another_rate_says_so(cosine, said):
    """Nobody looks for the length of the server's step, so nothing speaks for another rate or against this one."""
    _, told, state = play([round_of(None)] * 3 + [round_of(None, cosine)], start="steps = 64")
    assert told == ["run-in: goes on"] * 3 + [said]
    assert not state["pace"]["run_in"]


def test_a_rate_that_hardly_moves_before_the_edge_of_the_grid_is_no_story():
    """From 0.9999 to 1 in the run-in: a part of 1.4e-5 of the grid."""
    _, told, state = play([round_of(2.0)], start="lr = 0.9999, steps = 80")
    assert told == ["run-in: goes on"]
    assert rate(state) == pytest.approx(1.0, abs=1e-9)


def test_a_rate_that_moves_a_little_is_shown_with_as_many_figures_as_it_takes():
    pace = Pace(HyperGrid.parse("lr = 0.9..1/5 log"))
    state, _ = pace.moved(pace.start(), [pace.grid.axes[0].point_of(0.9996)], 1.0, "for a reason")
    assert state["told"] == "learning rate 0.9996 to 1: for a reason"


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
    assert (state["pace"]["rounds"], state["pace"]["cosines"]) == (0, [])
