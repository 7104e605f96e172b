import hashlib
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.core.seeds import derive, generator, global_seed, numpy_generator

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
