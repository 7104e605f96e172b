"""The expiry of certificates: the authority's, and the one that the SuperLink shows."""

import contextlib
import datetime
import logging
import ssl
import threading
from collections.abc import Iterator

from fedaccord.core.logs import EXPIRES, note
from fedaccord.flower.certificates import Link

SOON = 30
"""A certificate that expires in fewer days than this is worth a warning."""
DAY = 86400.0
"""Seconds between two checks of the certificates."""
ANSWER = 10.0
"""Seconds within which the SuperLink must show its certificate."""


def expiry_of(pem: bytes) -> datetime.datetime:
    """Return when the first certificate of a PEM file expires."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def expiries(link: Link) -> dict[str, datetime.datetime]:
    """Return when each certificate that can be read expires; a SuperLink that cannot be reached shows none."""
    found = {}
    if link.certificates is not None:
        host, _, port = link.address.rpartition(":")
        with contextlib.suppress(ValueError):  # the connection will say what is wrong with it
            found["authority"] = expiry_of(link.certificates)
        with contextlib.suppress(OSError, ValueError):
            shown = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=ANSWER)
            found["superlink"] = expiry_of(shown.encode())
    return found


def note_expiries(link: Link) -> None:
    """Log when each certificate expires, as a warning if it expires soon or has expired."""
    for name, when in expiries(link).items():
        days = (when - datetime.datetime.now(datetime.UTC)).days
        remedy = "run `fedaccord federation renew` where the SuperLink is" if days < SOON else None
        level = logging.WARNING if days < SOON else logging.INFO
        facts = {"certificate": name, "days": days, "on": when.date().isoformat(), "timestamp": int(when.timestamp())}
        note(EXPIRES, level, **facts, remedy=remedy)


@contextlib.contextmanager
def watching_certificates(link: Link) -> Iterator[None]:
    """Log when the certificates expire, at once and then once a day, while the block runs."""
    done = threading.Event()

    def watch() -> None:
        note_expiries(link)
        while not done.wait(DAY):
            note_expiries(link)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
