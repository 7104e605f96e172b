"""Time fedaccord, Flower's simulation and pfl on the same model, data, clients, mini-batch size, steps and rounds.

    python benchmarks/against.py --task mnist --repeats 3 -o results/bench

Each framework runs in a virtual environment of its own, which is made the first time (about a gigabyte each). In every
repeat each of them runs once, in turn; what counts is the median time of a round, the first left out. The loss on
held-out examples after the last round shows that all did the same work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
import torch

from fedaccord.experiments.bench import STEPS, machine, prepared
from fedaccord.objectives import default_entropy_min
from fedaccord.runtime.build import hyper_of
from fedaccord.runtime.drive import drive

HERE = Path(__file__).parent
ROUNDS = {"mnist": 8, "cifar10": 4}
NETWORK = {"mnist": "mnist_mlp", "cifar10": "cifar_cnn"}
OTHERS = {
    "Flower, default": ("flower", "flower_simulation.py", "default"),
    "Flower, best": ("flower", "flower_simulation.py", "best"),
    "pfl, default": ("pfl", "pfl_simulation.py", "1"),
    "pfl, two processes": ("pfl", "pfl_simulation.py", "2"),
}
NEEDS = {"flower": ["flwr[simulation]==1.41.0"], "pfl": ["pfl", "h5py"]}


def environment(name: str, root: Path) -> Path:
    """Return the Python of this framework's virtual environment, which is made if it is not there.

    Torch is installed by itself first, as its pin keeps the GPU libraries away.
    """
    folder = root / name
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        print(f"making the environment for {name} in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "torch==2.13.0", "numpy"], check=True)
        subprocess.run([*install, *NEEDS[name]], check=True)
        (folder / ".ready").touch()
    return python


def write_work(task: str, folder: Path) -> None:
    """Write the work of every framework into files that need nothing of fedaccord but its networks."""
    setup = prepared(task, "FA", engine="serial", augment=False)
    site = setup.experiment.engine.site
    np.save(folder / "inputs.npy", np.concatenate([site.prepare(c.inputs, None).numpy() for c in site.clients]))
    np.save(folder / "targets.npy", np.concatenate([client.targets.numpy() for client in site.clients]))
    np.save(folder / "ends.npy", np.cumsum([len(client) for client in site.clients]))
    torch.save(setup.params, folder / "start.pt")
    held = site.clients[0][:512]
    torch.save((site.prepare(held.inputs, None), held.targets), folder / "held.pt")
    hyper = hyper_of(setup.settings, setup.method)
    work = {
        "models": str(HERE.parent / "fedaccord" / "models.py"),
        "network": NETWORK[task],
        "clients": len(site.clients),
        "rounds": ROUNDS[task],
        "steps": STEPS[task],
        "batch_size": hyper.batch_size,
        "lr": hyper.lr,
        "entropy_min": default_entropy_min(10),
    }
    (folder / "work.json").write_text(json.dumps(work))


def ours(task: str, folder: Path) -> dict:
    """Run the rounds in fedaccord, as `fedaccord run` does; return the seconds of each but the first, and the loss.

    The time of a round is that of training, averaging and the policy.
    """
    settings = {"rounds": ROUNDS[task], "steps": STEPS[task], "lr_decay": 1.0, "augment": False, "test_every": 10**6}
    outcome = drive(prepared(task, "FA", **settings), None, None)
    seconds = [log.seconds["train"] + log.seconds["aggregate"] + log.seconds["policy"] for log in outcome.rounds]
    sys.path.insert(0, str(HERE / "others"))
    os.environ["FEDACCORD_AGAINST"] = str(folder)
    import common

    model = common.build_model()
    model.load_state_dict(outcome.state.params)
    return {"seconds_a_round": seconds[1:], "loss": common.held_out_loss(model)}


def theirs(name: str, root: Path, folder: Path) -> dict:
    """Run the rounds in another framework, with its own Python, and return what its script reports."""
    kind, script, argument = OTHERS[name]
    surroundings = {**os.environ, "FEDACCORD_AGAINST": str(folder), "PYTHONPATH": str(HERE / "others")}
    surroundings.pop("OMP_NUM_THREADS", None)  # torch's default threads, unless the script says otherwise
    command = [str(environment(kind, root)), str(HERE / "others" / script), argument]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, cwd=folder, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds_a_round"')]
    if not lines:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(lines[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=ROUNDS, default="mnist")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="some of the others, with semicolons, since their names have commas")
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "fedaccord-against")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [name.strip() for name in options.only.split(";")] if options.only else list(OTHERS)
    found: dict[str, list[dict]] = {name: [] for name in ("fedaccord", *names)}
    with tempfile.TemporaryDirectory() as folder:
        write_work(options.task, Path(folder))
        for repeat in range(options.repeats):
            for name in found:
                entry = (
                    ours(options.task, Path(folder))
                    if name == "fedaccord"
                    else theirs(name, options.environments, Path(folder))
                )
                found[name].append(entry)
                print(
                    f"repeat {repeat + 1}: {name} {statistics.median(entry['seconds_a_round']):.3f} s", file=sys.stderr
                )
    rows = {
        name: {
            "seconds_a_round": statistics.median(statistics.median(entry["seconds_a_round"]) for entry in entries),
            "times": statistics.median(
                statistics.median(entry["seconds_a_round"]) / statistics.median(own["seconds_a_round"])
                for entry, own in zip(entries, found["fedaccord"], strict=True)
            ),
            "loss": statistics.median(entry["loss"] for entry in entries),
        }
        for name, entries in found.items()
    }
    print(
        f"| {options.task}, {STEPS[options.task]} steps a client | s a round | fedaccord is faster by | held-out loss |"
    )
    print("|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['seconds_a_round']:.3f} | {row['times']:.2f} | {row['loss']:.3f} |")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        facts = {"machine": machine(), "repeats": options.repeats, "rows": rows}
        (options.output / f"against-{options.task}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
