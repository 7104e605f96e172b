"""Line 10, the step: SGD in place on all weights at once, or any torch optimizer."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedaccord.client.side import Corrections
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.records import Hyper, Packages, Params

STATE = "optimizer.state"
"""The package in which a client keeps its optimizer's state."""

MakeOptimizer = Callable[..., Optimizer]
"""(weights, lr=rate) -> a torch optimizer for them; torch's own classes are such functions."""


class Descent(Protocol):
    """One client's optimizer in one round. Weights and gradients: the model's first, then those trained beside it."""

    weights: list[Tensor]

    def __call__(self, gradients: Sequence[Tensor]) -> None: ...

    def kept(self) -> Packages:
        """Return what the client keeps of the optimizer; nothing if it starts anew each round."""
        ...


@dataclass(frozen=True)
class ClientOptimizer:
    """The clients' choice of an optimizer. `make`: None is SGD, the fast path."""

    make: MakeOptimizer | None = None
    nesterov: bool = False
    keep: bool = False

    def begin(
        self,
        own: Sequence[Tensor],
        beside: Sequence[Tensor],
        hyper: Hyper,
        corrections: Corrections | None = None,
        kept: Packages | None = None,
    ) -> Descent:
        """Return the optimizer for one client's round; `kept` is what the client kept after its last round."""
        if self.make is None and not self.keep:
            return Sgd(own, beside, hyper, corrections, self.nesterov)
        return TorchDescent(self.made(own, beside, hyper), own, beside, hyper, corrections, self.keep, kept or {})

    def made(self, own: Sequence[Tensor], beside: Sequence[Tensor], hyper: Hyper) -> Optimizer:
        """Make a torch optimizer for these weights. Weight decay does not apply to what is trained beside the model."""
        make: Any = self.make or torch.optim.SGD
        weights: list[Any] = [*own, *beside]
        more: dict[str, Any] = {}
        if takes_decay(make):
            more = {"weight_decay": hyper.weight_decay} if hyper.weight_decay else {}  # otherwise the optimizer's own
            weights = [{"params": list(own)}, {"params": list(beside), "weight_decay": 0.0}][: 2 if beside else 1]
        if self.make is None:
            more |= {"momentum": hyper.momentum, "nesterov": self.nesterov and hyper.momentum > 0}
        try:
            made = make(weights, lr=hyper.lr, **more)
        except Exception as error:  # whatever a user's function raises
            raise SettingsError(f"optimizer: cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, Optimizer):
            raise SettingsError(f"optimizer gives a {type(made).__name__}, expected a torch.optim.Optimizer")
        return made

    def template(self, own: Sequence[Tensor], beside: Sequence[Tensor], hyper: Hyper) -> Packages:
        """Return tensors like those that a client keeps: the state that a step with zeros leaves behind."""
        if not self.keep:
            return {}
        own, beside = ([nn.Parameter(torch.zeros_like(weight)) for weight in each] for each in (own, beside))
        trial = TorchDescent(self.made(own, beside, hyper), own, beside, hyper, None, True, {})
        trial([torch.zeros_like(weight) for weight in trial.weights])
        return trial.kept()


class Sgd:
    """SGD in place, all weights at once; momentum starts anew each round.

    `own` are the model's trained weights, `beside` what a method trains along with them. The method's corrections come
    first. Like clipping and weight decay, they apply to the model's own weights and gradients only.
    """

    def __init__(
        self,
        own: Sequence[Tensor],
        beside: Sequence[Tensor],
        hyper: Hyper,
        corrections: Corrections | None = None,
        nesterov: bool = False,
    ):
        self.weights, self.own = [*own, *beside], len(own)
        self.lr, self.momentum, self.nesterov = hyper.lr, hyper.momentum, nesterov
        self.decay, self.longest = hyper.weight_decay, hyper.clip_gradient
        self.corrections = corrections
        self.velocity: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor]) -> None:
        step = list(gradients)
        if self.corrections is not None:
            if self.corrections.gradients:  # autograd may give two weights the same tensor
                step[: self.own] = [gradient.clone() for gradient in step[: self.own]]
            self.corrections(self.weights, step)
        if self.longest:
            step[: self.own] = clipped(step[: self.own], self.norm(step[: self.own]), self.longest)
        if self.decay:
            step[: self.own] = torch._foreach_add(step[: self.own], self.weights[: self.own], alpha=self.decay)
        if self.momentum and self.velocity:
            torch._foreach_mul_(self.velocity, self.momentum)
            torch._foreach_add_(self.velocity, step)
        elif self.momentum:
            self.velocity = [gradient.clone() for gradient in step]
        if self.momentum:
            ahead = self.nesterov
            step = list(torch._foreach_add(step, self.velocity, alpha=self.momentum)) if ahead else self.velocity
        torch._foreach_add_(self.weights, step, alpha=-self.lr)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return length(gradients)

    def kept(self) -> Packages:
        return {}


def length(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of the whole gradient."""
    return torch.stack(torch._foreach_norm(list(gradients))).norm()


def clipped(gradients: Sequence[Tensor], norm: Tensor, longest: float) -> list[Tensor]:
    """Scale gradients down to a norm of at most `longest`; in a stack, `norm` has one value per client."""
    scale = (longest / norm.clamp(min=1e-12)).clamp(max=1)
    return [
        gradient * scale.view(-1, *(1,) * (gradient.dim() - 1)) if scale.dim() else gradient * scale
        for gradient in gradients
    ]


class TorchDescent:
    """A `Descent` that steps with a torch optimizer."""

    def __init__(
        self,
        optimizer: Optimizer,
        own: Sequence[Tensor],
        beside: Sequence[Tensor],
        hyper: Hyper,
        corrections: Corrections | None,
        keep: bool,
        kept: Packages,
    ):
        self.weights, self.own = [*own, *beside], len(own)
        self.optimizer, self.corrections, self.keep, self.longest = optimizer, corrections, keep, hyper.clip_gradient
        if STATE in kept:
            load_state(optimizer, kept[STATE])

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor]) -> None:
        step = [gradient.clone() for gradient in gradients]  # autograd may give two weights the same tensor
        own = step[: self.own]
        if self.corrections is not None:
            self.corrections(self.weights, own)
        if self.longest:
            own = clipped(own, length(own), self.longest)
        for weight, gradient in zip(self.weights, [*own, *step[self.own :]], strict=True):
            weight.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()

    def kept(self) -> Packages:
        if not self.keep:
            return {}
        state = read_state(self.optimizer)
        if type(self.optimizer) is torch.optim.SGD:  # it has no buffer without momentum, but may in another round
            for number, weight in enumerate(self.weights):
                state.setdefault(f"{number}.momentum_buffer", torch.zeros_like(weight.detach()).cpu())
        return {STATE: state}


def read_state(optimizer: Optimizer) -> Params:
    """Return an optimizer's state, one tensor for each weight and name: 0.exp_avg, 0.step ..."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value).detach().cpu().clone()
        for number, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor | float | int)
    }


def load_state(optimizer: Optimizer, saved: Params) -> None:
    """Restore the state that `read_state` returned; the learning rate and other options stay as they are."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in saved.items():
        number, _, what = name.partition(".")
        state.setdefault(int(number), {})[what] = value.clone()
    groups = optimizer.state_dict()["param_groups"]
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (KeyError, ValueError, RuntimeError) as error:
        raise RunError(f"the optimizer cannot go on from what was kept of it: {error}") from error


def optimizers() -> Mapping[str, type[Optimizer]]:
    """Return torch's own optimizers by lower-case name: those for any weights that do not call the loss themselves."""
    found = {name.lower(): each for name, each in vars(torch.optim).items() if inspect.isclass(each)}
    return {
        name: each
        for name, each in found.items()
        if issubclass(each, Optimizer) and {"lr", "weight_decay"} <= inspect.signature(each).parameters.keys()
        if name != "muon"  # for matrices only
    }


def by_name(name: str) -> MakeOptimizer | None:
    """Return the optimizer of this name; None for sgd, which has a fast path."""
    if name == "sgd":
        return None
    known = optimizers()
    if name not in known:
        raise SettingsError(f"optimizer = {name}: there is none of that name; there are {', '.join(sorted(known))}")
    return known[name]


def takes_decay(make: MakeOptimizer) -> bool:
    """Return whether the optimizer's weight decay is that of the settings."""
    return inspect.isclass(make) and "weight_decay" in inspect.signature(make).parameters


def check_settings(make: MakeOptimizer | None, momentum: float, nesterov: bool, decay: float) -> None:
    """Raise SettingsError for a setting that would have no effect."""
    if nesterov and not momentum:
        raise SettingsError("nesterov = true: there is no momentum; set momentum too")
    if make is not None and (momentum or nesterov):
        raise SettingsError("momentum and nesterov are SGD's; give another optimizer its own as a function")
    if make is not None and decay and not takes_decay(make):
        raise SettingsError("weight_decay: this optimizer takes none; one that is given as a function has its own")
