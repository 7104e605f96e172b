"""The status of a real federation: the SuperLink knows who is connected, the run folder how far the server is."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaccord.core.errors import RunError
from fedaccord.core.files import read_json
from fedaccord.runtime.attendance import attendance
from fedaccord.runtime.folder import ROUNDS, SETTINGS, read_rounds, read_settings
from fedaccord.runtime.lines import round_of
from fedaccord.runtime.monitor import NODES

if TYPE_CHECKING:  # the command line must be able to say that Flower is not installed
    from fedaccord.flower.certificates import Link


def status_of(link: "Link", folder: Path | None) -> dict[str, Any]:
    """Return all that is known of a federation's nodes, certificates and run, as plain values."""
    from fedaccord.flower.adapter import registered
    from fedaccord.flower.expiry import SOON, expiries

    now = datetime.datetime.now(datetime.UTC)
    clients = clients_by_node(folder)
    nodes = [
        {"node": each.node, "client": clients.get(each.node), "online": each.online, "since": each.since}
        for each in registered(link)
    ]
    nodes.sort(key=lambda each: (each["client"] is None, each["client"], each["node"]))
    left = {name: (when.date().isoformat(), (when - now).days) for name, when in expiries(link).items()}
    ends = {name: {"expires": date, "days": days, "soon": days < SOON} for name, (date, days) in left.items()}
    return {"superlink": link.address, "nodes": nodes, "certificates": ends, "run": run_of(folder)}


def clients_by_node(folder: Path | None) -> dict[int, int]:
    """Return which client is on each node, as far as the server has seen."""
    if folder is None or not (folder / NODES).is_file():
        return {}
    try:
        found = {int(client): node for client, node in read_json(folder / NODES).items()}
        if not all(type(node) is int for node in found.values()):
            raise ValueError("a node is no number")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{folder / NODES}: damaged: {error}; the server writes it anew") from None
    return {node: client for client, node in found.items()}


def run_of(folder: Path | None) -> dict[str, Any] | None:
    """Return how far the run in a folder is; None if it has not begun, or is on another machine."""
    if folder is None or not (folder / SETTINGS).is_file():
        return None
    settings = read_settings(folder)
    rounds = list(read_rounds(folder))
    found = {"task": settings.task, "method": settings.method, "rounds": settings.rounds, "round": len(rounds)}
    if not rounds:
        return {**found, "loss": None, "done": None, "missing": []}
    written = datetime.datetime.fromtimestamp((folder / ROUNDS).stat().st_mtime, datetime.UTC)
    missing = attendance(round_of(entry, folder / ROUNDS) for entry in rounds).sentences()
    done = written.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {**found, "loss": rounds[-1]["loss"], "done": done, "missing": missing}


def lines_of(status: Mapping[str, Any]) -> list[str]:
    """Format the status of a federation as lines for a person."""
    online = sum(each["online"] for each in status["nodes"])
    lines = [f"SuperLink {status['superlink']}: {online} of {len(status['nodes'])} nodes connected"]
    for each in status["nodes"]:
        who = "client ?" if each["client"] is None else f"client {each['client']}"
        lines.append(
            f"  {who}  {'connected' if each['online'] else 'AWAY'} since {each['since'][:19]}  node {each['node']}"
        )
    if (run := status["run"]) is not None:
        loss = "" if run["loss"] is None else f", loss {run['loss']:.4f}"
        when = "" if run["done"] is None else f", at {run['done']}"
        lines.append(f"round {run['round']} of {run['rounds']}{loss}{when}  ({run['task']}, {run['method']})")
        lines += [f"  {sentence}" for sentence in run["missing"]]
    for name, each in status["certificates"].items():
        soon = "  SOON: fedaccord federation renew" if each["soon"] else ""
        lines.append(f"certificate of the {name}: until {each['expires']}, {each['days']} days{soon}")
    return lines
