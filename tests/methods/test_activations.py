"""What is seen of a model while it runs, however it is written."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaccord.core.errors import MatchingError
from fedaccord.methods.matching.activations import Activation, Pooling, Weighted, observe, record
from fedaccord.methods.matching.layers import Matching


def names(events):
    return [event.name for event in events if isinstance(event, Activation)]


class Functional(nn.Module):
    """The same network in three ways of writing it."""

    def __init__(self, style):
        super().__init__()
        self.conv, self.head, self.style = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 16, 3), style

    def forward(self, x):
        x = self.conv(x)
        if self.style == "functional":
            x = F.relu(F.max_pool2d(x, 2))
        elif self.style == "method":
            x = torch.max_pool2d(x, 2).relu()
        else:
            x = torch.relu_(F.max_pool2d(x, (2, 2), stride=2))
        return self.head(x.flatten(1))


@pytest.mark.parametrize("style", ["functional", "method", "in place"])
def test_it_does_not_matter_how_a_non_linearity_is_written(style):
    model, x = Functional(style), torch.randn(2, 1, 8, 8)
    output, events = record(model, x)
    assert torch.equal(output, model(x))
    assert names(events) == ["input", "relu#1", "top"]
    kinds = [type(event) for event in events]
    assert kinds == [Activation, Weighted, Pooling, Activation, Weighted, Activation]
    pooled, positions = F.max_pool2d(model.conv(x), 2, return_indices=True)
    assert torch.equal(events[2].positions, positions)
    assert torch.equal(events[3].value, pooled.relu())
    assert events[1].kernel == (3, 3)


POINTWISE_MODULES = [
    nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(0.2), nn.PReLU(), nn.ELU(), nn.SELU(), nn.CELU(),
    nn.GELU(), nn.SiLU(), nn.Mish(), nn.Tanh(), nn.Sigmoid(), nn.LogSigmoid(),
    nn.Softplus(), nn.Softsign(), nn.Hardtanh(),
    nn.Hardsigmoid(), nn.Hardswish(), nn.Hardshrink(), nn.Softshrink(), nn.Tanhshrink(), nn.Threshold(0.1, 20.0),
]  # fmt: skip


@pytest.mark.parametrize("module", POINTWISE_MODULES, ids=lambda module: type(module).__name__)
def test_every_point_wise_non_linearity_is_found_and_can_be_applied_again(module):
    model = nn.Sequential(nn.Linear(3, 5), module, nn.Linear(5, 2))
    x = torch.randn(4, 3)
    _, events = record(model, x)
    found = [event for event in events if isinstance(event, Activation)]
    assert len(found) == 3
    z = torch.randn(4, 5)
    assert torch.equal(found[1].finish(z.clone()), module(z.clone()))


def test_shared_and_nested_modules_count_each_time_they_run():
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 3), act, nn.Sequential(nn.Linear(3, 3), act), nn.Linear(3, 2))
    _, events = record(model, torch.randn(2, 3), follow=True)
    assert names(events) == ["input", "relu#1", "relu#2", "top"]
    # the second run of the shared module is inside the nested block
    assert [event.inside for event in events if isinstance(event, Activation)] == ["", "1", "1", ""]


def test_a_model_that_ends_in_a_non_linearity_has_it_as_top():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Sigmoid())
    assert names(record(model, torch.randn(2, 3))[1]) == ["input", "relu#1", "top"]


def test_token_ids_start_at_the_embedding():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))
    tokens = torch.randint(0, 7, (2, 5))
    _, events = record(model, tokens)
    assert names(events) == ["input", "gelu#1", "top"]
    assert torch.equal(events[0].value, model[0](tokens))
    assert events[0].tokens


def test_a_transformer_in_eval_mode_does_not_hide_its_layers_in_a_fused_kernel():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    with torch.no_grad():
        assert names(record(encoder, torch.randn(2, 3, 8))[1]) == ["input", "relu#1", "relu#2", "top"]


def test_layers_are_chosen_by_hand_by_any_name():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(2, 3)
    events = observe(model, x, ["input", "relu#2", "top"])
    assert names(events) == ["input", "relu#2", "top"]
    assert sum(isinstance(event, Weighted) for event in events) == 3
    by_module = [event for event in observe(model, x, ["0", "3", "top"]) if isinstance(event, Activation)]
    assert [event.name for event in by_module] == ["0", "3", "top"]
    assert by_module[0].finish is None  # a linear layer's output
    assert by_module[1].finish is not None  # a ReLU's
    assert torch.equal(by_module[1].value, model[:4](x))


def test_what_cannot_be_found_is_an_error_that_lists_what_was_seen():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(MatchingError, match=r"no layer 'relu#7'; seen: input, relu#1, top; .* 0, 1, 2"):
        observe(model, torch.randn(2, 3), ["relu#7", "top"])
    with pytest.raises(MatchingError, match=r"seen: top\. Name layers by hand .* or choose a method without RM"):
        observe(nn.EmbeddingBag(3, 4), torch.zeros(2, 3, dtype=torch.long))


def test_observing_changes_nothing():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    observe(model, torch.randn(4, 3))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("pool", [F.max_pool2d_with_indices, nn.MaxPool2d(2, return_indices=True)])
def test_a_model_that_asks_for_positions_gets_them(pool):
    class Asking(nn.Module):
        def forward(self, x):
            value, positions = pool(x, 2) if pool is F.max_pool2d_with_indices else pool(x)
            return value.relu().flatten(1) + 0 * positions.flatten(1)

    x = torch.randn(2, 1, 4, 4)
    output, events = record(Asking(), x)
    assert torch.equal(output, Asking()(x))
    assert [type(event) for event in events] == [Activation, Pooling, Activation, Activation]


class Reader(nn.Module):
    """Next token: an embedding, a recurrent layer, a score for each token at each place."""

    def __init__(self, kind, batch_first):
        super().__init__()
        self.embed, self.recurrent = nn.Embedding(20, 8), kind(8, 16, batch_first=batch_first)
        self.out, self.turn = nn.Linear(16, 20), not batch_first

    def forward(self, x):
        x = self.embed(x)
        x = self.recurrent(x.transpose(0, 1))[0].transpose(0, 1) if self.turn else self.recurrent(x)[0]
        return self.out(x)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("kind", "name"), [(nn.GRU, "gru#1"), (nn.LSTM, "lstm#1"), (nn.RNN, "rnn_tanh#1")])
def test_a_recurrent_layer_is_one_of_interest_with_its_output_sequence(kind, name, batch_first):
    model = Reader(kind, batch_first)
    tokens = torch.randint(0, 20, (3, 12))
    matching = Matching(model, tokens)
    assert matching.names == ["input", name, "top"]
    assert [layer.form for layer in matching.f] == ["each", "each"]
    output, events = record(model, tokens)
    (seen,) = [event for event in events if isinstance(event, Activation) and event.name == name]
    x = model.embed(tokens)
    expected = model.recurrent(x if batch_first else x.transpose(0, 1))[0]
    assert torch.equal(seen.value, expected)
    assert seen.finish(torch.tensor(100.0)) == 1  # what rebuilds it is brought into its range, that of tanh
    loss = matching.loss(events, events)
    by_hand = (matching.f[0].layer(seen.value if batch_first else seen.value.transpose(0, 1)) - x).square().sum() / 3
    rebuilt = matching.f[1].layer(output).tanh()
    by_hand = by_hand + (rebuilt - (expected if batch_first else expected.transpose(0, 1))).square().sum() / 3
    assert torch.allclose(loss, by_hand)


def test_a_packed_sequence_is_told_of_in_one_line():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, [5, 2], batch_first=True)
            return self.gru(packed)[1][-1]

    with pytest.raises(MatchingError, match=r"'gru#1' runs on a packed sequence.* give it the padded tensor"):
        observe(Packed(), torch.randn(2, 5, 3))


class Fused(nn.Module):
    """A picture and a table, joined in the end."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense, self.joint = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(5, 6), nn.Linear(4 * 16 + 6, 3)

    def forward(self, image, table):
        seen = self.conv(image).relu().flatten(1)
        return self.joint(torch.cat([seen, self.dense(table).tanh()], 1))


def test_of_several_inputs_each_is_rebuilt_from_the_next_layer_and_nothing_is_rebuilt_from_an_input():
    inputs = {"table": torch.randn(2, 5), "image": torch.randn(2, 1, 4, 4)}
    matching = Matching(Fused(), inputs)
    assert matching.names == ["input.image", "relu#1", "input.table", "tanh#1", "top"]
    assert [(layer.form, layer.layer.in_features if layer.form != "conv" else 4) for layer in matching.f] == [
        ("conv", 4),  # the picture from the convolution's output
        ("fold", 6),  # that from the table's dense layer, the next layer of interest that is not given
        ("each", 6),
        ("each", 3),
    ]
    as_tuple = Matching(Fused(), (inputs["image"], inputs["table"]))
    assert as_tuple.names == ["input.0", "relu#1", "input.1", "tanh#1", "top"]


def test_of_an_output_of_several_tensors_the_first_is_the_top():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

        def forward(self, x):
            return {"scores": self.inner(x), "extra": x}

    assert Matching(Two(), torch.randn(2, 3)).names == ["input", "relu#1", "top"]
    assert Matching(Two(), torch.randn(2, 3)).f[1].layer.in_features == 2


def test_one_number_an_example_is_a_layer_of_one_feature():
    class Regressor(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, x, age):
            return self.inner(torch.cat([x, age.unsqueeze(1)], 1)).squeeze(1)

    inputs = {"x": torch.randn(5, 3), "age": torch.randn(5)}
    matching = Matching(Regressor(), inputs)
    assert matching.names == ["input.age", "input.x", "relu#1", "top"]
    assert [layer.layer.weight.shape for layer in matching.f] == [(1, 8), (3, 8), (8, 1)]
    _, events = record(Regressor(), inputs)
    assert matching.loss(events, events).shape == ()
