"""Algorithm 1, line by line, with small real parts."""

import inspect
import math
import re
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers import hyper, module_with, server_chain
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.core.algorithm import (
    SETTLED,
    Experiment,
    Verdict,
    Watch,
    extremes,
    handed_out,
    measuring,
    run,
    run_round,
    start,
)
from fedaccord.core.cohorts import pass_length, sample_cohort
from fedaccord.core.observing import mean_cosine, observation, turn_of
from fedaccord.core.protocols import Measured
from fedaccord.core.records import Accepted, Best, ClientUpdate, Order, Refusal, ServerState, Snapshot
from fedaccord.core.stopwatch import Stopwatch
from fedaccord.policy.schedule import FixedSchedule
from fedaccord.server.chain import Aggregate
from fedaccord.server.guard import guard


class Scripted:
    """An engine whose clients reply what the test says: client -> (value, examples)."""

    def __init__(self, replies):
        self.replies = replies
        self.orders = []

    def train(self, order):
        self.orders.append(order)
        for client in order.cohort:
            value, examples = self.replies[client]
            yield ClientUpdate(client, {"w": torch.tensor([value])}, examples, loss=0.1)

    def close(self):
        pass


def experiment(replies, loss=lambda params, clients: Measured(float(params["w"][0])), **more):
    engine = Scripted(replies)
    schedule = FixedSchedule(hyper(steps=2, server_lr=1.0), lr_decay=0.5)
    fields = {"metrics": None, "clients": len(replies), "rounds": 3}
    server = server_chain(module_with(W), clients=len(replies))
    return engine, Experiment(engine, schedule, server, loss, guard(), **{**fields, **more})


W = {"w": torch.tensor([8.0])}


def test_one_round_by_hand():
    """w = (1*1 + 3*5) / 4 = 4; L falls from 8 to 4; r = (8 - 4) / 8."""
    engine, fed = experiment({0: (1.0, 1), 1: (5.0, 3)})
    state = start(fed, W)
    assert (state.round, state.loss) == (0, 8.0)
    state, log = run_round(fed, state)
    assert state.params["w"].tolist() == [4.0]
    assert (state.round, state.loss, log.loss, log.reward) == (1, 4.0, 4.0, 0.5)
    assert (log.hyper, log.cohort, log.refused, log.guard) == ({"lr": 0.1, "steps": 2}, [0, 1], [], None)
    assert log.clients["1"] == {"examples": 3, "loss": 0.1, "update_norm": 3.0}
    assert set(log.seconds) == {"policy", "aggregate", "train", "evaluate"}
    assert engine.orders[0].params is W


def test_the_printed_weights_shorten_the_step_when_not_all_take_part():
    """weighting = population: w + (n_0 / N) (w_0 - w) = 8 + 1/4 (1 - 8)."""
    engine, fed = experiment({0: (1.0, 1), 1: (5.0, 3)}, total_examples=4, fraction=0.5)
    cohort = sample_cohort(2, 0.5, seed=0, round=1)
    state, _ = run_round(fed, start(fed, W))
    value, examples = engine.replies[cohort[0]]
    assert state.params["w"].item() == pytest.approx(8 + examples / 4 * (value - 8))


def test_rounds_follow_each_other_with_their_own_hyper_parameters():
    engine, fed = experiment({0: (1.0, 1)})
    states = [state for state, _ in run(fed, start(fed, W))]
    assert [state.round for state in states] == [1, 2, 3]
    assert [order.hyper.lr for order in engine.orders] == [0.1, 0.05, 0.025]
    assert list(run(fed, states[-1])) == []


def test_metrics_are_measured_when_due_and_after_the_last_round():
    _, fed = experiment({0: (1.0, 1)}, metrics=lambda params: {"accuracy": 0.5}, rounds=5, test_every=2)
    measured = [log.metrics.get("accuracy") for _, log in run(fed, start(fed, W))]
    assert measured == [None, 0.5, None, 0.5, 0.5]


def test_a_round_without_a_usable_update_is_skipped():
    _, fed = experiment({0: (math.nan, 1)})
    state, log = run_round(fed, start(fed, W))
    assert state.params is W
    assert (state.round, state.loss, log.reward) == (1, 8.0, None)
    assert "skipped" in log.guard
    assert log.refused[0]["client"] == 0


def test_a_step_that_blew_up_is_shortened_until_it_does_no_harm():
    """From 8 the clients go to 40, five times the loss; 8 + 32/2 and 8 + 32/4 ... are all worse than 8: rolled back.

    With a loss that is smallest at 12, |w - 12| + 4: 8 at the start, 32 at 40, 16 at 24, 8 at 16: a quarter is taken.
    """
    _, fed = experiment({0: (40.0, 1)})
    state, log = run_round(fed, start(fed, W))
    assert (state.params, state.loss, log.reward) == (W, 8.0, -1.0)
    _, fed = experiment({0: (40.0, 1)}, loss=lambda params, clients: Measured(abs(float(params["w"][0]) - 12) + 4))
    state, log = run_round(fed, start(fed, W))
    assert state.params["w"].item() == 16.0
    assert (log.last_loss, log.guard) == (8.0, "shortened to 1/4: the loss rose from 8 to 32")
    assert log.reward == 1 / 4 - 1


def test_each_model_of_a_round_is_measured_once_and_the_best_is_handed_out():
    """w goes from 8 to 4, so the last is best; of the step the short mean makes 1 - 2/4, the long one 1 - 2/11."""
    seen = []

    def loss(params, clients):
        seen.append(float(params["w"][0]))
        return Measured(seen[-1])

    _, fed = experiment({0: (4.0, 1)}, loss=loss, metrics=lambda params: {"w": float(params["w"][0])}, rounds=1)
    fed = replace(fed, guard=guard(rewarded="short"))
    before = start(fed, W)
    seen.clear()
    _, log = run_round(fed, before)
    assert sorted(seen) == pytest.approx([4.0, 8 - 4 * 9 / 11, 6.0])
    assert (log.handed, log.metrics, log.loss, log.last_loss) == ("last", {"w": 4.0}, 6.0, 4.0)


def test_models_that_were_only_tried_may_go():
    _, fed = experiment({0: (4.0, 1)})
    measure = measuring(fed)
    tried = fed.server.start({"w": torch.tensor([2.0])})
    gone = weakref.ref(tried)
    assert measure(tried, "last").loss == measure(tried, "last").loss == 2.0
    del tried
    assert gone() is None
    assert (
        measure(fed.server.start({"w": torch.tensor([3.0])}), "last").loss == 3.0
    )  # even where it has the other's place


def test_a_model_with_a_non_finite_loss_is_rolled_back():
    _, fed = experiment({0: (1.0, 1)}, loss=lambda params, clients: Measured(8.0 if params["w"] == 8 else math.inf))
    state, log = run_round(fed, start(fed, W))
    assert state.params is W
    assert (state.loss, log.reward) == (8.0, -1.0)
    assert "rolled back" in log.guard


@given(st.integers(1, 300), st.floats(0.001, 1.0), st.integers(1, 50), st.booleans())
def test_a_cohort_is_a_selection_of_the_right_size(clients, fraction, t, passes):
    cohort = sample_cohort(clients, fraction, 0, t, passes)
    assert len(cohort) == max(1, round(fraction * clients))
    assert list(cohort) == sorted(set(cohort))
    assert 0 <= cohort[0] <= cohort[-1] < clients
    assert cohort == sample_cohort(clients, fraction, 0, t, passes)


@given(st.integers(1, 60), st.floats(0.02, 1.0), st.integers(0, 20))
def test_in_a_pass_everyone_trains_and_nobody_twice_more_than_needed(clients, fraction, number):
    length = pass_length(clients, fraction)
    cohorts = [sample_cohort(clients, fraction, 0, number * length + each) for each in range(1, length + 1)]
    times = [sum(client in cohort for cohort in cohorts) for client in range(clients)]
    assert set(times) <= {1, 2}
    assert sum(times) == length * len(cohorts[0])


def test_every_client_is_chosen_about_equally_often():
    """1,000 rounds of 5 of 10: each client 500 times, standard deviation sqrt(1000/4) = 16; five of those allowed."""
    chosen = [c for t in range(1, 1001) for c in sample_cohort(10, 0.5, 0, t, passes=False)]
    assert all(abs(chosen.count(client) - 500) < 80 for client in range(10))
    passes = [c for t in range(1, 1001) for c in sample_cohort(10, 0.5, 0, t)]
    assert all(passes.count(client) == 500 for client in range(10))


def test_run_round_fits_one_screen_and_carries_the_papers_line_numbers():
    body = inspect.getsource(run_round)
    assert body.count("\n") <= 50
    marks = re.findall(r"#\s+(\d+)(?:[-,] ?(\d+))?$", body, flags=re.MULTILINE)
    covered = {line for first, last in marks for line in range(int(first), int(last or first) + 1)}
    assert covered == set(range(4, 19))


@pytest.mark.parametrize("sizes", [[10, 10, 10], [910, 10, 10], [300, 50, 1]])
def test_the_mean_cosine_knows_how_much_each_client_counts(sizes):
    """Steps along different axes: the cosine of any two is 0, also where one of them is most of the mean."""
    steps = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    weights = torch.tensor(sizes) / sum(sizes)
    norms = [size * step.norm().item() for size, step in zip(sizes, steps, strict=True)]
    mean = (weights @ steps).norm().item()
    assert mean_cosine(mean / (sum(norms) / sum(sizes)), norms) == pytest.approx(0.0, abs=1e-6)
    assert mean_cosine(1.0, norms) == pytest.approx(1.0)
    assert mean_cosine(1.0, [3.0]) is None


@pytest.mark.parametrize(
    ("there", "turn"), [((5.0, 4.0), 1.0), ((3.0, 2.0), -1.0), ((3.0, 4.0), 0.0), ((4.0, 3.0), None)]
)
def test_a_turn_is_the_cosine_between_two_steps_in_a_row(there, turn):
    """From (3, 2) to (4, 3), and on to there; buffers, such as a BatchNorm's drifting variances, are no part of it."""
    places = ((3.0, 2.0), (4.0, 3.0), there)
    models = [Snapshot({"w": torch.tensor(each), "var": torch.tensor(9.0 * n)}) for n, each in enumerate(places)]
    assert turn_of(*models, ["w"]) == (None if turn is None else pytest.approx(turn))
    assert turn_of(None, *models[1:], ["w"]) is None


def test_what_was_gained_is_not_known_where_the_first_loss_is_not():
    """A checkpoint of before it was kept: a loss of 0.3 in round 401 is not the first."""
    late = ServerState(400, Snapshot(W, accepted={0: 400}), 0.3, {}, last_loss=0.3)
    assert extremes(late, 0.299) == (None, None)
    assert extremes(ServerState(0, Snapshot(W), None, {}), 2.0) == (2.0, 2.0)
    assert extremes(ServerState(1, Snapshot(W), None, {}), 2.0) == (2.0, 2.0)  # nobody counted in the first round
    assert extremes(ServerState(5, Snapshot(W), 1.0, {}, None, 1.0, 2.0, 0.9), 0.8) == (2.0, 0.8)


@pytest.mark.parametrize("higher", [True, False])
def test_an_equal_score_is_no_better(higher):
    watch = Watch(higher=higher)
    assert watch.better(1.0, None)
    assert not watch.better(1.0, Best(3, 1.0))
    assert watch.better(2.0, Best(3, 1.0)) == higher


@pytest.mark.parametrize(("round", "handed"), [(1, "last"), (SETTLED - 1, "last"), (SETTLED, "short"), (90, "short")])
def test_where_nobody_can_measure_the_mean_is_handed_out_once_it_has_settled(round, handed):
    """Its weight on the first model: the product of min(0.8, (1 + t) / (3 + t)) over the rounds."""
    models = {"last": {"w": torch.ones(1)}, "short": {"w": torch.zeros(1)}, "long": {"w": torch.zeros(1)}}
    ex = SimpleNamespace(server=SimpleNamespace(models=lambda model: models), own_parts=False, clients_report=True)
    assert handed_out(ex, round, None, lambda *_: pytest.fail("measured"))[0] == handed
    weights = [math.prod(min(0.8, (1 + t) / (3 + t)) for t in range(1, n + 1)) for n in (SETTLED - 1, SETTLED)]
    assert weights == pytest.approx([0.0140, 0.0112], abs=1e-4)


def test_a_policy_is_told_which_share_of_the_clients_blew_up():
    """One of three that answered; who did not answer in time says nothing of the rate."""
    refused = [Refusal(0, "a value is not finite", True), Refusal(7, "no reply in time")]
    clients = [Accepted(n, 5, 0.1, 1.0) for n in (1, 2)]
    model = Snapshot(W, accepted={1: 3, 2: 2})
    mean = Aggregate(model, clients, refused, 1.0, scaled=lambda share: model)
    order = Order(4, (0, 1, 2, 7), W, hyper())
    seen = observation(4, ServerState(3, model, 1.0, {}), order, mean, Verdict(model, 1.0, 1.0, 0.1), {}, Stopwatch())
    assert (seen.diverged, seen.blown) == (pytest.approx(1 / 3), (0,))
    assert seen.overlap == 1 / 4  # client 1 alone also counted in round 3


def test_after_a_model_was_taken_back_the_next_fallback_is_not_that_model():
    """Round 3 finds the second model bad and puts the first one back. Were round 4 to find that one bad, too, the run
    must not go on from the second."""

    def judge(state, mean, measure):
        back = state.round == 2
        return Verdict(state.previous if back else mean.model, 1.0, 1.0, 0.1, carried_out=not back)

    _, plain = experiment({0: (5.0, 1), 1: (7.0, 1)})
    ex = replace(plain, clients_report=True, guard=judge)
    states = [start(ex, W)]
    for _ in range(3):
        states.append(run_round(ex, states[-1])[0])
    assert states[3].model is states[2].previous
    assert states[3].previous is states[2].previous
    assert states[2].model is not states[2].previous
