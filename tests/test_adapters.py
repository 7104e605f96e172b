"""Low-rank adapters on a frozen model."""

import copy

import pytest
import torch
from torch import nn

from fedaccord import adapt, federate, merge
from fedaccord.core.errors import SettingsError


def base():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, 2))


def test_it_starts_as_the_model_itself_and_only_the_adapters_are_trained():
    model, x = base(), torch.randn(5, 6)
    before = model(x)
    adapted = adapt(model, rank=3)
    assert adapted is model
    torch.testing.assert_close(adapted(x), before, rtol=0, atol=0)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {f"{layer}.{part}" for layer in ("0", "2.0", "3") for part in ("down", "up")}
    assert model[0].down.shape == (3, 6)
    assert model[0].up.shape == (16, 3)


def test_merged_it_is_the_first_form_again_with_the_update_inside():
    model = adapt(base(), rank=2, layers="0, 2.*", scale=0.5)
    with torch.no_grad():
        model[0].up.normal_()
        model[2][0].up.normal_()
    x = torch.randn(5, 6)
    expected = model(x)
    plain = merge(copy.deepcopy(model))
    assert [type(each) for each in plain] == [type(each) for each in base()]
    torch.testing.assert_close(plain(x), expected)


def test_a_name_that_is_no_dense_layer_is_told():
    with pytest.raises(SettingsError, match=r"no dense layer is called so; there are 0, 2.0, 3"):
        adapt(base(), layers="head")


@pytest.mark.parametrize("method", ["FA", "FA+RM"])
def test_adapters_travel_alone(method):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(90, 6, generator=g)
    y = (x[:, 0] + x[:, 1] > 0).long()
    settings = {"rounds": 20, "lr": 0.3, "steps": 5, "engine": "serial", "method": method, "entropy_weight": 0.0}
    clients = [(x[c::3], y[c::3]) for c in range(3)]
    few = federate(adapt(base(), rank=2), clients, test=(x, y), travels="trainable", **settings)
    every = federate(base(), clients, test=(x, y), **settings)
    numbers = 2 * (6 + 16) + 2 * (16 + 16) + 2 * (16 + 2)
    assert few.rounds[0].bytes == 3 * 2 * 4 * numbers
    assert every.rounds[0].bytes == 3 * 2 * 4 * (6 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2)
    assert few.rounds[-1].metrics["accuracy"] > 0.85


def test_torchs_own_attention_can_be_adapted():
    """It looks into its dense layers; and in use it takes a fast path that does so even more."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(3, 5, 8)
    before = layer(x)
    adapt(layer, rank=2)
    torch.testing.assert_close(layer(x), before)
    with torch.no_grad():
        layer.linear1.up.normal_()
        layer.self_attn.out_proj.up.normal_()
        expected = layer(x)
        assert not torch.allclose(expected, before)
        torch.testing.assert_close(layer.eval()(x), expected)
        torch.testing.assert_close(merge(layer)(x), expected)


def test_a_layer_that_stands_in_two_places_stays_one():
    twice = nn.Linear(4, 4)
    model = adapt(nn.Sequential(twice, nn.ReLU(), twice), rank=2)
    assert model[0] is model[2]
    assert merge(model)[0] is model[2]
