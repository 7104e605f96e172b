"""Metrics by name, on cases small enough to count by hand."""

import math
from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord import Metric, federate
from fedaccord.core.batches import IGNORED
from fedaccord.core.errors import SettingsError, TaskError
from fedaccord.core.records import metrics_on
from fedaccord.metrics import METRICS, metrics_of

SCORES = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0]])  # says 0, 1, 0, 1
CLASSES = torch.tensor([0, 1, 1, 1])
LABELS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


def measure(name, output, targets):
    return METRICS[name].measure(output, targets)


def test_of_classes():
    assert measure("accuracy", SCORES, CLASSES) == 0.75
    # class 0: precision 1/2, recall 1, F1 2/3; class 1: precision 1, recall 2/3, F1 4/5
    assert measure("f1", SCORES, CLASSES) == pytest.approx((2 / 3 + 4 / 5) / 2)
    # class 1 leads class 0 by -2, 1, -1, 3: the only 0 is ranked below all others
    assert measure("auc", SCORES, CLASSES) == 1.0
    assert measure("auc", -SCORES, CLASSES) == 0.0


def test_of_several_classes_the_area_is_the_mean_of_each_against_the_rest():
    scores = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    # class 0 ranks its only one level with a 2: 2.5 of 3 pairs; class 1 all right; class 2 one of two level with two
    assert measure("auc", scores, torch.tensor([0, 1, 2, 2])) == pytest.approx((2.5 / 3 + 1 + (2 + 1) / 4) / 3)


def test_of_labels_that_do_not_exclude_each_other():
    logits = torch.tensor([[1.0, -1.0], [1.0, 2.0]])
    assert measure("accuracy", logits, LABELS) == 0.75
    # the first label: precision 1/2, recall 1; the second: both 1
    assert measure("f1", logits, LABELS) == pytest.approx((2 / 3 + 1) / 2)
    assert measure("auc", logits, LABELS) == pytest.approx((0.5 + 1) / 2)


def test_of_sequences_places_without_a_target_do_not_count():
    scores = torch.zeros(1, 3, 4)
    scores[0, 0, 2] = math.log(3)  # p = 1/2 for class 2
    targets = torch.tensor([[2, 0, IGNORED]])
    nats = (math.log(2) + math.log(4)) / 2
    assert measure("perplexity", scores, targets) == pytest.approx(math.exp(nats))
    assert measure("bits", scores, targets) == pytest.approx(nats / math.log(2))
    assert measure("accuracy", scores, targets) == 1.0  # of equal scores the first is taken, which is 0


def test_of_numbers_a_column_and_a_row_are_the_same():
    output, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])
    assert measure("mae", output, targets) == pytest.approx(1 / 3)
    assert measure("mse", output, targets) == pytest.approx(1 / 3)
    assert measure("r2", output, targets) == pytest.approx(1 - (1 / 3) / (2 / 3))
    with pytest.raises(ValueError, match="outputs of shape"):
        measure("mae", torch.zeros(3, 2), targets)


def test_what_cannot_be_said_is_not_a_number():
    assert math.isnan(measure("auc", SCORES, torch.ones(4, dtype=torch.long)))
    assert math.isnan(measure("r2", torch.zeros(3), torch.ones(3)))


def test_labels_that_are_fewer_than_the_outputs_are_not_broadcast():
    with pytest.raises(ValueError, match=r"outputs of shape \(3, 3\), targets of \(3,\)"):
        measure("accuracy", torch.zeros(3, 3), torch.ones(3))


def test_the_one_to_judge_by_comes_first():
    assert [metric.name for metric in metrics_of("f1, accuracy", None)] == ["f1", "accuracy"]
    own = {"a": lambda *_: 0.0, "b": Metric("b", lambda *_: 0.0, higher=False)}
    assert [(m.name, m.higher) for m in metrics_of(own, None, "b")] == [("b", False), ("a", True)]
    with pytest.raises(SettingsError, match="better = c: is none of the metrics that are measured: a, b"):
        metrics_of(own, None, "c")
    with pytest.raises(SettingsError, match="metric f2: there is none of that name; there are accuracy, f1"):
        metrics_of(["f2"], None)


def test_forms_in_which_they_are_asked_for():
    def error(output, targets):
        return 0.0

    assert [(m.name, m.higher) for m in metrics_of(error, None, "lower")] == [("error", False)]
    for known in ("mae", Metric("mae", error, higher=False)):
        (named,) = metrics_of({"distance": known}, None)
        assert (named.name, named.higher) == ("distance", False)
    assert metrics_of("error, f1", None, known=metrics_of(error, None))[0].measure is error
    assert [m.name for m in metrics_of(None, cross_entropy)] == ["test_loss"]  # the log's own `loss` is another
    with pytest.raises(SettingsError, match="metric loss: this name means something else in a run's log"):
        metrics_of({"loss": error}, None)


def clients():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g)
    return [(x[:30], (x[:30, 0] > 0).long()), (x[30:], (x[30:, 0] > 0).long())], (x, (x[:, 0] > 0).long())


@pytest.mark.parametrize(("good", "rounds"), [(0, 0), (1, 1)])
def test_a_run_has_the_chosen_ones_and_one_that_raises_is_named_and_nothing_is_lost(tmp_path, good, rounds):
    """It is tried before the first round; one that fails later, here in round 2, leaves what was done before."""
    own, whole = clients()
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    settings = {"test": whole, "rounds": 4, "test_every": 2, "engine": "serial", "folder": tmp_path / "run"}

    answers = iter([0.5] * good)

    def broken(output, targets):
        for answer in answers:
            return answer
        raise ZeroDivisionError("no positives")

    with pytest.raises(TaskError, match="metric mine failed: ZeroDivisionError: no positives"):
        federate(model, own, metrics={"mine": broken}, **settings)
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == rounds
    again = federate(model, own, metrics="auc, f1, accuracy", **settings)
    assert list(again.rounds[-1].metrics) == ["auc", "f1", "accuracy"]
    assert len(again.rounds) == 4


@pytest.mark.parametrize("targets", [torch.tensor([1, 0, 1, 0]), torch.tensor([1.0, 0.0, 1.0, 0.0])])
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_logit_is_one_label(targets, shape):
    """Two right and two wrong answers; the last positive is ranked below the first negative."""
    logits = torch.tensor([2.0, 1.0, -3.0, -4.0]).reshape(shape)
    assert measure("accuracy", logits, targets) == 0.5
    assert measure("f1", logits, targets) == 0.5
    assert measure("auc", logits, targets) == 0.75


def test_batches_of_several_lengths_are_measured_as_one():
    """A collate function pads to the longest of its batch; what one has more than another is no target."""
    short, long = torch.zeros(1, 2, 3), torch.zeros(1, 4, 3)
    short[..., 1] = long[..., 2] = 5
    batches = [(short, torch.tensor([[1, 1]])), (long, torch.tensor([[2, 2, 2, 0]]))]
    assert metrics_on(batches, [METRICS["accuracy"]]) == {"accuracy": 5 / 6}


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8, torch.bool])
def test_numbers_of_several_lengths_are_measured_batch_by_batch(kind):
    """There is no number that would say: nothing here. Every answer is off by 2, of whatever length."""
    batches = [(torch.full((n, places), 3.0), torch.ones(n, places).to(kind)) for n, places in ((2, 3), (1, 7))]
    off = Metric("off", lambda output, targets: float((output - targets.float()).mean()))
    assert metrics_on(batches, [off]) == {"off": 2.0}


def test_outputs_may_be_nested_and_named_and_hold_nothing():
    Output = namedtuple("Output", "scores state extra")
    scores, state = torch.eye(3), torch.zeros(3, 2)
    batches = [(Output(scores, (state, [state]), None), torch.tensor([0, 1, 0]))] * 2
    metric = Metric("mine", lambda output, targets: float((output.scores.argmax(1) == targets).double().mean()))
    assert metrics_on(batches, [metric]) == {"mine": pytest.approx(2 / 3)}


class Answer(dict):
    """A model's output as some libraries have it: a dict whose entries are attributes, too."""

    __getattr__ = dict.__getitem__


def test_a_dict_of_another_class_stays_one():
    batches = [(Answer(logits=SCORES[rows]), CLASSES[rows]) for rows in (slice(0, 2), slice(2, 4))]
    right = Metric("right", lambda output, targets: float((output.logits.argmax(1) == targets).float().mean()))
    assert metrics_on(batches, [right]) == {"right": 0.75}


def test_an_output_without_tensors_is_told():
    output = namedtuple("Output", "scores")
    batches = [(type("Output", (), {"scores": SCORES})(), CLASSES)] * 2
    with pytest.raises(TaskError, match="the model gives an Output, in which no tensors can be found"):
        metrics_on(batches, [METRICS["accuracy"]])
    assert metrics_on([(output(SCORES), CLASSES)], [Metric("n", lambda o, t: len(o.scores))]) == {"n": 4.0}


def right(output, targets):
    return float((output.argmax(1) == targets).float().mean())


@pytest.mark.parametrize("given", [right, [right], [Metric("right", right)], Metric("right", right), {"right": right}])
def test_a_metric_of_ones_own_may_be_given_in_any_form(given):
    assert [metric.name for metric in metrics_of(given, None)] == ["right"]
    assert metrics_of(given, None)[0].of(SCORES, CLASSES) == 0.75


def test_what_is_no_metric_is_told():
    with pytest.raises(SettingsError, match="metrics: expected names, functions or Metrics, not an int"):
        metrics_of([3], None)
