"""The lab for tuners: its search, its arithmetic, and the whole of it on the digits, cut off and taken up again."""

import csv
import io
import itertools
import json
import os
import signal
import threading
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from helpers import wait_for, write_cell

from fedaccord import config
from fedaccord.cli import main
from fedaccord.cli.tuner import candidate
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.experiments import lab, runner
from fedaccord.experiments import search as searching
from fedaccord.experiments.search import Schedule, Trial, around, beside, search
from fedaccord.policy.grid import HyperGrid
from fedaccord.report import regret
from fedaccord.report.regret import Oracle, Result, interval, markdown, mean_over_problems
from fedaccord.runtime.folder import pack, read_rounds, read_settings

pytestmark = pytest.mark.anywhere

NOWHERE = Path("nowhere")

# --- the problems ---


def test_every_problem_can_be_run_and_is_tested_evenly_to_the_end():
    candidates = {"default": {}, "random": {}}
    work = lab.Lab(NOWHERE, list(lab.PROBLEMS.values()), list(lab.PARTS), candidates, [0])
    cells = work.wanted(work.problems)
    # 14 searches of 7 schedules, at whose ends those of FA+RM begin, and 16 problems with two candidates and both parts
    assert len(cells) == 14 * 7 + 2 * 16 * 2
    for cell in cells:
        rounds, every = cell.settings.rounds, cell.settings.test_every
        assert rounds % every == 0
        assert rounds // every >= 20
        assert cell.settings["width"] == (16 if cell.settings.task in ("kws", "cifar10") else 0)
    rounds = {each.name: each.settings["rounds"] for each in lab.PROBLEMS.values()}
    wanted = {"mnist": 200, "fashion": 150, "digits": 100, "kws16": 80, "cifar16": 100}
    wanted |= {"kws16-iid": 40, "kws16-natural": 40, "cifar16-iid": 25}
    assert all(rounds[name] == wanted[max((w for w in wanted if name.startswith(w)), key=len)] for name in rounds)


def test_what_the_clients_measure_shares_the_search_of_its_twin():
    twin = lab.PROBLEMS["mnist-one-C1-clients"]
    (first, *_) = lab.Lab(NOWHERE, [twin], ["FA"], {}, [0]).wanted([twin])
    assert first.name.startswith("mnist-one-C1/FA-lr")
    assert first.settings.evaluate == "server"
    assert lab.fixed_cell(twin, "FA", Schedule(0.1, 1.0, 5), 0).settings.evaluate == "clients"


def test_oracle_and_candidates_differ_in_nothing_but_the_tuner():
    problem = lab.PROBLEMS["kws16-one-C0.5"]
    work = lab.Lab(NOWHERE, [problem], ["FA+RM"], lab.CANDIDATES, [4])
    fixed = lab.fixed_cell(problem, "FA+RM", Schedule(0.25, 0.5, 7, 0.75), 4).settings.values()
    tuners = set(lab.CANDIDATES["paper"]) - set(fixed)
    for name in lab.CANDIDATES:
        tuned = work.cell(problem, "FA+RM", name, 4).settings.values()
        assert tuned["method"] == "FA+RM+AH"
        other = {each for each in fixed if fixed[each] != tuned[each]} - {"method", "grid", "start"}
        also = {"cohorts", "weighting", "guards", "yardstick", "average"} if name == "paper" else set()
        assert other == {"lr", "lr_decay", "steps", "steps_decay"} | also, name
    assert tuners == {"psi", "hyper_lr", "step_search", "follow", "hold", "interval", "precision"}


def test_the_random_control_is_one_point_of_the_grid_by_the_seed():
    problem = lab.PROBLEMS["digits-one"]
    work = lab.Lab(NOWHERE, [problem], ["FA"], {"random": {}}, [0])
    cells = [work.cell(problem, "FA", "random", seed) for seed in range(20)]
    grid = {axis.name: set(axis.values) for axis in HyperGrid.parse(cells[0].settings.grid).axes}
    assert {cell.method for cell in cells} == {"FA"}
    assert {cell.settings.lr_decay for cell in cells} == {cell.settings.steps_decay for cell in cells} == {1.0}
    for name, values in grid.items():
        assert {cell.settings[name] for cell in cells} <= values
    assert len({tuple(cell.settings[name] for name in grid) for cell in cells}) > 5
    assert cells == [work.cell(problem, "FA", "random", seed) for seed in range(20)]


# --- the search, on made-up losses ---


def by(loss):
    """A loss that any seed has."""
    return lambda trial: loss(trial.schedule)


def test_the_first_schedules_are_a_cross_with_decays_in_its_middle():
    """0.1^(1/100) = 0.9772 and (1/3)^(1/100) = 0.9891: a tenth of the rate and a third of the iterations at the end."""
    assert around(0.1, 6, 100) == (
        Schedule(0.1, 0.9772, 6),
        Schedule(0.1, 1.0, 6),
        Schedule(0.1, 0.9772, 6, 0.9891),
        Schedule(0.3, 0.9772, 6),
        Schedule(0.033, 0.9772, 6),
        Schedule(0.1, 0.9772, 18),
        Schedule(0.1, 0.9772, 2),
    )


def test_the_search_goes_on_until_the_best_is_inside():
    """The best is at rate 1.2, 6 iterations. From the cross (best: 0.3), three times: twice the rate, and at each new
    best twice and half the iterations. Then 1.2 is enclosed on all sides, with 7 + 3 * 3 schedules."""
    found = search(around(0.1, 6, 100), by(lambda s: abs(np.log(s.lr / 1.2)) + abs(np.log(s.steps / 6))))
    assert found.chosen == Schedule(1.2, 0.9772, 6)
    assert [(s.lr, s.steps) for s in list(found.losses)[7:]] == [
        (0.6, 6), (0.3, 12), (0.3, 3),
        (1.2, 6), (0.6, 12), (0.6, 3),
        (2.4, 6), (1.2, 12), (1.2, 3),
    ]  # fmt: skip
    assert not found.at_edge


def test_a_best_inside_the_first_schedules_is_enclosed_more_closely():
    """The cross tries three times as much and a third; then twice and half."""
    inside = by(lambda s: abs(np.log(s.lr / 0.1)) + abs(np.log(s.steps / 6)) + s.steps_decay)
    found = search(around(0.1, 6, 100), inside)
    assert found.chosen == Schedule(0.1, 0.9772, 6, 0.9891)
    assert [(s.lr, s.steps) for s in list(found.losses)[7:]] == [(0.2, 6), (0.05, 6), (0.1, 12), (0.1, 3)]
    assert not found.at_edge


def test_a_best_between_the_first_schedules_is_found():
    """The cross has 0.1 and 0.3; half of that is nearer to 0.2."""
    found = search(around(0.1, 6, 100), by(lambda s: abs(np.log(s.lr / 0.2)) + abs(np.log(s.steps / 6))))
    assert (found.chosen.lr, found.chosen.steps, found.at_edge) == (0.15, 6, False)


def test_the_most_iterations_are_tried_where_twice_as_many_are_too_many():
    found = search(around(0.1, 24, 100), by(lambda s: -s.steps))
    assert (found.chosen.steps, found.at_edge) == (108, True)


def test_the_search_ends_with_sixteen_and_says_that_the_best_is_at_an_edge():
    found = search(around(0.1, 6, 100), by(lambda s: -s.lr))
    assert len(found.losses) == 16
    assert (found.chosen.lr, found.at_edge) == (2.4, True)


def test_no_search_goes_below_one_iteration():
    """Fewer are always better: 1 of the cross 1, 3, 9; both sides of its rate are tried and no better, and then 2."""
    found = search(around(0.1, 3, 100), by(lambda s: s.steps))
    assert [(s.lr, s.steps) for s in list(found.losses)[7:]] == [(0.2, 1), (0.05, 1), (0.1, 2)]
    assert (found.chosen, found.at_edge) == (Schedule(0.1, 0.9772, 1), False)


def test_a_search_goes_to_108_iterations_and_says_that_its_best_is_at_an_edge():
    """More are always better: 108 of the cross 12, 36, 108; both sides of its rate are tried, then 54; 216 are not."""
    found = search(around(0.1, 36, 100), by(lambda s: -s.steps))
    assert [(s.lr, s.steps) for s in list(found.losses)[7:]] == [(0.2, 108), (0.05, 108), (0.1, 54)]
    assert (found.chosen, found.at_edge) == (Schedule(0.1, 0.9772, 108), True)


def test_a_search_that_begins_at_anothers_best_is_a_cross_around_it():
    decays = {"lr_decay": 0.9, "steps_decay": 0.8}
    assert beside(Schedule(0.2, steps=6, **decays)) == tuple(
        Schedule(lr, steps=steps, **decays) for lr, steps in ((0.2, 6), (0.4, 6), (0.1, 6), (0.2, 12), (0.2, 3))
    )
    assert [s.steps for s in beside(Schedule(0.2, 1.0, 1))] == [1, 1, 1, 2]
    assert [s.steps for s in beside(Schedule(0.2, 1.0, 108))] == [108, 108, 108, 54]


def test_a_best_that_was_luck_gives_way_to_the_next():
    """Without luck the loss is how many times the rate and the iterations must be doubled or halved to be 0.1 and 6.
    There it is 0, but 6 with the second seed: 3 on average, and a neighbour has 1.1 on average over its three."""

    def loss_of(trial):
        far = abs(np.log2(trial.schedule.lr / 0.1)) + abs(np.log2(trial.schedule.steps / 6))
        decays = (trial.schedule.lr_decay != 0.9772) + (trial.schedule.steps_decay != 1)
        return far + 4 * decays + (6 if far == 0 else 0.3) * (trial.number == 1)

    found = search(around(0.1, 6, 100), loss_of)
    lucky = Schedule(0.1, 0.9772, 6)
    assert found.losses[lucky] == (0, 6)
    assert found.chosen != lucky
    assert len(found.losses[found.chosen]) == 3
    means = {each: np.mean(losses) for each, losses in found.losses.items()}
    assert found.chosen == min(means, key=means.get)
    assert not found.at_edge


def test_the_search_of_another_client_part_waits_for_that_of_fa(tmp_path, monkeypatch):
    problem = lab.PROBLEMS["digits-one"]
    work = lab.Lab(tmp_path, [problem], ["FA+RM"], {}, [0])
    assert [cell.method for cell in work.wanted([problem])] == ["FA"] * 7

    def trace(cell):
        far = abs(np.log(cell.settings.lr / 0.2)) + abs(np.log(cell.settings.steps / 6))
        return lab.Trace((), 0, far) if cell.method == "FA" else None

    monkeypatch.setattr(work, "trace", trace)
    assert [cell.method for cell in work.wanted([problem])] == ["FA"] * (7 + 4 + 2) + ["FA+RM"] * 5


def test_a_search_that_lacks_runs_names_them_and_chooses_nothing():
    first = around(0.1, 6, 100)
    found = search(first, by(lambda s: None if s.lr_decay == 1 or s.steps == 18 else s.lr))
    assert found.missing == (Trial(first[1]), Trial(first[5]))
    assert len(found.losses) == 5
    assert found.chosen is None


def test_a_schedule_that_diverged_is_tried_no_more_and_never_chosen(tmp_path):
    """Of the seven first ones that at rate 0.6 ended in round 7, after three in which nobody counted."""
    problem = lab.PROBLEMS["digits-one"]
    work = lab.Lab(tmp_path, [problem], ["FA"], {}, [0])
    ruined = Schedule(0.6, 0.9772, 6)
    for cell in work.wanted([problem]):
        lost = 3 if cell == lab.fixed_cell(problem, "FA", ruined, 10) else 0
        write_cell(cell, tmp_path, 0.8, rounds=7 if lost else None, lost=lost)
    searched, found = work.search(problem, "FA")
    assert found.losses[ruined] == (float("inf"),)
    assert [trial.schedule for trial in found.missing] != [ruined]
    assert work.selection(searched, "FA", ruined) == 10.0


# --- what a log says ---


def line(t, clients, steps, accuracy=None, loss=1.0):
    return {
        "round": t,
        "hyper": {"lr": 0.1, "steps": steps},
        "clients": {str(n): {} for n in range(clients)},
        "loss": loss,
        "metrics": {} if accuracy is None else {"accuracy": accuracy},
    }


def write(path, lines, **settings):
    path.mkdir(parents=True)
    (path / "settings.toml").write_text(config.to_toml(config.make(settings)))
    (path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return lab.read_trace(path)


LINES = [line(t, 1 if t == 3 else 2, 5, (0.05 * t if t % 2 == 0 else None), loss=10 - t) for t in range(1, 15)]
"""Fourteen rounds of two clients with five steps, one client in the third; tested in every second: 10, 20, ... 70 %."""


def test_a_run_is_judged_by_its_last_five_tests_and_rounds(tmp_path):
    trace = write(tmp_path / "a", LINES)
    assert trace.steps == 13 * 10 + 5
    assert trace.accuracy() == pytest.approx((30 + 40 + 50 + 60 + 70) / 5)
    assert trace.loss == pytest.approx(sum(10 - t for t in range(10, 15)) / 5)


def test_at_equal_client_steps_only_the_tests_until_then_count(tmp_path):
    """Spent at the tests: 20, 35, 55, 75, 95, 115, 135."""
    trace = write(tmp_path / "a", LINES)
    assert [spent for spent, _ in trace.tests] == [20, 35, 55, 75, 95, 115, 135]
    assert trace.accuracy(115) == pytest.approx((20 + 30 + 40 + 50 + 60) / 5)
    assert trace.accuracy(114) == pytest.approx((10 + 20 + 30 + 40 + 50) / 5)
    assert trace.accuracy(54) == pytest.approx((10 + 20) / 2)
    assert trace.accuracy(19) is None


def test_a_loss_that_was_not_finite_is_never_chosen(tmp_path):
    assert write(tmp_path / "a", [*LINES[:-1], {**LINES[-1], "loss": None}]).loss == float("inf")


def test_steps_that_nobody_schedules_are_those_of_the_settings(tmp_path):
    lines = [{**each, "hyper": {"lr": 0.1}} for each in LINES]
    assert write(tmp_path / "a", lines, steps=7).steps == 13 * 14 + 7


def test_a_candidate_may_spend_a_fifth_more_than_the_oracle(tmp_path):
    """Its sixth test is after 115 client steps: within 96 * 1.2 = 115.2, not within 95 * 1.2 = 114. Within 10 * 1.2
    there is none: chance."""
    own = write(tmp_path / "own", LINES)
    equal = {}
    for steps in (96, 95, 10):
        oracle = write(tmp_path / str(steps), [line(1, 1, steps, 0.9)])
        result = lab.compared("FA", lab.PROBLEMS["digits-one"], "a", 0, oracle, own, best=90.0)
        assert result.regret == pytest.approx(90 - 50)
        equal[steps] = result.equal
    assert equal == {96: pytest.approx(40), 95: pytest.approx(30), 10: 10.0}


def test_a_log_that_is_packed_while_it_is_read_is_read_all_the_same(tmp_path, monkeypatch):
    """As when one run ends while the search looks at the others."""
    whole = write(tmp_path / "a", LINES)

    def packed_first(path):
        monkeypatch.undo()
        pack(tmp_path / "a")
        return path.read_bytes()

    monkeypatch.setattr(Path, "read_bytes", packed_first)
    assert lab.read_trace(tmp_path / "a") == whole


# --- what regrets come to ---


def result(problem, seed, accuracy, candidate="a", oracle=50.0, **more):
    figures = {"equal": accuracy, "client_steps": 300, "oracle_steps": 200, "chance": 10.0, "best": oracle, **more}
    return Result("FA", problem, candidate, seed, oracle, accuracy, **figures)


REGRETS = {"one": [1.0, 3.0], "two": [-2.0, 0.0]}


def test_an_oracle_that_blew_up_at_once_hides_no_table():
    told = markdown([result("one", 0, 40.0, oracle_steps=0)], [], [0])
    assert "10.0 (the oracle made none)" in told


def test_negatives_count_as_nothing_by_problem():
    """Means of the problems: 2 and -1."""
    assert mean_over_problems(REGRETS, clipped=False) == 0.5
    assert mean_over_problems(REGRETS, clipped=True) == 1.0


@pytest.mark.parametrize("clipped", [False, True])
def test_the_interval_is_that_of_all_ways_to_draw(clipped):
    """Two problems with two seeds can be drawn in 4 ways, and the seeds of each place in 4: all 64 are as likely."""
    found = []
    for places in itertools.product(REGRETS.values(), repeat=2):
        for seeds in itertools.product(itertools.product((0, 1), repeat=2), repeat=2):
            means = [np.mean([values[s] for s in drawn]) for values, drawn in zip(places, seeds, strict=True)]
            found.append(np.mean([max(0, mean) if clipped else mean for mean in means]))
    assert len(found) == 64
    found.sort()
    # 1/64 is below 2.5 % and 2/64 above: the second smallest and the second largest
    assert interval(REGRETS, clipped) == (found[1], found[-2])


def test_problems_may_have_different_numbers_of_seeds():
    """Whatever is drawn, a problem's mean is 4 or 1."""
    low, high = interval({"one": [4.0], "two": [1.0, 1.0, 1.0]}, clipped=False)
    assert (low, high) == (1.0, 4.0)  # each in a quarter of the draws


def test_a_run_is_at_chance_only_where_a_fixed_schedule_learns():
    """Ten classes: below 15 %."""
    assert result("one", 0, 14.9).at_chance
    assert not result("one", 0, 15.1).at_chance
    assert not result("one", 0, 9.0, oracle=14.0).at_chance
    assert result("one", 0, 9.0, oracle=9.7, best=90.0).at_chance  # the oracle failed too, with this seed


def test_others_are_compared_with_the_default_where_both_have_run():
    """On one the default misses 2 and the other 38; on two both are ahead, which counts as 0; three has the default
    alone: (38 + 0) / 2 - (2 + 0) / 2."""
    both = [result("one", 0, 48.0, "default"), result("one", 0, 12.0, "b"), result("two", 0, 52.0, "default")]
    both += [result("two", 0, 55.0, "b"), result("three", 0, 10.0, "default")]
    lines = regret.markdown(both, [], range(1)).splitlines()
    assert "| **more than the default** | 0.00 | 18.00 |" in lines
    assert "| **problems** | 3 of 3 | 2 of 3 |" in lines
    # in short: 38 on one, none on two; each problem in half of the draws
    assert "| b | FA | 2 | 19.00 [0.00, 38.00] | 18.00 | 38.0 (one) | 1 of 2 |" in lines


def test_the_tables_show_all_of_it():
    results = [
        result("one", 0, 49.0, equal=45.0), result("one", 1, 47.0, equal=45.0),
        result("two", 0, 52.0), result("two", 1, 50.0),
        result("one", 0, 12.0, "b"),
    ]  # fmt: skip
    tried = {"this": 93.0, "that": 97.0, "another": 20.0}
    chosen = Oracle("FA", "one", 0.2, 0.99, 6, 0.98, 0.1234, tried, "this", False, (94.0, 96.0), (100, 300))
    lines = regret.markdown(results, [chosen], range(2)).splitlines()
    low, high = interval(REGRETS, clipped=True)
    for wanted in (
        "|  | a | b |",
        "| one | 2.0 | 38.0 (1 of 2 seeds) |",
        "| two | -1.0 | – |",
        "| **problems** | 2 of 2 | 1 of 2 |",
        f"| **mean, negatives as 0** | 1.00 [{low:.2f}, {high:.2f}] | 38.00 |",
        "| **worst** | 2.0 (one) | 38.0 (one) |",
        "| **runs at chance** | 0 of 4 | 1 of 1 |",
        # at equal steps 50 - 45; 300 steps are 1.5 times 200
        "| one | 5.0 (1.5x) | 38.0 (1.5x, 1 of 2 seeds) |",
        # the standard deviation of 94 and 96 is the root of 2
        "| one | FA | 0.2 x 0.99 | 6 x 0.98 | 0.1234 | 3 | 93.0 (97.0) | 95.0 ± 1.41 | 200 |",
    ):
        assert wanted in lines
    assert not any("**more than the default**" in line for line in lines)  # nobody is called so
    rows = list(csv.DictReader(io.StringIO(regret.as_csv(results))))
    assert [len(rows), float(rows[0]["regret"]), float(rows[0]["equal_regret"])] == [5, 1.0, 5.0]


@pytest.mark.slow
def test_the_picture_names_problems_candidates_and_parts(tmp_path):
    results = [result("problem-one", 0, 49.0, "tuner-a"), result("problem-two", 0, 10.0, "tuner-b")]
    regret.draw(results, tmp_path / "r.svg")
    text = (tmp_path / "r.svg").read_text()
    assert all(f"<!-- {name} -->" in text for name in ("problem-one", "problem-two", "tuner-a", "tuner-b"))
    assert "<!-- FA at the clients -->" in text


# --- the command ---

BAD = [
    (["--problems", "mnist"], "unknown problem 'mnist'; there are mnist-iid-C1,"),
    (["--candidates", "best"], "unknown candidate 'best'; there are default, frozen, walk,"),
    (["--candidate", "x"], "--candidate x: expected NAME:KEY=VALUE"),
    (["--candidate", "a/b:hyper_lr=1"], "expected NAME:KEY=VALUE"),
    (["--candidate", "x:hyper_rl=1"], "unknown setting 'hyper_rl'; did you mean 'hyper_lr'?"),
    (["--candidate", "x:hyper_lr=fast"], "hyper_lr = 'fast': expected a number"),
    (["--candidate", "x:rounds=900"], "candidate x: rounds is the problem's"),
    (["--candidate", "frozen:hyper_lr=1"], "there is a candidate of that name"),
    (["--parts", "FA+XX", "--problems", "digits-one"], "there is no 'XX'"),
    (["--first-seed", "-1"], "expected 0 or more"),
    (["--no-run"], "no such folder"),
]


@pytest.mark.parametrize(("words", "complaint"), BAD)
def test_bad_input_is_explained(words, complaint, tmp_path, capsys):
    assert main(["bench", "tuner", "--results", str(tmp_path / "r"), *words]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_candidate_of_the_command_line_is_laid_over_the_default():
    name, settings = candidate("wide:grid=lr = 0.001..9/9 log; steps = 2..4/3,hyper-lr=0.5, guards=no")
    assert name == "wide"
    assert settings == {"grid": "lr = 0.001..9/9 log; steps = 2..4/3", "hyper_lr": 0.5, "guards": False}


def test_problems_without_their_data_are_left_out(tmp_path, capsys):
    """On a fresh machine there is no MNIST."""
    words = ["--problems", "mnist-one-C1,kws16-natural,mnist-iid-C1", "--results", str(tmp_path / "r")]
    assert main(["bench", "tuner", *words]) == 0
    said = capsys.readouterr().out
    assert "left out: mnist-one-C1, mnist-iid-C1: mnist is not on this machine; `fedaccord data fetch mnist`" in said
    assert "left out: kws16-natural: speech_commands is not on this machine" in said
    assert "no finished run of a candidate" in said


def test_help_names_all_that_can_be_chosen(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "tuner", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in (*lab.PROBLEMS, *lab.CANDIDATES, lab.RANDOM, "--search-only", "--first-seed"))


# --- all of it ---

SMALL = lab.Problem(
    "small",
    "digits",
    {"split": "non-iid", "rounds": 30, "test_every": 1, "checkpoint_every": 10, "engine": "serial"},
    (Schedule(0.1, 1.0, 2), Schedule(0.2, 0.98, 2)),
)
PROBLEMS = {"small": SMALL, "small-clients": lab.without_server(SMALL)}
MOST, RUNS = 3, 2
WORDS = ["--problems", "small,small-clients", "--parts", "FA", "--seeds", "1", "--candidates", "random"]
WORDS += ["--candidate", "still:hyper_lr=0,grid=lr = 0.1..0.2/2; steps = 1..2/2"]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(lab, "PROBLEMS", PROBLEMS)
    monkeypatch.setattr(searching, "MOST", MOST)
    monkeypatch.setattr(searching, "RUNS", RUNS)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder of a lab that was stopped during its first runs and taken up again; which runs were started when."""
    folder = tmp_path_factory.mktemp("lab")
    started: list[list[str]] = []
    open_child = runner.open_child

    def noted(cell, folder):
        started[-1].append(cell.name)
        return open_child(cell, folder)

    def stop():
        """As Ctrl-C does, as soon as a run has three rounds."""
        wait_for(lambda: any(len(list(read_rounds(path.parent))) >= 3 for path in folder.glob("*/*/rounds.jsonl")))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "PROBLEMS", PROBLEMS)
        patch.setattr(searching, "MOST", MOST)
        patch.setattr(searching, "RUNS", RUNS)
        patch.setattr(runner, "open_child", noted)
        for code in (130, 0):
            started.append([])
            stopper = threading.Thread(target=stop)
            if code == 130:
                stopper.start()
            assert main(["bench", "tuner", *WORDS, "--results", str(folder)]) == code
            if code == 130:
                stopper.join()
    return folder, started


def test_a_lab_that_was_stopped_goes_on_and_is_whole(measured):
    """Three schedules are tried (two, one beyond the better), the best once more, and so the next if it was better by
    luck; the best and two candidates run on both problems."""
    folder, (before, after) = measured
    runs = sorted(path.parent for path in folder.rglob("settings.toml"))
    again = len(list((folder / "small").glob("FA-lr*-s11")))
    assert 1 <= again <= 3
    assert len(runs) == 3 + again + 2 * (1 + 2)
    assert {f"{run.parent.name}/{run.name}" for run in runs} == {*before, *after}
    assert len(before) <= 2 < len(after)
    assert len(after) == len(set(after))
    for run in runs:
        assert [each["round"] for each in read_rounds(run)] == list(range(1, 31))
        assert (run / "rounds.jsonl.gz").is_file()


def test_the_oracle_is_the_best_on_the_server_s_set_with_both_seeds(measured):
    folder, _ = measured
    about = json.loads((folder / "small" / "FA-oracle.json").read_text())
    losses = defaultdict(list)
    for seed in (10, 11):
        for path in (folder / "small").glob(f"FA-lr*-s{seed}"):
            settings = read_settings(path)
            loss = np.mean([each["loss"] for each in read_rounds(path)][-5:])
            losses[settings.lr, settings.lr_decay, settings.steps].append(loss)
    assert len(losses) == MOST
    lowest = min(losses, key=lambda each: np.mean(losses[each]))
    assert len(losses[lowest]) == RUNS
    chosen = about["chosen"]
    assert (chosen["lr"], chosen["lr_decay"], chosen["steps"]) == lowest
    for each in about["tried"]:
        assert each["losses"] == pytest.approx(losses[each["lr"], each["lr_decay"], each["steps"]])
    for problem, evaluate in (("small", "server"), ("small-clients", "clients")):
        settings = read_settings(folder / problem / f"FA-{Schedule(*lowest).name}-s0")
        assert settings.evaluate == evaluate
    assert not (folder / "small-clients" / "FA-oracle.json").exists()


def test_regret_is_the_difference_of_the_last_five_tests(measured):
    folder, _ = measured
    rows = list(csv.DictReader(io.StringIO((folder / "runs.csv").read_text())))
    assert [(row["problem"], row["candidate"]) for row in rows] == [
        (problem, candidate) for problem in PROBLEMS for candidate in ("random", "still")
    ]
    for row in rows:
        (oracle,) = (folder / row["problem"]).glob("FA-lr*-s0")
        last = [
            100 * np.mean([each["metrics"]["accuracy"] for each in read_rounds(run)][-5:])
            for run in (oracle, folder / row["problem"] / f"FA-{row['candidate']}-s0")
        ]
        assert float(row["regret"]) == pytest.approx(last[0] - last[1], abs=1e-3)
    table = (folder / "regret.md").read_text()
    assert f"| small | {float(rows[0]['regret']):z.1f} |" in table
    assert "<!-- small-clients -->" in (folder / "regret.svg").read_text()


def test_candidates_are_the_tuner_with_their_settings(measured):
    folder, _ = measured
    still, random = (read_settings(folder / "small" / f"FA-{name}-s0") for name in ("still", "random"))
    assert (still.method, still["hyper_lr"], still.grid) == ("FA+AH", 0.0, "lr = 0.1..0.2/2; steps = 1..2/2")
    assert random.method == "FA"


@pytest.mark.usefixtures("small")
def test_without_running_the_same_tables_are_made_again(measured, capsys, monkeypatch):
    folder, _ = measured
    monkeypatch.setattr(runner, "open_child", lambda *_: pytest.fail("a run was started"))
    names = ("regret.md", "runs.csv", "regret.svg", "small/FA-oracle.json")
    kept = {name: (folder / name).read_bytes() for name in names}
    for name in kept:
        (folder / name).unlink()
    for words in ([], ["--no-run"]):  # nothing is missing, so the first has nothing to run either
        assert main(["bench", "tuner", *WORDS, "--results", str(folder), *words]) == 0
        assert {name: (folder / name).read_bytes() for name in kept} == kept
    capsys.readouterr()
    assert main(["bench", "tuner", *WORDS, "--results", str(folder), "--no-run", "--search-only"]) == 0
    assert capsys.readouterr().out.count("| FA |") == 2


@pytest.mark.usefixtures("small")
def test_a_run_of_other_settings_in_the_same_place_is_told(measured, capsys):
    folder, _ = measured
    words = [word.replace("hyper_lr=0", "hyper_lr=1") for word in WORDS]
    assert main(["bench", "tuner", *words, "--results", str(folder)]) == 2
    assert "small/FA-still-s0: was run with hyper_lr = 0.0, not 1.0; choose another" in capsys.readouterr().err


@pytest.mark.slow
def test_a_complaint_about_what_follows_stops_the_runs_under_way(tmp_path):
    """After the first run, what follows cannot be told; the second, of far more rounds than anybody waits for, ends."""
    first = lab.make_cell(SMALL, "FA", "a", 0, "FA", {})
    second = lab.make_cell(lab.replace(SMALL, settings={**SMALL.settings, "rounds": 10**6}), "FA", "b", 0, "FA", {})

    def complain():
        raise SettingsError("no")

    with pytest.raises(SettingsError, match="no"):
        runner.run_missing([first, second], tmp_path, lanes=2, more=complain)
    assert len(list(read_rounds(tmp_path / first.name))) == 30


@pytest.mark.slow
def test_a_run_whose_log_cannot_be_packed_stops_the_others(tmp_path, monkeypatch):
    cells = [lab.make_cell(SMALL, "FA", name, 0, "FA", {}) for name in "abcd"]

    def full(run):
        raise RunError("disk full")

    monkeypatch.setattr(runner, "pack", full)
    with pytest.raises(RunError, match="disk full"):
        runner.run_missing(cells, tmp_path, lanes=1)
    assert not (tmp_path / cells[-1].name).exists()


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_published_regret_is_what_the_logs_say():
    """By `fedaccord bench tuner --no-run --parts FA --candidates default,paper,low,high,wide`."""
    folder = Path(__file__).parents[1] / "results" / "tuner"
    candidates = {name: lab.CANDIDATES[name] for name in ("default", "paper", "low", "high", "wide")}
    work = lab.Lab(folder, list(lab.PROBLEMS.values()), ["FA"], candidates, range(3))
    assert regret.markdown(list(work.results()), list(work.oracles()), work.seeds) == (folder / "regret.md").read_text()
