"""Which engine is chosen, what it says, and that whole runs agree on all of them."""

import pytest
import torch
from test_contract import HYPER, make_site
from torch import nn

from fedaccord import ClientPart, Part, Work, federate
from fedaccord.core.errors import SettingsError
from fedaccord.core.protocols import Method
from fedaccord.engines.choose import Request, choose
from fedaccord.engines.pool import PoolEngine
from fedaccord.methods.registry import PARTS
from fedaccord.models import cifar_cnn, mnist_mlp
from fedaccord.runtime.identity import params_sha256

METHODS = ("FA", "FA+WD", "FA+RM", "FA+AH", "FA+RM+AH")


class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.top = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2, 3)

    def forward(self, x):
        return self.top(self.conv(x).relu().mean(dim=(2, 3)))


@pytest.mark.slow
def test_auto_stacks_small_models_and_says_so():
    choice = choose("auto", Request(make_site(), HYPER, cohort=5, workers=2))
    assert (choice.name, type(choice.engine)) == ("stacked", PoolEngine)
    assert choice.why == "2 processes; 51 weights: small enough to train clients in stacks"


class Leaning(ClientPart):
    """Leaves its first round alone, as MOON does: a trace of that round would leave all rounds alone."""

    def begin(self, at):
        work = Work()
        if at.round > 1:
            work.term = lambda inputs, output, targets: 1e-2 * output.square().mean()
        return work


class Lean(Part):
    name = "Lean"

    def client(self, built):
        return Leaning()


def test_a_part_of_ones_own_is_stacked_only_if_it_says_so():
    site = make_site(method=Method("FA+Lean", (PARTS["FA"], Lean())))
    assert choose("auto", Request(site, HYPER, cohort=5, workers=1)).name == "serial"
    with pytest.raises(SettingsError, match="Lean does not say that its clients may be stacked"):
        choose("stacked", Request(site, HYPER, cohort=5))


def test_the_engine_says_why_there_is_but_one_process(monkeypatch):
    site = make_site(Picture(), shape=(1, 4, 4))
    assert choose("auto", Request(site, HYPER, cohort=5, workers=1)).why == "one core"
    assert choose("auto", Request(site, HYPER, cohort=1, workers=2)).why == "one client per round"
    monkeypatch.setattr("fedaccord.engines.choose.can_fork", lambda: False)
    assert choose("auto", Request(site, HYPER, cohort=5, workers=2)).why == "this system cannot fork processes"


def test_auto_takes_processes_for_convolutions_and_a_loop_for_one_core():
    site = make_site(Picture(), shape=(1, 4, 4))
    assert choose("auto", Request(site, HYPER, cohort=5, workers=2)).name == "pool"
    assert choose("auto", Request(site, HYPER, cohort=5, workers=1)).name == "serial"


@pytest.mark.slow
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(6)])
def test_a_model_that_cannot_be_stacked_is_told_before_training(layer):
    site = make_site(nn.Sequential(nn.Linear(4, 6), layer, nn.ReLU(), nn.Linear(6, 3)), sizes=(8, 50, 9, 17, 17, 20))
    assert choose("auto", Request(site, HYPER, cohort=5, workers=2)).name == "pool"
    with pytest.raises(SettingsError, match="engine = stacked: this model's clients cannot be stacked"):
        choose("stacked", Request(site, HYPER, cohort=5))


NETWORKS = {
    "MNIST network": (mnist_mlp, 5, (1, 28, 28)),
    "CIFAR network": (cifar_cnn, 2, (3, 32, 32)),
    "small network": (lambda: mnist_mlp(inputs=20, hidden=30), 6, (20,)),
}
GENTLE = {"lr": 0.02, "steps": 2, "grid": "lr = 0.005, 0.01, 0.02; steps = 1, 2"}
STEEP = {"lr": 0.2, "steps": 3, "grid": "lr = 0.1, 0.2; steps = 2, 3"}


def data(clients, shape, seed, dtype):
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(12 + n, *shape, generator=g, dtype=dtype), torch.randint(0, 10, (12 + n,), generator=g))
        for n in clients
    ]


def end(engine, method, network, dtype, **settings):
    """The parameters after a few rounds on made-up data."""
    build, clients, shape = NETWORKS[network]
    if "AH" in method:  # which chooses these
        settings = {name: value for name, value in settings.items() if name not in ("lr", "steps")}
    torch.manual_seed(0)
    return federate(
        build().to(dtype), data(range(clients), shape, 0, dtype), data([30], shape, 1, dtype)[0], method=method,
        engine=engine, workers=2, batch_size=8, **settings,
    ).state.params  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["MNIST network", "CIFAR network"])
def test_the_pool_has_the_bits_of_the_loop(method, network):
    serial, pool = (end(engine, method, network, torch.float32, rounds=5, **GENTLE) for engine in ("serial", "pool"))
    assert params_sha256(pool) == params_sha256(serial)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "method"),
    [
        *(("MNIST network", method) for method in METHODS),
        *(("CIFAR network", method) for method in ("FA+WD", "FA+RM+AH")),  # convolutions are slow in float64
        *(("small network", method) for method in METHODS),
    ],
)
def test_stacks_do_the_same_sums(network, method):
    """In float64, where a sum done in another order is all but the same, every tensor ends within 1e-8 of its norm.

    Where the bound comes from: a sum of n products is rounded by n 2^-53 at most, relative to the sum of their sizes;
    the longest, n = 64 * 8 * 8 of the CIFAR network's dense layer, by 4.5e-13. At a rate of 0.2 training is chaotic:
    rounding grows about tenfold a round. Three rounds of three steps at most, each adding 4.5e-13, each round tenfold:
    3 * 4.5e-13 * (10 + 100 + 1000) = 1.5e-9. One product in float32 instead would be off by 6e-8, a term that is
    missing by far more.
    """
    settings = STEEP if network == "small network" else GENTLE
    rounds = 2 if network == "CIFAR network" else 3
    serial, stacked = (
        end(engine, method, network, torch.float64, rounds=rounds, **settings) for engine in ("serial", "stacked")
    )
    for name, value in serial.items():
        assert float((stacked[name] - value).norm() / value.norm()) < 1e-8
