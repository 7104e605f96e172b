"""Whether the entropy term (Eq. 8) is on, where nobody has said so.

It keeps clients of few classes from becoming sure of what they have, and costs a model its probabilities: they stay as
even as H_min. So it is on where the clients are opposed, and off where they agree. The clients' first steps tell.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedaccord.core.algorithm import mean_cosine
from fedaccord.core.records import Examples
from fedaccord.core.seeds import generator, global_seed
from fedaccord.runtime.parts import Parts
from fedaccord.runtime.start import trial_copy

CLIENTS, EXAMPLES = 20, 128
"""How many clients are looked at, and how many examples of each."""
OPPOSED = 0.05
"""The mean cosine of two clients' gradients below which they are opposed. Ten clients, two seeds, of digits, MNIST,
keywords and CIFAR-10: one or two classes a client -0.11 to -0.03, Dirichlet 0.1 -0.15 to -0.04, iid 0.12 to 0.66;
between those, by kind of data, five classes a client -0.09 to 0.12 and Dirichlet 1 -0.08 to 0.2."""
BLIND = "a server that holds no client's data cannot look first; entropy_weight = 0 turns it off"


def settle_entropy(parts: Parts) -> tuple[Parts, str]:
    """With the term's weight settled; and a sentence that says whether it is on, and why."""
    weight = parts.settings.entropy_weight
    if parts.loss is not None:
        return with_weight(parts, 0.0 if weight is None else weight), "off: the loss is the task's own"
    if weight is not None:
        return parts, f"on, weight {weight:g}, as set" if weight else "off, as set"
    cosine = agreement(parts)
    if cosine is None:
        return with_weight(parts, 0.0), "off: there are no two clients to compare"
    steps = f"the clients' first steps {'are opposed' if cosine < OPPOSED else 'agree'}, mean cosine {cosine:.2f}"
    if cosine < OPPOSED:
        return with_weight(parts, 1.0), f"on: {steps}; probabilities stay even (entropy_weight = 0 turns it off)"
    return with_weight(parts, 0.0), f"off: {steps} (entropy_weight = 1 turns it on)"


def with_weight(parts: Parts, weight: float) -> Parts:
    return replace(parts, settings=replace(parts.settings, entropy_weight=weight))


def agreement(parts: Parts) -> float | None:
    """The mean cosine of two clients' first steps, by the gradients of their cross-entropy; None: there are no two."""
    seed = parts.settings.seed
    present = [client for client in parts.clients if len(client)]
    order = torch.randperm(len(present), generator=generator(seed, "entropy")).tolist()
    looked_at = [present[number] for number in order[:CLIENTS]]
    steps = [step for client in looked_at if (step := gradient(parts, client)) is not None]
    norms = [float(step.norm()) for step in steps]
    if len(steps) < 2 or not sum(norms):
        return None
    alignment = float(torch.stack(steps).sum(0).norm()) / sum(norms)
    return mean_cosine(alignment, norms)


def gradient(parts: Parts, client: Examples) -> Tensor | None:
    """Of a client's cross-entropy at w_1; None if the model cannot be run: that is told where it is needed."""
    index = torch.randperm(len(client), generator=generator(parts.settings.seed, "entropy-examples"))[:EXAMPLES]
    some = client[index]
    try:
        with torch.enable_grad(), global_seed(parts.settings.seed, "entropy"):
            inputs = parts.prepare(some.inputs.clone(), None)
            trial = trial_copy(parts.model, inputs)
            loss = cross_entropy(trial(inputs), some.targets)
            trained: Sequence[Tensor] = [each for each in trial.parameters() if each.requires_grad]
            found = torch.autograd.grad(loss, trained, allow_unused=True)
    except Exception:  # whatever a user's model raises
        return None
    return torch.cat([each.flatten() for each in found if each is not None])
