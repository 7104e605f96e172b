"""Endpoints for a site's monitoring: /healthz and /metrics on loopback, made from the lines of the log."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedaccord.core import logs
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.files import write_durably
from fedaccord.core.logs import facts_of, note
from fedaccord.core.records import RoundLog
from fedaccord.runtime.live import View

SILENT = 60.0
"""Seconds without an answer from the SuperLink after which an idle server or client counts as unhealthy."""
NODES = "nodes.json"
"""The file in a run folder that says which client is on which node of the SuperLink, as far as the server knows."""
HELP = {
    "round": "The newest round that was begun",
    "rounds": "The rounds that this run is to have",
    "loss": "The loss after the newest round",
    "last_round_timestamp_seconds": "When the newest round was done",
    "clients_connected": "Clients that are connected",
    "certificate_expiry_timestamp_seconds": "When a certificate expires",
    "orders": "Orders, by what became of them",
    "bytes": "Bytes of tensors, sent and received",
    "seconds": "Seconds that a client's update took",
}


class LogView(View):
    """A view that logs every round: its loss, its seconds, and whose update could not be used."""

    def __init__(self, rounds: int):
        self.rounds = rounds

    def show(self, log: RoundLog) -> None:
        """Log one round."""
        for refused in log.refused:
            note(logs.UPDATE_REFUSED, logging.WARNING, round=log.round, client=refused["client"], why=refused["why"])
        seconds = round(sum(log.seconds.values()), 3)
        facts: dict[str, Any] = {
            "used": len(log.clients),
            "refused": len(log.refused),
            "bytes": log.bytes,
            "guard": log.guard,
        }
        note(logs.ROUND_DONE, round=log.round, rounds=self.rounds, loss=log.loss, seconds=seconds, **facts)


class Roster(logging.Handler):
    """A log handler that keeps a list of who is connected in the run folder, for `fedaccord federation status`."""

    def __init__(self, folder: Path):
        super().__init__(logging.INFO)
        self.file, self.nodes = folder / NODES, dict[str, int]()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the list again when a client has come or gone."""
        if (event := getattr(record, "event", "")) in (logs.CONNECTED, logs.DISCONNECTED):
            facts = facts_of(record)
            self.nodes.pop(str(facts["client"]), None)
            if event == logs.CONNECTED:
                self.nodes[str(facts["client"])] = facts["node"]
            with contextlib.suppress(RunError):  # a full disk is reported where a round is written
                write_durably(self.file, json.dumps(self.nodes).encode())


class Monitor(logging.Handler):
    """A log handler that turns log lines into Prometheus metrics, and knows if this server or client is healthy."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)  # includes contacts with the SuperLink, which no log has
        from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, Summary

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def made(kind: Any, name: str, *labels: str) -> Any:
            return kind(f"fedaccord_{name}", HELP[name], labels, registry=self.registry)

        self.gauges = {name: made(Gauge, name) for name in ("round", "rounds", "loss", "last_round_timestamp_seconds")}
        self.connected = made(Gauge, "clients_connected")
        self.expiry = made(Gauge, "certificate_expiry_timestamp_seconds", "certificate")
        self.orders, self.bytes = made(Counter, "orders", "client", "outcome"), made(Counter, "bytes", "direction")
        self.seconds = made(Summary, "seconds", "client")
        self.busy, self.contact = True, time.monotonic()  # until it has started, it has nobody to be in contact with

    def emit(self, record: logging.LogRecord) -> None:
        """Update the metrics and the state of health from one log line."""
        event, facts = getattr(record, "event", ""), facts_of(record)
        if event in (logs.CONTACT, logs.CONNECTED):
            self.contact = time.monotonic()
        if event in (logs.ROUND_BEGAN, logs.ORDER_RECEIVED, logs.ROUND_DONE):
            for name in self.gauges.keys() & facts.keys():
                self.gauges[name].set(facts[name])
        if event in COUNTED:
            self.orders.labels(facts["client"], COUNTED[event]).inc()
        if "bytes" in facts and event in DIRECTION:
            self.bytes.labels(DIRECTION[event]).inc(facts["bytes"])
        if event in (logs.UPDATE_RECEIVED, logs.UPDATE_SENT):
            self.seconds.labels(facts["client"]).observe(facts["seconds"])
        if event in (logs.CONNECTED, logs.DISCONNECTED):
            self.connected.inc(1 if event == logs.CONNECTED else -1)
        if event == logs.ROUND_DONE:
            self.gauges["last_round_timestamp_seconds"].set(record.created)
        if event == logs.EXPIRES:
            self.expiry.labels(facts["certificate"]).set(facts["timestamp"])
        if event in BUSY:
            self.busy, self.contact = BUSY[event], time.monotonic()

    def health(self) -> dict[str, Any]:
        """Return whether this server or client is healthy: it computes, or has heard from the SuperLink lately."""
        silent = time.monotonic() - self.contact
        state = "computing" if self.busy else "in contact" if silent < SILENT else "without the SuperLink"
        return {"ok": self.busy or silent < SILENT, "state": state, "seconds_since_contact": round(silent, 1)}

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Answer a request with a status, the type of the content, and the content."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self.registry)
        if path == "/healthz":
            health = self.health()
            status = HTTPStatus.OK if health["ok"] else HTTPStatus.SERVICE_UNAVAILABLE
            return status, "application/json", json.dumps(health).encode() + b"\n"
        return HTTPStatus.NOT_FOUND, "text/plain", b"/healthz or /metrics\n"


COUNTED = {
    logs.ORDER_SENT: "sent",
    logs.UPDATE_RECEIVED: "answered",
    logs.UPDATE_REFUSED: "refused",
    logs.ORDER_RECEIVED: "received",
    logs.UPDATE_SENT: "carried out",
    logs.ORDER_REFUSED: "refused",
    logs.ORDER_FAILED: "failed",
}
DIRECTION = {logs.ORDER_SENT: "sent", logs.UPDATE_SENT: "sent"} | dict.fromkeys(
    (logs.UPDATE_RECEIVED, logs.ORDER_RECEIVED), "received"
)
BUSY = {
    logs.ROUND_BEGAN: False,
    logs.ROUND_COLLECTED: True,
    logs.CONNECTED: False,
    logs.ORDER_RECEIVED: True,
    logs.UPDATE_SENT: False,
    logs.ORDER_REFUSED: False,
    logs.ORDER_FAILED: False,
    logs.DROPPED: False,
}
"""Whether a server or client computes after an event, and so cannot be expected to hear from the SuperLink."""


@contextlib.contextmanager
def monitoring(port: int | None) -> Iterator[None]:
    """Answer /healthz and /metrics on this port of loopback while the block lasts; do nothing if the port is None."""
    if port is None:
        yield
        return
    try:
        monitor = Monitor()
    except ImportError:
        raise SettingsError("--metrics-port needs prometheus-client: pip install 'fedaccord[flower]'") from None

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, content = monitor.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Log no request: there is one every few seconds."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"--metrics-port {port}: {getattr(error, 'strerror', None) or error}") from None
    server.daemon_threads = True
    with server, logs.attached(monitor):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        note("metrics are served", address=f"http://127.0.0.1:{server.server_port}/metrics")
        try:
            yield
        finally:
            server.shutdown()
