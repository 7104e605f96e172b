"""Whether the entropy term is on where nobody has said so."""

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord import federate
from fedaccord.core.errors import DataError, FedAccordWarning


def tumours():
    """Standardised measurements, and what they turned out to be, in a random order."""
    inputs, targets = (torch.tensor(each) for each in load_breast_cancer(return_X_y=True))
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    return inputs[order].float(), targets[order]


INPUTS, TARGETS = tumours()
ALIKE = [(INPUTS[first : first + 100], TARGETS[first : first + 100]) for first in (0, 100, 200, 300)]
APART = [(INPUTS[:400][TARGETS[:400] == one], TARGETS[:400][TARGETS[:400] == one]) for one in (0, 1)]
REST = INPUTS[400:], TARGETS[400:]


def train(clients, rounds=1, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))
    return federate(model, clients, validation=REST, rounds=rounds, engine="serial", **more)


@pytest.mark.parametrize(("clients", "weight", "told"), [
    (ALIKE, 0.0, "entropy term off: the clients' first steps agree, mean cosine 0."),
    (APART, 1.0, "entropy term on: the clients' first steps are opposed, mean cosine -0."),
    (ALIKE[:1], 0.0, "entropy term off: there are no two clients to compare"),
])  # fmt: skip
def test_it_is_on_where_the_clients_are_opposed(capsys, clients, weight, told):
    assert train(clients, show=True).settings.entropy_weight == weight
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("given", [0.0, 0.5])
def test_what_is_set_is_set(capsys, given):
    assert train(APART, show=True, entropy_weight=given).settings.entropy_weight == given
    assert ("on, weight 0.5: as task" if given else "off: as task") in capsys.readouterr().err


def test_with_a_loss_of_ones_own_there_is_none(capsys):
    assert train(APART, show=True, loss=cross_entropy).settings.entropy_weight == 0.0
    assert "entropy term off: the loss is the task's own\n" in capsys.readouterr().err
    train(APART, show=True, loss=cross_entropy, entropy_weight=0.5)
    assert "the loss is the task's own, so entropy_weight = 0.5 has no effect" in capsys.readouterr().err


def test_alike_clients_keep_their_probabilities():
    """The negative log-likelihood on what the clients have not seen, with the term as it is settled and with it on."""
    settled, on = (train(ALIKE, rounds=30, **more).model(REST[0]) for more in ({}, {"entropy_weight": 1.0}))
    assert cross_entropy(settled, REST[1]) < 0.6 * cross_entropy(on, REST[1])


def test_a_folder_is_taken_up_again(tmp_path):
    first = train(ALIKE, rounds=2, folder=tmp_path / "run")
    again = train(ALIKE, rounds=2, folder=tmp_path / "run")
    assert again.settings == first.settings
    assert len(again.rounds) == 2


def test_a_client_with_bad_data_is_left_out_of_the_comparison(capsys):
    broken = (torch.full((50, 30), 3e38), torch.zeros(50, dtype=torch.int64))
    with pytest.warns(FedAccordWarning, match="client 2 never counted"):
        assert train([*APART, broken], show=True).settings.entropy_weight == 1.0
    assert "mean cosine -0." in capsys.readouterr().err


class Branches(nn.Module):
    """Which of its layers is used depends on the data, and gradients of one are sparse."""

    def __init__(self):
        super().__init__()
        self.low, self.high, self.table = nn.Linear(30, 2), nn.Linear(30, 2), nn.Embedding(3, 2, sparse=True)

    def forward(self, inputs):
        return (self.low if inputs.mean() < 0 else self.high)(inputs) + self.table((inputs[:, 0] > 0).long())


def test_models_with_branches_and_sparse_gradients_are_compared(capsys):
    torch.manual_seed(0)
    federate(Branches(), APART, validation=REST, rounds=1, engine="serial", show=True)
    assert "the clients' first steps are opposed" in capsys.readouterr().err


def test_where_the_weight_is_tuned_it_is_on_also_after_a_resume(tmp_path):
    for _ in range(2):
        tuned = train(ALIKE, method="FA+AH", grid="entropy_weight = 0, 0.5, 1", folder=tmp_path / "run")
        assert tuned.settings.entropy_weight == 1.0  # L_t is measured with it


def test_a_folder_that_began_otherwise_goes_on_so(tmp_path):
    """An older version had the term on for everybody."""
    train(ALIKE, folder=tmp_path / "run", entropy_weight=1.0)
    assert train(ALIKE, folder=tmp_path / "run").settings.entropy_weight == 1.0


def test_a_model_that_cannot_be_run_is_told_as_always():
    with pytest.raises(DataError, match="model"):
        federate(nn.Linear(7, 2), ALIKE, validation=REST, rounds=1)
