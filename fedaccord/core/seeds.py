"""Every random number in the project comes from here.

A generator is named by what it is for, so a run needs no generator state to be resumed: the mini-batches of
client 3 in round 7 are the same whether or not rounds 1 to 6 ran in this process.
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def derive(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """Derive a 63-bit seed from these four values, independent of PYTHONHASHSEED, platform and process."""
    text = f"{seed}/{purpose}/{round}/{client}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """Return a torch generator for this purpose (always on the CPU, so that a GPU run draws the same numbers)."""
    return torch.Generator().manual_seed(derive(seed, purpose, round, client))


def numpy_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return a NumPy generator for this purpose: NumPy has distributions that torch lacks (Dirichlet)."""
    return np.random.default_rng(derive(seed, purpose, round, client))


@contextlib.contextmanager
def other_seeds(draw: torch.Generator) -> Iterator[None]:
    """Seed the global generators of Python and NumPy inside the block, and restore them afterwards.

    This is for a user's Dataset, which may draw from them as it is read.
    """
    seed = draw.initial_seed()
    before = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@contextlib.contextmanager
def global_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore it afterwards.

    This is for what cannot be handed a generator: a layer's default initialisation, dropout in a user's model.
    """
    number = derive(seed, purpose, round, client)
    if torch.accelerator.is_available():
        with torch.random.fork_rng():
            torch.manual_seed(number)
            yield
        return
    drawing = torch.default_generator  # by itself it takes a twentieth of the time, and this is done for every client
    before = drawing.get_state()
    drawing.manual_seed(number)
    try:
        yield
    finally:
        drawing.set_state(before)
