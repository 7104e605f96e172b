"""The steps of the server's chain against written-out arithmetic, their state through a checkpoint and a roll-back."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import hyper, module_with, server_chain

from fedaccord import config
from fedaccord.core.algorithm import Verdict, run, run_round, start
from fedaccord.core.observing import observation
from fedaccord.core.protocols import Measured
from fedaccord.core.records import ClientUpdate, Order, ServerState
from fedaccord.core.stopwatch import Stopwatch
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import checkpoint, drive
from fedaccord.runtime.folder import RunFolder
from fedaccord.runtime.identity import params_sha256
from fedaccord.server.steps import DECAYS
from fedaccord.tasks import find_task

W = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64), "running_var": torch.tensor([4.0], dtype=torch.float64)}
STEPS = (np.array([0.5, 1.0]), np.array([-0.2, 0.4]), np.array([0.1, -0.3]))
"""What the clients' mean adds to w in three rounds."""


def rounds(method="FA", server_lr=1.0, **settings):
    """w and the server's state after each of three rounds in which one client moves w by STEPS."""
    chain = server_chain(module_with(W, buffers={"running_var"}), method, **settings)
    model = chain.start(W)
    for t, step in enumerate(STEPS, 1):
        moved = {"w": model.params["w"] + torch.tensor(step), "running_var": model.params["running_var"] + 1}
        model = chain.aggregate(t, model, [ClientUpdate(0, moved, 5, 0.1)], hyper(server_lr=server_lr)).model
        yield model, chain


def start_w():
    return W["w"].numpy().copy()


def test_the_servers_rate():
    w = start_w()
    for (model, _), step in zip(rounds(server_lr=0.5), STEPS, strict=True):
        w = w + 0.5 * step
        np.testing.assert_allclose(model.params["w"].numpy(), w, rtol=1e-14)
    assert model.params["running_var"].item() == 7.0  # a buffer takes the mean itself


def test_momentum():
    """v <- 0.9 v + d; w <- w + v."""
    w, v = start_w(), np.zeros(2)
    for (model, _), step in zip(rounds("FedAvgM"), STEPS, strict=True):
        v = 0.9 * v + step
        w = w + v
        np.testing.assert_allclose(model.params["w"].numpy(), w, rtol=1e-13)
        np.testing.assert_allclose(model.server["FedAvgM.v"]["w"].numpy(), v, rtol=1e-13)
    assert model.params["running_var"].item() == 7.0


@pytest.mark.parametrize("method", ["FedAdam", "FedYogi"])
def test_adam_and_yogi(method):
    """Reddi et al., Algorithm 2, with eta 0.01, beta 0.9 and 0.99, tau 1e-3, v_0 = tau^2."""
    w, m, v = start_w(), np.zeros(2), np.full(2, 1e-6)
    for (model, _), step in zip(rounds(method), STEPS, strict=True):
        m = 0.9 * m + 0.1 * step
        square = step**2
        v = 0.99 * v + 0.01 * square if method == "FedAdam" else v - 0.01 * square * np.sign(v - square)
        w = w + 0.01 * m / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(model.params["w"].numpy(), w, rtol=1e-12)


@pytest.mark.parametrize(("name", "decay", "soon"), [("short", 0.8, 3), ("long", 0.97, 10)])
def test_the_running_means_are_kept_and_clients_go_on_from_the_last(name, decay, soon):
    """mean <- d mean + (1 - d) w, with d = min(decay, (1 + t) / (soon + t)); the model itself is FA's."""
    mean = start_w()
    for t, ((model, chain), (plain, _)) in enumerate(zip(rounds(), rounds(average=False), strict=True), 1):
        d = min(decay, (1 + t) / (soon + t))
        mean = d * mean + (1 - d) * model.params["w"].numpy()
        assert torch.equal(model.params["w"], plain.params["w"])
        np.testing.assert_allclose(chain.models(model)[name]["w"].numpy(), mean, rtol=1e-12)
        assert chain.models(model)["last"] is model.params


def test_the_running_means_are_of_the_model_that_the_clients_go_on_from():
    """With a rate of the server's own, the mean is of what that made of the clients' mean."""
    for name, (decay, soon) in DECAYS.items():
        mean = start_w()
        for t, (model, chain) in enumerate(rounds(server_lr=0.5), 1):
            d = min(decay, (1 + t) / (soon + t))
            mean = d * mean + (1 - d) * model.params["w"].numpy()
            np.testing.assert_allclose(chain.models(model)[name]["w"].numpy(), mean, rtol=1e-12)


def test_clipping_shortens_each_clients_step_to_the_bound():
    """Steps of length 5 and 0.5 with a bound of 1: the first becomes (0.6, 0.8), the second stays; their mean."""
    start_ = {"w": torch.tensor([1.0, 1.0])}
    chain = server_chain(module_with(start_), clip_norm=1.0)
    updates = [
        ClientUpdate(0, {"w": torch.tensor([4.0, 5.0])}, 1, 0.1),
        ClientUpdate(1, {"w": torch.tensor([1.0, 1.5])}, 1, 0.1),
    ]
    result = chain.aggregate(1, chain.start(start_), updates, hyper(server_lr=1.0))
    torch.testing.assert_close(result.model.params["w"], torch.tensor([1.3, 1.65]))
    assert [each.update_norm for each in result.accepted] == [5.0, 0.5]  # what was sent, before it was clipped
    assert [each.entered for each in result.accepted] == pytest.approx([1.0, 0.5])  # how far they agree goes by these
    before = ServerState(0, chain.start(start_), 1.0, {})
    order = Order(1, (0, 1), start_, hyper())
    seen = observation(1, before, order, result, Verdict(result.model, 1.0, 1.0, 0.1), {}, Stopwatch())
    mean = math.hypot(0.3, 0.65)  # of (0.6, 0.8) and (0, 0.5)
    assert seen.alignment == pytest.approx(mean / 0.75)
    assert seen.cosine == pytest.approx(0.8)  # between those two


WAYS = [{"method": "FedAvgM"}, {"method": "FedAdam"}, {"method": "FedYogi"}, {"average": False}, {"clip_norm": 0.05},
        {"method": "SCAFFOLD"}, {"method": "SCAFFOLD", "robust": "clip"}, {"robust": "median"}]  # fmt: skip


def setup(**changes):
    task = find_task("digits")
    values = {"rounds": 6, "steps": 2, "fraction": 0.5, "engine": "serial", **changes}
    return from_task(task, config.make(task.defaults("non-iid"), {"task": "digits"}, values))


@pytest.mark.slow
@pytest.mark.parametrize("changes", WAYS, ids=str)
def test_a_run_with_it_resumes_to_the_bit(tmp_path, changes):
    whole = drive(setup(**changes), None, None).state
    made = setup(**changes)
    from fedaccord.runtime.identity import fingerprint

    about = fingerprint(made.settings, made.params, made.experiment.data())
    with RunFolder.create(tmp_path / "run", made.settings) as folder:
        made.experiment.engine.open(folder.private)
        state = start(made.experiment, made.params)
        for state, log in run(made.experiment, state):  # noqa: B020
            folder.append(log)
            if state.round == 4:
                break  # killed between the log line of round 4 and its checkpoint
            checkpoint(made.experiment.engine, folder, state, about)
    with RunFolder(tmp_path / "run") as folder:
        back = drive(setup(**changes), folder, None).state
    assert params_sha256(back.params) == params_sha256(whole.params)
    for slot, params in whole.model.server.items():
        assert params_sha256(back.model.server[slot]) == params_sha256(params)


@pytest.mark.parametrize("changes", WAYS, ids=str)
def test_a_rolled_back_round_puts_its_state_back(changes):
    made = setup(**changes)
    first, _ = run_round(made.experiment, start(made.experiment, made.params))
    bad = dataclasses.replace(made.experiment, loss=lambda params, seen: Measured(math.inf), metrics=None)
    second, log = run_round(bad, first)
    assert "rolled back" in log.guard
    assert second.model is first.model


@pytest.mark.parametrize("changes", WAYS, ids=str)
def test_a_shortened_step_goes_through_the_whole_chain(changes):
    """A share of the clients' mean step, as if they had sent that: the state of every step follows it.

    Three clients whose steps lie on one line, so that a rule by coordinates and one by norms commute with the share; a
    bound on the norm does not: each step is clipped before it is averaged and shortened.
    """
    chain = server_chain(module_with(W, buffers={"running_var"}), **changes)
    model = chain.start(W)
    steps = [times * torch.tensor(STEPS[0]) for times in (1.0, 2.0, 6.0)]

    def sent(share):
        slots = {slot: {n: torch.full_like(v, 0.3) for n, v in like.items()} for slot, (_, like) in chain.up.items()}
        return [
            ClientUpdate(n, {"w": W["w"] + share * step, "running_var": W["running_var"] + 1}, 5, 0.1, slots)
            for n, step in enumerate(steps)
        ]

    h = hyper(server_lr=1.0)
    whole = chain.aggregate(1, model, sent(1.0), h)
    assert whole.refused == []
    short = whole.scaled(0.25)
    if "clip_norm" in changes:
        clipped = sum(0.05 * step / step.norm() for step in steps) / 3
        assert short.params["running_var"] == W["running_var"] + 1  # a buffer is no part of the norm
        torch.testing.assert_close(short.params["w"], W["w"] + 0.25 * clipped)
    else:
        asked = chain.aggregate(1, model, sent(0.25), h).model
        torch.testing.assert_close(short.params, asked.params)
        torch.testing.assert_close(dict(short.server), dict(asked.server))
    assert short.accepted == {0: 1, 1: 1, 2: 1}
    assert not torch.allclose(short.params["w"], whole.model.params["w"])
