"""The report page of runs in progress, served on this machine alone."""

import contextlib
import functools
import json
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedaccord.core.errors import FedAccordError, SettingsError
from fedaccord.report.condense import page_data
from fedaccord.report.page import content_policy, page
from fedaccord.runtime.classes import CLASSES
from fedaccord.runtime.folder import METRICS, ROUNDS

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")  # what a browser on this machine may call it


def serve(runs: Sequence[Path], port: int = 0) -> None:
    """Serve the page until Ctrl-C, and print its address once it answers; port 0 takes a free one."""
    page(runs, live=True)  # what is wrong with the runs is better said now than in a browser
    with contextlib.suppress(KeyboardInterrupt), make_server(runs, port) as server:
        print(f"http://{ADDRESS}:{server.server_port}/")
        server.serve_forever(poll_interval=0.1)


def make_server(runs: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    try:
        server = ThreadingHTTPServer((ADDRESS, port), functools.partial(Handler, runs))
    except (OSError, OverflowError) as error:
        raise SettingsError(f"port {port}: {getattr(error, 'strerror', None) or error}; choose another") from None
    server.daemon_threads = True  # a browser that holds a connection must not hold up the end
    return server


class Handler(BaseHTTPRequestHandler):
    """A handler that answers `/` with the page, and `/data.json` with what the page shows."""

    def __init__(self, runs: Sequence[Path], *rest: object):
        self.runs = runs
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        # a name that some website made point here is not ours: it must not read the runs (DNS rebinding)
        if self.headers.get("Host", "").split(":")[0] not in NAMES:
            self.answer(HTTPStatus.FORBIDDEN, "text/plain", "this server answers on 127.0.0.1 and localhost only")
            return
        try:
            if self.path == "/":
                self.answer(HTTPStatus.OK, "text/html", page(self.runs, live=True))
            elif self.path == "/data.json":
                self.answer(HTTPStatus.OK, "application/json", data_json(tuple(self.runs), written(self.runs)))
            else:
                self.answer(HTTPStatus.NOT_FOUND, "text/plain", "there is / and /data.json")
        except FedAccordError as error:  # such as a run folder that was deleted meanwhile
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))

    def answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        with contextlib.suppress(ConnectionError):  # the reader closed the page
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", f"{content_policy(live=True)}; frame-ancestors 'none'")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Log nothing: the terminal belongs to the person who watches."""


def written(runs: Sequence[Path]) -> tuple[int, ...]:
    """Return the sizes of the files that grow or appear during a run: while these stay, so does the page."""
    files = [run / name for run in runs for name in (ROUNDS, f"{ROUNDS}.gz", METRICS, CLASSES)]
    return tuple(file.stat().st_size if file.is_file() else -1 for file in files)


@functools.lru_cache(maxsize=1)
def data_json(runs: tuple[Path, ...], written: tuple[int, ...]) -> str:
    """Return what the page shows as JSON, kept until a file grows.

    A long log takes seconds to read, and the page asks every two.
    """
    return json.dumps(page_data(runs), separators=(",", ":"), allow_nan=False)
