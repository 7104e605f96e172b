"""What both frameworks train: the same model, data, clients, mini-batches, steps and loss, read from a folder that
`benchmarks/against.py` writes. Needs torch and NumPy only."""

import functools
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy, log_softmax

FOLDER = Path(os.environ["FEDACCORD_AGAINST"])
WORK = json.loads((FOLDER / "work.json").read_text())


def build_model():
    spec = importlib.util.spec_from_file_location("models", WORK["models"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = getattr(module, WORK["network"])()
    model.load_state_dict(torch.load(FOLDER / "start.pt", weights_only=True))
    return model


@functools.cache
def data():
    """Inputs as the model sees them, their classes, and each client's rows."""
    inputs = torch.from_numpy(np.load(FOLDER / "inputs.npy", mmap_mode="c"))
    return inputs, torch.from_numpy(np.load(FOLDER / "targets.npy")), np.load(FOLDER / "ends.npy")


def rows(client):
    _, _, ends = data()
    return (0 if client == 0 else int(ends[client - 1])), int(ends[client])


def loss_of(logits, targets):
    """Cross-entropy and the entropy term, as a practitioner would write them."""
    log_p = log_softmax(logits, dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1)
    return cross_entropy(logits, targets) + torch.clamp(WORK["entropy_min"] - entropy, min=0).mean()


def batches(client, round):
    """Random mini-batches of the client's rows."""
    inputs, targets, _ = data()
    first, last = rows(client)
    draw = torch.Generator().manual_seed(1000 * round + client)
    for _ in range(WORK["steps"]):
        index = first + torch.randint(0, last - first, (WORK["batch_size"],), generator=draw)
        yield inputs[index], targets[index]


@torch.no_grad()
def held_out_loss(model):
    inputs, targets = torch.load(FOLDER / "held.pt", weights_only=True)
    return float(loss_of(model.eval()(inputs), targets))


def report(seconds, model):
    """The first round, which starts everything, is not counted."""
    print(json.dumps({"seconds_a_round": seconds[1:], "loss": held_out_loss(model)}), flush=True)
