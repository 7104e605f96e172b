"""Eq. 2 and its terms: what a client minimises. A method's objective is one of the three classes below."""

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, nll_loss

from fedaccord.client.activations import record
from fedaccord.client.matching import Matching
from fedaccord.records import Hyper, Order, Params
from fedaccord.seeds import global_seed


class ClientLoss(Protocol):
    """The loss of one client in one round."""

    weights: Sequence[nn.Parameter]  # what is trained beside the model's own weights: theta_i

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

    def private_bytes(self) -> int:
        """What one client keeps, in bytes."""
        ...


class Plain:
    """FA: cross-entropy and the entropy term, nothing else."""

    def begin(self, model: nn.Module, order: Order, client: int, seed: int, private: Params | None) -> ClientLoss:
        return PlainLoss(model, order.hyper)

    def private_bytes(self) -> int:
        return 0


class PlainLoss:
    def __init__(self, model: nn.Module, hyper: Hyper):
        self.model = model
        self.hyper = hyper
        self.weights: Sequence[nn.Parameter] = ()

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return classification(self.model(inputs), targets, self.hyper)

    def keep(self) -> Params | None:
        return None


class WeightDivergence(Plain):
    """FA+WD: also wd_weight * ||w_t - w_t^i||_2^2 (FedProx), over the trained weights."""

    def begin(self, model: nn.Module, order: Order, client: int, seed: int, private: Params | None) -> ClientLoss:
        return WeightDivergenceLoss(model, order)


class WeightDivergenceLoss(PlainLoss):
    def __init__(self, model: nn.Module, order: Order):
        super().__init__(model, order.hyper)
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.moved = list(trained.values())
        self.received = [order.params[name] for name in trained]

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        steps = (weight - start for weight, start in zip(self.moved, self.received, strict=True))
        divergence = torch.stack([step.square().sum() for step in steps]).sum()
        return super().__call__(inputs, targets) + self.hyper.wd_weight * divergence


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

    def private_bytes(self) -> int:
        return 0 if self.fresh else sum(p.numel() * p.element_size() for p in self.matching.parameters())


class MatchingLoss:
    """Eq. 2: L_C(a_M(x; w_i); y) + rm_weight * L_M(x; w_i, w, theta_i), with the entropy term."""

    def __init__(self, model: nn.Module, hyper: Hyper, objective: RepresentationMatching):
        self.model = model
        self.hyper = hyper
        self.objective = objective
        self.weights: Sequence[nn.Parameter] = list(objective.matching.parameters())

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
    log_p = log_softmax(logits, dim=1)  # (batch, classes)
    loss = nll_loss(log_p, targets)
    if hyper.entropy_weight:
        entropy = -(log_p.exp() * log_p).sum(dim=1)  # (batch,)
        loss = loss + hyper.entropy_weight * torch.clamp(hyper.entropy_min - entropy, min=0).mean()
    return loss
