"""What SECURITY.md says of Flower's SecAgg+, tried on the installed flwr: what it carries, and what it does to it."""

import copy

import numpy as np
import pytest
from flower_helpers import settings_for
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.compat.common import recorddict_compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from helpers import hyper

from fedaccord.client.training import train
from fedaccord.core.records import Order
from fedaccord.flower.wire import RECORD, order_record
from fedaccord.runtime.build import hyper_of, site_of
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import find_task

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own


def context(node=1):
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={}, series_id=0)


def test_the_workflow_wants_a_legacy_context():
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(3, 2)(None, context())


def test_an_order_of_ours_is_no_stage_of_its_protocol(own_run):
    record = order_record(Order(1, (0,), {}, hyper()), "e", None)
    message = Message(RecordDict({RECORD: ConfigRecord(dict(record))}), dst_node_id=5, message_type="train")
    with pytest.raises(KeyError, match="secaggplus"):
        secaggplus_mod(message, context(), lambda *_: None)


def app_of(client):
    def client_fn(context: Context):
        return client.to_client()

    return ClientApp(client_fn=client_fn, mods=[secaggplus_mod])


class Grid:
    """Three clients in memory, each with the state that Flower keeps for it between the stages."""

    def __init__(self, answers):
        self.apps = {10 + number: app_of(client) for number, client in enumerate(answers)}
        self.states = {node: context(node) for node in self.apps}
        self.seen = []

    def send_and_receive(self, messages, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            reply = self.apps[node](copy.deepcopy(message), self.states[node])  # each has its own
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        self.seen += replies
        return replies


class Proxy:
    """By what Flower's earlier strategies know a client."""

    def __init__(self, node):
        self.node_id = node


class Everybody(FedAvg):
    def configure_fit(self, server_round, parameters, client_manager):
        from flwr.common import FitIns

        return [(Proxy(node), FitIns(parameters, {})) for node in self.nodes]


class Fixed(NumPyClient):
    """Sends these arrays, whatever it gets."""

    def __init__(self, arrays, examples):
        self.arrays, self.examples = arrays, examples

    def fit(self, parameters, config):
        return self.arrays, self.examples, {}


def aggregated(clients, start):
    """One round of Flower's, from the start's arrays: those of the new model."""
    grid, strategy = Grid(clients), Everybody()
    strategy.nodes = list(grid.apps)
    legacy = LegacyContext(context(), strategy=strategy)
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    legacy.state.array_records[MAIN_PARAMS_RECORD] = recorddict_compat.parameters_to_arrayrecord(
        ndarrays_to_parameters(start), True
    )
    SecAggPlusWorkflow(3, 2)(grid, legacy)
    found = recorddict_compat.arrayrecord_to_parameters(legacy.state.array_records[MAIN_PARAMS_RECORD], True)
    from flwr.common import parameters_to_ndarrays

    return parameters_to_ndarrays(found), grid


def mean(arrays, examples):
    return [sum(n * each[k] for n, each in zip(examples, arrays, strict=True)) / sum(examples)
            for k in range(len(arrays[0]))]  # fmt: skip


def test_plain_fedavg_of_our_clients_can_be_carried_by_it_but_is_rounded(own_run):
    """Three clients of ours train one round of FA each. A step of its numbers is 16 / 2^22, and a client of n examples
    counts n / 1000: so the mean may be off by 3 * 16 / 2^22 * 1000 / N, for N examples in all."""
    parts = parts_of(find_task("digits"), settings_for(method="FA"))
    site = site_of(parts)
    start = site.model.state_dict()
    values = hyper_of(parts.settings, parts.method).but({"steps": 3})

    class Ours(Fixed):
        def fit(self, parameters, config):
            params = dict(zip(start, map(torch_of, parameters), strict=True))
            update, _ = train(site, site.model, Order(1, (self.examples,), params, values), self.examples, {})
            self.arrays, count = [each.numpy() for each in update.params.values()], update.examples
            return self.arrays, count, {}

    clients = [Ours(None, number) for number in range(3)]
    made, grid = aggregated(clients, [value.numpy().copy() for value in start.values()])
    sizes = [len(each) for each in site.clients]
    off = max(np.abs(a - b).max() for a, b in zip(made, mean([each.arrays for each in clients], sizes), strict=True))
    assert 1e-7 < off < 3 * 16 / 2**22 * 1000 / sum(sizes)
    open_counts = [int(v) for m in grid.seen for name, r in m.content.metric_records.items() for v in r.values()
                   if "num_examples" in name]  # fmt: skip
    assert sorted(open_counts) == sorted(sizes)  # how many examples each has is not masked


def torch_of(array):
    import torch

    return torch.from_numpy(array.copy())


def test_what_is_beyond_its_range_is_cut_and_nobody_can_refuse_a_lie(own_run):
    """A variance of 900 by clients of 100 examples: times 100 / 1000 it is cut to 8, which makes 80 of it."""
    start = [np.zeros(2)]
    honest = [Fixed([np.array([0.5, 900.0])], 100) for _ in range(3)]
    made, _ = aggregated(honest, start)
    np.testing.assert_allclose(made[0], [0.5, 80.0], atol=1e-3)
    liar = [*honest[:2], Fixed([np.array([-50.0, 900.0])], 100)]
    made, _ = aggregated(liar, start)
    np.testing.assert_allclose(made[0][0], (0.5 + 0.5 - 50.0) / 3, atol=1e-3)  # it counts, and nobody sees whose it was
