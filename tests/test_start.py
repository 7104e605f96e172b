"""The model as it starts: He's draw, layers scaled on real examples, what stays as given, and the line that is told."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from fedaccord import config, federate
from fedaccord.cli import main
from fedaccord.core.errors import DataError, SettingsError
from fedaccord.core.params import read_params
from fedaccord.core.records import Examples
from fedaccord.data import digits
from fedaccord.data.prepare import Pixels, as_stored
from fedaccord.methods.registry import find
from fedaccord.models import cifar_cnn, kws_cnn, mnist_mlp
from fedaccord.runtime import federation
from fedaccord.runtime.build import from_task
from fedaccord.runtime.identity import params_sha256
from fedaccord.runtime.parts import Parts
from fedaccord.runtime.start import Passage, complaint, sample, start_model
from fedaccord.tasks import Task, find_task

ZOO = Path(__file__).parent.parent / "examples" / "zoo.py"


@pytest.fixture(scope="module")
def pictures():
    """Real pictures as large as the paper's: 96 digits, each pixel four by four, standardised."""
    data = digits.load().train[:96]
    inputs = data.inputs.float().repeat_interleave(4, 2).repeat_interleave(4, 3)  # (96, 1, 32, 32)
    return Examples((inputs - inputs.mean()) / inputs.std(), data.targets)


def parts_for(model, examples, init="as-given", seed=0, loss=None, clients=(), test=None):
    settings = config.make({"init": init, "seed": seed})
    return Parts(settings, find("FA"), model, as_stored, list(clients), examples, test, loss)


def started(model, examples, init, **more):
    """The same model, as it starts."""
    start_model(parts_for(model, examples, init, **more))
    return model


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


def noise(*shape):
    return Examples(torch.randn(*shape), torch.zeros(shape[0], dtype=torch.long))


# ---------------------------------------------------------------- he


@pytest.mark.parametrize(
    ("make", "shape", "fan_in"),
    [
        (lambda: nn.Linear(200, 300), (256, 200), 200),
        (lambda: nn.Conv1d(32, 64, 5), (32, 32, 40), 32 * 5),
        (lambda: nn.Conv2d(32, 64, 3, groups=4), (32, 32, 16, 16), 32 / 4 * 9),
        (lambda: nn.ConvTranspose2d(64, 32, 4, stride=2, padding=3), (32, 64, 12, 12), 64 * 16 / 4),
        (lambda: nn.ConvTranspose1d(64, 32, 3, groups=2, padding=2), (64, 64, 40), 64 / 2 * 3),
    ],
    ids=["linear", "conv1d", "grouped", "transposed", "transposed and grouped"],
)
@torch.no_grad()
def test_he_weights_have_variance_two_over_the_inputs_of_an_output(make, shape, fan_in):
    """So independent inputs of variance 1 give outputs of variance 2, of which a ReLU leaves a mean square of 1.

    Paddings of the transposed convolutions cut off the rim, where outputs have fewer inputs.
    """
    inputs = noise(*shape)
    layer, _ = started(nn.ModuleList([make(), nn.Linear(1, 1)]), None, "he")  # the last is made smaller
    assert float(layer.weight.var()) == pytest.approx(2 / fan_in, rel=0.05)
    assert float(layer.bias.abs().max()) == 0
    output = layer(inputs.inputs)
    assert float(output.square().mean()) == pytest.approx(2, rel=0.05)
    assert float(output.relu().square().mean()) == pytest.approx(1, rel=0.05)


@torch.no_grad()
def test_hes_last_layer_is_a_tenth_whatever_the_order_in_which_layers_were_made():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(400, 300), nn.Linear(200, 400)

        def forward(self, x):
            return self.head(self.body(x).relu())

    model = started(Backwards(), noise(8, 200), "he")
    assert float(model.body.weight.var()) == pytest.approx(2 / 200, rel=0.05)
    assert float(model.head.weight.var()) == pytest.approx(0.1**2 * 2 / 400, rel=0.05)


@torch.no_grad()
@pytest.mark.parametrize("seen", [True, False], ids=["run", "made"])
def test_below_a_last_layer_that_is_frozen_he_makes_nothing_smaller(seen):
    """The layers below start as they do with a head that is trained."""
    models = [nn.Sequential(nn.Linear(200, 400), nn.ReLU(), nn.Linear(400, 300)) for _ in range(2)]
    models[1][2].requires_grad_(False)
    free, fixed = (started(model, noise(8, 200) if seen else None, "he") for model in models)
    assert torch.equal(free[0].weight, fixed[0].weight)
    assert float(fixed[0].weight.var()) == pytest.approx(2 / 200, rel=0.05)


def test_he_needs_no_examples():
    alone, seeing = (started(seeded(mnist_mlp), held, "he") for held in (None, noise(8, 784)))
    assert params_sha256(read_params(alone)) == params_sha256(read_params(seeing))


def test_a_layers_draw_depends_on_seed_and_name_alone():
    one = started(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), None, "he")
    other = started(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)), None, "he")
    assert torch.equal(one[2].weight, other[2].weight)
    again = started(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), None, "he", seed=1)
    assert not torch.equal(one[2].weight, again[2].weight)


# ---------------------------------------------------------------- unit variance


@pytest.mark.parametrize(
    "make",
    [lambda: mnist_mlp(1024), lambda: cifar_cnn(1, width=16), lambda: kws_cnn(width=8)],
    ids=["mlp", "cnn", "kws"],
)
def test_every_layer_of_the_papers_networks_gives_variance_one(make, pictures):
    parts = parts_for(make(), pictures, "unit-variance")
    start_model(parts)
    values = sample(parts, pictures).inputs
    with torch.no_grad():
        for layer in parts.model:
            values = layer(values)
            if isinstance(layer, nn.Linear | nn.Conv2d):
                assert float(values.var(correction=0)) == pytest.approx(1, abs=1e-3)
                assert float(layer.bias.abs().max()) == 0


@pytest.mark.parametrize("name", ["resnet", "resnet_groups", "vgg_like", "signal", "transformer"])
def test_every_layer_of_the_example_networks_gives_variance_one(name):
    """Shortcuts, normalisation by the batch, in-place ReLUs, dropout, attention: measured as the loop sees them."""
    task = find_task(f"{ZOO}:{name}")
    model, data = seeded(task.model), task.data()
    examples = Examples(task.prepare(data.train.inputs[:100], None), data.train.targets[:100])
    parts = parts_for(model, examples, "unit-variance")
    start_model(parts)
    found = {}
    for place, layer in model.named_modules():
        if type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d):
            layer.register_forward_hook(lambda layer, args, output, place=place: found.update({place: output.var()}))
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
    with torch.no_grad():
        model(sample(parts, examples).inputs)
    assert len(found) >= 3
    for place, variance in found.items():
        assert float(variance) == pytest.approx(1, rel=0.02), place  # 1 / n against 1 / (n - 1), n >= 320: 0.3 %


def test_examples_come_from_the_server_or_else_from_the_client_with_the_most(pictures):
    few, most = pictures[:20], pictures[20:]
    by_client = [started(mnist_mlp(1024), None, "unit-variance", clients=c) for c in ([few, most], [most])]
    by_server = started(mnist_mlp(1024), most, "unit-variance", clients=[few])
    assert len({params_sha256(read_params(model)) for model in (*by_client, by_server)}) == 1
    assert not torch.equal(by_server[1].weight, started(mnist_mlp(1024), few, "unit-variance")[1].weight)


def test_without_examples_unit_variance_says_to_use_he(pictures):
    """The test set is no substitute: it must not tune anything."""
    with pytest.raises(SettingsError, match="use init = he") as raised:
        started(mnist_mlp(1024), None, "unit-variance", test=pictures)
    assert "\n" not in str(raised.value)


def test_a_model_that_cannot_be_run_is_told_in_one_line():
    with pytest.raises(DataError, match="cannot be run on the examples"):
        started(nn.Linear(3, 2), noise(8, 4), "unit-variance")


# ---------------------------------------------------------------- what stays as it is


def before_and_after(model, examples, init):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    started(model, examples, init)
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


class Odd(nn.Module):
    """One of each: what may be drawn anew is `first`, `twice`, `head` and nothing else."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.batch = nn.BatchNorm1d(6)
        self.layer = nn.LayerNorm(6)
        self.twice = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6)
        self.frozen.weight.requires_grad_(False)
        self.nothing = nn.Linear(6, 6)
        nn.init.zeros_(self.nothing.weight)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.memory = nn.LSTM(6, 6, batch_first=True)
        self.embedding = nn.Embedding(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.embedding.weight
        self.head = nn.Linear(6, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.layer(self.batch(self.first(x)).relu()) + 0.1 * torch.randn_like(x)
        x = self.drop(self.twice(self.twice(x).relu()))
        x = x + self.nothing(x) + self.normed(self.frozen(x)) + self.tied(x) + self.embedding(x[:, 0].long() % 6)
        x = x[:, None]
        x = self.attention(x, x, x)[0] + self.memory(x)[0]
        return self.head(input=x[:, 0])


DRAWN = {f"{layer}.{tensor}" for layer in ("first", "twice", "head") for tensor in ("weight", "bias")}


@pytest.mark.parametrize("init", ["he", "unit-variance"])
def test_what_is_frozen_shared_with_others_or_no_plain_layer_stays_as_given(init):
    """Nor are the running statistics, the modes and torch's generator touched; drawn layers get zero biases."""
    model, examples = seeded(Odd), noise(40, 6)
    model.batch.eval()
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    assert before_and_after(model, examples, init) == DRAWN
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(model.get_parameter(f"{layer}.bias").any() for layer in ("first", "twice", "head"))
    assert not any(module._forward_hooks for module in model.modules())


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


def test_a_layer_that_is_not_run_is_not_scaled():
    assert before_and_after(Unused(), noise(9, 4), "unit-variance") == {"used.weight", "used.bias"}
    assert len(before_and_after(Unused(), noise(9, 4), "he")) == 4  # nothing is run: all are drawn


@torch.no_grad()
def test_a_weight_that_two_layers_share_is_scaled_for_the_first_that_runs():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[0].weight = model[2].weight
    parts = parts_for(model, noise(200, 8), "unit-variance")
    start_model(parts)
    assert model[0].weight is model[2].weight
    assert float(model[0](sample(parts, parts.validation).inputs).var(correction=0)) == pytest.approx(1, abs=1e-3)
    assert not model[2].bias.any()


def test_a_layer_whose_output_does_not_vary_keeps_its_draw():
    """A millionth of variation is no more than rounding: it must not be blown up to one."""

    class AlmostConstant(nn.Module):
        def forward(self, x):
            return 0.3 + 1e-6 * x.tanh()

    model = nn.Sequential(nn.Linear(4, 4), AlmostConstant(), nn.Linear(4, 1))
    drawn = started(nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 1), nn.Linear(1, 1)), None, "he")
    assert torch.equal(started(model, noise(16, 4), "unit-variance")[2].weight, drawn[2].weight)


def test_a_model_without_layers_to_draw_is_refused():
    for init in ("he", "unit-variance"):
        with pytest.raises(SettingsError, match="no trained Linear layer or convolution"):
            started(nn.Sequential(nn.BatchNorm1d(4)), noise(8, 4), init)


def lazy():
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))


def test_layers_without_a_size_start_by_the_runs_seed(pictures):
    """Not by whatever was drawn before in this process."""
    clients = [(pictures.inputs, pictures.targets)]
    ends = {
        params_sha256(federate(seeded(lazy, seed), clients, rounds=1, engine="serial").state.params) for seed in (0, 1)
    }
    assert len(ends) == 1


def test_a_real_server_gives_layers_their_size_or_says_that_it_cannot(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    seen = []
    monkeypatch.setattr(federation, "drive", lambda setup, folder, view, others, anyway: seen.append(setup))
    task = Task("lazy", digits.load, lazy, Pixels((0.3053,), (0.3760,)), {"validation_per_class": 5})
    settings = task.resolved(clients=3, split="iid", engine="serial")
    federation.serve_task(task, settings, None, tmp_path / "run", simulate=True)
    assert params_sha256(seen[0].params) == params_sha256(from_task(task, settings).params)
    alone = Task("alone", model=lazy, load_my_data=lambda client: None, settings={"clients": 2, "evaluate": "clients"})
    with pytest.raises(SettingsError, match="a layer without a size"):
        federation.serve_task(alone, alone.resolved(), None, tmp_path / "alone")


# ---------------------------------------------------------------- the same everywhere


@pytest.mark.parametrize("init", ["he", "unit-variance"])
@pytest.mark.parametrize("engine", ["pool", pytest.param("stacked", marks=pytest.mark.slow)])
def test_every_engine_starts_from_the_same_bits(engine, init):
    def first(**own):
        task = find_task("digits")
        return params_sha256(from_task(task, task.resolved(**{"engine": "serial", "init": init, **own})).params)

    assert first(engine=engine) == first()
    assert first(init="as-given") != first()
    assert first(seed=1) != first()


@pytest.mark.slow
@pytest.mark.anywhere
def test_two_processes_start_from_the_same_bits():
    code = """
from fedaccord.runtime.build import from_task
from fedaccord.runtime.identity import params_sha256
from fedaccord.tasks import Task, find_task
task = find_task({name!r})
print(params_sha256(from_task(task, task.resolved(init="unit-variance", split="iid", engine="serial")).params))
"""
    name = f"{ZOO}:resnet"
    task = find_task(name)
    here = from_task(task, task.resolved(init="unit-variance", split="iid", engine="serial")).params
    run = [sys.executable, "-c", code.format(name=name)]
    there = {subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)}
    assert there == {params_sha256(here)}


def test_a_real_federation_starts_at_its_server_alone(tmp_path, monkeypatch):
    """Its server has the simulator's first parameters; a client has the model as given, and will receive them."""
    pytest.importorskip("flwr")
    from fedaccord.flower.node import Limits

    task, seen = find_task("digits"), []
    settings = task.resolved(init="unit-variance", clients=3, split="dirichlet", engine="serial")
    monkeypatch.setattr(federation, "drive", lambda setup, folder, view, others, anyway: seen.append(setup))
    federation.serve_task(task, settings, None, tmp_path / "run", simulate=True)
    assert params_sha256(seen[0].params) == params_sha256(from_task(task, settings).params)
    member = federation.member_of_task(task, settings, 1, tmp_path / "node", Limits(), simulate=True)
    given = from_task(task, task.resolved(clients=3, split="dirichlet", engine="serial")).params
    assert params_sha256(read_params(member.site.model)) == params_sha256(given)
    assert not member.labels
    member = federation.member_of_task(
        task, settings, 1, tmp_path / "other", Limits(), simulate=True, share_labels=True
    )
    assert list(member.labels) == np.bincount(member.site.clients[1].targets.numpy()).tolist()


def test_federate_takes_it_as_a_setting_and_leaves_the_users_model_alone():
    clients = [(torch.randn(30, 4), torch.arange(30) % 3)]
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    before = params_sha256(read_params(model))
    ends = set()
    for init in ("as-given", "he", "unit-variance"):
        history = federate(model, clients, rounds=1, engine="serial", init=init)
        assert history.settings.init == init
        ends.add(params_sha256(history.state.params))
    assert len(ends) == 3
    assert params_sha256(read_params(model)) == before
    with pytest.raises(SettingsError, match="expected one of as-given, he, unit-variance"):
        federate(model, clients, rounds=1, init="xavier")


# ---------------------------------------------------------------- the line that is told


def scaled(model, factor):
    for weight in model.parameters():
        weight.data *= factor
    return model


SOUND = {
    "torch's start of the MLP": lambda p: mnist_mlp(1024),
    "torch's start of the CNN": lambda p: cifar_cnn(1, width=16),
    "He's start of the MLP": lambda p: started(mnist_mlp(1024), p, "he"),
    "He's start of the six layers": lambda p: started(kws_cnn(width=16), p, "he"),
    "unit variance in six layers": lambda p: started(kws_cnn(width=16), p, "unit-variance"),
    "a head that starts at zero": lambda p: nn.Sequential(
        nn.Flatten(), nn.Linear(1024, 50), scaled(nn.Linear(50, 10), 0)
    ),
    "one layer": lambda p: nn.Sequential(nn.Flatten(), nn.Linear(1024, 10)),
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_a_sound_start(name, pictures):
    for seed in range(3):
        assert start_model(parts_for(seeded(lambda: SOUND[name](pictures), seed), pictures)) == []


@pytest.mark.parametrize("name", ["resnet", "resnet_groups", "signal", "transformer"])
def test_nothing_is_said_of_normalised_and_residual_networks(name):
    task = find_task(f"{ZOO}:{name}")
    data = task.data()
    examples = Examples(task.prepare(data.train.inputs[:100], None), data.train.targets[:100])
    for init in ("as-given", "he", "unit-variance"):
        assert start_model(parts_for(seeded(task.model), examples, init)) == []


@pytest.mark.parametrize("width", [16, 64])
def test_the_six_layers_of_the_paper_let_the_signal_die(width, pictures):
    for seed in range(3):
        (line,) = start_model(parts_for(seeded(lambda: kws_cnn(width=width), seed), pictures))
        assert line.startswith("the signal dies in the model as it starts: what reaches layer 1")
        assert line.endswith("try init = he or init = unit-variance")
        assert "\n" not in line


def test_scores_that_explode_are_told_of_with_the_layer_where_it_begins(pictures):
    """All weights of He's start nine times as large: two layers on, what they give is 81 times as large."""
    model = scaled(started(mnist_mlp(1024), pictures, "he"), 9)
    (line,) = start_model(parts_for(model, pictures))
    assert line.startswith("the signal explodes in the model as it starts: what reaches layer ")
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 50), nn.ReLU(), scaled(nn.Linear(50, 10), 1000))
    (line,) = start_model(parts_for(model, pictures))
    assert "explodes in the model as it starts: what layer 3 (Linear) gives varies by " in line


def test_scores_beyond_all_numbers_are_told_of(pictures):
    model = scaled(mnist_mlp(1024), 1e20)
    (line,) = start_model(parts_for(model, pictures))
    assert line.startswith("the signal explodes")


def test_inputs_of_another_size_than_one_are_told_of(pictures):
    for factor, word in ((1e-3, "small"), (255.0, "large")):
        (line,) = start_model(parts_for(mnist_mlp(1024), Examples(factor * pictures.inputs, pictures.targets)))
        assert line.startswith(f"the inputs are too {word} for the model as it starts: what reaches layer 1 (Linear)")
        assert line.endswith("scale them to a standard deviation of about 1")


def test_large_scores_that_are_right_are_no_explosion(pictures):
    """The scores of a perfect model: 100 for the right class and 0 for the others. Shuffled, they are all wrong."""

    class Perfect(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.head = nn.Linear(10, 10, bias=False)
            self.head.weight.data = 100 * torch.eye(10)[classes]

        def forward(self, x):
            return self.head(x)

    answers = Examples(torch.eye(10)[pictures.targets], pictures.targets)
    assert start_model(parts_for(Perfect(torch.arange(10)), answers)) == []
    (line,) = start_model(parts_for(Perfect(torch.arange(10).roll(1)), answers))
    assert "what layer head (Linear) gives" in line


def test_a_regression_is_measured_by_its_own_loss(pictures):
    """Answers of size 1000 are too large for targets of size 1, not for those of size 1000."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 1))
    targets = torch.randn(len(pictures), 1)
    model[1].weight.data *= 1000
    for factor, said in ((1.0, 1), (1000.0, 0)):
        examples = Examples(pictures.inputs, factor * targets)
        assert len(start_model(parts_for(model, examples, loss=mse_loss))) == said


def test_odd_data_and_models_are_passed_over(pictures):
    same = Examples(torch.zeros(9, 1, 32, 32), torch.zeros(9, dtype=torch.long))
    assert start_model(parts_for(kws_cnn(width=16), same)) == []  # nothing that could arrive
    assert start_model(parts_for(kws_cnn(width=16), pictures[:1])) == []
    assert start_model(parts_for(kws_cnn(width=16), None)) == []
    assert start_model(parts_for(kws_cnn(width=16), Examples(pictures.inputs * math.nan, pictures.targets))) == []
    assert start_model(parts_for(nn.Linear(3, 2), pictures)) == []  # whoever needs it to run says so


def test_the_layer_that_is_named_is_where_it_begins_for_good():
    """What a normalisation sets right on the way is no matter."""

    def said(*signal, worse=1.0, init="as-given"):
        pairs = itertools.pairwise(signal)
        return complaint([Passage(f"L{number}", *pair) for number, pair in enumerate(pairs)], worse, init)

    assert said(1, 0.001, 1, 0.1, 0.01) is None  # the last may be small
    assert "reaches layer L2 varies by 0.01 " in said(1, 0.1, 0.01, 0.001, 0.0001)
    assert "reaches layer L3 varies by 0.002 " in said(1, 0.001, 0.1, 0.002, 0.0001)
    assert said(1, 10, 100, 1000) is None  # but the loss is fine
    assert "explodes in the model as it starts: what reaches layer L1 varies by 10 " in said(1, 10, 100, 9, worse=9)
    assert "what layer L2 gives varies by 9 " in said(1, 10, 1, 9, worse=9)
    assert "what layer L1 gives varies by nan" in said(1, 1, math.nan, worse=math.nan)
    assert "inputs are too large" in said(50, 10, 4, 2, worse=4)
    assert said(50, 10, 1, 1, worse=9) is None
    assert said(1, 0.01, 0.001, init="he").endswith("; try init = unit-variance")
    assert said(1, 0.01, 0.001, init="unit-variance").endswith("; look at what comes before that layer")


SIX = """
from fedaccord import Examples, Task
from fedaccord.data import digits
from fedaccord.data.sets import DataSet
from torch import nn


def small(part):
    return Examples(part.inputs.float().flatten(1)[:400] / 100, part.targets[:400])


def data():
    whole = digits.load()
    return DataSet(small(whole.train), small(whole.test), whole.classes)


def deep():
    hidden = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(64, 10))


task = Task("deep", data, deep, settings={"rounds": 1, "split": "iid", "validation_per_class": 5})
"""


def test_a_run_says_it_once_before_its_first_round_and_in_every_view(tmp_path, capsys):
    (tmp_path / "six.py").write_text(SIX)
    run = ["run", f"{tmp_path}/six.py:task", "--runs", str(tmp_path), "--engine", "serial"]
    for name, more in (("plain", []), ("json", ["--json"])):
        assert main([*run, "--name", name, *more]) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if "signal" in line]
        assert len(told) == 1
        assert told[0].startswith("fedaccord: the signal dies in the model as it starts: what reaches layer ")
    assert main(["resume", str(tmp_path / "plain")]) == 0
    assert main([*run, "--name", "mended", "--init", "unit-variance"]) == 0
    assert "signal" not in capsys.readouterr().err


@pytest.mark.parametrize("show", [True, False])
def test_federate_says_it_too(show, pictures, capsys):
    federate(seeded(lambda: kws_cnn(width=8)), [(pictures.inputs, pictures.targets)], rounds=1, show=show)
    assert "fedaccord: the signal dies in the model as it starts" in capsys.readouterr().err
