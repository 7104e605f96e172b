"""What the report page shows: every figure against another way to get it."""

import hashlib
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from folders import line, train, write_run

from fedaccord import report
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.policy.gaussian import DiagonalGaussian, FullGaussian
from fedaccord.policy.grid import HyperGrid
from fedaccord.report.clients import divergence
from fedaccord.report.condense import LIMIT
from fedaccord.report.page import embedded, page, page_data, scripts, write_page
from fedaccord.report.runs import Trained, entered_norms
from fedaccord.report.tuner import evenly, marginals
from fedaccord.runtime.folder import read_rounds

SHA256 = {
    "d3.min.js": "f2094bbf6141b359722c4fe454eb6c4b0f0e42cc10cc7af921fc158fceb86539",
    "plot.umd.min.js": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
}
"""Of dist/d3.min.js in npm's d3 7.9.0 and dist/plot.umd.min.js in its @observablehq/plot 0.6.17."""

RESULTS = Path(__file__).parents[2] / "results"


def one(path):
    return page_data([path])["runs"][0]


def size(data):
    return len(json.dumps(data, separators=(",", ":")))


# divergence


def test_divergence_by_hand():
    """w_i - w = (2, 0) with 1 example and (0, 1) with 3: the mean is (1/2, 3/4), of squared length 13/16.

    The mean of the squared lengths is 1/4 * 4 + 3/4 * 1 = 7/4.
    """
    trained = Trained(np.array([0, 1]), np.array([1, 3]), np.array([2.0, 1.0]))
    length = math.sqrt(13 / 16)
    assert divergence(trained, length) == pytest.approx((7 / 4) / (13 / 16))
    assert divergence(trained, 0.5 * length, length=0.5) == pytest.approx((7 / 4) / (13 / 16))
    sent = Trained(np.array([0, 1]), np.array([1, 3]), np.array([20.0, 3.0]), (), np.array([2.0, 1.0]))
    assert divergence(sent, length) == pytest.approx((7 / 4) / (13 / 16))  # as they entered the mean
    assert entered_norms([{"update_norm": 20.0, "moved": 2.0}, {"update_norm": 1.0}]).tolist() == [2.0, 1.0]
    assert entered_norms([{"update_norm": 1.0}]) is None


def test_clients_that_make_the_same_step_have_divergence_one():
    assert divergence(Trained(np.arange(3), np.array([5, 1, 9]), np.full(3, 0.7)), 0.7) == pytest.approx(1.0)


def test_no_step_or_no_client_has_no_divergence(tmp_path):
    assert divergence(Trained(np.array([0]), np.array([1]), np.array([1.0])), 0.0) is None
    assert divergence(Trained(np.array([], int), np.array([], int), np.array([])), 1.0) is None
    lines = [line(1), line(2, step_norm=None), line(3, clients={})]
    assert one(write_run(tmp_path / "run", lines))["divergence"]["values"] == [1.75, None, None]  # 7/4 over 1


def test_real_updates_never_agree_more_than_fully(real):
    """Jensen: the mean of squared lengths is at least the squared length of the mean."""
    for run in page_data(real)["runs"]:
        assert len(run["divergence"]["values"]) == run["finished"]
        assert min(run["divergence"]["values"]) >= 1


def test_what_cannot_be_known_is_said(tmp_path):
    old = [{k: v for k, v in line(t).items() if k != "step_norm"} for t in (1, 2)]
    assert "step_norm" in one(write_run(tmp_path / "old", old))["divergence"]["missing"]
    partly = write_run(tmp_path / "partly", [line(1)], weighting="population", fraction=0.5)
    assert "population" in one(partly)["divergence"]["missing"]


# the tuner


def test_the_map_is_the_policys_own_distribution(real):
    run = one(real[1])
    grid = HyperGrid.parse(next(row for row in page_data(real[1:2])["settings"] if row["name"] == "grid")["values"][0])
    (pair,) = run["tuner"]["maps"]["pairs"]
    for place, logged in enumerate(read_rounds(real[1])):
        table = np.array(pair["p"][place]).reshape(len(grid.axes[1].values), len(grid.axes[0].values))
        assert table.sum() == pytest.approx(1, abs=1e-3)  # 81 values, each rounded to 1e-5
        lr, steps = run["tuner"]["maps"]["at"][place]
        assert grid.choice((lr, steps)) == logged["hyper"]
        assert table[steps, lr] == pytest.approx(logged["policy"]["p"], abs=1e-5)
        P = FullGaussian(grid, np.array(logged["policy"]["mu"]), np.array(logged["policy"]["A"]))
        assert np.abs(table.T.ravel() - P.p).max() < 1e-5


@pytest.mark.parametrize("diagonal", [True, False])
def test_other_axes_are_summed_out(diagonal):
    grid = HyperGrid.parse("lr = 0.1, 0.2, 0.4; steps = 1, 2; momentum = 0, 0.5, 0.6, 0.9")
    mu, A = [0.1, -0.2, 0.3], [20.0, 9.0, 30.0]
    P = DiagonalGaussian(grid, np.array(mu), np.array(A))
    policy = {"mu": mu, "A": A if diagonal else np.diag(A).tolist()}
    pairs = list(itertools.combinations(range(3), 2))
    for (x, y), table in zip(pairs, marginals(grid, policy, pairs), strict=True):
        slow = np.zeros(table.shape)
        for index in itertools.product(*(range(len(axis.values)) for axis in grid.axes)):
            slow[index[x], index[y]] += P.probability(index)
        assert np.allclose(table, slow)


def test_a_grid_of_one_axis_has_a_map_of_one_row(tmp_path):
    policy = {"mu": [0.0], "A": [[4.0]], "p": 0.4, "baseline": None, "why": ""}
    run = one(write_run(tmp_path / "run", [line(1, hyper={"lr": 0.1}, policy=policy)], grid="lr = 0.01, 0.1, 1 log"))
    (pair,) = run["tuner"]["maps"]["pairs"]
    # exp(-1/2 * 4 * 1/4) = exp(-1/2) at both ends, 1 in the middle
    weights = np.array([math.exp(-0.5), 1, math.exp(-0.5)])
    assert pair["p"][0] == pytest.approx((weights / weights.sum()).tolist(), abs=1e-5)


def test_mean_and_spread_in_real_units(tmp_path, real):
    """A = 4 I: a standard deviation of 1/2, which from the middle of a grid reaches just to its ends."""
    run = one(write_run(tmp_path / "run", [line(1, policy={**line(1)["policy"], "mu": [0.0, 0.25]})]))
    lr, steps = run["tuner"]["curves"]["axes"]
    assert [lr[name][0] for name in ("low", "mean", "high")] == pytest.approx([0.01, 0.1, 1])
    assert [steps[name][0] for name in ("low", "mean", "high")] == pytest.approx([15, 25, 30])  # 35 is not on the grid
    assert run["tuner"]["maps"]["mu"][0] == [1, 1.5]  # in grid steps
    tuned = one(real[1])["tuner"]
    for d, axis in enumerate(tuned["axes"]):
        logged = [each["policy"]["mean"][axis["name"]] for each in read_rounds(real[1])]
        assert tuned["curves"]["axes"][d]["mean"] == pytest.approx(logged, rel=1e-4)


def test_spread_takes_correlations_into_account(tmp_path):
    """The covariance is the inverse of A: 1 / (16 - 8 * 8 / 32) = 1/14 for the first axis, not 1/16."""
    policy = {**line(1)["policy"], "mu": [0.0, 0.0], "A": [[16.0, 8.0], [8.0, 32.0]]}
    run = one(write_run(tmp_path / "run", [line(1, policy=policy)]))
    assert run["tuner"]["curves"]["axes"][0]["high"][0] == pytest.approx(10 ** (-1 + 2 * math.sqrt(1 / 14)), rel=1e-4)


def test_only_rounds_that_changed_something_are_listed(tmp_path):
    still = {**line(1)["policy"], "why": "no change"}
    lines = [line(1, policy=still), line(2, policy=still, guard="rolled back"), line(3, policy=still), line(4), line(5)]
    tuner = one(write_run(tmp_path / "run", lines))["tuner"]
    assert [note["round"] for note in tuner["notes"] if note["listed"]] == [2, 3, 4, 5]
    assert [note["round"] for note in tuner["notes"]] == [1, 2, 3, 4, 5]  # the slider has them all
    assert tuner["notes"][1]["guard"] == "rolled back"


def test_runs_without_a_tuner_have_no_story(real):
    assert [run["tuner"] is not None for run in page_data(real)["runs"]] == [False, True, True]


def test_another_policy_may_log_what_it_likes(tmp_path):
    """Only a discrete Gaussian on the run's own grid has a story."""
    for number, policy in enumerate(
        (
            {"mu": 0.5, "A": 1.0},
            {"mu": [0.0, 0.1]},
            {"mu": [0.0, 0.1, 0.2], "A": [1.0, 1.0, 1.0]},
            {"mu": [0.0, 0.1], "A": [[1.0], [2.0]]},
            {"mu": ["a", "b"], "A": [1.0, 1.0]},
            {"mu": {"lr": 1}, "A": None},
            {"bandit": [1, 2]},
        )
    ):
        assert one(write_run(tmp_path / str(number), [line(1, policy=policy)]))["tuner"] is None
    diagonal = {**line(1)["policy"], "A": [4.0, 4.0]}
    assert one(write_run(tmp_path / "diagonal", [line(1, policy=diagonal)]))["tuner"]["of"] == 1


def test_a_story_is_seen_from_the_log_not_from_the_methods_name(tmp_path):
    assert one(write_run(tmp_path / "tuned", [line(1)], method="FA"))["tuner"]["of"] == 1
    assert one(write_run(tmp_path / "fixed", [line(1, policy={})], method="FA+AH"))["tuner"] is None


# metrics

TWO = [{"name": "accuracy", "higher": True, "percent": True}, {"name": "rmse", "higher": False, "percent": False}]


def lines_with(**values):
    """A line for each value; None: that round was not tested."""
    columns = zip(*values.values(), strict=True)
    each = [{n: v for n, v in zip(values, row, strict=True) if v is not None} for row in columns]
    return [line(t, metrics=metrics) for t, metrics in enumerate(each, 1)]


def test_the_best_of_a_metric_is_by_its_direction(tmp_path):
    lines = lines_with(accuracy=[0.5, None, 0.75, 0.6], rmse=[3.0, None, 1.5, 2.0])
    data = page_data([write_run(tmp_path / "run", lines, metrics=TWO)])
    assert data["metrics"] == TWO
    assert data["runs"][0]["metrics"] == [
        {"last": 0.6, "best": 0.75, "rounds": [1, 3, 4], "values": [0.5, 0.75, 0.6]},
        {"last": 2.0, "best": 1.5, "rounds": [1, 3, 4], "values": [3.0, 1.5, 2.0]},
    ]


def test_runs_need_not_have_the_same_metrics(tmp_path):
    first = write_run(tmp_path / "first", lines_with(rmse=[3.0]), metrics=TWO[1:])
    second = write_run(tmp_path / "second", lines_with(accuracy=[0.5], rmse=[2.0]), metrics=TWO)
    untested = write_run(tmp_path / "untested", [line(1, metrics={})], metrics=[])
    other = write_run(tmp_path / "other", lines_with(rmse=[0.1]), metrics=[{**TWO[1], "higher": True}])
    data = page_data([first, second, untested, other])
    assert data["metrics"] == [TWO[1], TWO[0], {**TWO[1], "higher": True}]  # the same word for another thing
    last = [[metric and metric["last"] for metric in run["metrics"]] for run in data["runs"]]
    assert last == [[3.0, None, None], [2.0, 0.5, None], [None, None, None], [None, None, 0.1]]


def test_the_accuracy_of_earlier_logs_is_a_metric(tmp_path):
    old = [{k: v for k, v in line(t).items() if k != "metrics"} | {"accuracy": a} for t, a in ((1, None), (2, 0.25))]
    data = page_data([write_run(tmp_path / "old", old)])
    assert data["metrics"] == TWO[:1]
    assert data["runs"][0]["metrics"] == [{"last": 0.25, "best": 0.25, "rounds": [2], "values": [0.25]}]


def test_real_metrics_are_those_of_the_log(real):
    for path, run in zip(real, page_data(real)["runs"], strict=True):
        logged = {each["round"]: each["metrics"]["accuracy"] for each in read_rounds(path) if each["metrics"]}
        (found,) = run["metrics"]
        assert found["rounds"] == list(logged)
        assert found["values"] == pytest.approx(list(logged.values()), rel=1e-4)
        assert (found["last"], found["best"]) == (found["values"][-1], max(found["values"]))


# what the method reports


def test_scaffold_reports_the_size_of_its_control_variates(tmp_path):
    path = train(tmp_path / "run", method="SCAFFOLD", rounds=3)
    run = one(path)
    logged = [each["method"]["SCAFFOLD.size"] for each in read_rounds(path)]
    assert len(logged) == 3
    (curve,) = run["scalars"]
    assert (curve["name"], curve["rounds"]) == ("SCAFFOLD.size", [1, 2, 3])
    assert curve["values"] == pytest.approx(logged, rel=1e-4)
    (sentence,) = run["sentences"]
    assert f"{logged[-1]:.3g}" in sentence
    assert [run["method"], run["tuner"]] == ["SCAFFOLD", None]


OWN = """
from fedaccord.core.protocols import Method, Part
from fedaccord.core.settings import setting

class Telling(Part):
    name = "telling"
    settings = (setting("mine", 2, "A setting of its own."),)

    def report(self, rounds):
        return [f"client 1 brought {sum(line['clients']['1']['examples'] for line in rounds)} examples"]

class Broken(Part):
    name = "broken"

    def report(self, rounds):
        return [rounds[0]["no such field"]]

good = Telling()
both = Method("both of them", (Telling(), Broken()))
"""


def test_a_method_from_a_file_reports_while_the_file_is_there(tmp_path):
    file = tmp_path / "own_method.py"
    file.write_text(OWN)
    run = write_run(tmp_path / "run", [line(1), line(2)], method=f"{file}:good", mine=5)
    data = page_data([run])
    assert data["runs"][0]["sentences"] == ["client 1 brought 6 examples"]  # 3 + 3: it sees the whole log
    assert data["runs"][0]["method"] == data["runs"][0]["label"] == "telling"
    about = {row["name"]: row for row in data["settings"]}["mine"]
    assert (about["help"], about["values"]) == ("A setting of its own.", ["5"])

    for remains in (None, "import nothing_of_this_name", "good = 3", "def"):
        file.unlink() if remains is None else file.write_text(remains)
        data = page_data([run])
        assert data["runs"][0]["sentences"] == []
        assert data["runs"][0]["label"] == "own_method.py:good"
        about = {row["name"]: row for row in data["settings"]}["mine"]
        assert (about["help"], about["values"]) == ("", ["5"])


def test_a_report_that_fails_does_not_cost_the_page(tmp_path):
    (tmp_path / "two_parts.py").write_text(OWN)
    run = one(write_run(tmp_path / "run", [line(1)], method=f"{tmp_path / 'two_parts.py'}:both"))
    assert run["sentences"] == [
        "client 1 brought 3 examples",
        "the report of broken failed: KeyError('no such field')",
    ]
    assert run["method"] == "both of them"
    begun = one(write_run(tmp_path / "begun", [], method=f"{tmp_path / 'two_parts.py'}:both"))
    assert begun["sentences"] == []  # nothing to tell of yet


def test_a_method_that_was_given_as_an_object_has_a_page(tmp_path):
    """Its name is all that the folder knows."""
    run = write_run(tmp_path / "run", [line(1)])
    text = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(text.replace('"FA+AH"', '"my own"') + "strength = 3\n")
    data = page_data([run])
    assert (data["runs"][0]["method"], data["runs"][0]["sentences"]) == ("my own", [])
    assert {row["name"]: row["values"] for row in data["settings"]}["strength"] == ["3"]
    (run / "settings.toml").write_text(text.replace('"FA+AH"', '"my own"').replace("seed = 0", "seed = -1"))
    with pytest.raises(RunError, match=r"settings cannot be read.*seed"):
        page_data([run])


# clients and time


def test_contribution_by_hand(tmp_path):
    alone = {"1": {"examples": 4, "loss": 0.1, "update_norm": 3.0}}
    run = one(write_run(tmp_path / "run", [line(1), line(2, clients=alone)], clients=3))
    found = run["contribution"]
    assert found["clients"] == ["0", "1"]
    assert found["share"] == [1 / 8, 7 / 8]  # 1 of 8 examples; 3 + 4 of 8
    assert found["took_part"] == [1, 2]
    assert found["norms"] == [[2.0, None], [1.0, 3.0]]
    assert run["clients"] == 3


def test_seconds_add_up(real):
    for path, run in zip(real, page_data(real)["runs"], strict=True):
        logged = [each["seconds"] for each in read_rounds(path)]
        for part in run["time"]["parts"]:
            assert part["total"] == pytest.approx(sum(each[part["name"]] for each in logged), rel=1e-4)


def test_refused_updates_and_guards_are_listed(tmp_path):
    lines = [line(1, refused=[{"client": 7, "why": "a value is not finite"}]), line(2, guard="rolled back: it rose")]
    run = one(write_run(tmp_path / "run", lines))
    assert run["refused"] == [{"round": 1, "client": "7", "why": "a value is not finite"}]
    assert run["guards"] == [{"round": 2, "text": "rolled back: it rose"}]


# several runs


def test_runs_are_told_apart_by_what_differs(tmp_path):
    def names(*settings):
        folders = [write_run(tmp_path / str(settings) / str(i), [line(1)], **s) for i, s in enumerate(settings)]
        return [run["label"] for run in page_data(folders)["runs"]]

    assert names({"method": "FA+RM"}) == ["FA+RM"]
    assert names({"method": "FA"}, {"method": "FA+RM"}) == ["FA", "FA+RM"]
    assert names({"seed": 0, "lr": 0.1}, {"seed": 1, "lr": 0.2}) == ["seed 0", "seed 1"]
    assert names({"fraction": 1.0}, {"fraction": 0.5}) == ["C 1", "C 0.5"]
    assert names({"method": "FA"}, {"method": "FA+RM"}, {"method": "FA+RM", "rm_weight": 0.01}) == [
        "FA", "FA+RM", "FA+RM · rm_weight 0.01"
    ]  # fmt: skip
    assert names({"lr": 0.1}, {"lr": 0.3}) == ["lr 0.1", "lr 0.3"]
    assert names({}, {}) == ["0", "1"]  # nothing differs but the folder


def test_settings_that_differ_come_first(tmp_path):
    folders = [write_run(tmp_path / str(seed), [line(1)], seed=seed) for seed in (0, 1)]
    first, *others = page_data(folders)["settings"]
    assert (first["name"], first["values"], first["differs"]) == ("seed", ["0", "1"], True)
    assert first["help"]
    assert not any(row["differs"] for row in others)


def test_settings_are_those_that_the_runs_have(tmp_path):
    plain = write_run(tmp_path / "plain", [line(1)], method="FA")
    matched = write_run(tmp_path / "matched", [line(1)], method="FA+RM")
    alone = {row["name"] for row in page_data([plain])["settings"]}
    both = {row["name"]: row for row in page_data([plain, matched])["settings"]}
    assert both.keys() - alone == {"rm_weight", "rm_layers", "rm_kernel", "rm_step", "rm_batch", "rm_memory"}
    assert both["rm_weight"]["values"] == ["–", "0.0001"]
    assert [name for name, row in both.items() if row["differs"]] == ["method"]  # FA has no rm_weight to differ in


def test_how_a_run_is_operated_tells_it_apart_last(tmp_path):
    """`wd_weight`, which a method brings, comes after `workers` in the list of all settings."""
    folders = [
        write_run(tmp_path / str(n), [line(1)], method="FA+WD", workers=n, wd_weight=n / 10) for n in (1, 2)
    ]  # fmt: skip
    assert [run["label"] for run in page_data(folders)["runs"]] == ["wd_weight 0.1", "wd_weight 0.2"]


# size


@pytest.mark.parametrize(("count", "limit"), [(0, 5), (1, 5), (5, 5), (1000, 200), (201, 200), (7, 0), (2, 1)])
def test_thinning_keeps_both_ends(count, limit):
    kept = evenly(count, limit)
    assert len(kept) <= max(2, limit)
    assert kept == sorted(set(kept))
    if count <= limit:
        assert kept == list(range(count))
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)


@pytest.mark.slow
def test_a_long_run_of_many_clients_fits_and_says_what_it_left_out(tmp_path):
    clients = {str(c): {"examples": 1 + c, "loss": 0.5, "update_norm": 1 + c / 7} for c in range(120)}
    policy = line(1)["policy"]
    why = "a sentence of the usual length on what moved, and the rounds that moved it; " * 3
    lines = [line(t, clients=clients, policy={**policy, "mu": [0.0, 1e-4 * t], "why": why}) for t in range(1, 1001)]
    data = page_data([write_run(tmp_path / "run", lines, grid="lr = 0.05..0.5/9 log; steps = 5..45/9")])
    (run,) = data["runs"]
    assert size(data) < LIMIT
    assert len(run["curves"]["loss"]) == 1000
    maps = run["tuner"]["maps"]["rounds"]
    assert (maps[0], maps[-1], len(maps), run["tuner"]["of"]) == (1, 1000, 200, 1000)
    assert run["contribution"]["clients"] == [str(c) for c in range(70, 120)]  # those with the most examples
    assert run["contribution"]["everyone"] == 120
    assert [len(row) for row in run["contribution"]["norms"]] == [200] * 50


@pytest.mark.slow
@pytest.mark.anywhere
def test_many_runs_are_thinned_until_they_fit(tmp_path):
    why = "a sentence of the usual length on what moved, and the rounds that moved it; " * 3
    lines = [line(t, policy={**line(t)["policy"], "why": why}) for t in range(1, 501)]
    folders = [write_run(tmp_path / str(seed), lines, seed=seed) for seed in range(20)]
    data = page_data(folders)
    assert LIMIT / 2 < size(data) < LIMIT
    for run in data["runs"]:
        assert (run["curves"]["rounds"][0], run["curves"]["rounds"][-1]) == (1, 500)
        assert sum(note["listed"] for note in run["tuner"]["notes"]) < run["tuner"]["moved"] == 500


# what is wrong, odd or old


def test_the_published_logs_are_read():
    """Also those from before a field was kept, and compressed ones."""
    runs = sorted(file.parent for file in RESULTS.rglob("settings.toml"))
    for path in [runs[i] for i in evenly(len(runs), 5)]:
        run = one(path)
        assert run["finished"] == len(list(read_rounds(path)))
        assert run["metrics"][0]["last"] > 0.05


def test_a_bare_line_is_enough(tmp_path):
    run = one(write_run(tmp_path / "run", [{"round": 1}, {"round": 2, "loss": float("nan"), "policy": None}]))
    assert run["finished"] == 2
    assert run["metrics"][0]["last"] is run["metrics"][0]["best"] is run["loss"] is run["tuner"] is None
    assert run["metrics"][0]["values"] == run["scalars"] == run["sentences"] == []


def test_half_a_line_is_not_there_yet(tmp_path):
    assert one(write_run(tmp_path / "run", [line(1), '{"round": 2, "hy']))["finished"] == 1


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    run = write_run(tmp_path / "run", [])
    assert one(run)["finished"] == 0
    (run / "rounds.jsonl").unlink()
    write_page([run], tmp_path / "page.html")
    assert "No round has finished yet" in (tmp_path / "page.html").read_text()


def test_wrong_input_is_told(tmp_path):
    run = write_run(tmp_path / "run", [line(1)])
    with pytest.raises(SettingsError, match="at least one"):
        page_data([])
    with pytest.raises(RunError, match="not a run folder"):
        page_data([run, tmp_path])
    with pytest.raises(RunError, match="line 1 is not a round"):
        page_data([write_run(tmp_path / "list", ["[1]\n"])])
    (write_run(tmp_path / "wrong", [line(1)]) / "settings.toml").write_text("colour = 3\n")
    with pytest.raises(RunError, match=r"settings cannot be read.*colour"):
        page_data([tmp_path / "wrong"])
    for target in (tmp_path / "none" / "page.html", tmp_path):
        with pytest.raises(RunError, match="cannot be written"):
            write_page([run], target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list", "run", "wrong"]


# the page itself


def test_nothing_from_a_run_can_end_a_script_or_become_one(tmp_path):
    evil = "</script><script>alert(1)</script><!-- & \u2028 $title"
    lines = [
        line(1, guard=evil, refused=[{"client": evil, "why": evil}], policy={**line(1)["policy"], "why": evil}),
        line(2, clients={evil: {"examples": 1, "update_norm": 1.0}}, seconds={evil: 1.0}),
    ]
    text = page([write_run(tmp_path / "<b>run", lines, task=evil.replace("/", "")), write_run(tmp_path / "b", lines)])
    assert evil not in text
    assert "alert(1)</" not in text
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in embedded
    assert json.loads(embedded)["runs"][0]["guards"][0]["text"] == evil  # but it arrives as it was


def test_the_page_names_no_other_place(tmp_path):
    """The library's own text does, in a comment and as names of XML; the policy forbids it all."""
    library, script = scripts()
    text = page([write_run(tmp_path / "run", [line(1)])]).replace(library, "")
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src &#x27;none&#x27;" in text
    assert "connect-src &#x27;none&#x27;" in text
    assert script in text


def test_the_largest_page_is_below_a_megabyte_and_a_half(tmp_path):
    """All that is not data, and as much data as is let through; every character of it is one byte."""
    text = page([write_run(tmp_path / "run", [line(1)])])
    data = embedded(page_data([tmp_path / "run"]))
    assert len(text.encode()) - len(data) + LIMIT < 1_500_000
    assert data.isascii()


def test_the_library_is_what_its_makers_published():
    folder = Path(report.__file__).parent / "vendor"
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in SHA256} == SHA256
    assert all(name in (folder / "LICENSES.txt").read_text() for name in SHA256)
