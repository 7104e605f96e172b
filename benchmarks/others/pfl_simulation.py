"""The work in pfl: FederatedAveraging over its SimulatedBackend.

python pfl_simulation.py 1     one process with torch's default threads
python pfl_simulation.py 2     two processes of one thread each (torchrun): its best here
"""

import itertools
import os
import subprocess
import sys
import time

PROCESSES = int(sys.argv[1])
if PROCESSES > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}"]
    sys.exit(subprocess.run([*torchrun, *sys.argv], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode)

import torch  # noqa: E402
from common import WORK, batches, build_model, loss_of, report  # noqa: E402
from pfl.internal.ops import pytorch_ops  # noqa: E402
from pfl.internal.ops.selector import set_framework_module  # noqa: E402

set_framework_module(pytorch_ops)

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402

if PROCESSES > 1:
    torch.set_num_threads(1)


class Trained(torch.nn.Module):
    """pfl wants the loss as a method of the model."""

    def __init__(self):
        super().__init__()
        self.net = build_model()

    def forward(self, inputs):
        return self.net(inputs)

    def loss(self, inputs, targets, eval=False):
        return loss_of(self.net(inputs), targets)

    def metrics(self, inputs, targets, eval=True):
        return {"loss": Weighted(float(self.loss(inputs, targets)) * len(inputs), len(inputs))}


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.times = []

    def on_train_begin(self, *, model):
        self.times.append(time.perf_counter())
        return super().on_train_begin(model=model)

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.times.append(time.perf_counter())
        return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)


calls = iter(range(10**9))


def client(number):
    """The mini-batches of a round, end to end: pfl cuts them again."""
    drawn = list(batches(int(number), next(calls)))
    return Dataset((torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])))


module = Trained()
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
users = FederatedDataset(client, get_user_sampler("minimize_reuse", list(range(WORK["clients"]))))
clock = Clock()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=WORK["rounds"],
        evaluation_frequency=10**6,
        train_cohort_size=WORK["clients"],
        val_cohort_size=None,
    ),
    backend=SimulatedBackend(training_data=users, val_data=users),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_batch_size=WORK["batch_size"],
        local_num_epochs=None,
        local_learning_rate=WORK["lr"],
        local_num_steps=WORK["steps"],
    ),
    callbacks=[clock],
)
if int(os.environ.get("RANK", 0)) == 0:
    report([b - a for a, b in itertools.pairwise(clock.times)], module.net)
