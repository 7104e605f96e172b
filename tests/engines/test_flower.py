"""A real federation: processes, TLS, node keys. What is slow and random is in benchmarks/kill_federation.py."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedaccord import config
from fedaccord.cli import main
from fedaccord.core.records import Hyper, Order, Refusal
from fedaccord.data import mnist
from fedaccord.engines.serial import SerialEngine
from fedaccord.flower.certificates import make_authority, make_node_key
from fedaccord.runtime.build import from_task, parts_of, site_of
from fedaccord.runtime.drive import drive
from fedaccord.runtime.federation import LocalFederation, client_settings, serve_task
from fedaccord.runtime.folder import experiment_of, params_sha256, read_rounds
from fedaccord.tasks import find_task

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own
from fedaccord.flower import engine as flower  # noqa: E402

FEDACCORD = [sys.executable, "-m", "fedaccord.cli"]
RMAH = {"method": "FA+RM+AH", "split": "dirichlet", "alpha": 0.3, "rounds": 5, "grid": "lr = 0.1, 0.2; steps = 4, 8"}


def settings_for(task="digits", clients=3, **own):
    return config.make(find_task(task).defaults("dirichlet"), {"task": task, "clients": clients, **RMAH, **own})


def private_files(folder: Path) -> dict[str, list[str]]:
    """client -> its files of theta_i; a name carries round and checksum."""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.safetensors")):
        found.setdefault(file.parent.name, []).append(file.name)
    return found


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Call it: a local federation that was not started yet; ended in the end."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = []

    def make(settings, nodes=3, **more):
        folder = tmp_path / "federation"
        folder.mkdir()
        (folder / "settings.toml").write_text(config.to_toml(settings))
        made.append(LocalFederation(folder, folder / "settings.toml", nodes, **more))
        return made[-1]

    yield make
    for local in made:
        local.end()


@contextlib.contextmanager
def grid_of(local):
    link = flower.Link(local.address, (local.keys / "ca.pem").read_bytes(), secret=(local.keys / "secret").read_bytes())
    with flower.open_grid(link) as grid:
        yield grid


@pytest.mark.parametrize(
    ("task", "own"),
    [
        ("digits", {}),
        ("digits", {"evaluate": "clients", "paired": True, "rounds": 3, "fraction": 0.67}),
        ("mnist", {"validation_per_class": 20, "test_every": 5}),
    ],
    ids=["digits", "clients report", "mnist"],
)
def test_a_federation_over_tls_has_the_bits_of_the_serial_engine(task, own, tmp_path, real_set, capsys):
    if task == "mnist":
        real_set(mnist.SOURCE)
    wanted = {**RMAH, **own}
    words = [word for name, value in wanted.items() for word in ("--set", f"{name}={value}")]
    up = ["federation", "up", "--task", task, "--nodes", "3", "--folder", str(tmp_path / "f"), "--json", *words]
    done = subprocess.run([*FEDACCORD, *up], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout.splitlines()[-1])
    serial = ["run", task, "--runs", str(tmp_path), "--name", "s", "--engine", "serial", "--clients", "3", "--json"]
    assert main([*serial, *words]) == 0
    straight = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert real["params_sha256"] == straight["params_sha256"]
    assert real["log_sha256"] == straight["log_sha256"]  # psi, rewards, every client's figures
    newest = {client: names[-1] for client, names in private_files(tmp_path / "s" / "private").items()}
    theirs = {}
    for node in range(3):
        theirs |= private_files(tmp_path / "f" / f"node{node}")
    assert {client: names[-1] for client, names in theirs.items()} == newest
    # of before the older of the server's two checkpoints, and the two rounds after it
    assert all(len(names) <= 3 for names in theirs.values())
    for secret in (tmp_path / "f" / "keys").iterdir():
        if secret.suffix not in (".pub", ".pem", ".node"):
            assert secret.stat().st_mode & 0o777 == 0o600


def test_killed_parts_come_back_and_the_bits_stay(federation):
    """A node, the server and the SuperLink, one after the other, in one run."""
    settings = settings_for(rounds=9, test_every=9)
    local = federation(settings, json=True)
    log = local.folder / "run" / "rounds.jsonl"

    def kill() -> None:
        for part, after in ((local.members[1], 2), (local.server, 4), (local.link, 6)):
            while not log.exists() or log.read_bytes().count(b"\n") < after:
                time.sleep(0.02)
            os.kill(part.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert local.run() == 0
    killer.join(1)
    assert [part.deaths > 0 for part in (local.members[1], local.server, local.link)] == [True] * 3
    outcome = drive(from_task(find_task("digits"), replace(settings, engine="serial")), None, None)
    found = [{**line, "seconds": 0} for line in read_rounds(local.folder / "run")]
    assert found == [{**vars(line), "seconds": 0} for line in outcome.rounds]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_federation(tmp_path, how):
    words = ["federation", "up", "--task", "digits", "--folder", str(tmp_path), "--json", "--set", "rounds=500"]
    up = subprocess.Popen([*FEDACCORD, *words], stdout=subprocess.DEVNULL, start_new_session=True)
    log = tmp_path / "run" / "rounds.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size)
    assert len(running(tmp_path)) >= 5
    os.killpg(up.pid, how) if how == signal.SIGINT else up.kill()  # as a terminal does; and the parent alone
    assert up.wait(60) == (130 if how == signal.SIGINT else -how)
    wait_for(lambda: not running(tmp_path))


def running(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in process.read_bytes() and int(process.parent.name) != os.getpid():
                found.append(process.parent.name)
    return found


def wait_for(what, seconds=90):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


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
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 1, name
        assert tries[name][1] in said, name
        assert "is connected" not in said, name


def test_an_expired_certificate_is_not_trusted(federation):
    local = federation(settings_for())
    for file in local.keys.iterdir():
        if file.name.startswith(("ca", "server")):
            file.unlink()
    make_authority(local.keys, ["127.0.0.1"], days=-1)
    local.insecure = True  # so that it does not register: the command line would be refused as well
    local.start(local.link)
    process = try_to_join(local, ["--root-certificates", local.keys / "ca.pem", "--key", local.keys / "node0"])
    assert "expired" in process.communicate(timeout=120)[0]
    assert process.returncode == 1


def try_to_join(local, words):
    words = ["--config", local.folder / "settings.toml", "--superlink", local.address, "--patience", "4", *words]
    words = [*FEDACCORD, "federation", "node", "--client", "0", "--private", str(local.folder / "p"), *map(str, words)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


CANARIES = 1000


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
        outcome = serve_task(find_task(task_name), settings, grid, local.folder / "run", lambda made: None)
    assert outcome.state.round == 4
    assert planted
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    scalar = {"received_loss"} if evaluate == "clients" else set()  # the one scalar of the second way
    allowed = scalar | {
        "round",
        "committed",
        "experiment",
        "report_loss",
        "params",
        "examples",
        "loss",
        "client",
        "hyper",
    }
    model = parts_of(find_task(task_name), settings).model
    exchanged: dict[tuple[str, int], int] = {}
    wire = b""
    for message in captured:
        parts = [part.deflate() for part in get_all_nested_objects(message).values()]
        wire += b"".join(parts)
        (record,) = message.content.values()
        assert set(message.content) == {"fedaccord"}
        assert set(record) <= allowed
        if "params" in record:
            sent = flower.unpacked(record["params"])
            assert sent.keys() == model.state_dict().keys()
            node = message.metadata.dst_node_id if "hyper" in record else message.metadata.src_node_id
            key = (message.metadata.group_id, node)
            beyond = sum(map(len, parts)) - len(record["params"])
            exchanged[key] = exchanged.get(key, 0) + beyond
    assert len(exchanged) == 3 * 4
    assert max(exchanged.values()) <= 1024
    values = canaries.numpy()
    wanted = [values[i : i + 2].tobytes() for i in range(0, len(values), 2)]
    assert len(wanted) == 2 * CANARIES
    kept = b"".join(file.read_bytes() for file in local.folder.glob("node1/**/*.safetensors"))
    assert sum(canary in kept for canary in wanted[CANARIES:]) == CANARIES  # still there, in the client's own folder
    assert not any(canary in wire for canary in wanted)


def plant(local, canaries):
    """Into theta_1, as soon as it is there."""
    from fedaccord.client.store import PrivateStore

    (home,) = (local.folder / "node1").iterdir() if (local.folder / "node1").exists() else (None,)
    if home is None:
        return {}
    store = PrivateStore(home, in_memory=False)
    generations = store.generations(1)
    if not generations or generations[-1][0] < 1:
        return {}
    theta = store.get(1, generations[-1][0] + 1)
    name = max(theta, key=lambda name: theta[name].numel())
    theta[name].view(-1)[: 2 * CANARIES] = canaries[2 * CANARIES :]
    store.put(1, generations[-1][0], theta)
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
from fedaccord.flower import engine as flower
kind = sys.argv.pop(1)
honest = flower.Member.answer

def answer(self, record):
    reply = honest(self, record)
    params = flower.unpacked(reply["params"])
    name = next(iter(params))
    if kind == "sleep":
        time.sleep(3600)
    elif kind == "nan":
        params[name].view(-1)[0] = float("nan")
    elif kind == "shape":
        params[name] = params[name][:1]
    elif kind == "many":
        reply["examples"] = 1e30
    reply["params"] = flower.packed(params)
    return reply

flower.Member.answer = answer
from fedaccord.cli import main
sys.exit(main())
"""


def test_a_round_with_bad_clients_equals_the_round_without_them(federation, tmp_path):
    settings = settings_for(clients=6, rounds=1, deadline=20.0, method="FA+RM", lr=0.1, steps=5)
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
    with grid_of(local) as grid:
        outcome = serve_task(find_task("digits"), settings, grid, local.folder / "run", lambda made: None)
    why = {entry["client"]: entry["why"] for entry in outcome.rounds[0].refused}
    assert why[2] == "no reply in time"
    assert "not finite" in why[3]
    assert "has shape" in why[4]
    assert "impossible number of examples" in why[5]

    simulation = from_task(find_task("digits"), replace(settings, engine="serial"))

    class Only(SerialEngine):
        def train(self, order):
            yield from super().train(replace(order, cohort=(0, 1)))

    engine = Only(simulation.federation.engine.site)
    simulation = replace(simulation, federation=replace(simulation.federation, engine=engine))
    straight = drive(simulation, None, None)
    assert params_sha256(outcome.state.params) == params_sha256(straight.state.params)


# ---------------------------------------------------------------- the server's end by itself


class Wire:
    """A grid in memory, for what honest software never sends. `answers`: node -> a function from message to reply."""

    def __init__(self, answers):
        self.answers, self.replies, self.pushed = answers, {}, []
        self.away: set[int] = set()

    def get_node_ids(self):
        return [node for node in self.answers if node not in self.away]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"m{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = number
            self.pushed.append(message)
            numbers.append(number)
            reply = self.answers[message.metadata.dst_node_id](message)
            if reply is not None:
                self.replies[number] = reply
        return numbers

    def pull_messages(self, numbers):
        found = [self.replies.pop(number) for number in numbers if number in self.replies]
        for reply in found:
            if isinstance(reply, Exception):
                raise reply
        return found


@pytest.fixture
def own_run():
    """flwr wants to know whose messages these are."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def client(number, **changes):
    """An honest client of a model of two numbers, but for the changes."""

    def answer(message):
        from flwr.app import ConfigRecord, Message, RecordDict

        if message.metadata.message_type == "query":
            record = ConfigRecord({"client": number})
        else:
            params = {"w": torch.full((2,), float(number))}
            record = ConfigRecord({"params": flower.packed(params), "examples": 5, "loss": 0.5, **changes})
        return Message(RecordDict({flower.RECORD: record}), reply_to=message)

    return answer


def engine_over(wire, deadline=1.0, **more):
    return flower.FlowerEngine(wire, "e", deadline, **more)


TWO = Order(1, (0, 1), {"w": torch.zeros(2)}, Hyper(lr=0.1, steps=1))


def test_nonsense_from_one_client_leaves_the_others_alone(own_run):
    overflow = b'{"w":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}'
    bad = {
        "overflow": client(1, params=len(overflow).to_bytes(8, "little") + overflow),
        "a reply to another": lambda message: answer_to(message, "m99"),
        "what flwr cannot read": lambda message: ValueError("broken") if message.metadata.message_type != "query" else
        client(1)(message),
    }  # fmt: skip
    for name, node in bad.items():
        wire = Wire({10: client(0), 11: node})
        engine = engine_over(wire, deadline=4.0)
        engine.nodes, engine.answered = {0: 10, 1: 11}, {10, 11}
        first, second = engine.train(TWO)
        assert first.client == 0, name
        assert torch.equal(first.params["w"], torch.zeros(2)), name
        assert isinstance(second, Refusal), name


def answer_to(message, number):
    reply = client(1)(message)
    reply.metadata.__dict__["_reply_to_message_id"] = number
    return reply


def test_a_loss_that_nobody_asked_for_is_not_read(own_run):
    update, _ = engine_over(Wire({10: client(0, received_loss=9.0, previous_loss=1e-9), 11: client(1)})).train(TWO)
    assert (update.received_loss, update.previous_loss) == (None, None)


def test_a_dead_client_costs_one_deadline_and_an_outage_does_not_use_up_the_run(own_run):
    wire = Wire(
        {10: client(0), 11: lambda message: None if message.metadata.message_type != "query" else client(1)(message)}
    )
    engine = engine_over(wire, deadline=3.0)
    begin = time.monotonic()
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate", "Refusal"]
    assert time.monotonic() - begin >= 3.0
    wire.away = {11}
    begin = time.monotonic()
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate", "Refusal"]
    assert time.monotonic() - begin < 2.5  # nobody waits for it any more
    wire.away = {10, 11}
    for _ in range(2):  # with nobody there a round waits: they may come back
        begin = time.monotonic()
        assert {type(each).__name__ for each in engine.train(TWO)} == {"Refusal"}
        assert time.monotonic() - begin >= 3.0
    wire.away = set()
    wire.answers[12] = client(1)  # back, on another node
    wire.away = {11}
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate"] * 2


def test_an_order_dies_with_its_round(own_run):
    wire = Wire({10: client(0), 11: client(1)})
    list(engine_over(wire, deadline=7.0).train(TWO))
    lives = {message.metadata.message_type: message.metadata.ttl for message in wire.pushed}
    assert 5 < lives["train"] <= 7


def test_the_example_app_trains_and_goes_on(own_run, tmp_path, monkeypatch):
    """Its own ServerApp and ClientApp objects, as Flower calls them; the stock commands are tried in docs/deploy.md."""
    from flwr.app import Context, RecordDict

    folder = Path(__file__).parents[2] / "examples" / "flower_app"
    monkeypatch.syspath_prepend(str(folder))
    for name in ("task", "server_app", "client_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import client_app
    import server_app

    def context(**node):
        return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run, series_id=0)

    def node(number):
        return lambda message: client_app.app(message, context(client=number, private=str(tmp_path / f"p{number}")))

    wire = Wire({10 + number: node(number) for number in range(3)})
    for rounds in (2, 4):
        run = {"run": str(tmp_path / "run"), "rounds": rounds}
        server_app.app(wire, context())
        assert len(list(read_rounds(tmp_path / "run"))) == rounds
    assert list(read_rounds(tmp_path / "run"))[-1]["loss"] < 2.0
    assert private_files(tmp_path / "p1").keys() == {"1"}
    for name in ("task", "server_app", "client_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)


# ---------------------------------------------------------------- a client by itself

ORDER = Order(1, (1,), {"w": torch.zeros(2)}, Hyper(lr=0.1, steps=1))


@pytest.fixture
def member(tmp_path):
    parts = parts_of(find_task("digits"), settings_for(method="FA+RM"))
    settings = client_settings(parts.settings)
    site = site_of(settings, parts.model, parts.clients, parts.prepare)
    limits = flower.Limits(max_steps=20, min_lr=0.01, max_lr=0.5)
    made = flower.Member(1, site, tmp_path, experiment_of(settings), limits)
    made.params = {name: value.clone() for name, value in parts.model.state_dict().items()}
    return made


def order_for(member, round=1, committed=0, experiment=None, params=None, **hyper):
    hyper = {"lr": 0.1, "steps": 3, "rm_weight": 1e-2, **hyper}
    order = Order(round, (1,), params or member.params, Hyper(**hyper))
    return flower.order_record(order, experiment or member.experiment, committed)


def test_a_repeated_round_starts_from_the_theta_of_before_it(member, tmp_path):
    first = member.answer(order_for(member, 1))
    second = member.answer(order_for(member, 2, committed=1))
    after = private_files(tmp_path)
    assert member.answer(order_for(member, 2, committed=1)) == second
    assert private_files(tmp_path) == after
    assert [name[:6] for name in after["1"]] == ["000001", "000002"]
    member.answer(order_for(member, 3, committed=2))
    assert [name[:6] for name in private_files(tmp_path)["1"]] == ["000002", "000003"]
    assert first != second


def test_what_an_earlier_run_left_is_not_taken_for_this_ones(member, tmp_path):
    """The same experiment once more, with the same folder: rounds that this run did not do must not be there."""
    for round in (1, 2, 3):
        member.answer(order_for(member, round))
    member.answer(order_for(member, 1))
    assert [name[:6] for name in private_files(tmp_path)["1"]] == ["000001"]


def test_a_damaged_theta_is_a_reason_not_a_crash(member, tmp_path):
    member.answer(order_for(member, 1))
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(b"junk")
    assert "damaged" in member.answer(order_for(member, 2))["why"]


BAD_ORDERS = [
    ({"steps": 21}, "steps = 21: I do 1 to 20"),
    ({"steps": 0}, "steps = 0"),
    ({"lr": 0.6}, "lr = 0.6: I take 0.01 to 0.5"),
    ({"lr": float("nan")}, "lr = nan"),
    ({"lr": 1e-9}, "lr = 1e-09"),
    ({"rm_weight": float("inf")}, "rm_weight = inf"),
    ({"momentum": -1.0}, "momentum = -1"),
    ({"batch_size": 10**6}, "batch_size = 1000000"),
    ({"experiment": "another"}, "another experiment"),
    ({"params": "fewer"}, "names are not mine"),
    ({"params": "shape"}, "has shape"),
    ({"params": "nan"}, "not finite"),
]


@pytest.mark.parametrize(("changes", "why"), BAD_ORDERS)
def test_a_client_refuses_what_is_outside_its_limits(member, tmp_path, changes, why):
    member.answer(order_for(member, 1))
    before = private_files(tmp_path)
    if kind := changes.get("params"):
        params = {name: value.clone() for name, value in member.params.items()}
        name = next(iter(params))
        if kind == "fewer":
            del params[name]
        else:
            params[name] = params[name][:1] if kind == "shape" else params[name] * float("nan")
        changes = {"params": params}
    reply = member.answer(order_for(member, 2, **changes))
    assert set(reply) == {"why"}
    assert why in reply["why"]
    assert private_files(tmp_path) == before
    assert flower.read_update(1, ORDER, reply) == Refusal(1, f"the client said no: {reply['why']}")


@pytest.mark.parametrize("drop", ["round", "committed", "params", "hyper", "experiment"])
def test_a_message_that_lacks_something_is_refused(member, drop):
    record = order_for(member)
    del record[drop]
    assert set(member.answer(record)) == {"why"}


def test_a_message_of_another_kind_is_refused(member):
    for name, value in (
        ("hyper", [0.1]),
        ("hyper", [0.1, 2.5, *[0.0] * 7]),
        ("hyper", "x"),
        ("params", b"junk"),
        ("round", 0),
        ("round", "2"),
    ):
        record = order_for(member)
        record[name] = value
        assert set(member.answer(record)) == {"why"}, name


@pytest.mark.parametrize(
    "reply", [{}, {"params": b"junk", "examples": 3, "loss": 0.1}, {"params": b"", "loss": 1.0}, {"examples": 3}]
)
def test_a_reply_that_cannot_be_read_is_a_refusal(reply):
    assert isinstance(flower.read_update(4, ORDER, reply), Refusal)


def test_an_order_and_an_update_travel_exactly(member):
    odd = {"a": torch.tensor([0.1, float("nan"), -0.0]), "n": torch.tensor(7), "h": torch.ones(2, dtype=torch.bfloat16)}
    hyper = Hyper(lr=0.1 + 0.2, steps=3, momentum=0.9)
    order = Order(3, (), odd, hyper, True, odd)
    back = flower.read_order(flower.order_record(order, "e", 1))
    assert (back.round, back.hyper, back.report_loss) == (3, hyper, True)
    for sent, came in ((odd, back.params), (odd, back.previous)):
        assert params_sha256(sent) == params_sha256(came)


def test_plaintext_and_missing_parts_must_be_asked_for(tmp_path, capsys):
    common = ["--superlink", "127.0.0.1:1", "--client", "0", "--private", str(tmp_path)]
    assert main(["federation", "node", *common]) == 2
    assert "--insecure" in capsys.readouterr().err
    assert main(["federation", "up", "--nodes", "0", "--folder", str(tmp_path / "x")]) == 2
    assert main(["run", "digits", "--engine", "flower", "--runs", str(tmp_path)]) == 2
    assert "fedaccord federation" in capsys.readouterr().err
