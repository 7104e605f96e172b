"""Eq. 2 and its terms: what a client minimises. A method's objective is one of the three classes below."""

import copy
import math
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from fedaccord.core.records import Hyper, Order, Params
from fedaccord.core.seeds import global_seed
from fedaccord.methods.matching.activations import record
from fedaccord.methods.matching.layers import Matching


class ClientLoss(Protocol):
    """The loss of one client in one round."""

    trained: Sequence[nn.Module]  # what is trained beside the model: the matching layers, theta_i
    fixed: Sequence[nn.Module]  # what is run but not trained: the model as it was received
    pull: float  # weight of ||w_t - w_t^i||_2^2, whose gradient needs no graph: the descent adds it

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """On one mini-batch: a scalar with a graph to all that is trained."""
        ...

    def keep(self) -> Params | None:
        """What the client keeps for its next round; it never leaves the client."""
        ...


class Objective(Protocol):
    def begin(self, model: nn.Module, order: Order, client: int, seed: int, private: Params | None) -> ClientLoss:
        """`model` holds the received parameters already; `private` is what the client kept from its last round."""
        ...

    def private_like(self) -> Params:
        """Tensors like those that one client keeps; empty if it keeps nothing."""
        ...


class Plain:
    """FA: cross-entropy and the entropy term, nothing else."""

    def begin(self, model: nn.Module, order: Order, client: int, seed: int, private: Params | None) -> ClientLoss:
        return PlainLoss(model, order.hyper)

    def private_like(self) -> Params:
        return {}


class PlainLoss:
    def __init__(self, model: nn.Module, hyper: Hyper):
        self.model = model
        self.hyper = hyper
        self.trained: Sequence[nn.Module] = ()
        self.fixed: Sequence[nn.Module] = ()
        self.pull = 0.0

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return classification(self.model(inputs), targets, self.hyper)

    def keep(self) -> Params | None:
        return None


class WeightDivergence(Plain):
    """FA+WD: also wd_weight * ||w_t - w_t^i||_2^2 (FedProx), over the trained weights."""

    def begin(self, model: nn.Module, order: Order, client: int, seed: int, private: Params | None) -> ClientLoss:
        loss = PlainLoss(model, order.hyper)
        loss.pull = order.hyper.wd_weight
        return loss


class RepresentationMatching:
    """FA+RM: also rm_weight * L_M (Eq. 1), with theta_i trained along and kept from round to round.

    layers  the layers of interest by name (None: found)
    kernel  size of the matching convolutions (0: that of the layer they reverse)
    batch   how many examples of a mini-batch are matched (0: all)
    fresh   start theta_i anew each round instead of keeping it
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        layers: Sequence[str] | None = None,
        kernel: int = 0,
        batch: int = 0,
        fresh: bool = False,
    ):
        self.frozen = copy.deepcopy(model).eval().requires_grad_(False)
        self.matching = Matching(self.frozen, inputs, layers, kernel)
        if any(is_channels_last(weight) for weight in model.parameters()):
            self.matching.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.batch = batch or None
        self.fresh = fresh

    def begin(self, model: nn.Module, order: Order, client: int, seed: int, private: Params | None) -> ClientLoss:
        if order.hyper.rm_weight == 0:
            return PlainLoss(model, order.hyper)
        load_params(self.frozen, order.params)
        if private is not None and not self.fresh:
            load_params(self.matching, private)
        else:
            with global_seed(seed, "matching", order.round if self.fresh else 0, client):
                self.matching.reset_parameters()
        return MatchingLoss(model, order.hyper, self)

    def private_like(self) -> Params:
        return {} if self.fresh else {name: value.cpu() for name, value in read_params(self.matching).items()}


class MatchingLoss:
    """Eq. 2: L_C(a_M(x; w_i); y) + rm_weight * L_M(x; w_i, w, theta_i), with the entropy term."""

    def __init__(self, model: nn.Module, hyper: Hyper, objective: RepresentationMatching):
        self.model = model
        self.hyper = hyper
        self.objective = objective
        self.trained: Sequence[nn.Module] = (objective.matching,)
        self.fixed: Sequence[nn.Module] = (objective.frozen,)
        self.pull = 0.0

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        frozen, matching, batch = self.objective.frozen, self.objective.matching, self.objective.batch
        logits, trained = record(self.model, inputs, matching.layers)
        with torch.no_grad():
            _, fixed = record(frozen, inputs[:batch], matching.layers, positions=False)
        return classification(logits, targets, self.hyper) + self.hyper.rm_weight * matching.loss(trained, fixed)

    def keep(self) -> Params | None:
        if self.objective.fresh:
            return None
        return {name: value.cpu() for name, value in read_params(self.objective.matching).items()}


def is_channels_last(weight: Tensor) -> bool:
    return weight.dim() == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def load_params(module: nn.Module, params: Params) -> None:
    """Copy the values in; the module's tensors stay where they are."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        tensor.copy_(params[name])


def read_params(module: nn.Module) -> Params:
    """A copy of the module's values, on its device and in the plain order of memory, whatever the module's own is."""
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in module.state_dict().items()}


def classification(logits: Tensor, targets: Tensor, hyper: Hyper) -> Tensor:
    """L_C + entropy_weight * L_ER, each the mean over the batch.

    Eq. 8: L_ER(x) = max(0, H_min - H(softmax(a_M(x)))), per sample as printed.
    """
    if not hyper.entropy_weight:
        return cross_entropy(logits, targets)
    lowest = default_entropy_min(logits.shape[1]) if hyper.entropy_min is None else hyper.entropy_min
    loss, _ = Classification.apply(logits, targets, lowest, hyper.entropy_weight)
    return cast(Tensor, loss)


def default_entropy_min(classes: int) -> float:
    """H_min where the paper gives none: 2.0 nats for ten classes."""
    return round(0.87 * math.log(classes), 4)


class Classification(torch.autograd.Function):
    """The two terms with their gradient written out: a third of the calls that autograd would need for it.

    With p = softmax(a) and y the one-hot target, dL_C/da = p - y and, where H < H_min, dL_ER/da = p (log p + H).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, targets: Tensor, entropy_min: float, weight: float) -> tuple[Tensor, Tensor]:
        log_p = log_softmax(logits, dim=1)  # (batch, classes)
        p = log_p.exp()
        entropy = -(p * log_p).sum(dim=1, keepdim=True)  # (batch, 1)
        lack = torch.clamp(entropy_min - entropy, min=0)
        hit = targets.unsqueeze(1)
        loss = (weight * lack - log_p.gather(1, hit)).mean()
        gradient = p + (weight * (lack > 0)) * p * (log_p + entropy)
        gradient = gradient.scatter_add(1, hit, -torch.ones_like(entropy)) / len(logits)
        return loss, gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return outer[0] * gradient, None, None, None
