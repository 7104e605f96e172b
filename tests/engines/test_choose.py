"""Which engine is chosen, what it says, and that whole runs agree on all of them."""

import pytest
import torch
from test_contract import HYPER, make_site
from torch import nn

from fedaccord import federate
from fedaccord.core.errors import SettingsError
from fedaccord.engines.choose import choose
from fedaccord.engines.pool import PoolEngine
from fedaccord.models import cifar_cnn, mnist_mlp
from fedaccord.runtime.folder import params_sha256

METHODS = ("FA", "FA+WD", "FA+RM", "FA+AH", "FA+RM+AH")


class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.top = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2, 3)

    def forward(self, x):
        return self.top(self.conv(x).relu().mean(dim=(2, 3)))


def test_auto_stacks_small_models_and_says_so():
    choice = choose("auto", make_site(), HYPER, cohort=5, workers=2)
    assert (choice.name, type(choice.engine)) == ("stacked", PoolEngine)
    assert choice.why == "2 processes; 51 weights: small enough to train clients in stacks"


def test_auto_takes_processes_for_convolutions_and_a_loop_for_one_core():
    site = make_site(Picture(), shape=(1, 4, 4))
    assert choose("auto", site, HYPER, cohort=5, workers=2).name == "pool"
    assert choose("auto", site, HYPER, cohort=5, workers=1).name == "serial"


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(6)])
def test_a_model_that_cannot_be_stacked_is_told_before_training(layer):
    site = make_site(nn.Sequential(nn.Linear(4, 6), layer, nn.ReLU(), nn.Linear(6, 3)), sizes=(8, 50, 9, 17, 17, 20))
    assert choose("auto", site, HYPER, cohort=5, workers=2).name == "pool"
    with pytest.raises(SettingsError, match="engine = stacked: this model's clients cannot be stacked"):
        choose("stacked", site, HYPER, cohort=5)


def data(clients, shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(12 + n, *shape, generator=g, dtype=dtype), torch.randint(0, 10, (12 + n,), generator=g))
        for n in clients
    ]


def run(engine, method, model, clients, **settings):
    torch.manual_seed(0)
    return federate(
        model(), data(range(clients), **settings.pop("of")), data([30], seed=1, shape=settings.pop("shape"))[0],
        method=method, rounds=20, engine=engine, workers=2, batch_size=8, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("model", "clients", "shape", "more"),
    [
        (mnist_mlp, 5, (1, 28, 28), {"lr": 0.02, "steps": 4, "grid": "lr = 0.01, 0.02, 0.05; steps = 2, 4, 6"}),
        (cifar_cnn, 2, (3, 32, 32), {"lr": 0.02, "steps": 1, "grid": "lr = 0.005, 0.01, 0.02; steps = 1, 2"}),
    ],
    ids=["MNIST network", "CIFAR network"],
)
def test_twenty_rounds_agree(method, model, clients, shape, more):
    """Pool: the same bits as the loop. Stacked: every tensor within 1e-4 of its norm.

    At small rates: at those that train fastest (0.2 on MNIST), rounding alone grows tenfold a round. That it is
    rounding, the next test shows.
    """
    serial, pool, stacked = (
        run(engine, method, model, clients, of={"shape": shape}, shape=shape, **more).state.params
        for engine in ("serial", "pool", "stacked")
    )
    assert params_sha256(pool) == params_sha256(serial)
    for name, value in serial.items():
        assert float((stacked[name] - value).norm() / value.norm()) < 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_stacks_do_the_same_sums(method):
    """In float64, at a rate where training is chaotic: 20 rounds end within 1e-7 of the loop."""
    clients, held = data(range(6), (20,), dtype=torch.float64), data([30], (20,), 1, torch.float64)[0]

    def end(engine):
        torch.manual_seed(0)
        model = mnist_mlp(inputs=20, hidden=30).double()
        settings = {"rounds": 20, "lr": 0.2, "steps": 5, "batch_size": 8, "engine": engine, "workers": 2}
        return federate(model, clients, held, method=method, **settings).state.params

    serial, stacked = end("serial"), end("stacked")
    for name, value in serial.items():
        assert float((stacked[name] - value).norm() / value.norm()) < 1e-7
