"""The command line: run, resume, compare, reproduce, report, watch, federation, matching, bench, data."""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.config import FIELDS, Settings
from fedaccord.core.errors import EngineError, FedAccordError, RunError, SettingsError

STOPPED = 130
TRY_AGAIN = 75


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.command(options))
    except FedAccordError as error:
        print(f"fedaccord: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("; ".join(["fedaccord: stopped", *map(str, stop.args)]), file=sys.stderr)
        return STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing more to say
        return 1


def make_parser() -> argparse.ArgumentParser:
    from fedaccord import __version__

    parser = argparse.ArgumentParser(
        prog="fedaccord", description="Federated learning that stays on track when clients' data differ wildly."
    )
    parser.add_argument("--version", action="version", version=f"fedaccord {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="train a task",
        description="Train a task, with a run folder that can be resumed.",
        epilog="A value is looked for in --set and the options, then in --config, then in the task's own defaults.",
    )
    run.add_argument(
        "task", nargs="?", help="digits (default), mnist, fashion_mnist, cifar10, kws; a folder of pictures by class; "
        "an .npz file; or file.py:name"
    )  # fmt: skip
    run.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting below by its name")
    run.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where run folders go (runs/)")
    run.add_argument("--name", help="name of the run folder (made from date, task, method, split and seed)")
    run.add_argument("--json", action="store_true", help="one JSON line a round, and one at the end")
    run.add_argument("--paper", action="store_true", help="without the guards that the paper lacks (guards = false)")
    add_settings(run.add_argument_group("settings"))
    run.set_defaults(command=run_command)

    resume = commands.add_parser("resume", help="go on with a run", description="Go on from a run's last checkpoint.")
    resume.add_argument("run", type=Path, help="the run folder")
    resume.add_argument("--json", action="store_true", help="one JSON line a round, and one at the end")
    resume.set_defaults(command=resume_command)

    study = argparse.ArgumentParser(add_help=False)
    study.add_argument("--lanes", type=positive, help="runs at a time (as many as usable cores)")
    study.add_argument("--no-run", action="store_true", help="only make the tables from what is there")

    compare = commands.add_parser(
        "compare",
        parents=[study],
        help="methods x splits x fractions x seeds, as one table",
        description="Run what is missing, go on with what was cut off, and print mean ± standard deviation of the test "
        "accuracy, the best of a row marked. Tables (.md, .csv, .tex) go to the results folder, and a page, "
        "if there are no more than 12 runs.",
    )
    compare.add_argument("--task", default="digits", help="as for run (digits)")
    compare.add_argument("--methods", default="FA,FA+RM+AH", help="with commas; all: all five (FA,FA+RM+AH)")
    compare.add_argument("--splits", default="non-iid", help="with commas (non-iid)")
    compare.add_argument("--fractions", default="1.0", help="C, with commas (1.0)")
    compare.add_argument("--seeds", type=int, default=1, help="how many, from 0 on (1)")
    compare.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings for all runs")
    compare.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, for all runs")
    compare.add_argument("--results", type=Path, metavar="FOLDER", help="where runs and tables go (runs/compare-TASK)")
    compare.add_argument("--format", choices=("md", "csv", "tex"), default="md", help="what is printed (md)")
    compare.add_argument("--keep", action="store_true", help="keep the weights of finished runs too")
    compare.set_defaults(command=compare_command)

    reproduce = commands.add_parser(
        "reproduce",
        parents=[study],
        help="the paper's tables and figures",
        description="Make the paper's tables and figures, with its own figures beside ours: mnist, cifar10, kws "
        "(tables and curves), search (the fixed schedules that were tried), steps (accuracy by local steps a round), "
        "overhead (run time), evolution (of the tuner), or all.",
    )
    reproduce.add_argument(
        "parts", nargs="+", metavar="PART", help="mnist cifar10 kws search steps overhead evolution all"
    )
    reproduce.add_argument(
        "--budget", choices=("cpu", "paper"), default="cpu",
        help="cpu: fewer rounds, for two cores; paper: what we believe the paper ran, for a GPU (cpu)",
    )  # fmt: skip
    reproduce.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, ... (cpu)")
    reproduce.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER", help="(results)")
    reproduce.set_defaults(command=reproduce_command)

    report = commands.add_parser(
        "report", help="a page that shows what happened and why", description="One self-contained page about the runs."
    )
    report.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders; several are laid over each other"
    )
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="(report.html)")
    report.set_defaults(command=report_command)

    watch = commands.add_parser(
        "watch", help="the same page, live", description="Serve the page on this machine while the runs go on."
    )
    watch.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    watch.add_argument("--port", type=int, default=0, help="(any free one)")
    watch.set_defaults(command=watch_command)

    add_federation(commands)

    matching = commands.add_parser(
        "matching",
        help="show what representation matching does to a model",
        description="The layers of interest of a task's model, the matching layers f_j built for them, size and cost.",
    )
    matching.add_argument("task", help="as for run")
    add_settings(matching.add_argument_group("settings"), ("width", "rm_layers", "rm_kernel", "image_size"))
    matching.set_defaults(command=matching_command)

    bench = commands.add_parser(
        "bench",
        help="measure speed on this machine",
        description="Measure speed on this machine, as ratios: shares (of the matrix-product peak, and against a bare "
        "PyTorch loop), methods (the paper's run-time table), scaling (10 to 10,000 clients).",
    )
    bench.add_argument("parts", nargs="*", metavar="PART", help="shares, methods, scaling (all)")
    bench.add_argument("--tasks", default="mnist", help="with commas: digits, mnist, cifar10, kws (mnist)")
    bench.add_argument("--repeats", type=int, default=7, help="the median of so many counts (7)")
    bench.add_argument("--workers", type=int, help="processes (as many as usable cores)")
    bench.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="bench.json, bench.md and bench.svg go there"
    )
    bench.set_defaults(command=bench_command)

    data = commands.add_parser("data", help="list, fetch, verify and divide data").add_subparsers(
        required=True, metavar="WHAT"
    )
    data.add_parser("list", help="the data sets, and where they are").set_defaults(command=data_list)
    fetch = data.add_parser("fetch", help="get a data set into the cache folder")
    fetch.add_argument("name")
    fetch.add_argument(
        "--from", dest="wavs", type=Path, metavar="FOLDER", help="speech_commands: folders of recordings"
    )
    fetch.set_defaults(command=data_fetch)
    verify = data.add_parser("verify", help="check a data set's files byte by byte, and read them")
    verify.add_argument("name")
    verify.set_defaults(command=data_verify)
    split = data.add_parser("split", help="show who would hold what", description="Draw the label x client picture.")
    split.add_argument("task", help="as for run")
    split.add_argument("-o", "--output", type=Path, metavar="FILE", help="also as a picture (.png, .svg, .pdf)")
    add_settings(
        split.add_argument_group("settings"),
        ("split", "clients", "seed", "classes_per_client", "alpha", "shards_per_client", "allow_empty",
         "validation_per_class", "image_size"),
    )  # fmt: skip
    split.set_defaults(command=data_split)
    return parser


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return int(text)


def add_federation(commands: Any) -> None:
    federation = commands.add_parser(
        "federation", help="real clients, real processes, over Flower", description="A real federation over Flower."
    ).add_subparsers(required=True, metavar="PART")
    what = argparse.ArgumentParser(add_help=False)
    what.add_argument("--task", help="as for run (digits)")
    what.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings, the same for all")
    what.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting")
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

    up = federation.add_parser(
        "up", parents=[what], help="a whole federation on this machine, for a first try",
        description="Make keys, start SuperLink, nodes and server as processes on loopback, with TLS and node "
        "authentication, run, and end all of it. Run it again to go on where it was.",
    )  # fmt: skip
    up.add_argument("--nodes", type=int, default=3, help="clients (3)")
    up.add_argument("--folder", type=Path, help="keys, run folder and logs (runs/federation-TASK)")
    up.add_argument("--insecure", action="store_true", help="without TLS and node authentication")
    up.add_argument("--json", action="store_true", help="one JSON line a round, and one at the end")
    up.set_defaults(command=federation_up)

    server = federation.add_parser("server", parents=[what, reach], help="the server: rounds, checkpoints, live view")
    server.add_argument(
        "--run", type=Path, required=True, metavar="FOLDER", help="the run folder; gone on with if there"
    )
    server.add_argument("--secret", type=Path, metavar="FILE", help="the SuperLink's --superexec-auth-secret-file")
    server.add_argument("--json", action="store_true", help="one JSON line a round, and one at the end")
    server.set_defaults(command=federation_server)

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
    node.set_defaults(command=federation_node)

    certificates = federation.add_parser(
        "certificates", help="make an authority, the SuperLink's certificate, a secret"
    )
    certificates.add_argument("folder", type=Path)
    certificates.add_argument(
        "--host", action="append", required=True, help="name or address of the SuperLink; may repeat"
    )
    certificates.add_argument("--days", type=int, default=365, help="how long they are good (365)")
    certificates.set_defaults(command=federation_certificates)
    key = federation.add_parser("key", help="make a node's key pair")
    key.add_argument("file", type=Path, help="the private key; FILE.pub is for the SuperLink")
    key.set_defaults(command=federation_key)


def add_settings(group: Any, names: Sequence[str] = tuple(FIELDS)) -> None:
    """An option for each setting, from its own sentence."""
    for name in names:
        if name == "task":
            continue
        item = FIELDS[name]
        default = "" if item.default is None else f" [{item.default}]"
        text = (item.metadata["help"] + default).replace("%", "%%")
        group.add_argument(f"--{name.replace('_', '-')}", metavar=config.kind_of(item)[0].__name__.upper(), help=text)


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that were typed: options, then --set."""
    typed = {
        name: config.parse_value(name, text)
        for name in FIELDS
        if name != "task" and (text := getattr(options, name, None)) is not None
    }
    if getattr(options, "paper", False):
        typed["guards"] = False
    return typed | dict(map(config.parse_assignment, getattr(options, "set", [])))


def settings_of(options: argparse.Namespace) -> tuple[Any, Settings]:
    """The task and its settings, nothing filled in yet that needs the data."""
    from fedaccord.tasks import find_task

    file = config.read_toml(options.config) if getattr(options, "config", None) else {}
    typed = given(options)
    merged = file | typed
    name = options.task or merged.get("task", "digits")
    config.make(merged)  # complain about a wrong value before loading anything
    task = find_task(name, merged.get("image_size", 0))
    split = merged.get("split", task.settings.get("split", "non-iid"))
    return task, config.make(task.defaults(split), merged, {"task": lasting(name)})


def lasting(name: str) -> str:
    """A task's name; a path is made absolute, so that a run can be resumed from anywhere."""
    file, colon, variable = name.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{Path(file).resolve()}:{variable}"
    return str(Path(name).resolve()) if Path(name).suffix == ".npz" or os.sep in name else name


def run_command(options: argparse.Namespace) -> int:
    from fedaccord.runtime.build import from_task
    from fedaccord.runtime.folder import RunFolder, free_name

    task, settings = settings_of(options)
    say(options, f"task {settings.task}, method {settings.method}: loading the data")
    simulation = from_task(task, settings)
    say(options, f"engine {simulation.engine}")
    name = options.runs / options.name if options.name else free_name(options.runs, simulation.settings)
    with RunFolder.create(name, simulation.settings) as folder:
        return carry_on(options, simulation, folder)


def resume_command(options: argparse.Namespace) -> int:
    from fedaccord.runtime.build import from_task
    from fedaccord.runtime.folder import RunFolder
    from fedaccord.tasks import find_task

    with RunFolder(options.run) as folder:
        settings = folder.settings()
        if settings.engine == "flower":
            raise RunError(f"{options.run}: is a real federation's; start its parts again and it goes on")
        if settings.task == "python":
            raise RunError(f"{options.run}: was started by federate(); call it again with folder={str(options.run)!r}")
        say(options, f"task {settings.task}, method {settings.method}: loading the data")
        simulation = from_task(find_task(settings.task, settings.image_size), settings)
        return carry_on(options, simulation, folder)


def carry_on(options: argparse.Namespace, simulation: Any, folder: Any) -> int:
    """Drive the run and say how it ended."""
    from fedaccord.runtime.drive import drive
    from fedaccord.runtime.live import choose

    began = time.monotonic()
    outcome = drive(simulation, folder, choose(simulation, options.json))
    return tell(options, outcome, folder.path, began, f"fedaccord resume {folder.path}")


def tell(options: argparse.Namespace, outcome: Any, folder: Path, began: float, how_to_go_on: str) -> int:
    from fedaccord.runtime.folder import log_sha256, params_sha256
    from fedaccord.runtime.live import figures

    rounds = [dataclasses.asdict(log) for log in outcome.rounds]
    accuracy = next((log.accuracy for log in reversed(outcome.rounds) if log.accuracy is not None), None)
    summary: dict[str, Any] = {
        "run": str(folder),
        "rounds": outcome.state.round,
        "loss": outcome.state.loss,
        "accuracy": accuracy,
        "stopped": outcome.stopped,
        "warnings": outcome.warnings,
        "seconds": round(time.monotonic() - began, 2),
        "params_sha256": params_sha256(outcome.state.params),
        "log_sha256": log_sha256(rounds),
    }
    for sentence in outcome.warnings:
        print(f"fedaccord: warning: {sentence}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(summary), flush=True)
        return STOPPED if outcome.stopped else 0
    print(f"after round {outcome.state.round}: {figures(outcome.state.loss, accuracy)}  ({summary['seconds']} s)")
    print(f"parameters  sha256 {summary['params_sha256'][:16]}  log sha256 {summary['log_sha256'][:16]}")
    print(f"run folder  {folder}")
    if outcome.stopped:
        print(f"stopped after round {outcome.state.round}; go on with: {how_to_go_on}")
        return STOPPED
    return 0


def compare_command(options: argparse.Namespace) -> int:
    from fedaccord.experiments import runner as compare
    from fedaccord.experiments import study as studies
    from fedaccord.report import tables

    study = study_of(options)
    name = Path(study.task.replace(":", "-")).name
    folder = options.results or Path("runs") / f"compare-{name}"
    failures = []
    if options.no_run:
        must_be_there(folder)
    else:
        failures = compare.run_missing(list(studies.cells(study)), folder, options.lanes, options.keep)
    table = studies.table_of(study, folder, with_paper=False)
    studies.write_tables(table, folder / "table")
    print(tables.FORMS[options.format](table))
    there = [folder / cell.name for cell in studies.cells(study) if studies.finished(cell, folder)]
    if len(there) > OVERLAID:
        print(f"no page: {len(there)} runs on one would be a tangle; `fedaccord report` takes those you choose")
    elif find_spec("plotly") is None:
        print("no page: it needs the report extra, pip install 'fedaccord[report]'")
    else:
        write_report(there, folder / "report.html")
    if failures:
        print(f"fedaccord: {compare.summary(failures)}", file=sys.stderr)
    return 1 if failures else 0


def must_be_there(folder: Path) -> None:
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder, so there is nothing to make tables from")


OVERLAID = 12
"""More runs than this on one page would be a tangle."""


def study_of(options: argparse.Namespace) -> Any:
    from fedaccord.experiments.study import Row, Study

    own = (config.read_toml(options.config) if options.config else {}) | given(options)
    fixed = {"task", "method", "split", "fraction", "seed"} & own.keys()
    if fixed:
        raise SettingsError(f"compare: {sorted(fixed)[0]} has an option of its own, see --help")
    methods = config.METHODS if options.methods == "all" else tuple(listed(options.methods))
    fractions = dict.fromkeys(config.parse_value("fraction", text) for text in listed(options.fractions))
    rows = tuple(
        Row(split, fraction, methods, options.seeds, own) for fraction in fractions for split in listed(options.splits)
    )
    if not methods or not rows:
        raise SettingsError("compare: --methods, --splits and --fractions want at least one each")
    if options.seeds < 1:
        raise SettingsError(f"--seeds {options.seeds}: expected 1 or more")
    return Study(lasting(options.task), rows)


def listed(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def write_report(runs: Sequence[Path], path: Path) -> None:
    from fedaccord.report.page import write_page

    if runs:
        write_page(runs, path)
        print(f"page: {path}")


def reproduce_command(options: argparse.Namespace) -> int:
    from fedaccord.experiments import paper as reproduce

    for part in options.parts:
        if part not in (*reproduce.PARTS, "all"):
            raise SettingsError(f"reproduce: unknown '{part}'; there are {', '.join(reproduce.PARTS)} and all")
    if options.no_run:
        must_be_there(options.results)
    work = reproduce.Reproduction(
        options.results, options.budget, not options.no_run, options.lanes, options.device, print
    )
    for part in reproduce.PARTS if "all" in options.parts else options.parts:
        work.part(part)
    return 0


def report_command(options: argparse.Namespace) -> int:
    write_report(options.runs, options.output)
    return 0


def watch_command(options: argparse.Namespace) -> int:
    from fedaccord.report.watch import serve

    serve(options.runs, options.port, print)
    return 0


def federation_up(options: argparse.Namespace) -> int:
    from fedaccord.core.files import write_durably
    from fedaccord.runtime import federation

    need_flower()
    if options.nodes < 1:
        raise SettingsError(f"--nodes {options.nodes}: expected 1 or more")
    task, settings = settings_of(options)
    typed = (config.read_toml(options.config) if options.config else {}) | given(options)
    # one class a client would want ten of them: a few clients share the classes unevenly
    divided = task.data is not None
    few = {"split": "dirichlet", "alpha": typed.get("alpha", 0.3)} if divided and "split" not in typed else {}
    settings = config.make(dataclasses.asdict(settings), few, {"clients": options.nodes})
    folder = options.folder or Path("runs") / f"federation-{Path(settings.task.replace(':', '-')).name}"
    local = federation.LocalFederation(
        folder, folder / "settings.toml", options.nodes, options.insecure, options.json, divided
    )
    write_durably(folder / "settings.toml", config.to_toml(settings).encode())  # nobody else may: the folder is locked
    say(options, f"{options.nodes} nodes, SuperLink at {local.address}, {'PLAINTEXT' if options.insecure else 'TLS'}; "
        f"everything is in {folder}")  # fmt: skip
    return local.run()


def federation_server(options: argparse.Namespace) -> int:
    from fedaccord.runtime import federation
    from fedaccord.runtime.live import choose

    need_flower()
    from fedaccord.flower.engine import Link, open_grid

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


def federation_node(options: argparse.Namespace) -> int:
    from fedaccord.runtime import federation

    need_flower()
    from fedaccord.flower.engine import Limits, Link, run_node

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


def try_again(error: EngineError) -> int:
    """What was lost may come back: whoever watches over this process may start it again."""
    print(f"fedaccord: {error}", file=sys.stderr)
    return TRY_AGAIN


def federation_certificates(options: argparse.Namespace) -> int:
    from fedaccord.flower.certificates import make_authority

    need_flower()
    if (options.folder / "ca.key").exists():
        raise RunError(f"{options.folder}: has an authority already; it is never overwritten")
    make_authority(options.folder, options.host, options.days)
    print(f"{options.folder}: ca.pem is for all; ca.key, server.pem, server.key and secret stay with the SuperLink")
    return 0


def federation_key(options: argparse.Namespace) -> int:
    from fedaccord.flower.certificates import make_node_key

    need_flower()
    make_node_key(options.file)
    print(f"{options.file} stays on this machine; register {options.file}.pub at the SuperLink")
    return 0


def root_certificates(options: argparse.Namespace) -> bytes | None:
    if options.insecure:
        return None
    if options.root_certificates is None:
        raise SettingsError("--root-certificates FILE is needed; plaintext must be asked for with --insecure")
    return contents(options.root_certificates)


def contents(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None


def need_flower() -> None:
    if find_spec("flwr") is None:
        raise SettingsError("a federation needs Flower: pip install 'fedaccord[flower]'")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def say(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print(text, file=sys.stderr, flush=True)


def matching_command(options: argparse.Namespace) -> int:
    from fedaccord.methods.matching.describe import matching_report
    from fedaccord.runtime.build import layer_names

    task, settings = settings_of(options)
    inputs = task.prepare(task.data_set().train.inputs[:2], None)
    print(matching_report(task.build_model(settings.width), inputs, layer_names(settings), settings.rm_kernel))
    return 0


def bench_command(options: argparse.Namespace) -> int:
    from fedaccord.experiments import bench
    from fedaccord.report import speed

    tasks = listed(options.tasks)
    for name in [
        *(part for part in options.parts if part not in bench.PARTS),
        *(t for t in tasks if t not in bench.STEPS),
    ]:
        raise SettingsError(
            f"bench: unknown '{name}'; parts are {', '.join(bench.PARTS)}, tasks {', '.join(bench.STEPS)}"
        )
    if options.repeats < 1:
        raise SettingsError(f"--repeats {options.repeats}: expected 1 or more")
    found = bench.run(options.parts or list(bench.PARTS), tasks, options.repeats, options.workers, progress)
    print(speed.table(found))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "bench.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.output / "bench.md").write_text(speed.table(found))
        if "shares" in found:
            speed.draw(found["shares"], options.output / "bench.svg")
        print(f"written to {options.output}", file=sys.stderr)
    return 0


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def data_list(options: argparse.Namespace) -> int:
    from fedaccord.data.catalog import CATALOG, where

    for name, entry in CATALOG.items():
        print(f"{name:<16} {entry.about:<52} {where(name)}")
    return 0


def data_fetch(options: argparse.Namespace) -> int:
    from fedaccord.data import catalog

    print(f"{options.name}: {catalog.fetch(options.name, options.wavs)}")
    return 0


def data_verify(options: argparse.Namespace) -> int:
    from fedaccord.data import catalog

    for line in catalog.verify(options.name):
        print(line)
    return 0


def data_split(options: argparse.Namespace) -> int:
    from fedaccord.data.partition import counts
    from fedaccord.report.split import draw, print_table
    from fedaccord.runtime.build import divide, resolve

    task, settings = settings_of(options)
    data = task.data_set()
    settings = resolve(task, settings, data)
    validation, train, owner = divide(settings, data)
    table = counts(owner, train.targets.numpy(), settings.clients or 0, len(data.classes))
    kept = 0 if validation is None else len(validation)
    title = f"{settings.task}, split {settings.split}, {settings.clients} clients, seed {settings.seed}"
    print_table(table, data.classes, f"{title}; the server keeps {kept:,} examples")
    if options.output:
        draw(table, data.classes, title, options.output)
        print(f"picture: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
