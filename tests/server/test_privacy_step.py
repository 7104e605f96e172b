"""Differential privacy: the noise against its formula, epsilon against a library, and what would get past it."""

import dataclasses
import math
import stat

import numpy as np
import pytest
import torch
from helpers import hyper, module_with, server_chain
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedaccord import config
from fedaccord.core.cohorts import sample_cohort, times_asked
from fedaccord.core.errors import SettingsError
from fedaccord.core.records import ClientUpdate
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import RunFolder
from fedaccord.runtime.identity import params_sha256
from fedaccord.runtime.spent import privacy_sentence
from fedaccord.server.privacy import SECRET, delta_of, epsilon_of
from fedaccord.tasks import find_task

LIBRARY = {
    (1.0, 100): 91.81728962407377,
    (2.0, 10): 7.511275904062699,
    (5.0, 40): 5.759481468911875,
    (0.8, 1): 5.679586857552093,
    (10.0, 1000): 17.85658683146691,
}
"""(noise multiplier, rounds) -> epsilon at delta = 1e-5 by dp-accounting 0.6.0:
a = PLDAccountant(); a.compose(GaussianDpEvent(z), k); a.get_epsilon(1e-5)."""


@pytest.mark.parametrize(("multiplier", "times"), LIBRARY)
def test_epsilon_is_that_of_a_library(multiplier, times):
    assert epsilon_of(1e-5, multiplier, times) == pytest.approx(LIBRARY[multiplier, times], rel=1e-8)


@given(st.floats(0.3, 20), st.integers(1, 2000), st.floats(1e-8, 1e-2))
def test_delta_of_epsilon_is_the_delta_that_was_asked_for(multiplier, times, delta):
    epsilon = epsilon_of(delta, multiplier, times)
    assert delta_of(epsilon, multiplier, times) <= delta
    if math.isfinite(epsilon) and epsilon > 1e-6:
        assert delta_of(epsilon * (1 - 1e-6), multiplier, times) >= delta * (1 - 1e-3)


def test_ends_of_the_scale():
    assert epsilon_of(1e-5, 1.0, 0) == 0.0
    assert epsilon_of(1e-5, 0.0, 3) == math.inf
    assert epsilon_of(1e-5, 1e-4, 1000) == math.inf


@pytest.mark.parametrize("passes", [True, False])
def test_the_client_that_was_asked_most_often(passes):
    most, counts = times_asked(10, 0.3, 5, passes), np.zeros(10)
    for t in range(1, 30):
        counts[list(sample_cohort(10, 0.3, 5, t, passes))] += 1
        assert most(t) == counts.max()
    assert times_asked(10, 0.3, 5, passes)(29) == most(29)  # after a resume it is asked for at once


START = {"w": torch.zeros(2000, dtype=torch.float64)}


def private_chain(secret=1, **settings):
    values = {"clip_norm": 1.0, "dp_noise": 2.0, **settings}
    chain = server_chain(module_with(START), **values)
    for _, step in chain.steps:
        if step.equal:
            step.secret = secret
    return chain


def moved(chain, round=1, cohort=range(4), replies=3):
    """Three of four clients answer with steps of norm 1, along the first coordinates, and very different sizes."""
    updates = []
    for client in range(replies):
        params = {"w": START["w"].clone()}
        params["w"][client] = 50.0
        updates.append(ClientUpdate(client, params, 10**client, 0.1))
    return chain.aggregate(round, chain.start(START), updates, hyper(server_lr=1.0), None, tuple(cohort))


def test_the_mean_is_that_of_clipped_steps_over_all_who_were_asked_and_the_noise_has_its_deviation():
    """Each step is cut to 1 and counts 1/4; the noise has deviation 2 * 1 / 4. Of 2,000 draws the sample deviation is
    within 5 standard errors, 0.5 * 5 / sqrt(2 * 2000) = 0.04, of that."""
    result = moved(private_chain())
    clean = moved(private_chain(dp_noise=1e-12)).model.params["w"]
    torch.testing.assert_close(clean[:4], torch.tensor([0.25, 0.25, 0.25, 0.0], dtype=torch.float64))
    noise = result.model.params["w"] - clean
    assert noise.std().item() == pytest.approx(0.5, abs=0.04)
    assert abs(noise.mean().item()) < 5 * 0.5 / math.sqrt(2000)
    assert result.reported["privacy.epsilon"] == pytest.approx(epsilon_of(1e-5, 2.0, 1), rel=1e-5)


def test_noise_is_new_in_every_round_and_with_every_secret_and_else_the_same():
    first = moved(private_chain()).model.params["w"]
    assert torch.equal(first, moved(private_chain()).model.params["w"])
    assert not torch.equal(first, moved(private_chain(), round=2).model.params["w"])
    assert not torch.equal(first, moved(private_chain(secret=2)).model.params["w"])


def test_a_round_that_is_done_again_with_other_replies_has_other_noise():
    """With the same noise the difference of the two models would be client 2's step alone: a quarter of 1."""
    three, two = (moved(private_chain(), replies=replies).model.params["w"] for replies in (3, 2))
    difference = three - two
    difference[2] -= 0.25
    assert difference.std().item() == pytest.approx(math.sqrt(2) * 0.5, abs=0.06)  # of 2,000 draws: 5 standard errors
    settled = {"w": torch.ones(2000)}
    (noise,) = (step for _, step in private_chain().steps if step.equal)
    one, other = (noise.settle(1, settled, settled, ["w"], accepted, 4)["w"] for accepted in (3, 2))
    assert not torch.equal(one, other)  # the number of replies counts, too


def test_a_shortened_step_is_made_from_the_noised_mean():
    """Otherwise two looks at the same clients with the same noise would cancel it."""
    result = moved(private_chain())
    torch.testing.assert_close(result.scaled(0.25).params["w"], 0.25 * result.model.params["w"])


LEAKS = {
    "clip_norm": {"clip_norm": 0.0},
    "tuner": {"method": "FA+AH"},
    "beside the model": {"method": "SCAFFOLD"},
    "evaluate": {"evaluate": "clients"},
    "robust": {"robust": "clip"},
    "weighting": {"weighting": "population"},
    "min_replies": {"min_replies": 2},
}


@pytest.mark.parametrize(("word", "changes"), LEAKS.items(), ids=LEAKS)
def test_what_would_get_past_the_noise_is_refused(word, changes):
    with pytest.raises(SettingsError, match=word):
        private_chain(**changes)


def test_buffers_are_refused():
    with pytest.raises(SettingsError, match="num_batches_tracked"):
        server_chain(nn.BatchNorm1d(2), clip_norm=1.0, dp_noise=1.0)


def setup(rounds=4):
    task = find_task("digits")
    values = {"task": "digits", "method": "FA", "rounds": rounds, "engine": "serial", "clip_norm": 0.5, "dp_noise": 1.0}
    return from_task(task, config.make(task.defaults("non-iid"), values))


@pytest.mark.slow
def test_a_run_with_noise_resumes_to_the_bit_keeps_its_secret_and_says_what_it_spent(tmp_path):
    with RunFolder.create(tmp_path / "whole", setup().settings) as folder:
        whole = drive(setup(), folder, None)
    file = tmp_path / "whole" / SECRET
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with RunFolder.create(tmp_path / "parts", setup(2).settings) as folder:
        (tmp_path / "parts" / SECRET).write_bytes(file.read_bytes())
        drive(setup(2), folder, None)
    with RunFolder(tmp_path / "parts") as folder:
        again = drive(setup(), folder, None)
    assert params_sha256(again.state.params) == params_sha256(whole.state.params)
    spent = [log.method["privacy.epsilon"] for log in whole.rounds]
    assert spent == pytest.approx([epsilon_of(1e-5, 1.0, k) for k in (1, 2, 3, 4)], rel=1e-5)
    lines = [dataclasses.asdict(log) for log in whole.rounds]
    assert f"epsilon = {spent[-1]:.4g}" in privacy_sentence(lines, setup().settings.values())
    with RunFolder.create(tmp_path / "other", setup().settings) as folder:
        assert params_sha256(drive(setup(), folder, None).state.params) != params_sha256(whole.state.params)


def test_without_noise_nothing_is_said():
    assert privacy_sentence([{"method": {}}], {"dp_noise": 0.0, "dp_delta": 1e-5}) is None
    assert "none to speak of" in privacy_sentence([{"method": {}}], {"dp_noise": 1e-4, "dp_delta": 1e-5})
