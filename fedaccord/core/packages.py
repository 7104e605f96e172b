"""The one codec of packages: for shared memory, for the wire, for a client's disk and for checkpoints.

Packages (slot -> tensors by name) become one flat table of tensors, "slot/name" -> tensor, and back. What is read is
checked against what was declared: names, shapes, types and finite values.
"""

import json
from collections.abc import Mapping

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedaccord.core.errors import UpdateRefused
from fedaccord.core.records import Packages, Params


def flatten(packages: Packages) -> Params:
    """Return one table of the tensors of all packages, named slot/name."""
    return {f"{slot}/{name}": value for slot, params in packages.items() for name, value in params.items()}


def unflatten(table: Mapping[str, Tensor]) -> dict[str, Params]:
    """Return the packages of a table of tensors that are named slot/name."""
    packages: dict[str, Params] = {}
    for key, value in table.items():
        slot, _, name = key.partition("/")
        packages.setdefault(slot, {})[name] = value
    return packages


def encode(params: Mapping[str, Tensor]) -> bytes:
    """Encode tensors of any type as safetensors bytes, exactly and in their order; nothing but tensors is in them.

    safetensors itself returns tensors in an order that differs from process to process, and a method that adds them
    up would then differ in the last bit. So the header says how the sorted names were ordered, unless they were sorted.
    """
    table: Params = {}
    seen: set[int] = set()
    for name, value in params.items():
        plain = value.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        table[name] = plain.clone() if place in seen else plain  # safetensors refuses two names for one memory
        seen.add(place)
    places = {name: place for place, name in enumerate(sorted(table))}
    order = None if list(table) == list(places) else {ORDER: ",".join(str(places[name]) for name in table)}
    return safetensors.torch.save(table, order)


ORDER = "order"
"""The header's entry for the order of the tensors: the place of each one's name among the sorted names."""


HEADER = 1 << 22
"""The most bytes that a safetensors header may have: enough for some 40,000 tensors."""


def decode(data: bytes) -> Params:
    """Decode bytes that `encode` made, and raise UpdateRefused for any others."""
    if not isinstance(data, bytes):
        raise UpdateRefused(f"the tensors cannot be read: they are {type(data).__name__}, not bytes")
    if (header := int.from_bytes(data[:8], "little")) > min(HEADER, len(data)):
        raise UpdateRefused(f"the tensors cannot be read: a header of {header:,} bytes")
    try:
        table: Params = safetensors.torch.load(data)
        order = json.loads(data[8 : 8 + header]).get("__metadata__", {}).get(ORDER)
        names = sorted(table)
        places = range(len(names)) if order is None else [int(place) for place in order.split(",")]
    except (SafetensorError, ValueError, TypeError, OverflowError, RuntimeError, KeyError, AssertionError) as error:
        raise UpdateRefused(f"the tensors cannot be read: {error}"[:200]) from None
    if sorted(places) != list(range(len(names))):
        raise UpdateRefused("the tensors cannot be read: their order names some twice or not at all")
    return {names[place]: table[names[place]] for place in places}


def check(params: Mapping[str, Tensor], declared: Mapping[str, Tensor], whose: str = "the model") -> None:
    """Raise UpdateRefused unless these are tensors of the declared names, shapes and types."""
    if params.keys() != declared.keys():
        odd = sorted(params.keys() ^ declared.keys())[0]
        raise UpdateRefused(f"names differ from those of {whose}, first at {odd!r}")
    for name, value in params.items():
        want = declared[name]
        if value.shape != want.shape:
            raise UpdateRefused(f"{name} has shape {tuple(value.shape)}, {whose} has {tuple(want.shape)}")
        if value.dtype != want.dtype:
            raise UpdateRefused(f"{name} has type {value.dtype}, {whose} has {want.dtype}")


def check_finite(params: Mapping[str, Tensor]) -> None:
    """Raise UpdateRefused if a value is NaN or infinite."""
    for name, value in params.items():
        if not bool(value.isfinite().all()):
            raise UpdateRefused(f"{name} has a value that is not finite")
