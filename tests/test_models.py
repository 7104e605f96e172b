"""The paper's networks: parameter counts by hand, shapes, and the equality of the two block orders."""

import pytest
import torch
from torch import nn

from fedaccord.models import cifar_cnn, kws_cnn, lenet, mnist_mlp


def dense(inputs, outputs):
    return inputs * outputs + outputs


def conv(inputs, outputs, kernel):
    return inputs * outputs * kernel**2 + outputs


CASES = [
    (mnist_mlp, (1, 28, 28), dense(784, 100) + dense(100, 100) + dense(100, 10)),
    (cifar_cnn, (3, 32, 32), conv(3, 32, 5) + conv(32, 64, 5) + dense(64 * 8 * 8, 1024) + dense(1024, 10)),
    (kws_cnn, (1, 32, 32), conv(1, 64, 3) + 3 * conv(64, 64, 3) + dense(64 * 8 * 8, 1024) + dense(1024, 10)),
    (lenet, (3, 32, 32), conv(3, 6, 5) + conv(6, 16, 5) + dense(16 * 5 * 5, 120) + dense(120, 84) + dense(84, 10)),
]


@pytest.mark.parametrize(("build", "shape", "count"), CASES)
def test_parameter_counts_and_shapes(build, shape, count):
    model = build()
    assert sum(p.numel() for p in model.parameters()) == count
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_layer_shapes_of_the_convolutional_networks():
    """32x32 -> 16x16 -> 8x8: same padding, two poolings."""
    for build, channels in ((cifar_cnn, 3), (kws_cnn, 1)):
        x = torch.zeros(1, channels, 32, 32)
        sides = []
        for layer in build():
            x = layer(x)
            if isinstance(layer, nn.MaxPool2d):
                sides.append(tuple(x.shape[2:]))
        assert sides == [(16, 16), (8, 8)]


def test_pool_then_relu_equals_relu_then_pool():
    model = cifar_cnn()
    layers = list(model)
    swapped = nn.Sequential(*[layers[i] for i in (0, 2, 1, 3, 5, 4, *range(6, 10))])
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(x), swapped(x))


def test_a_narrow_kws_network_is_narrow_throughout():
    assert sum(p.numel() for p in kws_cnn(width=16).parameters()) == (
        conv(1, 16, 3) + 3 * conv(16, 16, 3) + dense(16 * 64, 256) + dense(256, 10)
    )
