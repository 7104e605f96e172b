"""`fedaccord federation` starts the parts of a real federation over Flower, and makes their keys."""

import argparse
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.cli.options import add_json, given_or_in_file, settings_of
from fedaccord.cli.outcome import progress, say, tell, try_again
from fedaccord.core.errors import EngineError, RunError, SettingsError


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parsers of federation up, server, node, certificates and key."""
    federation = commands.add_parser(
        "federation", help="real clients, real processes, over Flower", description="A real federation over Flower."
    ).add_subparsers(required=True, metavar="PART")
    what, reach = what_options(), reach_options()

    up = federation.add_parser(
        "up", parents=[what], help="a whole federation on this machine, for a first try",
        description="Make keys, start SuperLink, nodes and server as processes on loopback, with TLS and node "
        "authentication, run, and end all of it. Run it again to go on where it was.",
    )  # fmt: skip
    up.add_argument("--nodes", type=int, default=3, help="clients (3)")
    up.add_argument("--folder", type=Path, help="keys, run folder and logs (runs/federation-TASK)")
    up.add_argument("--insecure", action="store_true", help="without TLS and node authentication")
    add_json(up)
    up.set_defaults(command=up_command)

    server = federation.add_parser("server", parents=[what, reach], help="the server: rounds, checkpoints, live view")
    server.add_argument(
        "--run", type=Path, required=True, metavar="FOLDER", help="the run folder; gone on with if there"
    )
    server.add_argument("--secret", type=Path, metavar="FILE", help="the SuperLink's --superexec-auth-secret-file")
    add_json(server)
    server.set_defaults(command=server_command)

    node = federation.add_parser("node", parents=[what, reach], help="one client, with its data and its own limits")
    node.add_argument("--client", type=int, required=True, help="its number, from 0 on")
    node.add_argument("--key", type=Path, metavar="FILE", help="its private key")
    node.add_argument(
        "--private", type=Path, required=True, metavar="FOLDER", help="where theta_i is kept, on its disk"
    )
    node.add_argument("--max-steps", type=int, default=1000, help="SGD iterations a round at most (1000)")
    node.add_argument("--min-lr", type=float, default=1e-6, help="smallest learning rate (1e-6)")
    node.add_argument("--max-lr", type=float, default=2.0, help="largest learning rate (2.0)")
    node.add_argument("--patience", type=float, metavar="SECONDS", help="give up after so long without a SuperLink")
    node.set_defaults(command=node_command)

    certificates = federation.add_parser(
        "certificates", help="make an authority, the SuperLink's certificate, a secret"
    )
    certificates.add_argument("folder", type=Path)
    certificates.add_argument(
        "--host", action="append", required=True, help="name or address of the SuperLink; may repeat"
    )
    certificates.add_argument("--days", type=int, default=365, help="how long they are good (365)")
    certificates.set_defaults(command=certificates_command)

    key = federation.add_parser("key", help="make a node's key pair")
    key.add_argument("file", type=Path, help="the private key; FILE.pub is for the SuperLink")
    key.set_defaults(command=key_command)


def what_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options that say what is trained."""
    what = argparse.ArgumentParser(add_help=False)
    what.add_argument("--task", help="as for run (digits)")
    what.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings, the same for all")
    what.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting")
    return what


def reach_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options that say how the SuperLink is reached, and whose data it is."""
    reach = argparse.ArgumentParser(add_help=False)
    reach.add_argument("--superlink", required=True, metavar="HOST:PORT", help="where the SuperLink is")
    reach.add_argument(
        "--root-certificates", type=Path, metavar="FILE", help="ca.pem of whoever signed its certificate"
    )
    reach.add_argument("--insecure", action="store_true", help="plaintext, for tests only")
    reach.add_argument(
        "--simulate", action="store_true",
        help="divide the task's data set among the clients, instead of each machine having its own data",
    )  # fmt: skip
    return reach


def up_command(options: argparse.Namespace) -> int:
    """Run a whole federation on this machine, and end all its processes afterwards."""
    from fedaccord.core.files import write_durably

    need_flower()
    from fedaccord.flower.local import LocalFederation

    if options.nodes < 1:
        raise SettingsError(f"--nodes {options.nodes}: expected 1 or more")
    task, settings = settings_of(options)
    typed = given_or_in_file(options)
    # one class per client would take ten clients: a few share the classes unevenly instead
    divided = task.data is not None
    few = {"split": "dirichlet", "alpha": typed.get("alpha", 0.3)} if divided and "split" not in typed else {}
    settings = config.make(settings.values(), few, {"clients": options.nodes})
    folder = options.folder or Path("runs") / f"federation-{Path(settings.task.replace(':', '-')).name}"
    local = LocalFederation(folder, options.nodes, options.insecure, options.json, divided)
    write_durably(folder / "settings.toml", config.to_toml(settings).encode())  # nobody else may: the folder is locked
    say(options, f"{options.nodes} nodes, SuperLink at {local.address}, {'PLAINTEXT' if options.insecure else 'TLS'}; "
        f"everything is in {folder}")  # fmt: skip
    return local.run()


def server_command(options: argparse.Namespace) -> int:
    """Run a federation's server: its rounds, its checkpoints and its live view."""
    from fedaccord.runtime import federation
    from fedaccord.runtime.live import choose

    need_flower()
    from fedaccord.flower.adapter import open_grid
    from fedaccord.flower.certificates import Link

    task, settings = settings_of(options)
    link = Link(options.superlink, root_certificates(options), secret=contents(options.secret))
    began = time.monotonic()
    try:
        with open_grid(link) as grid:
            outcome = federation.serve_task(
                task, settings, grid, options.run, lambda made: choose(made, options.json), options.simulate
            )
    except EngineError as error:
        return try_again(error)
    return tell(options, outcome, options.run, began, "run the same command again")


def node_command(options: argparse.Namespace) -> int:
    """Run one client of a federation, with its own data and its own limits."""
    from fedaccord.runtime import federation

    need_flower()
    from fedaccord.flower.certificates import Link
    from fedaccord.flower.node import Limits, run_node

    task, settings = settings_of(options)
    link = Link(options.superlink, root_certificates(options), options.key)
    limits = Limits(options.max_steps, options.min_lr, options.max_lr)
    member = federation.member_of_task(task, settings, options.client, options.private, limits, options.simulate)
    whose = "its part of a data set that was divided" if options.simulate else "its own data, all of it"
    progress(f"client {options.client} trains on {len(member.site.clients[options.client]):,} examples: {whose}")
    try:
        run_node(link, member, progress, options.patience)
    except EngineError as error:
        return try_again(error)
    return 0


def certificates_command(options: argparse.Namespace) -> int:
    """Make an authority, the SuperLink's certificate and a secret, in a folder that has none yet."""
    from fedaccord.flower.certificates import make_authority

    need_flower()
    if (options.folder / "ca.key").exists():
        raise RunError(f"{options.folder}: has an authority already; it is never overwritten")
    make_authority(options.folder, options.host, options.days)
    print(f"{options.folder}: ca.pem is for all; ca.key, server.pem, server.key and secret stay with the SuperLink")
    return 0


def key_command(options: argparse.Namespace) -> int:
    """Make a node's key pair."""
    from fedaccord.flower.certificates import make_node_key

    need_flower()
    make_node_key(options.file)
    print(f"{options.file} stays on this machine; register {options.file}.pub at the SuperLink")
    return 0


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
    """Complain if Flower is not installed, and keep it from reporting to its makers."""
    if find_spec("flwr") is None:
        raise SettingsError("a federation needs Flower: pip install 'fedaccord[flower]'")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
