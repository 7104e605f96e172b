"""Decides whether the entropy term (Eq. 8) is on where the settings leave it open.

The term keeps clients of few classes from becoming sure of what they have, and costs a model its probabilities: they
stay as even as H_min. So it is on where the clients are opposed, and off where they agree. Their first steps tell.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedaccord.core.batches import clone, output_of
from fedaccord.core.errors import FedAccordError
from fedaccord.core.observing import mean_cosine
from fedaccord.core.processes import torch_threads
from fedaccord.core.records import ClientData
from fedaccord.core.seeds import generator, global_seed
from fedaccord.objectives import classification
from fedaccord.runtime.parts import Parts
from fedaccord.runtime.start import PLAIN, trial_copy

CLIENTS, EXAMPLES = 20, 128
"""The most clients that are compared, and the most examples of each."""
OPPOSED = 0.05
"""The mean cosine of two clients' gradients below which they are opposed. Measured with ten clients and two seeds on
digits, MNIST, keywords and CIFAR-10: one or two classes a client -0.11 to -0.03, Dirichlet 0.1 -0.15 to -0.04, iid 0.12
to 0.66; between those, by kind of data, five classes a client -0.09 to 0.12 and Dirichlet 1 -0.08 to 0.2."""
BLIND = "on: where clients bring their own data, nobody can compare them first (entropy_weight = 0 turns it off)"
"""This also holds in the simulation of such a task, which must have the bits of the real federation."""


def settle_entropy(parts: Parts) -> tuple[Parts, str]:
    """Settle the weight of the entropy term; return the parts with it, and a sentence on whether it is on, and why."""
    settings = parts.settings
    weight = settings.entropy_weight
    if parts.loss is not None:
        unused = f", so entropy_weight = {weight:g} has no effect" if weight else ""
        return with_weight(parts, 0.0 if weight is None else weight), f"off: the loss is the task's own{unused}"
    if "entropy_weight" in parts.method.tunes(settings.values()):
        return with_weight(parts, 1.0 if weight is None else weight), "on: its weight is tuned"
    if weight is not None:
        return parts, f"on, weight {weight:g}: as task and settings say" if weight else "off: as task and settings say"
    if parts.apart:
        return with_weight(parts, 1.0), BLIND
    present = [client for client in parts.clients if len(client)]
    if len(present) < 2:
        return with_weight(parts, 0.0), "off: there are no two clients to compare"
    cosine = agreement(parts, present)
    if cosine is None:
        return with_weight(parts, 1.0), "on: the clients' first steps could not be compared"
    steps = f"the clients' first steps {'are opposed' if cosine < OPPOSED else 'agree'}, mean cosine {cosine:.2f}"
    if cosine < OPPOSED:
        return with_weight(parts, 1.0), f"on: {steps}; probabilities stay even (entropy_weight = 0 turns it off)"
    return with_weight(parts, 0.0), f"off: {steps} (entropy_weight = 1 turns it on)"


def with_weight(parts: Parts, weight: float) -> Parts:
    return replace(parts, settings=replace(parts.settings, entropy_weight=weight))


def agreement(parts: Parts, clients: Sequence[ClientData]) -> float | None:
    """Return the mean cosine of two clients' cross-entropy gradients; None if there are no two usable ones."""
    settings = parts.settings
    order = torch.randperm(len(clients), generator=generator(settings.seed, "entropy")).tolist()
    with torch_threads(settings.threads):
        steps = [gradient(parts, clients[number]) for number in order[:CLIENTS]]
    usable = [step for step in steps if step is not None and 0 < float(step.norm()) < math.inf]
    if len(usable) < 2:
        return None
    norms = [float(step.norm()) for step in usable]
    return mean_cosine(float(torch.stack(usable).sum(0).norm()) / sum(norms), norms)


def gradient(parts: Parts, client: ClientData) -> Tensor | None:
    """Return the gradient of a client's cross-entropy, with the model as built; None if that fails on its examples."""
    index = torch.randperm(len(client), generator=generator(parts.settings.seed, "entropy-examples"))[:EXAMPLES]
    try:
        some = client[index].to(next(parts.model.parameters()).device)
        with torch.enable_grad(), global_seed(parts.settings.seed, "entropy"):
            inputs = parts.prepare(clone(some.inputs), None)
            trial = trial_copy(parts.model, inputs)
            loss = classification(output_of(trial, inputs), some.targets, PLAIN)
            trained = [each for each in trial.parameters() if each.requires_grad]
            found = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        return torch.cat([each.to_dense().flatten() for each in found])
    except FedAccordError:  # the data itself is at fault: no round could use it
        raise
    except Exception:  # whatever a user's model raises is reported where it is needed
        return None
