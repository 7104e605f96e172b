"""Which tensors of a model travel, which stay with each client, and which are the same everywhere."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedaccord.core.errors import SettingsError

ALL, TRAINABLE, NO_NORM = "all", "trainable", "no-norm"
Travels = str | Callable[[str, Tensor], bool]
"""ALL, TRAINABLE, NO_NORM, comma-separated patterns of names ("head.*", "!*.bias": all but these), or a predicate."""

HOME = "model.home"
"""The package in which a client keeps its own part of the model."""


@dataclass(frozen=True)
class Travel:
    """The names in a model's state, each in one of three sets."""

    names: frozenset[str]  # sent down and up every round, and averaged
    home: frozenset[str] = frozenset()  # trained at the client and kept there
    fixed: frozenset[str] = frozenset()  # the same everywhere: never changed, sent once


def travel_of(model: nn.Module, travels: Travels = ALL) -> Travel:
    """Divide a model's state into what travels, what each client keeps to itself and what is the same everywhere.

    What does not travel is fixed if it is not trained, and otherwise each client's own. A buffer goes with its module:
    a BatchNorm's statistics are the client's own if its weights are.
    """
    state = model.state_dict(keep_vars=True)
    if not any(value.requires_grad for value in state.values()):
        raise SettingsError("the model has nothing to train: no parameter of it requires a gradient")
    if travels == ALL:
        return Travel(frozenset(state))
    changes = {name for name, value in state.items() if value.requires_grad}
    for place, module in model.named_modules():
        weights = list(module.parameters(recurse=False))
        if any(weight.requires_grad for weight in weights) or (not weights and isinstance(module, _NormBase)):
            changes |= {f"{place}.{name}" if place else name for name, _ in module.named_buffers(recurse=False)}
    if travels == TRAINABLE:
        names = changes & state.keys()
    elif travels == NO_NORM:
        names = set(state) - normalisation(model)
    else:
        names = {name for name, value in state.items() if chosen(travels, name, value)}
        if isinstance(travels, str):
            check_patterns(travels, list(state))
    told = travels if isinstance(travels, str) else "the predicate"
    if not any(state[name].requires_grad for name in names):
        some = ", ".join(list(state)[:6])
        raise SettingsError(f"travels = {told}: then nothing that is trained would travel; the names are {some} ...")
    rest = state.keys() - names
    places: dict[int, str] = {}
    for name in sorted(state):
        other = places.setdefault(id(state[name]), name)
        if (other in names) != (name in names):
            raise SettingsError(f"travels = {told}: {other} and {name} are one tensor: both must travel, or neither")
    return Travel(frozenset(names), frozenset(rest & changes), frozenset(rest - changes))


def normalisation(model: nn.Module) -> set[str]:
    """Return the names of all tensors of normalisation layers; raise SettingsError if the model has no such layer."""
    kinds = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    layers = [place for place, module in model.named_modules() if isinstance(module, kinds)]
    found = {
        f"{place}.{name}" if place else name for place in layers for name in model.get_submodule(place).state_dict()
    }
    if not found:
        raise SettingsError(f"travels = {NO_NORM}: the model has no normalisation layer")
    return found


def still_modules(model: nn.Module, travel: Travel) -> tuple[str, ...]:
    """Return the modules whose buffers are fixed: they must run in evaluation mode, or training would change them."""
    buffers = {name for name, _ in model.named_buffers()} & travel.fixed
    return tuple(sorted({name.rpartition(".")[0] for name in buffers}))


def patterns_of(travels: str) -> list[str]:
    return [pattern.strip() for pattern in travels.split(",") if pattern.strip()]


def check_patterns(travels: str, names: list[str]) -> None:
    """Raise SettingsError if a pattern fits no name: what was meant to stay would travel."""
    for pattern in patterns_of(travels):
        if not any(fnmatchcase(name, pattern.removeprefix("!")) for name in names):
            raise SettingsError(f"travels = {travels}: {pattern} fits none of {', '.join(names[:6])} ...")


def chosen(travels: Travels, name: str, value: Tensor) -> bool:
    """Return whether the patterns or the predicate let this tensor travel."""
    if not isinstance(travels, str):
        try:
            return bool(travels(name, value))
        except Exception as error:  # whatever a user's function raises
            raise SettingsError(f"travels: the predicate failed for {name}: {type(error).__name__}: {error}") from error
    patterns = patterns_of(travels)
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    but = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return any(fnmatchcase(name, each) for each in wanted or ["*"]) and not any(fnmatchcase(name, each) for each in but)
