"""Whom a real federation lets in, what it sends, and what it takes from whom."""

import json
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from flower_helpers import FEDACCORD, grid_of, settings_for
from helpers import wait_for

from fedaccord import config
from fedaccord.cli import main
from fedaccord.client.store import ClientStore
from fedaccord.core.packages import decode
from fedaccord.engines.serial import SerialEngine
from fedaccord.flower import server, wire
from fedaccord.flower.certificates import make_authority, make_node_key
from fedaccord.flower.wire import records_of
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.federation import serve_task
from fedaccord.runtime.identity import params_sha256
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import find_task

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own


@pytest.mark.slow
@pytest.mark.anywhere
def test_strangers_do_not_get_in(federation):
    local = federation(settings_for())
    local.start(local.link)
    make_node_key(local.folder / "stranger")
    make_authority(local.folder / "other", ["127.0.0.1"])
    own, key = local.keys / "ca.pem", local.keys / "node0"
    tries = {
        "a key that nobody registered": (["--root-certificates", own, "--key", local.folder / "stranger"], "2004"),
        "no key": (["--root-certificates", own], "2001"),
        "another authority": (
            ["--root-certificates", local.folder / "other" / "ca.pem", "--key", key],
            "VERIFY_FAILED",
        ),
        "plaintext": (["--insecure", "--key", key], "Failed to initialize"),
    }
    started = {name: try_to_join(local, words) for name, (words, _) in tries.items()}
    for name, process in started.items():
        said = process.communicate(timeout=600)[0]
        assert process.returncode == 1, name
        assert tries[name][1] in said, name
        assert "is connected" not in said, name


@pytest.mark.slow
@pytest.mark.anywhere
def test_an_expired_certificate_is_not_trusted(federation):
    local = federation(settings_for())
    for file in local.keys.iterdir():
        if file.name.startswith(("ca", "server")):
            file.unlink()
    make_authority(local.keys, ["127.0.0.1"], days=-1)
    local.insecure = True  # so that it does not register: the command line would be refused as well
    local.start(local.link)
    process = try_to_join(local, ["--root-certificates", local.keys / "ca.pem", "--key", local.keys / "node0"])
    assert "expired" in process.communicate(timeout=600)[0]
    assert process.returncode == 1


def try_to_join(local, words):
    words = [
        "--config",
        local.folder / "settings.toml",
        "--superlink",
        local.address,
        "--simulate",
        "--patience",
        "4",
        *words,
    ]
    words = [*FEDACCORD, "federation", "node", "--client", "0", "--private", str(local.folder / "p"), *map(str, words)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_plaintext_and_missing_parts_must_be_asked_for(tmp_path, capsys):
    common = ["--superlink", "127.0.0.1:1", "--client", "0", "--private", str(tmp_path)]
    assert main(["federation", "node", *common]) == 2
    assert "--insecure" in capsys.readouterr().err
    assert main(["federation", "up", "--nodes", "0", "--folder", str(tmp_path / "x")]) == 2
    assert main(["run", "digits", "--engine", "flower", "--runs", str(tmp_path)]) == 2
    assert "fedaccord federation" in capsys.readouterr().err


CANARIES = 1000


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("evaluate", ["server", "clients"])
def test_every_message_of_a_run_holds_the_allowed_names_and_no_canary(federation, tmp_path, evaluate):
    """Canaries in the data and in theta_i, which keeps them at so small a rate."""
    canaries = torch.rand(4 * CANARIES, generator=torch.Generator().manual_seed(0))
    data = tmp_path / "canary.py"
    data.write_text(CANARY_TASK)
    torch.save(canaries, tmp_path / "canaries.pt")
    task_name = f"{data}:task"
    settings = config.make(
        {
            "task": task_name,
            "clients": 3,
            "method": "FA+RM",
            "split": "iid",
            "lr": 1e-6,
            "rm_weight": 1e-12,
            "rm_step": 0.0,
            "evaluate": evaluate,
            "steps": 3,
            "rounds": 4,
        }
    )
    local = federation(settings)
    local.start(local.link)
    for part in local.members:
        local.start(part)
    captured: list = []
    planted: dict = {}
    with grid_of(local) as grid:
        for name in ("push_messages", "pull_messages"):
            whole = getattr(grid, name)

            def spy(items, whole=whole, name=name):
                items = list(items)
                found = list(whole(items))
                captured.extend(items if name == "push_messages" else found)
                planted.update(plant(local, canaries) if not planted else {})
                return found

            setattr(grid, name, spy)
        outcome = serve_task(
            find_task(task_name), settings, grid, local.folder / "run", lambda made: None, simulate=True
        )
    assert outcome.state.round == 4
    assert planted
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    scalar = {"received_loss"} if evaluate == "clients" else set()  # the one scalar of the second way
    allowed = scalar | {
        "round",
        "version",
        "since",
        "needed",
        "experiment",
        "report_loss",
        "params",
        "examples",
        "loss",
        "client",
        "hyper",
    }
    parts = parts_of(find_task(task_name), settings)
    registered = json.loads((local.folder / "run" / "sizes.json").read_text())
    assert registered == {str(client): len(own) for client, own in enumerate(parts.clients)}
    model = parts.model
    beyond: dict[tuple[str, int], dict[str, int]] = {}  # a round of a node -> bytes down and up besides the model
    wire = b""
    for message in captured:  # some more than once: what was slow to come is asked for again
        parts = [part.deflate() for part in get_all_nested_objects(message).values()]
        wire += b"".join(parts)
        assert set(message.content) <= {"fedaccord", "fedaccord.client"}
        record = records_of(message)
        assert set(record) <= allowed
        if "params" in record:
            sent = decode(record["params"])
            assert sent.keys() == model.state_dict().keys()
            node = message.metadata.dst_node_id if "hyper" in record else message.metadata.src_node_id
            way = "down" if "hyper" in record else "up"
            ways = beyond.setdefault((message.metadata.group_id, node), {})
            ways[way] = max(ways.get(way, 0), sum(map(len, parts)) - len(record["params"]))
    assert len(beyond) == 3 * 4
    assert {way for ways in beyond.values() for way in ways} == {"down", "up"}
    assert max(sum(ways.values()) for ways in beyond.values()) <= 1200  # what docs/deploy.md says
    values = canaries.numpy()
    wanted = [values[i : i + 2].tobytes() for i in range(0, len(values), 2)]
    assert len(wanted) == 2 * CANARIES
    kept = b"".join(file.read_bytes() for file in local.folder.glob("node1/**/*.safetensors"))
    assert sum(canary in kept for canary in wanted[CANARIES:]) == CANARIES  # still there, in the client's own folder
    assert not any(canary in wire for canary in wanted)


def plant(local, canaries):
    """Into theta_1, as soon as it is there."""
    (home,) = (local.folder / "node1").iterdir() if (local.folder / "node1").exists() else (None,)
    if home is None:
        return {}
    store = ClientStore(home, in_memory=False)
    generations = store.generations(1)
    if not generations or generations[-1][0] < 1:
        return {}
    newest = generations[-1][0]
    kept = store.get(1, newest)
    theta = kept["RM.theta"]
    name = max(theta, key=lambda name: theta[name].numel())
    theta[name].view(-1)[: 2 * CANARIES] = canaries[2 * CANARIES :]
    store.put(1, newest, kept, since=0)
    return {"planted": True}


CANARY_TASK = '''
from pathlib import Path
import torch
from torch import nn
from fedaccord import Task
from fedaccord.data.sets import DataSet
from fedaccord.core.records import Examples

HERE = Path(__file__).parent


def data():
    """The first rows of every client's part are full of canaries."""
    inputs = torch.rand(1500, 40, generator=torch.Generator().manual_seed(1))
    canaries = torch.load(HERE / "canaries.pt", weights_only=True)[:2000].view(-1, 40)
    inputs[: len(canaries)] = canaries
    targets = torch.arange(1500) % 3
    return DataSet(Examples(inputs, targets), Examples(inputs[-90:].clone(), targets[-90:]), ("a", "b", "c"))


task = Task("canary", data, lambda: nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 3)))
'''


BAD_NODE = """
import sys, time
import torch
from fedaccord.flower.node import Member
from fedaccord.core.packages import decode, encode
kind = sys.argv.pop(1)
honest = Member.answer

def answer(self, record):
    reply = honest(self, record)
    params = decode(reply["params"])
    name = next(iter(params))
    if kind == "sleep":
        time.sleep(3600)
    elif kind == "nan":
        params[name].view(-1)[0] = float("nan")
    elif kind == "shape":
        params[name] = params[name][:1]
    elif kind == "many":
        reply["examples"] = 1e30
    reply["params"] = encode(params)
    return reply

Member.answer = answer
from fedaccord.cli import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_round_with_bad_clients_equals_the_round_without_them(federation, tmp_path, monkeypatch):
    """The deadline comes when all have answered but the one that never will, however long that took."""
    settings = settings_for(clients=6, rounds=1, deadline=3600.0, method="FA+RM", lr=0.1, steps=5)
    local = federation(settings, nodes=6)
    (tmp_path / "bad.py").write_text(BAD_NODE)
    for client, kind in ((2, "sleep"), (3, "nan"), (4, "shape"), (5, "many")):
        words = local.members[client].words
        assert words[1:3] == ["-m", "fedaccord.cli"]
        words[1:3] = [str(tmp_path / "bad.py"), kind]
    local.start(local.link)
    for part in local.members:
        local.start(part)
    for part in local.members:
        log = local.folder / f"{part.name}.log"
        wait_for(lambda log=log: "is connected" in log.read_text())
    read, answered, real = wire.read_update, set(), time.monotonic

    def spy(client, *rest):
        answered.add(client)
        return read(client, *rest)

    late = SimpleNamespace(monotonic=lambda: real() + 3600.0 * (len(answered) == 5), sleep=time.sleep)
    monkeypatch.setattr(wire, "read_update", spy)
    monkeypatch.setattr(server, "time", late)
    with grid_of(local) as grid:
        outcome = serve_task(
            find_task("digits"), settings, grid, local.folder / "run", lambda made: None, simulate=True
        )
    why = {entry["client"]: entry["why"] for entry in outcome.rounds[0].refused}
    assert why[2] == "no reply in time"
    assert "not finite" in why[3]
    assert "has shape" in why[4]
    assert "impossible number of examples" in why[5]

    setup = from_task(find_task("digits"), replace(settings, engine="serial"))

    class Only(SerialEngine):
        def train(self, order):
            yield from super().train(replace(order, cohort=(0, 1)))

    engine = Only(setup.experiment.engine.site)
    setup = replace(setup, experiment=replace(setup.experiment, engine=engine))
    straight = drive(setup, None, None)
    assert params_sha256(outcome.state.params) == params_sha256(straight.state.params)
