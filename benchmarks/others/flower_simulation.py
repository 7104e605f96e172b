"""The work in Flower's simulation: `run_simulation` with a ClientApp, a ServerApp and its FedAvg.

python flower_simulation.py default     Flower's own settings: two cores a client, torch's default threads
python flower_simulation.py best        one core a client and one torch thread: two clients at a time
"""

import itertools
import os
import sys
import time

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
BEST = sys.argv[1:] == ["best"]

import torch  # noqa: E402
from common import WORK, batches, build_model, loss_of, report, rows  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

client_app, server_app = ClientApp(), ServerApp()
times: list[float] = []


@client_app.train()
def train(message: Message, context: Context) -> Message:
    if BEST:
        torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=WORK["lr"])
    total = 0.0
    for inputs, targets in batches(client, int(message.content["config"]["server-round"])):
        optimiser.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimiser.step()
        total += float(loss.detach())
    first, last = rows(client)
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"train_loss": total / WORK["steps"], "num-examples": last - first}),
    }
    return Message(content=RecordDict(content), reply_to=message)


def after_a_round(round: int, arrays: ArrayRecord) -> None:
    times.append(time.perf_counter())


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=WORK["clients"])
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build_model().state_dict()),
        num_rounds=WORK["rounds"],
        evaluate_fn=after_a_round,
    )
    model = build_model()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    report([b - a for a, b in itertools.pairwise(times)], model)


resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}} if BEST else None
run_simulation(server_app, client_app, num_supernodes=WORK["clients"], backend_config=resources)
