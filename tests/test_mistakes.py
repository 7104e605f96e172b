"""What a newcomer gets wrong in the first hour is told in one line that says what to do."""

import os
import re
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedaccord import DataSet, Task, config, federate
from fedaccord.cli import main
from fedaccord.cli.options import USUAL
from fedaccord.config import table
from fedaccord.core.errors import DataError, FedAccordError, FedAccordWarning, SettingsError
from fedaccord.methods.adaptive import AdaptiveHyper
from fedaccord.methods.registry import find
from fedaccord.runtime.identity import params_sha256
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import find_task

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
WORDS = ["cat" if y else "dog" for y in Y]


class Items:
    """A map-style Dataset of whatever the function makes of a number."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return self.item(number)


@pytest.mark.parametrize(
    ("client", "complaint"),
    [
        (Items(lambda i: (X[i], float(X[i].sum()))), "targets must be one class number each.* give a loss"),
        (Items(lambda i: (X[i], Y[i], 1.0)), "an item is a tuple of Tensor, Tensor, float, .* give collate="),
        (Items(lambda i: {"image": X[i], "label": Y[i]}), "an item is a dict, .* give collate="),
        (Items(lambda i: (X[i], WORDS[i])), r"a target is text, '\w+': .* classes.index"),
        ((X, WORDS), "targets: is text, such as '.*numpy.unique"),
        ((X.double(), Y), "the inputs are float64 and the weights are not: give inputs.float"),
        ((X.int(), Y), "the inputs are whole numbers: give inputs.float"),
        ((X, Y[:, None]), "targets of shape .* are a column: give targets.squeeze"),
        (DataLoader(TensorDataset(X, Y)), "got a DataLoader; give its Dataset, loader.dataset"),
        ({"x": X, "y": Y}, "got a dict, expected a pair"),
        ([(x, y) for x, y in zip(X, Y, strict=True)], "got a list of tuple.*20 in all; .* must be a Dataset"),
        ([(x, y) for x, y in zip(X[:2], Y[:2], strict=True)], "got a single number; .* must be stacked"),
        ((X, 1), "got a single number; .* must be stacked"),
    ],
)
def test_data_of_another_form_is_told_in_one_line(client, complaint):
    with pytest.raises(FedAccordError, match=f"^[^\n]*{complaint}[^\n]*$"):
        federate(nn.Linear(4, 2), [client, client], rounds=1)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (DataSet((X, Y + 1), (X, Y), ("a", "b")), "training data: targets go from 1 to 2, but the 2 classes"),
        (DataSet((X, Y), (X, Y + 1), ("a", "b")), "test data: targets go from 1 to 2, but the 2 classes"),
        (DataSet((X, Y[:, None]), (X, Y), ("a", "b")), r"must be one class number each, not shape \(20, 1\)"),
        (DataSet((X, Y), (X, Y), 2), "DataSet.classes: expected the names of the classes, .* not an int"),
        (DataSet((X, Y), (X, Y), ("a", "b"), np.arange(5)), r"DataSet.owner must say of each of the 20 .* \(5,\)"),
    ],
)
def test_a_data_set_that_contradicts_itself_is_told_in_one_line(given, complaint):
    task = Task("mine", lambda: given, lambda: nn.Linear(4, 2), settings={"split": "iid", "clients": 2})
    with pytest.raises(DataError, match=f"^[^\n]*{complaint}[^\n]*$"):
        parts_of(task, config.make(task.settings))


def test_whose_examples_they_are_may_be_a_list():
    given = DataSet((X, Y), (X, Y), ["a", "b"], [0] * 10 + [1] * 10)
    task = Task("mine", lambda: given, lambda: nn.Linear(4, 2), settings={"split": "natural", "clients": 2})
    made = parts_of(task, config.make(task.settings, {"validation_per_class": 1}))
    assert made.classes == ("a", "b")
    assert sum(map(len, made.clients)) == 18


@pytest.mark.skipif(os.getuid() == 0, reason="root may read any folder")
def test_a_folder_that_may_not_be_read_is_told(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    (tmp_path / "cat").chmod(0)
    with pytest.raises(DataError, match="cat: cannot be read"):
        find_task(str(tmp_path))


@pytest.mark.parametrize("clients", [(X, Y), TensorDataset(X, Y), None, {"a": (X, Y)}])
def test_clients_must_be_a_list_with_one_entry_each(clients):
    with pytest.raises(FedAccordError, match="expected a list with one entry for each client"):
        federate(nn.Linear(4, 2), clients, rounds=1)


@pytest.mark.parametrize("given", [{"evaluate": "clients"}, {"alone": "0"}, {"split": "iid"}, {"width": 16}], ids=str)
def test_a_setting_of_tasks_is_refused_where_there_is_none(given):
    with pytest.raises(FedAccordError, match=f"{next(iter(given))}: a setting of tasks"):
        federate(nn.Linear(4, 2), [(X, Y)] * 2, rounds=1, **given)


def test_a_collate_function_without_a_dataset_is_told():
    with pytest.raises(FedAccordError, match="collate: it puts a Dataset's items together, and no Dataset is given"):
        federate(nn.Linear(4, 2), [(X, Y)] * 2, rounds=1, collate=lambda items: items)


def test_float_targets_of_a_dataset_stay_what_they_are():
    targets, model = X.sum(1) / 3, nn.Linear(4, 1)
    ends = [
        federate(model, [client] * 2, rounds=2, loss=lambda o, t: ((o[:, 0] - t) ** 2).mean(), engine="serial")
        for client in (Items(lambda i: (X[i], float(targets[i]))), (X, targets))
    ]
    assert params_sha256(ends[0].state.params) == params_sha256(ends[1].state.params)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("roundz", "'rounds'"),
        ("learning_rate", "'lr'"),
        ("num_rounds", "'rounds'"),
        ("local_epochs", "'epochs'"),
        ("foo", None),
        ("wait", None),
    ],
)
def test_a_suggestion_is_plausible_or_absent(name, hint, capsys):
    for words in (["--set", f"{name}=3"], [f"--{name}", "3"]):
        assert main(["run", "digits", *words]) == 2
        told = capsys.readouterr().err
        assert (f"did you mean {hint}?" in told) if hint else ("did you mean" not in told and "--help-all" in told)
        assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import nosuch", "line 1: ModuleNotFoundError: No module named 'nosuch'; install it into this environment"),
        ("\ndef f(:", "line 2: SyntaxError: invalid syntax"),
        ("x = 1\nraise ValueError('no\\nway')", "line 2: ValueError: no$"),
        ("import sys; sys.exit(3)", "line 1: SystemExit: 3"),
        ("task = 3", "'task' is an int, not a fedaccord.Task"),
        ("from fedaccord import Task\nmine = Task('a', print)", "'task' is missing; there is .*:mine"),
    ],
)
def test_a_task_file_that_does_not_load_is_told_with_its_line(text, complaint, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(FedAccordError, match=f"^{file}.*{complaint}"):
        find_task(f"{file}:task")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("data=lambda: (X, Y)", "data.. gives a tuple of Tensor, Tensor, expected fedaccord.DataSet"),
        ("model=lambda: nn.Liner(4, 2)", "model.. failed: AttributeError"),
        ("model=lambda: 5", "model.. gives an int, expected a torch.nn.Module"),
    ],
)
def test_a_task_whose_functions_fail_is_told_in_one_line(change, complaint, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom torch import nn\nfrom fedaccord import DataSet, Task\n"
        "X, Y = torch.zeros(400, 4), torch.arange(400) % 2\n"
        "given = dict(data=lambda: DataSet((X, Y), (X, Y), ('a', 'b')), model=lambda: nn.Linear(4, 2))\n"
        f"task = Task('mine', **(given | dict({change})))\n"
    )
    assert main(["run", f"{file}:task", "--runs", str(tmp_path), "--json"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.search(complaint, told)


def test_npz_files_of_another_kind_say_how_one_is_made(tmp_path):
    file = tmp_path / "a.npz"
    file.write_bytes(np.random.default_rng(0).bytes(500))
    with pytest.raises(FedAccordError, match=r"damaged, or of another kind; numpy\.savez"):
        find_task(str(file))
    np.savez(file, x=X.numpy(), y=np.array(WORDS))
    with pytest.raises(FedAccordError, match=r"labels of type <U3 .*numpy\.unique"):
        find_task(str(file))


def test_the_short_help_shows_the_usual_settings_and_names_the_rest(capsys):
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["run", option])
        shown[option] = set(re.findall(r"^  --([a-z0-9-]+)", capsys.readouterr().out, re.MULTILINE))
    usual = {name.replace("_", "-") for names in USUAL.values() for name in names}
    others = {"config", "set", "runs", "name", "json", "paper", "help-all"}
    assert shown["--help"] == usual | others
    assert shown["--help-all"] - others == {name.replace("_", "-") for name in table() if name != "task"}


@pytest.mark.parametrize(
    ("method", "name", "said"),
    [
        ("FedEx", "lr", "lr: FedEx chooses lr itself, so this would have no effect; with method FA it is as you say"),
        (
            "FATHOM",
            "lr_decay",
            "lr_decay: FATHOM chooses lr itself, .*; with method FA it is as you say, with start = ",
        ),
        ("MOON+FedEx", "steps", r"steps: MOON\+FedEx .*; with method MOON it is as you say"),
    ],
)
def test_there_is_always_a_method_to_name_and_no_advice_that_is_refused(method, name, said):
    settings = config.make({"method": method})
    with pytest.raises(SettingsError, match=f"^{said}" + ("" if said.endswith("= ") else "$")):
        config.refuse_tuned([name], settings, find(method))


def test_a_rule_that_begins_at_the_settings_takes_them():
    """Unless `start` says where it begins."""
    config.refuse_tuned(["lr", "steps"], config.make({"method": "FATHOM"}), find("FATHOM"))
    with pytest.raises(SettingsError, match="lr: FATHOM chooses lr itself"):
        config.refuse_tuned(["lr"], config.make({"method": "FATHOM", "start": "lr = 0.1"}), find("FATHOM"))


@pytest.mark.parametrize("name", ["lr", "lr_decay", "steps"])
def test_what_a_tuner_chooses_cannot_be_given_as_well(name):
    """It would be ignored; a range of the grid's, or where it starts, is another matter."""
    said = rf"{name}: FA\+AH chooses {name.removesuffix('_decay')} itself, .* with method FA it is as you say"
    clients = [(torch.randn(6, 3), torch.arange(6) % 2)]
    with pytest.raises(SettingsError, match=said):
        federate(nn.Linear(3, 2), clients, method="FA+AH", rounds=1, **{name: 1})
    for fine in ({"method": "FA", name: 1}, {"method": "FA+AH", "start": "lr = 0.01"}):
        assert federate(nn.Linear(3, 2), clients, rounds=1, engine="serial", **fine).rounds
    assert main(["run", "digits", "--method", "FA+AH", f"--{name.replace('_', '-')}", "1"]) == 2


def test_a_clients_table_with_other_columns_is_refused():
    """The numbers would be mixed up without a word."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X.numpy(), columns=list("abcd"))
    net = nn.Linear(4, 2)
    for other, said in (
        (table[["b", "a", "c", "d"]], "client 1: its columns are not those of client 0: they are in another order"),
        (table.rename(columns={"d": "e"}), "client 1: its columns are not those of client 0: 'd' is not in both"),
    ):
        with pytest.raises(FedAccordError, match=said):
            federate(net, [(table, Y), (other, Y)], rounds=1)
        with pytest.raises(FedAccordError, match=said.replace("client 1", "test")):
            federate(net, [(table, Y)], test=(other, Y), rounds=1)
    with pytest.raises(FedAccordError, match=r"client 0: got a table; give a pair \(inputs, targets\)"):
        federate(net, [table], rounds=1)
    with pytest.raises(FedAccordError, match=r"clients: got .* expected a list"):
        federate(net, (table, Y), rounds=1)


def test_a_client_with_other_columns_or_none_is_named():
    with pytest.raises(FedAccordError, match="client 1 has 3 input columns, client 0 has 4"):
        federate(nn.Linear(4, 2), [(X, Y), (X[:, :3], Y)], rounds=1)
    with pytest.warns(UserWarning, match="client 1 never counted: it has no data"):
        federate(nn.Linear(4, 2), [(X, Y), (X[:0], Y[:0])], rounds=1, engine="serial")


def test_a_loss_that_would_compare_each_with_each_is_refused():
    with pytest.raises(
        FedAccordError, match=r"the model gives \(2, 1\) for targets of \(2,\).* targets.unsqueeze\(1\)"
    ):
        federate(nn.Linear(4, 1), [(X, X[:, 0])], loss=nn.MSELoss(), rounds=1)
    data = [(X, X[:, :1])]
    with pytest.raises(FedAccordError, match=r"accuracy.* zeros and ones; these targets are neither"):
        federate(nn.Linear(4, 1), data, test=data[0], loss=nn.MSELoss(), metrics="accuracy", rounds=1, engine="serial")


def test_other_names_and_first_classes_are_told():
    with pytest.raises(SettingsError, match="FedAvg is called FA here"):
        federate(nn.Linear(4, 2), [(X, Y)], method="FedAvg", rounds=1)
    with pytest.raises(FedAccordError, match="class numbers begin at 0, and the smallest here is 1"):
        federate(nn.Linear(4, 2), [(X, Y + 1)], rounds=1)


def test_unscaled_clients_are_told_of_although_the_servers_set_is_scaled(capsys):
    """All is undone or refused, and the end says why."""
    clients, net = [(1e4 * X, Y), (1e4 * X, 1 - Y)], nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.warns(FedAccordWarning, match=r"never counted|no round was kept") as told:
        federate(net, clients, (X, Y), rounds=2, engine="serial", method="FA", lr=1e3)
    said = "no round was kept whole, so the model is the one that it began with, or close to it; the inputs are too"
    assert said in str(told[-1].message)
    assert "the inputs are too large for the model as it starts" in capsys.readouterr().err


def test_a_history_is_shown_in_a_line():
    history = federate(nn.Linear(4, 2), [(X, Y)], test=(X, Y), rounds=2, engine="serial")
    assert re.fullmatch(r"<History of FA\+RM\+AH: 2 rounds, 1 clients, accuracy [\d.]+, loss [\d.]+>", repr(history))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"min_replies": 3}, "min_replies = 3, but only 2 clients train in a round"),
        ({"method": AdaptiveHyper}, r"method: expected a name, .* not the class AdaptiveHyper; .*AdaptiveHyper\(\)"),
        ({"method": None}, "method: expected a name, a Method or a Part, not None"),
        ({"method": ["FA", "AH"]}, "method: expected a name, a Method or a Part, not a list of str, str"),
        ({"start": [0.1, 20]}, "start: expected a text or a list of texts, not a list of float, int"),
        ({"grid": "steps = 1, inf"}, "grid: steps has a value that is not finite"),
        ({"grid": "steps = nan, 2"}, "grid: steps has a value that is not finite"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_told_in_one_line(given, complaint):
    with pytest.raises(SettingsError, match=f"^[^\n]*{complaint}[^\n]*$"):
        federate(nn.Linear(4, 2), [(X, Y)] * 2, **{"method": "FA+AH", "rounds": 1, **given})


def test_lists_stand_for_texts():
    settings = federate(
        nn.Linear(4, 2), [(X, Y)] * 2, method="FA+AH", rounds=1, grid=["lr = 0.1, 0.2", "steps = 1, 2"],
        start=["lr = 0.1", "steps = 2"],
    ).settings  # fmt: skip
    assert (settings.grid, settings.start) == ("lr = 0.1, 0.2; steps = 1, 2", "lr = 0.1, steps = 2")


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FedAccordError, match="file"):
        federate(nn.Linear(4, 2), [(X, Y)] * 2, rounds=1, folder=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("model", [nn.Flatten(), nn.Linear(4, 2).requires_grad_(False)], ids=["none", "frozen"])
def test_a_model_with_nothing_to_train_is_told(model):
    with pytest.raises(SettingsError, match="the model has nothing to train"):
        federate(model, [(X, Y)] * 2, rounds=1)


class Fussy(nn.Linear):
    """A layer that asserts, as many do, what it was not written for."""

    def forward(self, inputs):
        assert not self.training or len(inputs) > 1, "more than one example, please"
        return super().forward(inputs)


def test_a_model_that_cannot_be_trained_on_one_example_is_told():
    with pytest.raises(FedAccordError, match=r"client 1 has a single example .* more than one example, please"):
        federate(Fussy(4, 2), [(X, Y), (X[:1], Y[:1])], rounds=1)


def test_a_whole_number_stands_for_a_float_also_after_a_resume(tmp_path):
    """On disk it is a float, so a run that began with 1 must be the one that has 1.0."""
    ends = [
        federate(nn.Linear(4, 2), [(X, Y)] * 2, method="FA", rounds=rounds, lr=lr, folder=tmp_path).settings
        for rounds, lr in ((1, 1), (2, 1.0))
    ]
    assert [type(each.lr) for each in ends] == [float, float]
    assert config.make({"clip_norm": 2})["clip_norm"] == 2.0
    assert type(config.make({"clip_norm": 2})["clip_norm"]) is float


def test_a_stop_is_told_to_who_called(tmp_path):
    """A loop over seeds must not take what Ctrl-C left for a finished run."""

    def loss(output, target):
        os.kill(os.getpid(), signal.SIGINT)
        return torch.nn.functional.cross_entropy(output, target)

    with pytest.warns(FedAccordWarning, match="stopped after round 1 of 9"):
        history = federate(nn.Linear(4, 2), [(X, Y)] * 2, method="FA", rounds=9, loss=late(loss), engine="serial")
    assert history.stopped
    assert len(history.rounds) == 1


def late(loss):
    """The loss, which is tried before the first round, where a signal would end the test."""
    calls = []

    def own(output, target):
        calls.append(1)
        return loss(output, target) if len(calls) == 6 else torch.nn.functional.cross_entropy(output, target)

    return own
