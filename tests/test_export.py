"""The weights of a run, found again: as a model, and as files for other programs."""

import re
import warnings

import pytest
import safetensors.torch
import torch
from test_travel import SETTINGS, clients, frozen_base, net

import fedaccord
from fedaccord import Part, federate
from fedaccord.cli import main
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.data import digits
from fedaccord.runtime import weights
from fedaccord.runtime.folder import read_metrics, read_rounds
from fedaccord.tasks import PRESETS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    words = ["run", "digits", "--runs", str(folder), "--name", "r", "--rounds", "8", "--engine", "serial", "--json"]
    assert main([*words, "--method", "FA+AH"]) == 0
    return folder / "r"


def test_a_run_is_loaded_as_the_model_that_it_hands_out(run):
    model = fedaccord.load(run)
    assert not model.training
    test = digits.load().test
    found = model(PRESETS["digits"].prepare(test.inputs, None)).argmax(1)
    last = list(read_rounds(run))[-1]
    assert float((found == test.targets).double().mean()) == last["metrics"]["accuracy"]
    assert last["handed"] in ("last", "short", "long")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "pt2", "onnx"])
def test_it_is_written_for_other_programs(run, kind, tmp_path, capsys):
    file = tmp_path / "out" / f"model.{kind}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its own parts
        assert main(["export", str(run), "-o", str(file)]) == 0
    assert str(file) in capsys.readouterr().out
    inputs = torch.randn(7, 1, 8, 8)  # another number of examples than it was written with
    expected = fedaccord.load(run)(inputs).detach()
    if kind == "safetensors":
        tensors = safetensors.torch.load_file(file)
        found = torch.func.functional_call(PRESETS["digits"].model(), tensors, (inputs,))
    elif kind == "pt2":
        found = torch.export.load(file).module()(inputs)
    else:
        import onnx
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(onnx.load(file))
        (found,) = session.run(None, {session.input_names[0]: inputs.numpy()})
        found = torch.from_numpy(found)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [each.name for each in file.parent.iterdir()] == [file.name]  # one file, whatever the form


def test_a_run_of_federate_wants_a_model_of_the_same_form(tmp_path):
    history = federate(net(), clients(), folder=tmp_path / "run", **SETTINGS)
    with pytest.raises(SettingsError, match="whose model is not in it"):
        fedaccord.load(tmp_path / "run")
    again = fedaccord.load(tmp_path / "run", model=net())
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in history.model.state_dict().items())
    with pytest.raises(RunError, match="it is of another form than the run's"):
        fedaccord.load(tmp_path / "run", model=torch.nn.Linear(3, 2))
    larger = net()
    larger.add_module("9", torch.nn.Linear(2, 2))
    with pytest.raises(RunError, match=r"there is no 9.bias in it: the model is of another form"):
        fedaccord.load(tmp_path / "run", model=larger)


class Leash(Part):
    name = "Leash"


def test_a_run_of_a_method_that_no_name_finds_is_loaded_too(tmp_path):
    (tmp_path / "run").mkdir()  # an empty folder, as a temporary one is, will do
    history = federate(net(), clients(), folder=tmp_path / "run", **{**SETTINGS, "method": Leash()})
    again = fedaccord.load(tmp_path / "run", model=net())
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in history.model.state_dict().items())
    log = tmp_path / "run" / "rounds.jsonl"
    log.write_text(re.sub('"handed": ?"', '"handed":"my ', log.read_text()))
    with pytest.raises(RunError, match=r"hands out my .*, a mean of its method's own"):
        fedaccord.load(tmp_path / "run", model=net())


def test_it_is_loaded_where_the_data_is_not(run, monkeypatch):
    monkeypatch.setattr(digits, "load", lambda: pytest.fail("the data was read"))
    assert fedaccord.load(run)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_file_that_could_not_be_written_is_not_there(run, tmp_path, monkeypatch, capsys):
    def broken(run, file, client, which):
        file.write_bytes(b"half")
        raise ValueError("no such operator\nat line 3")

    monkeypatch.setattr(weights, "as_program", broken)
    assert main(["export", str(run), "-o", str(tmp_path / "model.pt2")]) == 2
    assert "cannot be written so: ValueError: no such operator" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_travel_is_in_the_folder_too(tmp_path):
    base = frozen_base()
    federate(base, clients(), travels="trainable", folder=tmp_path / "frozen", **SETTINGS)
    other = frozen_base()
    torch.nn.init.zeros_(other[0].weight)
    assert torch.equal(fedaccord.load(tmp_path / "frozen", model=other)[0].weight, base[0].weight)
    federate(net(), clients(), travels="!3.*", folder=tmp_path / "own", **SETTINGS)
    heads = [fedaccord.load(tmp_path / "own", model=net(), client=number)[3].weight for number in range(3)]
    assert not torch.equal(heads[0], heads[1])
    with pytest.raises(RunError, match="client 0 keeps no part of the model of its own"):
        fedaccord.load(tmp_path / "frozen", model=net(), client=0)


def test_a_history_that_is_saved_later_has_all_of_it(tmp_path):
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(3))
    test = (x, (x[:, 0] > 0).long())
    history = federate(frozen_base(), clients(), test=test, travels="trainable", metrics="auc, f1", **SETTINGS)
    path = history.save(tmp_path / "kept")
    assert [note.name for note in read_metrics(path)] == ["auc", "f1"]
    again = fedaccord.load(path, model=net())
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in history.model.state_dict().items())


def test_bad_names_are_told(run, tmp_path, capsys):
    assert main(["export", str(run), "-o", str(tmp_path / "model.pt")]) == 2
    assert ".safetensors, .pt2 or .onnx" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "model.pt2")]) == 2
    assert "not a run folder" in capsys.readouterr().err
