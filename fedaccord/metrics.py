"""Metrics by name: what a model is judged by on a test set, and which way is better.

Classes: outputs are scores (examples, classes), or (examples, places, classes) for sequences; targets class numbers.
Labels that do not exclude each other: outputs are logits and targets zeros and ones, both (examples, labels), or of one
label (examples, 1) and (examples,).
Anything else: outputs and targets of one shape.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedaccord.core.batches import IGNORED, Batch
from fedaccord.core.errors import SettingsError
from fedaccord.core.modules import described
from fedaccord.core.records import LossFunction, Metric

Measure = Callable[[object, Batch], float]
Metrics = str | Metric | Measure | Sequence[str | Metric | Measure] | Mapping[str, Measure | Metric | str]
"""The forms in which metrics may be given: names (with commas), Metrics or functions, one or several, or by name."""
DIRECTIONS = ("higher", "lower")
TAKEN = ("round", "loss", "reward", "clients", "refused", "guard", "step_norm")
"""Names that no metric may have: a round's log uses them for other figures."""


def accuracy(output: Tensor, targets: Tensor) -> float:
    """Return the share of right answers; for labels that do not exclude each other, the share of right labels."""
    if not is_classes(output, targets):
        return float(((as_labels(output, targets) > 0) == (targets > 0.5)).double().mean())
    return int((output.argmax(-1) == targets).sum()) / max(1, int((targets != IGNORED).sum()))


def f1(output: Tensor, targets: Tensor) -> float:
    """Return the mean of the classes' (or labels') F1 scores, each of which counts the same."""
    from sklearn.metrics import f1_score

    if not is_classes(output, targets):
        said, wanted = as_labels(output, targets).numpy() > 0, targets.numpy() > 0.5
        one = "binary" if wanted.ndim == 1 else "macro"
        return float(f1_score(wanted, said, average=one, zero_division=0.0))
    scores, numbers = samples(output, targets)
    return float(f1_score(numbers.numpy(), scores.argmax(1).numpy(), average="macro", zero_division=0.0))


def auc(output: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve; for several classes (each against the rest) or labels, their mean.

    It is not a number where no class is both present and absent.
    """
    from sklearn.metrics import roc_auc_score

    if is_classes(output, targets):
        scores, numbers = samples(output, targets)
        columns, hits = scores.softmax(1), one_hot(numbers, scores.shape[1]).bool()
        if columns.shape[1] == 2:  # both columns have the same area
            columns, hits = columns[:, 1:], hits[:, 1:]
    else:
        columns, hits = as_labels(output, targets).reshape(len(output), -1), targets.reshape(len(targets), -1) > 0.5
    pairs = zip(columns.T, hits.T, strict=True)
    areas = [roc_auc_score(hit.numpy(), score.numpy()) for score, hit in pairs if hit.any() and not hit.all()]
    return math.fsum(areas) / len(areas) if areas else math.nan


def likelihood(output: Tensor, targets: Tensor) -> float:
    """Return the mean cross-entropy in nats."""
    return float(cross_entropy(*samples(output, targets)))


def perplexity(output: Tensor, targets: Tensor) -> float:
    return math.exp(min(likelihood(output, targets), 700.0))  # a larger exponent would overflow


def bits(output: Tensor, targets: Tensor) -> float:
    """Return the mean cross-entropy in bits: what a character (or whatever the classes are) costs."""
    return likelihood(output, targets) / math.log(2)


def mae(output: Tensor, targets: Tensor) -> float:
    return float(difference(output, targets).abs().mean())


def mse(output: Tensor, targets: Tensor) -> float:
    return float(difference(output, targets).square().mean())


def r2(output: Tensor, targets: Tensor) -> float:
    """Return the share of the targets' variance that is explained; it is not a number where they do not vary."""
    varies = float((targets.double() - targets.double().mean(0)).square().mean())
    return 1 - mse(output, targets) / varies if varies else math.nan


def difference(output: Tensor, targets: Tensor) -> Tensor:
    """Return output minus targets, element by element; raise ValueError where torch would broadcast one of them."""
    if output.shape != targets.shape and output.numel() == targets.numel():
        output = output.reshape(targets.shape)
    if output.shape != targets.shape:
        raise ValueError(f"outputs of shape {tuple(output.shape)}, targets of {tuple(targets.shape)}")
    return output.double() - targets.double()


def is_classes(output: Tensor, targets: Tensor) -> bool:
    """Return whether the targets are class numbers and the outputs a score for each class."""
    scores = output.dim() == targets.dim() + 1 and output.shape[-1] > 1
    return scores and not targets.is_floating_point()


def as_labels(output: Tensor, targets: Tensor) -> Tensor:
    """Return the logits in the shape of the targets, where those of a single label may be a column.

    Raise ValueError unless the targets are zeros and ones, and as many as the logits.
    """
    if bool(((targets != 0) & (targets != 1)).any()):
        raise ValueError("wants class numbers, or labels that are zeros and ones; these targets are neither")
    if output.numel() != targets.numel():
        raise ValueError(f"outputs of shape {tuple(output.shape)}, targets of {tuple(targets.shape)}")
    return output.reshape(targets.shape)


def samples(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores (samples, classes) and targets (samples,); in sequences every place with a target is a sample."""
    if not is_classes(output, targets):
        raise ValueError(f"wants class numbers and a score for each class, not outputs of shape {tuple(output.shape)}")
    scores, numbers = output.flatten(0, -2), targets.flatten()
    there = numbers != IGNORED
    return scores[there], numbers[there]


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", accuracy, percent=True),
        Metric("f1", f1),
        Metric("auc", auc),
        Metric("perplexity", perplexity, higher=False),
        Metric("bits", bits, higher=False),
        Metric("mae", mae, higher=False),
        Metric("mse", mse, higher=False),
        Metric("r2", r2),
    )
}
"""The metrics that may be asked for by name."""


def metrics_of(
    given: Metrics | None, loss: LossFunction | None, better: str | None = None, known: Sequence[Metric] = ()
) -> tuple[Metric, ...]:
    """Return a task's metrics, the one to judge by first: that is `better`, or the first that was given.

    If none are given, a classification is judged by its accuracy, and anything else by its loss. `better` may also say
    in which direction the first is better. `known`: metrics that may be named beside those in METRICS.
    """
    if given is None:
        found = [METRICS["accuracy"]] if loss is None else [loss_as_metric(loss)]
    elif isinstance(given, Mapping):
        found = [as_metric(name, each) for name, each in given.items()]
    else:
        several = given if isinstance(given, tuple | list) else [given]
        asked = given.split(",") if isinstance(given, str) else several
        found = [single(each, known) for each in asked if each != ""]
    if not found:
        raise SettingsError("metrics: none is named")
    if taken := [metric.name for metric in found if metric.name in TAKEN]:
        raise SettingsError(f"metric {taken[0]}: this name means something else in a run's log; choose another")
    if better is None:
        return tuple(found)
    if better in DIRECTIONS:
        return (replace(found[0], higher=better == "higher"), *found[1:])
    if better not in [metric.name for metric in found]:
        there = ", ".join(metric.name for metric in found)
        raise SettingsError(f"better = {better}: is none of the metrics that are measured: {there}")
    return tuple(sorted(found, key=lambda metric: metric.name != better))


def single(given: Any, known: Sequence[Metric]) -> Metric:
    """Return a metric that was given by itself: a Metric, a name, or a function, which has a name of its own."""
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        return named(given.strip(), known)
    if not callable(given):
        raise SettingsError(f"metrics: expected names, functions or Metrics, not {described(given)}")
    return as_metric(getattr(given, "__name__", "metric"), given)


def named(name: str, known: Sequence[Metric] = ()) -> Metric:
    there = METRICS | {metric.name: metric for metric in known}
    if name not in there:
        raise SettingsError(f"metric {name}: there is none of that name; there are {', '.join(there)}")
    return there[name]


def as_metric(name: str, given: Measure | Metric | str) -> Metric:
    """Return a known metric, another Metric or a function as a metric of this name."""
    if isinstance(given, str):
        given = named(given)
    return replace(given, name=name) if isinstance(given, Metric) else Metric(name, given)


def loss_as_metric(loss: LossFunction) -> Metric:
    return Metric("test_loss", lambda output, targets: float(loss(output, targets)), higher=False)
