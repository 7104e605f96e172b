"""Log lines with facts: what happened in a few words, and its round, client, bytes and seconds by name.

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

# what happens in a federation; metrics are made of these lines
CONNECTED, DISCONNECTED, CONTACT = "client is connected", "client is disconnected", "the SuperLink answered"
ORDER_SENT, UPDATE_RECEIVED, WAITING = "order sent", "update received", "waiting for"
ROUND_BEGAN, ROUND_COLLECTED, ROUND_DONE = "round began", "round collected", "round done"
UPDATE_REFUSED = "update refused"
ORDER_RECEIVED, UPDATE_SENT = "order received", "update sent"
ORDER_REFUSED, ORDER_FAILED = "order refused", "the training process died"
DROPPED = "a message was dropped"
EXPIRES = "certificate expires"


def note(event: str, level: int = logging.INFO, **facts: Any) -> None:
    """Log what happened, with its facts."""
    LOG.log(level, "%s", event, extra={"event": event, "facts": facts})


class Line(logging.Formatter):
    """Writes a record as one line: time in UTC, level, what happened, facts as name=value; or all of it as JSON."""

    def __init__(self, form: str):
        super().__init__()
        self.form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        time, facts = when.replace("+00:00", "Z"), facts_of(record)
        if self.form == "json":
            return json.dumps({"time": time, "level": record.levelname, "event": record.getMessage(), **facts})
        words = [f"{name}={json.dumps(value)}" for name, value in facts.items()]
        return " ".join([time, record.levelname, record.getMessage(), *words])


class ToStandardError(logging.Handler):
    """Writes to whatever standard error is at that moment: a live view on the terminal puts itself in between."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line at once."""
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)


def facts_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the facts of a record that are known."""
    return {name: value for name, value in getattr(record, "facts", {}).items() if value is not None}


@contextlib.contextmanager
def logging_to(form: str = "text", file: Path | None = None, quiet: bool = False) -> Iterator[None]:
    """Write the log to a file that is rotated, or to standard error; with a file, or if quiet, warnings alone."""
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
    """Give these handlers the records of their level, for as long as the block lasts."""
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
