"""What a site's IT department sees: the log, health and metrics, the status, keys that are renewed and revoked."""

import contextlib
import datetime
import json
import logging
import socket
import ssl
import subprocess
import threading
import urllib.request
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest
import torch
from cryptography import x509
from flower_helpers import FEDACCORD, Wire, client, settings_for
from helpers import hyper, wait_for
from prometheus_client.parser import text_string_to_metric_families

from fedaccord.cli import main
from fedaccord.core import logs
from fedaccord.core.errors import EngineError, SettingsError
from fedaccord.core.logs import logging_to, note
from fedaccord.core.records import Order
from fedaccord.flower.adapter import register
from fedaccord.flower.certificates import Link, make_authority
from fedaccord.flower.expiry import expiries, note_expiries
from fedaccord.flower.server import FlowerEngine
from fedaccord.runtime import monitor

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own


# ---------------------------------------------------------------- the log


def test_a_line_has_time_level_event_and_facts(tmp_path, capsys):
    with logging_to("json"):
        note(logs.ORDER_SENT, round=3, client=1, bytes=12, why=None)
    line = json.loads(capsys.readouterr().err)
    when = datetime.datetime.fromisoformat(line.pop("time"))
    assert when.utcoffset() == datetime.timedelta(0)
    assert line == {"level": "INFO", "event": "order sent", "round": 3, "client": 1, "bytes": 12}
    with logging_to("text", tmp_path / "log"):
        note(logs.ORDER_SENT, round=3)
        note(logs.UPDATE_REFUSED, logging.WARNING, why="two\nlines")
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first.endswith(" INFO order sent round=3")
    assert second.endswith(r' WARNING update refused why="two\nlines"')
    assert capsys.readouterr().err.splitlines() == [second]  # beside a file, only what is a warning
    with (
        pytest.raises(SettingsError, match="the log cannot be written there: No such file"),
        logging_to(file=tmp_path / "no" / "log"),
    ):
        pass


def test_a_log_file_is_rotated(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LARGEST", 1000)
    with logging_to("text", tmp_path / "log"):
        for number in range(100):
            note(logs.ORDER_SENT, round=number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log", *(f"log.{number}" for number in range(1, logs.OLD + 1))]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert "round=99" in files[0].read_text()


def test_the_server_says_whom_it_waits_for(own_run, clock, capsys):
    """One of three nodes is there. After 5 s it is said, and again after 30: a round of 50 s has two such lines."""
    engine = FlowerEngine(Wire({10: client(1)}), "e", deadline=50.0)
    with logging_to(quiet=True):
        list(engine.train(Order(4, (0, 1, 2), {"w": torch.zeros(2)}, hyper())))
    said = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    waiting = "WARNING waiting for 2 of 3 nodes round=4 clients=[0, 2] nodes_online=1"
    assert said == [f"{waiting} seconds_left=45", f"{waiting} seconds_left=15"]


# ---------------------------------------------------------------- health and metrics


def test_metrics_and_health_are_made_of_the_log(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(monitor, "time", clock)
    made = monitor.Monitor()
    with logs.attached(made):
        for number in (0, 1):
            note(logs.CONNECTED, client=number, node=7 + number)
        note(logs.ROUND_BEGAN, round=5, clients=2)
        for number in (0, 1):
            note(logs.ORDER_SENT, round=5, client=number, bytes=100)
        note(logs.UPDATE_RECEIVED, round=5, client=1, bytes=90, seconds=1.5)
        note(logs.DISCONNECTED, logging.WARNING, client=0, node=7)
        note(logs.ROUND_DONE, round=5, rounds=9, loss=0.25, seconds=2.0)
        note(logs.EXPIRES, certificate="authority", timestamp=1234)
    text = made.answer("/metrics")[2].decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    wanted = {
        ("fedaccord_round",): 5,
        ("fedaccord_rounds",): 9,
        ("fedaccord_loss",): 0.25,
        ("fedaccord_clients_connected",): 1,
        ("fedaccord_bytes_total", "sent"): 200,
        ("fedaccord_bytes_total", "received"): 90,
        ("fedaccord_orders_total", "1", "answered"): 1,
        ("fedaccord_seconds_sum", "1"): 1.5,
        ("fedaccord_certificate_expiry_timestamp_seconds", "authority"): 1234,
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert made.answer("/healthz")[0] == 200
    clock.now = monitor.SILENT + 1
    assert made.answer("/healthz")[0] == 503
    with logs.attached(made):
        note(logs.ROUND_COLLECTED, logging.DEBUG, round=5)
    clock.now *= 100
    assert made.answer("/healthz")[0] == 200  # it computes, however long that takes
    assert made.answer("/other")[0] == 404


# ---------------------------------------------------------------- certificates


def test_a_certificate_that_expires_soon_is_warned_of(tmp_path, capsys):
    for days, expected in ((31, []), (29, ["authority"])):
        make_authority(tmp_path, ["127.0.0.1"], days)
        with logging_to("json", quiet=True):
            note_expiries(Link("127.0.0.1:9", (tmp_path / "ca.pem").read_bytes()))
        said = capsys.readouterr().err
        assert [name for name in ("authority", "superlink") if f'certificate="{name}"' in said] == expected
    assert "fedaccord federation renew" in said


@contextlib.contextmanager
def tls_server(folder):
    """Where a TLS server shows the certificate of a folder."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def serve(listening):
        for _ in range(2):  # as many as knock
            context.wrap_socket(listening.accept()[0], server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        served = threading.Thread(target=serve, args=(listening,), daemon=True)
        served.start()
        yield listening.getsockname()
        served.join(60)


@pytest.mark.parametrize(("left", "fresh"), [(400, False), (20, True)])
def test_a_renewed_certificate_is_trusted_by_who_has_the_old_authority(tmp_path, left, fresh, capsys):
    make_authority(tmp_path, ["superlink.example.org", "127.0.0.1"], left)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert main(["federation", "renew", str(tmp_path), "--days", "300"]) == 0
    assert ("ca.pem is new too" in capsys.readouterr().out) == fresh
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"server.pem"} | ({"ca.pem"} if fresh else set())
    old, new = (x509.load_pem_x509_certificate(each["server.pem"]) for each in (before, after))
    for authority in (before["ca.pem"], after["ca.pem"]):
        new.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    names = x509.SubjectAlternativeName
    assert new.extensions.get_extension_for_class(names) == old.extensions.get_extension_for_class(names)
    assert new.public_key() == old.public_key()
    assert 299 <= (new.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days <= 300
    with tls_server(tmp_path) as place:  # a client that has the old authority shakes hands with it
        trusting = ssl.create_default_context(cadata=before["ca.pem"].decode())
        with socket.create_connection(place) as plain, trusting.wrap_socket(plain, server_hostname="127.0.0.1"):
            pass
        found = expiries(Link(f"127.0.0.1:{place[1]}", before["ca.pem"]))
    assert found["superlink"] == new.not_valid_after_utc
    assert main(["federation", "renew", str(tmp_path / "none")]) == 2
    assert "not the keys of `fedaccord federation certificates`" in capsys.readouterr().err


# ---------------------------------------------------------------- all of it, for real


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_federation_is_watched_and_a_key_revoked(federation, capsys):
    """TLS, three nodes, node 0 and the server with a port for metrics; node 2 is locked out in the middle."""
    local = federation(settings_for(rounds=500, test_every=500), json=True, log_format="json")
    local.members[0].words += ["--metrics-port", "0"]
    local.server.words += ["--metrics-port", "0"]
    for part in local.parts():
        local.start(part)
    run = local.folder / "run"
    wait_for(lambda: (run / "rounds.jsonl").exists() and (run / "rounds.jsonl").stat().st_size)

    def lines(part):
        found = (local.folder / f"{part}.log").read_text().splitlines()
        return [json.loads(line) for line in found if line.startswith('{"time"')]

    for part in ("node0", "server"):
        (metrics,) = [line["address"] for line in lines(part) if line["event"] == "metrics are served"]
        health = json.load(urllib.request.urlopen(metrics.replace("metrics", "healthz")))
        assert health["ok"] is True
        text = urllib.request.urlopen(metrics).read().decode()
        assert 'fedaccord_bytes_total{direction="received"}' in text
        assert 'fedaccord_certificate_expiry_timestamp_seconds{certificate="superlink"}' in text
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(metrics + "/x")
    sent, received = (
        [line for line in lines("server") if line["event"] == event and line["round"] == 1]
        for event in (logs.ORDER_SENT, logs.UPDATE_RECEIVED)
    )
    assert {line["client"] for line in sent} == {line["client"] for line in received} == {0, 1, 2}
    there = [line for line in lines("node0") if line["event"] == logs.UPDATE_SENT and line["round"] == 1]
    assert there[0]["bytes"] == next(line["bytes"] for line in received if line["client"] == 0)

    reach = ["--superlink", local.address, "--root-certificates", str(local.keys / "ca.pem")]
    assert main(["federation", "revoke", str(local.keys / "node2.pub"), *reach]) == 0
    wait_for(lambda: local.members[2].process.poll() is not None)
    wait_for(lambda: any(line["event"] == logs.DISCONNECTED and line["client"] == 2 for line in lines("server")))
    link = Link(local.address, (local.keys / "ca.pem").read_bytes())
    with pytest.raises(EngineError, match="was revoked"):
        register(link, local.keys / "node2.pub")
    status = subprocess.run(
        [*FEDACCORD, "federation", "status", "--folder", str(local.folder), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(status.stdout)
    assert [(each["client"], each["online"]) for each in found["nodes"]] == [(0, True), (1, True)]
    assert found["run"]["rounds"] == 500
    assert found["run"]["round"] >= 1
    assert found["run"]["loss"] > 0
    assert {name: each["days"] for name, each in found["certificates"].items()} == {"authority": 364, "superlink": 364}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--host", "b\u00fccher.example"], "expected a name or an address, without a port"),
        (["--host", "10.0.0.1:8443"], "expected a name or an address, without a port"),
        (["--host", "a", "--days", "10000000"], "expected 1 to 36,500 days"),
        (["--host", "a", "--days", "0"], "expected 1 to 36,500 days"),
    ],
)
def test_nothing_is_left_of_an_authority_that_cannot_be_made(tmp_path, words, complaint, capsys):
    keys = tmp_path / "keys"
    try:
        code = main(["federation", "certificates", str(keys), *words])
    except SystemExit as stop:  # what argparse finds
        code = stop.code
    assert code == 2
    assert complaint in capsys.readouterr().err
    assert not keys.exists()
    assert main(["federation", "certificates", str(keys), "--host", "example.org", "--host", "10.0.0.1"]) == 0
    (keys / "secret").unlink()
    assert main(["federation", "certificates", str(keys), "--host", "a"]) == 2
    assert "it was not finished: remove the folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["certificates", "--host", "a"], ["key"]], ids=str)
def test_a_folder_that_is_a_file_is_told(tmp_path, words, capsys):
    (tmp_path / "FILE").write_text("mine")
    assert main(["federation", *words, str(tmp_path / "FILE" / "keys" / "mine")]) == 2
    assert "cannot be made one" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["localhost", "localhost:port", ":9092", "localhost:70000"])
def test_an_address_must_have_a_port(address, capsys):
    with pytest.raises(SystemExit):
        main(["federation", "status", "--superlink", address, "--insecure"])
    assert f"{address}: expected HOST:PORT" in capsys.readouterr().err
