import hashlib
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedaccord import ClientPart, Outgoing, Part, ServerStep, Slot, Slots, Work, federate
from fedaccord.core.protocols import SCALAR, Method
from fedaccord.core.seeds import derive, generator, global_seed, numpy_generator
from fedaccord.methods.registry import PARTS
from fedaccord.runtime.identity import params_sha256

names = st.tuples(st.integers(0, 2**40), st.text(max_size=8), st.integers(0, 10**6), st.integers(0, 10**6))


def test_derive_is_the_documented_hash():
    expected = int.from_bytes(hashlib.sha256(b"7/batches/3/9").digest()[:8], "big") >> 1
    assert derive(7, "batches", 3, 9) == expected


@given(names, names)
def test_different_names_give_different_seeds(a, b):
    assert (derive(*a) == derive(*b)) == (a == b)


@pytest.mark.slow
def test_the_same_names_give_the_same_numbers_in_any_process():
    code = (
        "from fedaccord.core.seeds import *; "
        "print(derive(1, 'x', 2, 3), torch.rand(1, generator=generator(1, 'x')).item())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(outputs) == 1


def test_generators_are_fresh_each_time():
    assert torch.equal(torch.rand(5, generator=generator(0, "a")), torch.rand(5, generator=generator(0, "a")))
    assert numpy_generator(0, "a").random() == numpy_generator(0, "a").random()


def test_global_seed_leaves_the_global_generator_as_it_was():
    before = torch.random.get_rng_state()
    with global_seed(3, "init"):
        first = torch.rand(4)
    assert torch.equal(before, torch.random.get_rng_state())
    with global_seed(3, "init"):
        assert torch.equal(first, torch.rand(4))


# --- what a user's own code draws from torch's global generator ---

CLIENTS = [(torch.randn(12, 4, generator=generator(3, "x", 0, n)), torch.arange(12) % 3) for n in range(4)]
TEST = (torch.randn(9, 4, generator=generator(3, "t")), torch.arange(9) % 3)


def end_of(part, model=None, engine="serial", rounds=3, **more):
    """The weights after a short run with this part at the clients."""
    method = Method("Own", (PARTS["FA"], part)) if part is not None else "FA"
    made = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)) if model is None else model
    history = federate(made, CLIENTS, validation=TEST, method=method, rounds=rounds, engine=engine, **more)
    return params_sha256(history.state.params)


class Drawing(ClientPart):
    """Draws a head for itself as the round begins, and noise for what it sends as the round ends."""

    def begin(self, at):
        work, head = Work(), nn.Linear(3, 1)
        work.trained = (head,)
        work.term = lambda inputs, output, targets: 1e-1 * head(output).square().mean()
        return work

    def finish(self, end, work):
        return Outgoing(sent={"noise": {"value": torch.randn((), dtype=torch.float64)}})


class Noisy(ServerStep):
    """Moves the model by the noise that came up."""

    def apply(self, state, mean):
        moved = {name: value + 0.01 * mean.sent["noise"]["value"].float() for name, value in mean.params.items()}
        return moved, state


class Own(Part):
    name = "Drawing"
    slots = Slots(up=(Slot("noise", SCALAR),))

    def client(self, built):
        return Drawing()

    def server(self, settings):
        return Noisy()


def seeded_model(layer):
    with global_seed(1, "model"):
        return nn.Sequential(nn.Linear(4, 6), layer, nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.slow
def test_what_a_part_draws_as_a_round_begins_and_ends_is_the_same_on_every_engine():
    ends = [end_of(Own(), seeded_model(nn.Identity()), engine) for engine in ("serial", "pool", "serial")]
    assert len(set(ends)) == 1


class AlwaysDropping(nn.Module):
    """The common mistake: dropout that does not ask whether the model is in training."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("evaluate", ["server", "clients"])
def test_what_a_model_draws_in_evaluation_is_the_same_in_every_run(tmp_path, evaluate):
    """The rates that the tuner chooses depend on it, and so does whatever follows."""

    def end(rounds, folder=None):
        return federate(
            seeded_model(AlwaysDropping()), CLIENTS, validation=TEST if evaluate == "server" else None,
            method="FA+AH", rounds=rounds, engine="serial", folder=folder,
        ).state  # fmt: skip

    whole = end(6)
    torch.rand(5)  # another state of the global generator
    end(3, tmp_path / "run")
    resumed = end(6, tmp_path / "run")
    assert params_sha256(resumed.params) == params_sha256(whole.params)
    assert resumed.loss == whole.loss


class Running(nn.Module):
    """Keeps a running mean in a buffer that is no part of the model's state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return x - self.mean


@pytest.mark.slow
def test_a_buffer_beside_the_state_does_not_leak_from_client_to_client():
    ends = [
        end_of(None, seeded_model(Running()), engine, workers=workers)
        for engine, workers in (("serial", None), ("pool", 2), ("pool", 4))
    ]
    assert len(set(ends)) == 1
