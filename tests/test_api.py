import inspect

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedaccord import federate
from fedaccord.core.errors import DataError, RunError, SettingsError
from fedaccord.runtime.identity import params_sha256


def blobs(classes=3, each=40, seed=0):
    """Well separated clouds, one class a client: the centres are three unit vectors times 3."""
    g = torch.Generator().manual_seed(seed)
    centres = 3 * torch.eye(classes)
    return [
        (centres[c] + 0.5 * torch.randn(each, classes, generator=g), torch.full((each,), c)) for c in range(classes)
    ]


def whole(pairs):
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


PLAIN = {"engine": "serial"}  # what is chosen for so small a model takes a second to get ready


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.slow
def test_federate_trains_a_model_on_one_class_clients_without_tuning():
    """The clouds are 3 sqrt(2) apart, eight and a half of their deviations: once it has learned, it errs nowhere."""
    history = federate(model(), blobs(), validation=whole(blobs(seed=1)), test=whole(blobs(seed=2)), rounds=60)
    assert len(history.rounds) == 60
    assert history.rounds[-1].metrics["accuracy"] > 0.95
    x, y = whole(blobs(seed=2))
    assert float((history.model(x).argmax(1) == y).float().mean()) == pytest.approx(
        history.rounds[-1].metrics["accuracy"]
    )


def test_without_a_validation_set_the_clients_report_their_losses():
    """What is known after round t is L_t, the loss of the model that the round's clients received."""
    history = federate(model(), blobs(), rounds=5, **PLAIN)
    logs = history.rounds
    assert logs[0].reward is None
    assert logs[1].reward == pytest.approx((logs[0].loss - logs[1].loss) / logs[0].loss)
    reports = [entry["received_loss"] for entry in logs[2].clients.values()]
    assert logs[2].loss == pytest.approx(sum(reports) / 3)


def test_tensors_and_data_sets_give_the_same_bits():
    sets = [TensorDataset(x, y) for x, y in blobs()]
    assert params_sha256(federate(model(), sets, rounds=3, **PLAIN).state.params) == params_sha256(
        federate(model(), blobs(), rounds=3, **PLAIN).state.params
    )


def test_arrays_and_lists_will_do():
    arrays = [[x.numpy(), y.numpy()] for x, y in blobs()]
    history = federate(model(), arrays, rounds=2, method="FA+RM", rm_layers=["input", "relu#1", "top"], **PLAIN)
    assert len(history.rounds) == 2


def test_a_folder_refuses_other_data(tmp_path):
    federate(model(), blobs(), rounds=2, folder=tmp_path / "run", **PLAIN)
    with pytest.raises(RunError, match="the data"):
        federate(model(), blobs(seed=5), rounds=2, folder=tmp_path / "run", **PLAIN)


def test_the_given_model_is_left_alone():
    mine = model()
    before = params_sha256(mine.state_dict())
    federate(mine, blobs(), rounds=2, **PLAIN)
    assert params_sha256(mine.state_dict()) == before


def test_a_folder_resumes_and_refuses_other_settings(tmp_path):
    once = federate(model(), blobs(), rounds=4, folder=tmp_path / "run", **PLAIN)
    again = federate(model(), blobs(), rounds=4, folder=tmp_path / "run", **PLAIN)
    assert len(again.rounds) == 4
    assert params_sha256(again.state.params) == params_sha256(once.state.params)
    with pytest.raises(
        RunError, match=r"other settings: fraction = 1.0 there, 0.5 here; batch_size = 64 there, 3 here;"
    ):
        federate(model(), blobs(), rounds=4, batch_size=3, fraction=0.5, folder=tmp_path / "run", **PLAIN)
    longer = federate(model(), blobs(), rounds=6, folder=tmp_path / "run", **PLAIN)
    straight = federate(model(), blobs(), rounds=6, **PLAIN)
    assert params_sha256(longer.state.params) == params_sha256(straight.state.params)
    with pytest.raises(RunError, match="rounds = 5, but 6 are done"):
        federate(model(), blobs(), rounds=5, folder=tmp_path / "run", **PLAIN)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = model()

    def forward(self, x):
        return self.layers(x)


def test_other_code_is_noticed_and_can_be_waved_through(tmp_path, monkeypatch, capsys):
    """The source of the class changes, and nothing else; a folder of before that was noted says nothing."""
    folder = tmp_path / "run"
    federate(Net(), blobs(), rounds=1, folder=folder, **PLAIN)
    whole = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda code: whole(code) + "# mended\n")
    with pytest.raises(RunError, match="not as when the run began: the model; resume --anyway"):
        federate(Net(), blobs(), rounds=2, folder=folder, **PLAIN)
    federate(Net(), blobs(), rounds=2, folder=folder, anyway=True, **PLAIN)
    assert "not as when the run began: the model; it goes on all the same" in capsys.readouterr().err
    federate(Net(), blobs(), rounds=3, folder=folder, **PLAIN)  # it was told
    monkeypatch.undo()
    (folder / "code.json").unlink()
    assert len(federate(Net(), blobs(), rounds=4, folder=folder, **PLAIN).rounds) == 4


def test_history_is_saved_as_a_run_folder(tmp_path):
    history = federate(model(), blobs(), test=blobs()[0], rounds=2, **PLAIN)
    path = history.save(tmp_path / "kept")
    assert (path / "rounds.jsonl").read_text().count("\n") == 2
    federate(model(), blobs(), test=blobs()[0], rounds=2, folder=tmp_path / "all along", **PLAIN)
    for name in ("classes.json", "code.json", "settings.toml"):
        assert (path / name).read_bytes() == (tmp_path / "all along" / name).read_bytes()
    assert federate(model(), blobs(), test=blobs()[0], rounds=2, folder=path, **PLAIN).rounds == history.rounds


BAD = [
    ([], {}, DataError, "at least one client"),
    ([(torch.zeros(3, 3), torch.zeros(2, dtype=torch.long))], {}, DataError, "client 0: 3 inputs but 2 targets"),
    ([(torch.zeros(3, 3), torch.zeros(3))], {}, DataError, "one class number each"),
    ([(torch.zeros(3, 3), torch.tensor([0, -1, 0]))], {}, DataError, "negative"),
    ([(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))], {}, DataError, "no client has any data"),
    ([(torch.zeros(3, 3), torch.tensor([0, 1, 7]))], {}, DataError, "8 or more class scores"),
    ([(torch.zeros(3, 4), torch.tensor([0, 1, 2]))], {}, DataError, "cannot be run on the clients' inputs"),
    ([(torch.zeros(3, 3).double(), torch.tensor([0, 1, 2]))], {}, DataError, "give inputs.float"),
    (blobs(), {"validation": (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))}, DataError, "set is empty"),
    (blobs(), {"validation": (torch.full((2, 3), torch.nan), torch.tensor([0, 1]))}, DataError, "not finite"),
    (blobs(), {"method": "X"}, SettingsError, "methods are FA"),
    (blobs(), {"learning": 1}, SettingsError, "unknown setting"),
]


@pytest.mark.parametrize(("clients", "settings", "error", "text"), BAD)
def test_bad_input_is_a_typed_error(clients, settings, error, text):
    with pytest.raises(error, match=text):
        federate(model(), clients, rounds=1, **PLAIN, **settings)


def test_a_client_with_a_single_example_and_batch_norm_is_told_before_anything_runs():
    normed = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    alone = (torch.zeros(1, 3), torch.tensor([1]))
    with pytest.raises(DataError, match="client 3 has a single example"):
        federate(normed, [*blobs(), alone], rounds=1)
    two = (torch.zeros(2, 3), torch.tensor([1, 0]))  # of which it keeps one to measure on
    with pytest.raises(DataError, match="client 3 has a single example to train on"):
        federate(normed, [*blobs(), two], rounds=1, client_test=0.2)
    with pytest.raises(DataError, match="batch_size = 1, and the model cannot be trained on that"):
        federate(normed, blobs(), rounds=1, batch_size=1)
    assert len(federate(model(), [*blobs(), alone], rounds=1, **PLAIN).rounds) == 1
