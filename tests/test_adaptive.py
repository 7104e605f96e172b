"""Adaptive hyper-parameters in whole runs: resume, replay, both ways of measuring the loss, what reaches a client."""

import itertools

import pytest
import torch
from helpers import client_side, hyper
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord import config
from fedaccord.client.training import Site, train
from fedaccord.core.algorithm import run, start
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.records import OPTIMIZER, Examples, Order
from fedaccord.data.prepare import as_stored
from fedaccord.objectives import classification
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import checkpoint, drive
from fedaccord.runtime.folder import RunFolder, read_rounds
from fedaccord.runtime.identity import fingerprint, log_sha256, params_sha256
from fedaccord.tasks import find_task

GRID = "lr = 0.05..0.5/9 log; steps = 1..9/9"
PLAIN = {"psi": "ascent", "hyper_lr": 0.05, "hold": 1, "follow": False, "step_search": False}


def simulation(method="FA+AH", **changes):
    task = find_task("digits")
    changes = {"method": method, "rounds": 8, "grid": GRID, "test_every": 4, "engine": "serial", **changes}
    return from_task(task, config.make(task.defaults("non-iid"), changes))


def finish(path, sim):
    with RunFolder(path) if path.exists() else RunFolder.create(path, sim.settings) as folder:
        outcome = drive(sim, folder, None)
    return params_sha256(outcome.state.params), log_sha256(list(read_rounds(path))), outcome.state.policy


WAYS = [
    {},
    {"method": "FA+RM+AH", "rm_weight": 1e-3},
    {"evaluate": "clients", "fraction": 0.5},
    {
        "evaluate": "clients",
        "paired": True,
        "reports": "median",
        "baseline": "centred",
        "interval": 2,
        "diagonal": True,
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", WAYS)
def test_psi_and_its_window_survive_a_stop_to_the_bit(tmp_path, changes):
    whole = finish(tmp_path / "whole", simulation(**changes))
    sim = simulation(**changes)
    about = fingerprint(sim.settings, sim.params, sim.experiment.data())
    with RunFolder.create(tmp_path / "cut", sim.settings) as folder:
        engine = sim.experiment.engine
        engine.open(folder.private)
        state = start(sim.experiment, sim.params)
        checkpoint(engine, folder, state, about)
        for state, log in run(sim.experiment, state):  # noqa: B020
            folder.append(log)
            if state.round == 5:
                break  # after the log line of round 5, before its checkpoint
            checkpoint(engine, folder, state, about)
    assert finish(tmp_path / "cut", simulation(**changes)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, *({"start": "lr = 1, steps = 50", "grid": config.GRID, **each} for each in
                                          ({}, {"step_search": False}, {"follow": False}))], ids=str)  # fmt: skip
def test_a_replay_of_a_tuned_run_is_that_run(tmp_path, changes):
    """FA with the recorded h_t and lengths of the server's steps, and what was undone: the same model, to the bit."""
    tuned, _, _ = finish(tmp_path / "tuned", simulation(**changes))
    undone = [line["guard"] for line in read_rounds(tmp_path / "tuned") if "undone" in (line["guard"] or "")]
    assert bool(undone) == ("start" in changes and changes.get("follow", True))
    replayed, _, _ = finish(tmp_path / "again", simulation("FA", replay=str(tmp_path / "tuned")))
    assert replayed == tuned
    with pytest.raises(RunError):
        simulation("FA", replay=str(tmp_path / "absent"))
    (tmp_path / "tuned" / "settings.toml").write_text("method = [")
    with pytest.raises(SettingsError, match=r"settings\.toml"):
        simulation("FA", replay=str(tmp_path / "tuned"))


def test_so_is_one_without_a_servers_set(tmp_path):
    tuned, _, _ = finish(tmp_path / "tuned", simulation(evaluate="clients"))
    assert any(line["stretch"] for line in read_rounds(tmp_path / "tuned"))
    replayed, _, _ = finish(tmp_path / "again", simulation("FA", replay=str(tmp_path / "tuned"), evaluate="clients"))
    assert replayed == tuned


def test_the_log_says_all_of_a_decision(tmp_path):
    finish(tmp_path / "run", simulation(precision=85.0, **PLAIN))
    lines = list(read_rounds(tmp_path / "run"))
    assert lines[0]["policy"]["mu"] == [0.0, 0.0]
    assert lines[0]["policy"]["why"] == "nothing to learn from yet"
    for line in lines:
        assert set(line["hyper"]) == {"lr", "steps"}
        assert set(line["policy"]) == {"mu", "A", "mean", "p", "baseline", "why"}
        assert 0 < line["policy"]["p"] < 1
    assert lines[1]["policy"]["mu"] == [0.0, 0.0]  # round 1 leaves psi unchanged
    assert lines[2]["policy"]["mu"] != [0.0, 0.0]
    assert "moved" in lines[2]["policy"]["why"]


def test_rewards_known_a_round_late_belong_to_the_round_before():
    sim = simulation(evaluate="clients", step_search=False)  # without long steps that are taken back
    logs = [log for _, log in run(sim.experiment, start(sim.experiment, sim.params))]
    assert logs[0].reward is None
    for before, after in itertools.pairwise(logs):
        assert after.reward == pytest.approx((before.loss - after.loss) / before.loss)


def test_pairs_are_measured_on_the_same_examples():
    """The reward compares what this round's clients measured of both models, not the loss known before."""
    sim = simulation(evaluate="clients", paired=True)
    logs = [log for _, log in run(sim.experiment, start(sim.experiment, sim.params))]
    entry = logs[3].clients["0"]
    before = sum(e["previous_loss"] for e in logs[3].clients.values()) / 10
    assert logs[3].reward == pytest.approx((before - logs[3].loss) / before)
    assert entry["previous_loss"] != entry["received_loss"]


VALUES = {
    "lr": 0.2,
    "steps": 5,
    "batch_size": 7,
    "momentum": 0.9,
    "weight_decay": 0.1,
    "clip_gradient": 0.01,
    "entropy_min": 1.0,
    "entropy_weight": 2.0,
    "wd_weight": 0.5,
    "rm_weight": 0.1,
    "moon_weight": 5.0,
    "ntd_weight": 3.0,
    "fedlc_tau": 2.0,
    "fedrs_alpha": 0.1,
}


@pytest.mark.parametrize("name", VALUES)
def test_every_hyper_parameter_that_can_be_tuned_takes_effect_in_a_client(name):
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))  # the last class has no example
    data = Examples(torch.randn(20, 4, generator=g), torch.randint(0, 3, (20,), generator=g))
    params = {key: value.clone() for key, value in model.state_dict().items()}
    weights = {"entropy_weight": 1.0, "wd_weight": 0.1, "rm_weight": 0.01, "moon_weight": 1.0, "ntd_weight": 1.0}
    base = hyper(0.1, 3, 10, 0.0, entropy_min=1.38, fedlc_tau=1.0, fedrs_alpha=0.5, **weights)
    calibrated = "FedRS" if name == "fedrs_alpha" else "FedLC"  # which cannot be joined
    side = client_side(model, data.inputs[:2], f"FA+WD+RM+MOON+FedNTD+{calibrated}")
    kept = {"MOON.previous": {key: value + 0.1 for key, value in params.items()}}  # that of a first round does nothing
    site = Site(model, side, [data], as_stored, classification, cross_entropy, seed=0)

    def result(values):
        return params_sha256(train(site, model, Order(1, (0,), params, values), 0, kept)[0].params)

    assert result(base) != result(base.but({name: VALUES[name]}))
    known = {each.name for each in config.table().values() if each.hyper}
    assert set(VALUES) | {"server_lr"} == known | set(OPTIMIZER)  # the server's own is tested with the aggregate


def test_more_hyper_parameters_are_one_line_in_the_settings():
    sim = simulation(grid=f"{GRID}; momentum = 0, 0.5, 0.9; server_lr = 0.5, 1", rounds=3)
    for _, log in run(sim.experiment, start(sim.experiment, sim.params)):
        assert set(log.hyper) == {"lr", "steps", "momentum", "server_lr"}
    with pytest.raises(SettingsError, match="cannot be tuned"):
        simulation(grid="colour = 1, 2")


def test_a_start_that_blows_up_is_shortened_and_the_rate_comes_down():
    """From the top of an absurd grid, guards on: the model survives, and the tuner leaves the top.

    A rate of 1000 is always shortened or rolled back, with a reward near -1; the two sane ones are worth about 0. Above
    the mean reward are then only draws from below the mean rate, and the other way round: every term of Eq. 7 moves mu
    down.
    """
    grid = "lr = 0.01, 0.1, 1000 log; steps = 2, 4"
    sim = simulation(grid=grid, start="lr = 1000", rounds=8, precision=5.0, **PLAIN)
    state = start(sim.experiment, sim.params)
    top, losses, logs = state.policy["mu"][0], [state.loss], []
    for state, log in run(sim.experiment, state):  # noqa: B020
        losses.append(state.loss)
        logs.append(log)
    assert {bool(log.guard) for log in logs if log.hyper["lr"] == 1000} == {True}
    assert {bool(log.guard) for log in logs if log.hyper["lr"] < 1000} == {False}
    assert all(after <= 2 * before for before, after in itertools.pairwise(losses))  # as the guard promises
    assert state.policy["mu"][0] < top
