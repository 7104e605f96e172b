"""FedLC and FedRS: each client corrects the scores, before the softmax, by how often it has each class.

With s_c a model's score of class c and n_c how many examples of it the client has, the cross-entropy is taken of
    FedLC (Zhang et al., 2022, Eq. 7)  s_c - tau n_c^(-1/4)     rare classes need a margin; where n_c = 0 they drop out
    FedRS (Li and Zhan, 2021, Eq. 8)   alpha_c s_c              alpha_c = 1 where n_c > 0, alpha for all other classes
so that a client does not unlearn the classes that it does not have. This is done in training only: the model that is
measured and handed out gives s.

Neither can work with exactly one class at each client. FedLC's softmax is then over one class: its loss is zero
whatever the scores, and nothing is learned. FedRS's loss hardly pushes the other classes down and still pushes the one
up, whatever the example: no client has two classes that it could tell apart.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedaccord.core.batches import Batch, output_of
from fedaccord.core.errors import SettingsError
from fedaccord.core.protocols import CROSS_ENTROPY, Beginning, Built, ClientPart, Part, Work
from fedaccord.core.records import Examples
from fedaccord.core.settings import at_least, hyper, setting


class Correction(nn.Module):
    """factor * scores - margin, with one factor and one margin per class; a module, so that clients can be stacked."""

    def __init__(self, factor: Tensor, margin: Tensor):
        super().__init__()
        self.factor: Tensor
        self.margin: Tensor
        self.register_buffer("factor", factor)
        self.register_buffer("margin", margin)

    def forward(self, scores: Tensor) -> Tensor:
        return self.factor * scores - self.margin


class CalibratedWork(Work):
    """The change that the correction makes to the loss's cross-entropy; its entropy term has the scores as they are."""

    def __init__(self, correction: Correction):
        self.correction = correction
        self.own: Sequence[nn.Module] = (correction,)

    def term(self, inputs: Batch, output: Any, targets: Batch) -> Tensor:
        return cross_entropy(self.correction(output), targets) - cross_entropy(output, targets)


class Calibrated(ClientPart):
    """The client side of FedLC and FedRS; `part` says what the correction is."""

    stacks = True

    def __init__(self, built: Built, part: "Calibration"):
        self.part = part
        with torch.no_grad():
            output = output_of(built.model, built.example)
        if not isinstance(output, Tensor) or output.dim() != 2:
            given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise SettingsError(f"{part.name} corrects scores of classes, (examples, classes), not {given}")
        self.like = output[0]

    def begin(self, at: Beginning) -> Work:
        targets = at.data.targets if isinstance(at.data, Examples) else None
        if not isinstance(targets, Tensor) or targets.dim() != 1 or targets.dtype != torch.int64:
            raise SettingsError(f"{self.part.name} counts a client's labels: class numbers, in memory")
        counts = torch.bincount(targets, minlength=len(self.like)).to(self.like)
        return CalibratedWork(self.part.correction(counts, at))


class Calibration(Part):
    cost = 1.24
    replaces = CROSS_ENTROPY

    def correction(self, counts: Tensor, at: Beginning) -> Correction:
        raise NotImplementedError

    def client(self, built: Built) -> ClientPart:
        return Calibrated(built, self)

    def remarks(self, counts: np.ndarray) -> list[str]:
        alone = int(((counts > 0).sum(axis=1) == 1).sum())
        told = f"{self.name} cannot teach a client with a single class to tell it from others"
        return [f"{told}, and {alone} of {len(counts)} have one"] if alone else []


class FedLC(Calibration):
    name = "FedLC"
    about = "a client's scores of rare classes get a margin, and classes that it does not have drop out of its loss"
    settings = (hyper(at_least(0, "fedlc_tau", 1.0, "tau, a class's margin if it has one example."), "0.1..10/5 log"),)

    def correction(self, counts: Tensor, at: Beginning) -> Correction:
        # FedLC (Eq. 7; its text was not at hand): we know the sum below the fraction as one over the classes c != y.
        # HERE: over all c, as public code has it. WHY: it is the softmax then, whose loss has a lowest value; without y
        # it would fall for ever. The paper gives no tau; public code has 0.5 or 1.
        missing = torch.full_like(counts, torch.inf)  # n_c = 0, also where tau = 0: such a class is never asked for
        margin = at.hyper["fedlc_tau"] * counts.clamp(min=1) ** -0.25
        return Correction(torch.ones_like(counts), torch.where(counts > 0, margin, missing))


class FedRS(Calibration):
    name = "FedRS"
    about = "a client's scores of the classes that it does not have are scaled down, so that it unlearns them less"
    settings = (
        hyper(setting("fedrs_alpha", 0.5, "alpha, the factor on the scores of classes that a client does not have (1: "
                      "FA).", check=lambda v: 0 <= v <= 1, expected="in [0, 1]"), axis="0.1..0.9/5"),
    )  # fmt: skip

    def correction(self, counts: Tensor, at: Beginning) -> Correction:
        # FedRS's code: alpha + (1 - alpha) n_c / max n for each class, on scores without a bias. HERE: 1 or alpha, on
        # the scores as they are. WHY: the paper restricts missing classes only, and any model is taken as it is.
        factor = torch.where(counts > 0, 1.0, at.hyper["fedrs_alpha"]).to(counts)
        return Correction(factor, torch.zeros_like(counts))
