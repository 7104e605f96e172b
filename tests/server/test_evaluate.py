import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord.core.protocols import Measured
from fedaccord.core.records import Accepted, Examples
from fedaccord.data.prepare import as_stored
from fedaccord.metrics import METRICS
from fedaccord.server.evaluate import EVAL_BATCH, ClientLosses, Evaluator


def test_loss_and_accuracy_against_numpy_over_more_than_one_batch():
    """In float64: a sum of some hundred terms is good to 1e-13, and no two scores are so close that it would matter."""
    generator = torch.Generator().manual_seed(0)
    count = EVAL_BATCH + 37
    x, y = torch.randn(count, 4, generator=generator).double(), torch.randint(0, 3, (count,), generator=generator)
    model = nn.Linear(4, 3).double()
    params = {
        name: torch.randn(value.shape, generator=generator).double() for name, value in model.state_dict().items()
    }
    scores = x.numpy() @ params["weight"].numpy().T + params["bias"].numpy()
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    judge = Evaluator(model, Examples(x, y), as_stored, cross_entropy, [METRICS["accuracy"]])
    assert judge.loss(params).loss == pytest.approx(-log_p[np.arange(count), y.numpy()].mean(), rel=1e-12)
    assert judge.metrics(params) == {"accuracy": (scores.argmax(axis=1) == y.numpy()).mean()}


def test_measuring_leaves_the_model_alone_and_runs_in_eval_mode():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = torch.randn(10, 2), torch.zeros(10, dtype=torch.long)
    judge = Evaluator(model, Examples(x, y), as_stored, cross_entropy)
    assert judge.loss(before) == judge.loss(before)
    assert judge.loss(before).loss == pytest.approx(float(cross_entropy(model.eval()(x), y).detach()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def reported(loss):
    """An accepted update whose client reports this loss; None: it was not asked."""
    return Accepted(0, 5, 0.1, 1.0, received_loss=loss)


def test_the_second_way_is_the_mean_of_what_the_clients_report():
    reports = [reported(loss) for loss in (1.0, 2.0, math.nan, None)]
    assert ClientLosses()({}, reports) == Measured(1.5)
    assert ClientLosses(robust=True)({}, [*reports, reported(1e9)]) == Measured(2.0)
    assert ClientLosses()({}, []) == Measured(None)


def test_tied_weights_and_a_model_that_works_in_place():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.b = nn.Linear(2, 2)

        def forward(self, x):
            return self.b(self.a(x.sub_(1)))

    model, x = Tied(), torch.randn(6, 2)
    judge = Evaluator(model, Examples(x, torch.zeros(6, dtype=torch.long)), as_stored, cross_entropy)
    before = x.clone()
    assert judge.loss(dict(model.state_dict())) == judge.loss(dict(model.state_dict()))
    assert torch.equal(x, before)


def test_reports_that_are_all_useless_count_as_infinite():
    assert ClientLosses()({}, [reported(math.nan), reported(math.inf)]).loss == math.inf


def test_any_number_of_workers_gives_the_same_bits():
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 4))
    examples = Examples(torch.randn(1000, 6, generator=g), torch.randint(0, 4, (1000,), generator=g))
    made = [
        Evaluator(model, examples, as_stored, cross_entropy, [METRICS["accuracy"]], workers) for workers in (1, 2, 3)
    ]
    found = [(each.loss(model.state_dict()), each.metrics(model.state_dict())) for each in made]
    assert found[0] == found[1] == found[2]
