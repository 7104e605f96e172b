"""Log lines with facts: what happened, in a few words, with its round, client, bytes and seconds by name.

Everything goes through the standard library's logging, under the name `fedaccord`, so a program that embeds this one
may send it anywhere. `logging_to` is what the command line uses.
"""

import contextlib
import datetime
import json
import logging
import logging.handlers
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedaccord.core.errors import SettingsError

LOG = logging.getLogger("fedaccord")
FORMATS = ("text", "json")
LARGEST, OLD = 10_000_000, 5
"""A log file is renamed to FILE.1 when it has this many bytes, and this many old ones are kept."""

# events of a federation; the monitor derives its metrics from them
CONNECTED, DISCONNECTED, CONTACT = "client is connected", "client is disconnected", "the SuperLink answered"
ORDER_SENT, UPDATE_RECEIVED, WAITING = "order sent", "update received", "waiting for"
ROUND_BEGAN, ROUND_COLLECTED, ROUND_DONE = "round began", "round collected", "round done"
UPDATE_REFUSED = "update refused"
ORDER_RECEIVED, UPDATE_SENT = "order received", "update sent"
ORDER_REFUSED, ORDER_FAILED = "order refused", "the training process died"
DROPPED = "a message was dropped"
EXPIRES = "certificate expires"


def note(event: str, level: int = logging.INFO, **facts: Any) -> None:
    """Log an event with its facts."""
    LOG.log(level, "%s", event, extra={"event": event, "facts": facts})


class Line(logging.Formatter):
    """A formatter that makes one line of a record: UTC time, level, event and facts as name=value, or all as JSON."""

    def __init__(self, form: str):
        super().__init__()
        self.form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        time, facts = when.replace("+00:00", "Z"), facts_of(record)
        if self.form == "json":
            return json.dumps({"time": time, "level": record.levelname, "event": record.getMessage(), **facts})
        words = [f"{name}={json.dumps(value)}" for name, value in facts.items()]
        return " ".join([time, record.levelname, record.getMessage(), *words])


class ToStandardError(logging.Handler):
    """A handler that looks sys.stderr up for every record: a live view on the terminal may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to standard error at once."""
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)


def facts_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return a record's facts, without those that are None."""
    return {name: value for name, value in getattr(record, "facts", {}).items() if value is not None}


@contextlib.contextmanager
def logging_to(form: str = "text", file: Path | None = None, quiet: bool = False) -> Iterator[None]:
    """Write the log to standard error inside the block, and to a file that is rotated if one is given.

    With a file, or if `quiet`, standard error gets only warnings and errors.
    """
    handlers: list[logging.Handler] = []
    if file is not None:
        try:
            handlers.append(logging.handlers.RotatingFileHandler(file, "a", LARGEST, OLD, encoding="utf-8"))
        except OSError as error:
            raise SettingsError(f"{file}: the log cannot be written there: {error.strerror}") from None
    handlers.append(ToStandardError())
    for handler in handlers:
        handler.setFormatter(Line(form))
        handler.setLevel(logging.INFO)
    if file is not None or quiet:
        handlers[-1].setLevel(logging.WARNING)
        handlers[-1].setFormatter(Line("text"))
    with attached(*handlers):
        yield


@contextlib.contextmanager
def attached(*handlers: logging.Handler) -> Iterator[None]:
    """Attach handlers to the log inside the block, each for the records of its level, and close them afterwards."""
    before = LOG.level
    LOG.setLevel(min(LOG.getEffectiveLevel(), *(handler.level for handler in handlers)))
    for handler in handlers:
        LOG.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            LOG.removeHandler(handler)
            handler.close()
        LOG.setLevel(before)
