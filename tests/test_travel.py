"""What travels of a model, what stays with a client, and what is the same everywhere."""

import copy

import pytest
import torch
from torch import nn

from fedaccord import DataSet, Examples, Task, config, federate, load
from fedaccord.core.errors import SettingsError
from fedaccord.core.seeds import generator
from fedaccord.core.travel import HOME, travel_of
from fedaccord.runtime.build import from_task
from fedaccord.runtime.identity import params_sha256


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def frozen_base():
    model = net()
    for weight in model[:2].parameters():
        weight.requires_grad_(False)
    return model


NORM = {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}


@pytest.mark.parametrize(
    ("travels", "names", "home"),
    [
        ("all", {"0.weight", "0.bias", *NORM, "3.weight", "3.bias"}, set()),
        ("no-norm", {"0.weight", "0.bias", "3.weight", "3.bias"}, NORM),  # FedBN
        ("!3.*", {"0.weight", "0.bias", *NORM}, {"3.weight", "3.bias"}),  # FedPer
        ("0.*, 3.*, !*.bias", {"0.weight", "3.weight"}, {"0.bias", "3.bias", *NORM}),
        (lambda name, tensor: tensor.dim() == 2, {"0.weight", "3.weight"}, {"0.bias", "3.bias", *NORM}),
    ],
)
def test_names(travels, names, home):
    travel = travel_of(net(), travels)
    assert (travel.names, travel.home, travel.fixed) == (names, home, frozenset())


def test_what_is_frozen_is_fixed_with_the_statistics_of_a_frozen_normalisation():
    travel = travel_of(frozen_base(), "trainable")
    assert (travel.names, travel.home) == ({"3.weight", "3.bias"}, frozenset())
    assert travel.fixed == {"0.weight", "0.bias", *NORM}


def test_a_choice_that_makes_no_sense_is_told():
    with pytest.raises(
        SettingsError, match=r"travels = 1.running\*: then nothing that is trained would travel.*0.weight"
    ):
        travel_of(net(), "1.running*")
    with pytest.raises(SettingsError, match="no normalisation layer"):
        travel_of(nn.Linear(2, 2), "no-norm")
    for given in (None, ["0.*"]):
        with pytest.raises(SettingsError, match="travels: expected patterns in one text, or a function"):
            federate(net(), clients(), travels=given)


def clients(count=3, each=40):
    """Clients whose inputs are shifted and scaled each in its own way: what FedBN is for."""
    g = torch.Generator().manual_seed(0)
    found = []
    for number in range(count):
        x = torch.randn(each, 3, generator=g)
        found.append((5 * number + (1 + 3 * number) * x, (x[:, 0] + x[:, 1] > 0).long()))
    return found


SETTINGS = {"method": "FA", "rounds": 6, "steps": 4, "lr": 0.1, "engine": "serial", "test_every": 2}


@pytest.mark.parametrize("method", ["FA", "FA+RM", pytest.param("FA+RM+AH", marks=pytest.mark.slow), "SCAFFOLD"])
@pytest.mark.parametrize("travels", ["no-norm", "!3.*"])
def test_a_part_stays_at_home_on_every_engine_and_resumes(travels, method, tmp_path):
    """The same bits from one process or two, whole or in two pieces."""
    settings = {**SETTINGS, "travels": travels, "method": method}
    if "AH" in method:
        del settings["lr"], settings["steps"]
    whole = federate(net(), clients(), **settings)
    assert set(whole.state.params) == travel_of(net(), travels).names
    pool = federate(net(), clients(), **{**settings, "engine": "pool", "workers": 2})
    assert params_sha256(pool.state.params) == params_sha256(whole.state.params)
    assert [log.metrics for log in pool.rounds] == [log.metrics for log in whole.rounds]
    federate(net(), clients(), **{**settings, "rounds": 3}, folder=tmp_path / "run")
    text = (tmp_path / "run" / "settings.toml").read_text().replace("rounds = 3", "rounds = 6")
    (tmp_path / "run" / "settings.toml").write_text(text)
    resumed = federate(net(), clients(), **settings, folder=tmp_path / "run")
    assert params_sha256(resumed.state.params) == params_sha256(whole.state.params)


def test_each_client_has_its_own_part_and_is_measured_with_it(tmp_path):
    """By hand, from what each client kept: the second round's metrics are those of the model after the first, with its
    own head, on the part of its examples that it does not train on. Clients of 10 and 40 examples."""
    data = [clients(2, 40)[0], tuple(part[:10] for part in clients(2, 40)[1])]
    settings = {
        "travels": "!3.*", "method": "FA", "steps": 5, "lr": 0.1, "engine": "serial", "batch_size": 100,
        "entropy_weight": 0.0, "client_test": 0.2, "test_every": 1, "guards": False,
    }  # fmt: skip
    federate(net(), data, rounds=1, folder=tmp_path / "one", **settings)
    log = federate(net(), data, rounds=2, **settings).rounds[1]
    shares = []
    for client, (x, y) in enumerate(data):
        model = load(tmp_path / "one", net(), client=client, which="last").eval()
        order = torch.randperm(len(x), generator=generator(0, "client-test", 0, client))
        held = order[: round(0.2 * len(x))].sort()[0]
        shares.append(float((model(x[held]).argmax(1) == y[held]).float().mean()))
        assert log.clients[str(client)]["metrics"]["accuracy"] == pytest.approx(shares[-1])
    sizes = [log.clients[str(client)]["examples"] for client in (0, 1)]
    assert sizes == [32, 8]
    assert log.metrics["accuracy"] == pytest.approx((32 * shares[0] + 8 * shares[1]) / 40)
    assert shares[0] != shares[1]


def test_the_parts_of_two_clients_are_not_mixed():
    """Two clients whose heads must say opposite things about the same inputs: only their own heads can."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g)
    y = (x[:, 0] > 0).long()
    opposed = [(x, y), (x, 1 - y)]
    settings = {**SETTINGS, "rounds": 30, "steps": 10, "entropy_weight": 0.0}
    own = federate(net(), opposed, travels="!3.*", **settings)
    together = federate(net(), opposed, client_test=0.2, **settings)
    assert own.rounds[-1].metrics["accuracy"] > 0.9
    assert together.rounds[-1].metrics["accuracy"] < 0.7


def test_only_what_is_trained_travels_and_the_frozen_base_stays_as_it_was():
    base = frozen_base()
    before = copy.deepcopy(base.state_dict())
    g = torch.Generator().manual_seed(5)
    x = torch.randn(50, 3, generator=g)
    test = (x, (x[:, 0] + x[:, 1] > 0).long())
    history = federate(base, clients(), validation=test, test=test, travels="trainable", **SETTINGS)
    assert set(history.state.params) == {"3.weight", "3.bias"}
    everything = federate(base, clients(), validation=test, test=test, **SETTINGS)
    after = history.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in travel_of(base, "trainable").fixed)
    assert not torch.equal(after["3.weight"], before["3.weight"])
    assert history.rounds[0].bytes == 6 * 4 * (2 * 8 + 2)  # three clients, down and up, floats of a 2 x 8 and a 2
    assert everything.rounds[0].bytes > 4 * history.rounds[0].bytes


def test_what_is_kept_at_home_lies_with_the_client_alone(tmp_path):
    federate(net(), clients(), travels="no-norm", folder=tmp_path / "run", **SETTINGS)
    from fedaccord.client.store import ClientStore

    store = ClientStore(tmp_path / "run" / "private", in_memory=False)
    means = [store.get(number, 6)[HOME]["1.running_mean"] for number in range(3)]
    assert not torch.equal(means[0], means[1])


def test_a_pattern_that_fits_nothing_is_a_mistake():
    """Else what was to stay at home would be sent."""
    with pytest.raises(SettingsError, match=r"travels = !hed.\*: !hed.\* fits none of 0.weight"):
        travel_of(net(), "!hed.*")


def test_two_names_of_one_tensor_go_together():
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    tied[2].weight = tied[0].weight
    with pytest.raises(SettingsError, match="are one tensor"):
        travel_of(tied, "!2.*")


def test_a_predicate_that_raises_is_told():
    with pytest.raises(SettingsError, match=r"the predicate failed for 0.weight: KeyError"):
        travel_of(net(), lambda name, tensor: {}[name])


def test_statistics_without_weights_are_trained_and_those_of_a_frozen_layer_are_not():
    bare = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 2))
    own = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert travel_of(bare, "no-norm").home == own
    assert own <= travel_of(bare, "trainable").names
    base = frozen_base()
    base[1].running_mean.fill_(5.0)
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    history = federate(base, [(x, (x[:, 0] > 0).long())], travels="trainable", **SETTINGS)
    assert torch.equal(
        history.model[1].running_mean, torch.full((8,), 5.0)
    )  # and training normalises by it, as use does


def test_the_servers_examples_are_left_to_the_clients_where_it_could_not_use_them():
    g = torch.Generator().manual_seed(0)
    data = DataSet(*(Examples(torch.randn(n, 3, generator=g), torch.arange(n) % 2) for n in (300, 50)), ("a", "b"))
    task = Task("own", lambda: data, net, settings={"split": "iid", "clients": 3, "travels": "!3.*"})
    setup = from_task(task, task.resolved(engine="serial"))
    site = setup.experiment.engine.site
    assert sum(map(len, site.clients)) + sum(map(len, site.tests)) == 300
    assert (setup.settings.evaluate, setup.settings.client_test) == ("clients", 0.2)


def test_a_head_that_the_method_fixes_is_nobodys_own():
    g = torch.Generator().manual_seed(0)
    data = DataSet(*(Examples(torch.randn(n, 3, generator=g), torch.arange(n) % 2) for n in (300, 50)), ("a", "b"))
    own = {"split": "iid", "clients": 3, "travels": "!3.*", "method": "FixedHead", "validation_per_class": 10}
    setup = from_task(Task("own", lambda: data, net), config.make({**own, "engine": "serial"}))
    assert (setup.settings.evaluate, setup.settings.client_test) == ("server", 0.0)
    assert (setup.travel.home, setup.travel.fixed) == (frozenset(), {"3.weight", "3.bias"})
