"""Client-level differential privacy, as a server step: every step is clipped, and the mean gets Gaussian noise.

With S = clip_norm, z = dp_noise and m clients asked, the model moves by
    (1/m) (sum_i clip_S(w_i - w_t) + N(0, (z S)^2))
in which no client counts more than another. Whether a client took part changes the sum by S at most, so every round
that it is asked in is a Gaussian mechanism with noise multiplier z, and all that the server makes of its result costs
nothing more: the noise is drawn once a round, before anything looks at the mean. A round without a single reply is
skipped, without noise: its model shows that nobody took part.

What k such rounds cost is known exactly. They are one Gaussian mechanism with multiplier z / sqrt(k), of which
    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),   mu = sqrt(k) / z
(Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollaries 1 and 4). k is that of the client which was asked
most often: nothing is deducted for cohorts that were drawn at random, since the log shows who was in them.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.files import write_durably
from fedaccord.core.packages import encode
from fedaccord.core.protocols import Method, Part, ServerStep
from fedaccord.core.records import Params
from fedaccord.core.seeds import generator
from fedaccord.core.settings import SERVER, at_least, setting

SECRET = "noise.secret"
"""The file in the run folder, for its owner alone, with the seed of the noise. Whoever has it can remove the noise."""
MOST = 1e6
"""An epsilon beyond this says nothing, and is given as infinite."""


def delta_of(epsilon: float, multiplier: float, times: int) -> float:
    """Return the smallest delta for this epsilon after so many rounds."""
    from scipy.special import log_ndtr  # not before it is needed: most runs have no noise

    mu = math.sqrt(times) / multiplier
    first, second = float(log_ndtr(mu / 2 - epsilon / mu)), epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(first) * -math.expm1(min(0.0, second - first))


def epsilon_of(delta: float, multiplier: float, times: int) -> float:
    """Return the smallest epsilon for this delta after so many rounds, rounded up; infinity if it would say nothing."""
    if times == 0:
        return 0.0
    if multiplier <= 0:
        return math.inf
    low, high = 0.0, 1.0
    while delta_of(high, multiplier, times) > delta:
        low, high = high, 2 * high
        if high > MOST:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, multiplier, times) > delta else (low, middle)
    return high


class Noise(ServerStep):
    """The server step that adds the noise; every client counts the same, whatever its number of examples."""

    equal = True

    def __init__(self, bound: float, multiplier: float, delta: float):
        self.bound, self.multiplier, self.delta = bound, multiplier, delta
        self.secret = secrets.randbits(256)

    def open(self, folder: Path | None) -> None:
        """Read the run's secret from its folder, or put a new one there; without a folder it dies with the process."""
        if folder is None:
            return
        file = folder / SECRET
        try:
            self.secret = int(file.read_text(), 16)
        except FileNotFoundError:
            write_durably(file, f"{self.secret:064x}".encode(), mode=0o600)
        except (OSError, ValueError) as error:
            raise RunError(f"{file}: the noise of this run cannot be drawn again: {error}") from None

    def settle(
        self, round: int, received: Params, mean: Params, trained: Sequence[str], accepted: int, asked: int
    ) -> Params:
        """Return w_t + (accepted / asked) (mean - w_t) + N(0, (z S / asked)^2); what is not trained stays.

        The noise depends on what it is added to. So a round that is repeated with the same replies has the same model,
        and one with other replies has other noise; else the difference of the models would show a step without noise.
        """
        digest = hashlib.sha256(encode({name: mean[name] for name in trained})).hexdigest()
        draw = generator(self.secret, f"noise on {accepted} of {asked}: {digest}", round)
        deviation = self.multiplier * self.bound / asked
        params = dict(received)
        for name in trained:
            value = received[name]
            noise = torch.randn(value.shape, generator=draw, dtype=torch.float64) * deviation
            step = (mean[name] - value).double().cpu() * (accepted / asked)
            params[name] = value + (step + noise).to(value)
        return params

    def spent(self, asked: Callable[[int], int], round: int) -> Mapping[str, float]:
        """Return the epsilon after this round, for the log."""
        found = epsilon_of(self.delta, self.multiplier, asked(round))
        return {EPSILON: float(f"{found:.6g}")} if math.isfinite(found) else {}


EPSILON = "privacy.epsilon"
"""The name of epsilon in the log."""


class Privacy(Part):
    name = "privacy"
    about = "client-level differential privacy: clipped steps, Gaussian noise on their mean"
    settings = (
        at_least(0, "dp_noise", 0.0,
                 "Noise on the mean, in lengths of clip_norm (0: none; 1 or more means something).", role=SERVER),
        setting("dp_delta", 1e-5, "delta of the differential privacy that the log reports.", role=SERVER,
                check=lambda v: 0 < v < 1, expected="between 0 and 1"),
    )  # fmt: skip

    def server(self, settings: Mapping[str, Any]) -> ServerStep | None:
        if not settings["dp_noise"]:
            return None
        return Noise(settings["clip_norm"], settings["dp_noise"], settings["dp_delta"])


def refuse_leaks(method: Method, settings: Mapping[str, Any], up: Collection[str], buffers: Collection[str]) -> None:
    """Raise SettingsError for whatever would let something about a client past the noise."""
    if not settings["dp_noise"]:
        return
    wrong = None
    if not settings["clip_norm"]:
        wrong = "needs clip_norm, the longest step of a client; set it to about the median update_norm of a trial run"
    elif method.tunes(settings) or method.stretches(settings):
        wrong = f"{method.name} chooses hyper-parameters by the clients' own norms; use a method without a tuner"
    elif up:
        wrong = f"{method.name} sends {min(up)} beside the model, without noise; use a method that does not"
    elif buffers:
        wrong = f"the model's buffer {min(buffers)} would be sent without noise; use travels = no-norm, or another norm"
    elif settings["evaluate"] == "clients":
        wrong = "evaluate = clients uses the clients' losses without noise; give the server a set"
    elif settings["robust"] != "mean":
        wrong = f"robust = {settings['robust']} depends on all clients in a way that the noise does not cover"
    elif settings["min_replies"] > 1:
        wrong = f"min_replies = {settings['min_replies']} skips a round without noise, by how many replied; set it to 1"
    elif settings["weighting"] != "cohort":
        wrong = f"weighting = {settings['weighting']} depends on the clients' numbers of examples; use cohort"
    if wrong:
        raise SettingsError(f"dp_noise = {settings['dp_noise']:g}: {wrong}")
