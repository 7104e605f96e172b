"""`fedaccord federation` starts the parts of a real federation over Flower, and makes their keys."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.cli import federation_admin as admin
from fedaccord.cli.options import add_json, given_or_in_file, settings_of
from fedaccord.cli.outcome import say, tell, try_again
from fedaccord.cli.reach import contents, need_flower, reach_options, root_certificates, watch_options, watched
from fedaccord.core.errors import EngineError, SettingsError
from fedaccord.core.logs import FORMATS, note


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parsers of federation up, server and node, and of all that goes with them."""
    federation = commands.add_parser(
        "federation", help="real clients, real processes, over Flower", description="A real federation over Flower."
    ).add_subparsers(required=True, metavar="PART")
    what, reach, watch = what_options(), reach_options(), watch_options()
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument(
        "--simulate", action="store_true",
        help="divide the task's data set among the clients, instead of each machine having its own data",
    )  # fmt: skip

    up = federation.add_parser(
        "up", parents=[what], help="a whole federation on this machine, for a first try",
        description="Make keys, start SuperLink, nodes and server as processes on loopback, with TLS and node "
        "authentication, run, and end all of it. Run it again to go on where it was.",
    )  # fmt: skip
    up.add_argument("--nodes", type=int, default=3, help="clients (3)")
    up.add_argument("--folder", type=Path, help="keys, run folder and logs (runs/federation-TASK)")
    up.add_argument("--insecure", action="store_true", help="without TLS and node authentication")
    up.add_argument("--log-format", choices=FORMATS, default="text", help="of server.log and node*.log (text)")
    add_json(up)
    up.set_defaults(command=up_command)

    server = federation.add_parser(
        "server", parents=[what, reach, own, watch], help="the server: rounds, checkpoints, live view"
    )
    server.add_argument(
        "--run", type=Path, required=True, metavar="FOLDER", help="the run folder; a run that is in it is resumed"
    )
    server.add_argument("--secret", type=Path, metavar="FILE", help="the SuperLink's --superexec-auth-secret-file")
    server.add_argument(
        "--examples", action="append", default=[], metavar="CLIENT=N",
        help="the most examples that a client may claim (what its node says first); may repeat",
    )  # fmt: skip
    add_json(server)
    server.set_defaults(command=server_command)

    node = federation.add_parser(
        "node", parents=[what, reach, own, watch], help="one client, with its data and its own limits"
    )
    node.add_argument("--client", type=int, required=True, help="its number, from 0 on")
    node.add_argument("--key", type=Path, metavar="FILE", help="its private key")
    node.add_argument(
        "--private", type=Path, required=True, metavar="FOLDER", help="where theta_i is kept, on its disk"
    )
    node.add_argument("--max-steps", type=int, default=1000, help="SGD iterations a round at most (1000)")
    node.add_argument("--min-lr", type=float, default=1e-6, help="smallest learning rate (1e-6)")
    node.add_argument("--max-lr", type=float, default=2.0, help="largest learning rate (2.0)")
    node.add_argument("--max-batch", type=int, default=4096, help="examples of a mini-batch at most (4096)")
    node.add_argument("--max-weight", type=float, default=1e6, help="largest other hyper-parameter (1e6)")
    node.add_argument(
        "--share-labels", action="store_true",
        help="let the server know how many examples of each class this client has, for its report (it does not)",
    )  # fmt: skip
    node.add_argument("--patience", type=float, metavar="SECONDS", help="give up after so long without a SuperLink")
    node.set_defaults(command=node_command)

    admin.add(federation)


def what_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options that say what is trained."""
    what = argparse.ArgumentParser(add_help=False)
    what.add_argument("--task", help="as for run (digits)")
    what.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings, the same for all")
    what.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting")
    return what


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
    local = LocalFederation(folder, options.nodes, options.insecure, options.json, divided, options.log_format)
    write_durably(folder / "settings.toml", config.to_toml(settings).encode())  # no race: the folder is locked
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
    from fedaccord.server.sizes import parse_sizes

    task, settings = settings_of(options)
    sizes = parse_sizes(options.examples)
    link = Link(options.superlink, root_certificates(options), secret=contents(options.secret))
    began = time.monotonic()
    log_here = options.log_format is not None and options.log_file is None

    def view(made: Any) -> Any:
        return None if log_here and not options.json else choose(made, options.json)

    try:
        with watched(options, link, quiet=not log_here), open_grid(link) as grid:
            outcome = federation.serve_task(task, settings, grid, options.run, view, options.simulate, sizes)
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
    limits = Limits(options.max_steps, options.min_lr, options.max_lr, options.max_batch, options.max_weight)
    member = federation.member_of_task(
        task, settings, options.client, options.private, limits, options.simulate, options.share_labels
    )
    whose = "its part of a data set that was divided" if options.simulate else "its own data, all of it"
    examples = len(member.site.clients[options.client])
    try:
        with watched(options, link):
            note(f"client {options.client} trains on {examples:,} examples: {whose}")
            run_node(link, member, options.patience)
    except EngineError as error:
        return try_again(error)
    return 0
