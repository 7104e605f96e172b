"""The codec of packages: what it must keep, and what it must refuse."""

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.core.errors import UpdateRefused
from fedaccord.core.packages import decode, encode

NAMES = ["3.weight", "0.bias", "1.running_mean", "0.weight", "10.bias"]


@given(st.permutations(NAMES))
def test_the_order_is_kept_because_a_sum_depends_on_it(names):
    """safetensors alone gives these back in an order that is another in the next process."""
    table = {name: torch.tensor([float(NAMES.index(name))]) for name in names}
    table[names[0]] = table[names[0]].double()  # safetensors sorts by type first
    assert [(name, value.item()) for name, value in decode(encode(table)).items()] == [
        (name, NAMES.index(name)) for name in names
    ]


def test_tensors_of_another_program_come_sorted():
    written = safetensors.torch.save({name: torch.zeros(1) for name in NAMES})
    assert list(decode(written)) == sorted(NAMES)
    assert decode(encode({})) == {}


@pytest.mark.parametrize(
    "order", ["0,1,2,3", "0,1,2,3,3", "0,1,2,3,5", "-1,0,1,2,3", "0,1,2,3,4,0", "", "0;1", "9" * 5000]
)
def test_an_order_that_is_none_is_refused(order):
    written = safetensors.torch.save({name: torch.zeros(1) for name in NAMES}, {"order": order})
    with pytest.raises(UpdateRefused, match="the tensors cannot be read"):
        decode(written)
