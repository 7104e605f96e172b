"""The sentences on top of the page, and what it knows class by class and client by client."""

import json
from dataclasses import replace

import pytest
import torch
from folders import line, train, write_run
from torch import nn

from fedaccord import federate
from fedaccord.core.errors import RunError
from fedaccord.report.condense import page_data
from fedaccord.report.words import guessing
from fedaccord.runtime.classes import by_class, read_classes
from fedaccord.runtime.folder import read_rounds
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import find_task


def said(*runs):
    return page_data(runs)["summary"]


def scored(t, accuracy, **changes):
    return line(t, metrics={"accuracy": accuracy}, **changes)


PERCENT = [{"name": "accuracy", "percent": True}]


def test_who_won_and_by_how_much(tmp_path):
    """Points are those of the figures as printed: 93.6 - 92.5 = 1.1, although 93.61 - 92.46 is 1.15."""
    fixed = write_run(tmp_path / "a", [scored(1, 0.1), scored(2, 0.9246)], PERCENT, method="FA", task="digits")
    tuned = write_run(tmp_path / "b", [scored(1, 0.2), scored(2, 0.9361)], PERCENT, method="FA+AH", task="digits")
    assert said(fixed, tuned) == [
        "A model for digits was trained for 2 rounds on 2 clients, each with examples of one class only, by two "
        "methods: FA+AH did best, with a test accuracy of 93.6 %, 1.1 points more than FA (92.5 %).",
        "Nothing went wrong: no client was missing, no update was refused and no guard had to act.",
    ]


def test_seeds_of_one_method_count_as_one(tmp_path):
    """FA: (50 + 70) / 2 = 60, FA+AH: (65 + 65) / 2."""
    values = {("FA", 0): 0.5, ("FA", 1): 0.7, ("FA+AH", 0): 0.65, ("FA+AH", 1): 0.65}
    runs = [
        write_run(tmp_path / f"{method}{seed}", [scored(1, value)], PERCENT, method=method, seed=seed)
        for (method, seed), value in values.items()
    ]
    first, _ = said(*runs)
    assert first.endswith("FA+AH did best, with a test accuracy of 65.0 %, the mean of two seeds, 5.0 points more than "
                          "FA (60.0 %).")  # fmt: skip


def test_less_may_be_better_and_nobody_may_have_won(tmp_path):
    rmse = [{"name": "rmse", "higher": False}]

    def run(name, value, **settings):
        return write_run(tmp_path / name, [line(1, metrics={"rmse": value})], rmse, **settings)

    small, large = run("small", 2.0, lr=0.1, seed=0), run("large", 1.5, lr=0.2, seed=1)
    assert said(small)[0].endswith(": the test rmse is 2.")
    assert said(run("unnamed", 1.0, task="python"))[0].startswith("A model was trained for 1 round on 2 clients")
    assert said(small, large)[0].endswith("seed 1 did best, with a test rmse of 1.5, 0.5 less than seed 0 (2).")
    other = run("other", 1.5, lr=0.2, method="FA")
    assert said(large, other)[0].endswith("FA+AH did best, with a test rmse of 1.5, as has FA.")
    assert said(large, write_run(tmp_path / "task", [line(1)], task="mnist"))[0].endswith(", in two runs.")


def test_what_went_wrong_is_said(tmp_path):
    late = [{"client": 1, "why": "late"}]
    one = {"0": {"examples": 1, "update_norm": 1.0}}
    lines = [line(1), line(2, refused=late, clients=one, guard="shortened"), line(3, refused=late, clients=one)]
    assert said(write_run(tmp_path / "run", lines, rounds=9))[1] == (
        "To look into: only 3 of 9 rounds have finished, 1 of 2 clients missing at the end, 2 updates refused, a guard "
        "acted in 1 round."
    )
    assert said(write_run(tmp_path / "begun", []))[0].endswith("no round has finished yet.")


def test_guessing_is_within_three_standard_errors_of_the_largest_class():
    """Of 100 examples 50 are of one class: sqrt(0.5 * 0.5 / 100) = 0.05, so that 65 right ones are still a guess."""

    def run(right):
        return {"classes": {"tested": [50, 50], "accuracy": [right / 100, right / 100]}}

    assert guessing(run(65))
    assert not guessing(run(66))
    assert not guessing({"classes": None})


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return train(tmp_path_factory.mktemp("classes") / "run", method="FA", rounds=8, split="classes", clients=5)


def test_the_classes_add_up_to_the_test_set(digits):
    """The last round's log line is measured on the same examples, of the same handed-out model."""
    (run,) = page_data([digits])["runs"]
    found = json.loads((digits / "classes.json").read_text())
    last = list(read_rounds(digits))[-1]
    assert (found["round"], len(found["names"])) == (last["round"], 10)
    assert sum(found["right"]) / sum(found["tested"]) == last["metrics"]["accuracy"]
    assert run["classes"]["accuracy"] == pytest.approx(
        [right / tested for right, tested in zip(found["right"], found["tested"], strict=True)], abs=1e-5
    )


def test_each_client_holds_what_it_trains_on_and_is_worth_its_own_mix(digits):
    (run,) = page_data([digits])["runs"]
    known, clients = run["classes"]["accuracy"], run["contribution"]
    logged = list(read_rounds(digits))[-1]["clients"]
    for name, labels, accuracy in zip(clients["clients"], clients["labels"], clients["accuracy"], strict=True):
        assert sum(labels) == logged[name]["examples"]
        mean = sum(n * rate for n, rate in zip(labels, known, strict=True)) / sum(labels)
        assert accuracy == pytest.approx(mean, abs=1e-4)
    assert clients["by"] == "mixed"


def test_labels_of_clients_that_were_given_one_by_one_are_counted(tmp_path):
    """From Python there is no data set that was divided: the classes are the numbers that the clients' labels have."""
    draw = torch.Generator().manual_seed(0)
    labels = [torch.tensor([0, 0, 1]), torch.tensor([2, 2, 2, 1])]
    clients = [(torch.randn(len(each), 3, generator=draw), each) for each in labels]
    federate(nn.Linear(3, 4), clients, test=clients[0], rounds=2, folder=tmp_path / "run", engine="serial")
    found = read_classes(tmp_path / "run")
    assert found.clients == [[2, 1, 0, 0], [0, 1, 3, 0]]  # the model has a fourth, of which there is none
    assert found.tested == [2, 1, 0, 0]


def test_missing_clients_are_shown_although_they_never_counted(tmp_path):
    gone = [{"client": 7, "why": "no answer"}]
    lines = [line(t, cohort=[0, 1, 7], refused=gone) for t in (1, 2)]
    (run,) = page_data([write_run(tmp_path / "run", lines, clients=8)])["runs"]
    found = run["contribution"]
    assert found["clients"] == ["0", "1", "7"]
    assert found["missing"] == [None, None, {"since": 1, "why": "no answer"}]
    assert (found["took_part"], found["share"], found["by"]) == ([2, 2, 0], [0.25, 0.75, 0], "")


def test_a_damaged_note_is_told(tmp_path):
    run = write_run(tmp_path / "run", [line(1)])
    for text in ("[1]", "{", '{"names": ["a"], "tested": [1, 2]}', '{"names": ["a"], "clients": [["x"]]}'):
        (run / "classes.json").write_text(text)
        with pytest.raises(RunError, match=r"classes\.json: damaged"):
            page_data([run])


def test_sites_of_a_real_federation_are_shown_if_they_share_their_labels():
    """Client 1 did not, and 999 is none of this federation's."""
    task = find_task("digits")
    parts = replace(parts_of(task, task.resolved(clients=3, split="dirichlet")), clients=[], counts=None)
    assert by_class(parts) is None
    found = by_class(parts, told={0: [2, 1], 1: [], 2: [0, 0, 3], 999: [1]})
    assert [row[:4] for row in found.clients] == [[2, 1, 0, 0], [], [0, 0, 3, 0]]
    assert len(found.names) == len(found.clients[0]) == 10
    assert by_class(parts, told={0: []}) is None


def test_a_run_that_stopped_by_itself_is_not_called_unfinished(tmp_path):
    lines = [{**line(t), "best": 2} for t in range(1, 6)]
    for patience, said in ((3, "Nothing went wrong"), (4, "only 5 of 9 rounds have finished")):
        run = write_run(tmp_path / f"run{patience}", lines, rounds=9, patience=patience)
        data = page_data([run])
        assert data["runs"][0]["best"] == 2
        assert said in data["summary"][1]
