"""Commands of a federation share how the SuperLink is reached, and where their log goes."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedaccord.core.errors import SettingsError
from fedaccord.core.logs import FORMATS, logging_to


def reach_options(required: bool = True) -> argparse.ArgumentParser:
    """Return a parent parser with the options that say how the SuperLink is reached."""
    reach = argparse.ArgumentParser(add_help=False)
    reach.add_argument(
        "--superlink", required=required, type=address, metavar="HOST:PORT", help="where the SuperLink is"
    )
    reach.add_argument(
        "--root-certificates", type=Path, metavar="FILE", help="ca.pem of whoever signed its certificate"
    )
    reach.add_argument("--insecure", action="store_true", help="plaintext, for tests only")
    return reach


def address(text: str) -> str:
    """Check that a text is HOST:PORT, and return it."""
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text}: expected HOST:PORT")
    return text


def watch_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options that say where the log and the metrics go."""
    watch = argparse.ArgumentParser(add_help=False)
    watch.add_argument(
        "--log-format", choices=FORMATS, help="lines of text, or of JSON; at a server, instead of its live view"
    )
    watch.add_argument("--log-file", type=Path, metavar="FILE", help="the log goes there and is rotated at 10 MB")
    watch.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve /healthz and /metrics (Prometheus) on 127.0.0.1 there"
    )
    return watch


@contextlib.contextmanager
def watched(options: argparse.Namespace, link: Any, quiet: bool = False) -> Iterator[None]:
    """Write the log where the options say, serve metrics if asked for, and warn of certificates that expire."""
    from fedaccord.flower.expiry import watching_certificates
    from fedaccord.runtime.monitor import monitoring

    with (
        logging_to(options.log_format or "text", options.log_file, quiet),
        monitoring(options.metrics_port),
        watching_certificates(link),
    ):
        yield


def root_certificates(options: argparse.Namespace) -> bytes | None:
    """Return the certificates to trust, or None if plaintext was asked for."""
    if options.insecure:
        return None
    if options.root_certificates is None:
        raise SettingsError("--root-certificates FILE is needed; plaintext must be asked for with --insecure")
    return contents(options.root_certificates)


def contents(file: Path | None) -> bytes | None:
    """Return the bytes of a file that an option names, or None if the option was not given."""
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None


def need_flower() -> None:
    """Raise SettingsError if Flower is not installed, and keep it from reporting to its makers."""
    if find_spec("flwr") is None:
        raise SettingsError("a federation needs Flower: pip install 'fedaccord[flower]'")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
