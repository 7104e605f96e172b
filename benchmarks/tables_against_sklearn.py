"""Compare training on two small tables, clients sorted by target, with scikit-learn's models on the pooled data.

    python benchmarks/tables_against_sklearn.py [--seeds 3] [--methods FA,FA+AH,FA+RM+AH]

The test set is the same for all. The noise that is printed comes of its size: the standard deviation of the score over
1,000 draws, with replacement, of as many of its examples.
"""

import argparse
import statistics

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor

from fedaccord.core.algorithm import handed_out, measuring
from fedaccord.core.batches import output_of
from fedaccord.core.params import load_params
from fedaccord.data import tabular
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.tasks import PRESETS

LAYER = {"hidden_layer_sizes": (32,), "max_iter": 500}
POOLED = {
    "diabetes": (r2_score, {"ridge": RidgeCV(np.logspace(-2, 3, 20)), "one hidden layer": MLPRegressor(**LAYER)}),
    "breast_cancer": (
        accuracy_score,
        {"logistic regression": LogisticRegression(), "one hidden layer": MLPClassifier(**LAYER)},
    ),
}


def federated(name: str, method: str, seed: int) -> np.ndarray:
    """Train with this method, and return what the model that is handed out predicts for the test set."""
    task = PRESETS[name]
    setup = from_task(task, task.resolved(method=method, seed=seed, test_every=100))
    outcome = drive(setup, None, None)
    model = setup.model
    load_params(model, handed_out(setup.experiment, outcome.state.model, measuring(setup.experiment))[1])
    with torch.no_grad():
        output = output_of(model.eval(), task.data().test.inputs)
    return (output.argmax(1) if output.shape[1] > 1 else output[:, 0]).numpy()


def noise(score, targets: np.ndarray, said: np.ndarray) -> float:
    """Return the standard deviation of the score over 1,000 draws, with replacement, of the test examples."""
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(targets), len(targets)) for _ in range(1000)]
    return statistics.stdev(float(score(targets[each], said[each])) for each in draws)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="FA,FA+AH,FA+RM+AH")
    options = parser.parse_args()
    for name, (score, models) in POOLED.items():
        data = getattr(tabular, name)()
        x, y, test = data.train.inputs.numpy(), data.train.targets.numpy(), data.test.targets.numpy()
        for label, model in models.items():
            found = []
            for seed in range(options.seeds):
                made = model.set_params(random_state=seed) if "random_state" in model.get_params() else model
                said = made.fit(x, y).predict(data.test.inputs.numpy())
                found.append(float(score(test, said)))
            print(
                f"{name}, pooled, {label}: {spoken(found)}; noise of the test set {noise(score, test, said):.3f}",
                flush=True,
            )
        for method in options.methods.split(","):
            found = [float(score(test, federated(name, method, seed))) for seed in range(options.seeds)]
            print(f"{name}, sorted clients, {method}: {spoken(found)}", flush=True)


def spoken(found: list[float]) -> str:
    return f"{statistics.mean(found):.3f} ({', '.join(f'{each:.3f}' for each in found)})"


if __name__ == "__main__":
    main()
