"""The trained model of a run folder: its weights, the model with them, and files for other programs."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedaccord.client.store import ClientStore
from fedaccord.core.algorithm import BEST, LAST
from fedaccord.core.batches import leaves, mapped, output_of
from fedaccord.core.errors import FedAccordError, RunError, SettingsError, first_line
from fedaccord.core.packages import decode, encode
from fedaccord.core.params import load_params
from fedaccord.core.records import Packages, Params, ServerState
from fedaccord.core.travel import HOME
from fedaccord.runtime.checkpoints import manifests, read_checkpoint
from fedaccord.runtime.checks import settle_sizes
from fedaccord.runtime.folder import CHECKPOINTS, FIXED, PRIVATE, read_raw, read_rounds, read_settings
from fedaccord.runtime.parts import build, example_of
from fedaccord.server.steps import DECAYS, SHORT
from fedaccord.tasks import find_task


def weights_of(run: Path, client: int | None = None, which: str | None = None) -> Params:
    """Return all weights of the model that the run hands out, or of `which`.

    What does not travel comes from the run folder too: the frozen part and, if a part of the model is each client's
    own, what this client keeps.
    """
    state = newest(run)
    first = min(state.model.accepted, default=None)
    apart = first is not None and HOME in kept_by(run, state, first)
    params = dict(handed_out(run, state, which, apart))
    if (run / FIXED).is_file():
        params |= decode((run / FIXED).read_bytes())
    if client is not None:
        params |= own_part(run, state, client)
    elif apart:
        raise RunError(
            f"{run}: a part of the model is each client's own: say whose (client=, --client), such as client {first}"
        )
    return params


def own_part(run: Path, state: ServerState, client: int) -> Params:
    """Return the part of the model that a client keeps, as of its last round that counted."""
    kept = kept_by(run, state, client)
    if HOME not in kept:
        raise RunError(f"{run}: client {client} keeps no part of the model of its own here")
    return kept[HOME]


def kept_by(run: Path, state: ServerState, client: int) -> Packages:
    """Return what a client kept in its last round that counted; empty if the run folder does not have it."""
    store, generation = ClientStore(run / PRIVATE, in_memory=False), state.model.accepted.get(client, 0)
    return store.get(client, generation) if generation in dict(store.generations(client)) else {}


def newest(run: Path) -> ServerState:
    """Return the server's state in the newest good checkpoint."""
    read_raw(run)  # raises RunError if this is not a run folder
    newest_first = manifests(run / CHECKPOINTS)[::-1]
    found = next((checkpoint for each in newest_first if (checkpoint := read_checkpoint(each)) is not None), None)
    if found is None:
        raise RunError(f"{run}: there is no checkpoint, so there are no weights")
    return found.state


def handed_out(run: Path, state: ServerState, which: str | None, apart: bool) -> Params:
    """Return the best model if it is kept, or else the last or one of its running means, as the log says.

    `which`: the last model itself (last), or nothing but the best (best). `apart`: a part of the model is each client's
    own, and goes with the model that the client received.
    """
    if which not in (None, LAST, BEST):
        raise SettingsError(f"which = {which}: expected last, or best")
    kept = {} if state.kept is None else state.kept.params
    if which == BEST and not kept:
        raise RunError(f"{run}: has no best model: it was run without keep = best")
    if which == LAST or kept:
        return state.params if which == LAST else kept
    means = {name: state.model.server[f"average.{name}"] for name in DECAYS if f"average.{name}" in state.model.server}
    said = [line.get("handed") for line in read_rounds(run) if line["round"] <= state.round]
    name = next((each for each in reversed(said) if each is not None), LAST if apart else SHORT)
    if name not in (LAST, BEST, *DECAYS):
        raise RunError(f"{run}: hands out {name}, a mean of its method's own; which = last: the last model")
    return means.get(name, state.params)


def load(
    run: str | Path, model: nn.Module | None = None, client: int | None = None, which: str | None = None
) -> nn.Module:
    """Return the model of a run folder with its weights, ready to be used (in eval mode).

    run     the folder
    model   a model of the same form, where the task's own cannot be built again: for a run of `federate`
    client  the client whose part to put in, where a part of the model is each client's own
    which   last: the model of the last round; best: the best one (keep = best); None: what the run hands out
    """
    run = Path(run)
    params = weights_of(run, client, which)
    if model is None:
        if read_raw(run).get("task") == "python":
            raise SettingsError(
                f"{run}: is a run of federate(), whose model is not in it: write .safetensors, or from Python "
                "load(run, model=...)"
            )
        settings = read_settings(run)
        task = find_task(settings.task, settings.image_size)
        model = build(task, settings)
        if any(map(is_lazy, [*model.parameters(), *model.buffers()])):  # only these need the data
            settle_sizes(model, task.prepare(example_of(task, settings).inputs, None), settings.seed)
    own = model.state_dict()
    odd = [name for name, value in params.items() if name not in own or own[name].shape != value.shape]
    if odd:
        raise RunError(f"{run}: the model has no {odd[0]} of that shape: it is of another form than the run's")
    if more := sorted(own.keys() - params.keys()):
        raise RunError(f"{run}: there is no {more[0]} in it: the model is of another form than the run's")
    load_params(model, params)
    return model.eval()


def export(run: Path, file: Path, client: int | None = None, which: str | None = None) -> str:
    """Write the model for other programs, in the form that the file's name asks for; return a sentence about it."""
    write = {".safetensors": as_weights, ".pt2": as_program, ".onnx": as_onnx}.get(file.suffix)
    if write is None:
        raise SettingsError(f"{file}: expected a name that ends in .safetensors, .pt2 or .onnx")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent) as beside:  # the file is there only if it is right
            written = Path(beside) / file.name
            told = write(run, written, client, which)
            written.replace(file)
        return told
    except OSError as error:
        raise RunError(f"{file}: cannot be written: {error.strerror}") from None
    except FedAccordError:
        raise
    except Exception as error:  # whatever torch says of a model that it cannot trace
        raise RunError(
            f"{file}: this model cannot be written so: {type(error).__name__}: {first_line(error)}"
        ) from error


def as_weights(run: Path, file: Path, client: int | None, which: str | None) -> str:
    params = weights_of(run, client, which)
    file.write_bytes(encode(params))
    return f"{len(params)} tensors, {sum(value.numel() for value in params.values()):,} numbers"


def as_program(run: Path, file: Path, client: int | None, which: str | None) -> str:
    model, inputs = with_example(run, client, which)
    program = torch.export.export(model, *called(inputs), dynamic_shapes=any_batch(inputs))
    torch.export.save(program, file)
    again = torch.export.load(file).module()
    return same(model, inputs, output_of(again, inputs))


def as_onnx(run: Path, file: Path, client: int | None, which: str | None) -> str:
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator
    except ImportError:
        raise SettingsError("ONNX files need the extra: pip install 'fedaccord[export]'") from None
    model, inputs = with_example(run, client, which)
    args, kwargs = called(inputs)
    shapes = any_batch(inputs)
    torch.onnx.export(
        model, args, file, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False, external_data=False
    )
    onnx.checker.check_model(file)
    session = ReferenceEvaluator(onnx.load(file))
    names = [each.name for each in session.proto_.graph.input]
    found = session.run(None, dict(zip(names, (each.numpy() for each in leaves(inputs)), strict=True)))
    return same(model, inputs, tuple(map(torch.from_numpy, found)))


def with_example(run: Path, client: int | None, which: str | None) -> tuple[nn.Module, Any]:
    """Return the model of a run, and two inputs as it sees them."""
    model, settings = load(run, client=client, which=which), read_settings(run)
    task = find_task(settings.task, settings.image_size)
    return model, task.prepare(example_of(task, settings).inputs, None)


def called(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs as arguments: those by position, and those by name."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs,) if isinstance(inputs, Tensor) else inputs, {}


def any_batch(inputs: Any) -> Any:
    """Return torch's declaration that the first axis of every input may have any length."""
    batch = torch.export.Dim("batch", min=1)
    if isinstance(inputs, dict):
        return {name: {0: batch} for name in inputs}
    return tuple({0: batch} for _ in leaves(inputs))


@torch.no_grad()
def same(model: nn.Module, inputs: Any, found: Any) -> str:
    """Compare what was written with the model itself: raise ValueError unless they give the same but for rounding."""
    own = leaves(output_of(model, mapped(torch.clone, inputs)))
    apart = max(float((one - other).abs().max()) for one, other in zip(own, leaves(found), strict=True))
    size = max(1.0, *(float(each.abs().max()) for each in own))
    if not apart <= 1e-3 * size:
        raise ValueError(f"what was written gave other outputs than the model, by {apart:.3g}")
    return f"its outputs for two examples differ from the model's by {apart:.1g} at most"
