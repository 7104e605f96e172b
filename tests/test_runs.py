"""Run folders: resume to the bit, damage, locks."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest
import torch

from fedaccord import config
from fedaccord.client.store import ClientStore
from fedaccord.core.algorithm import run, start
from fedaccord.core.errors import RunError
from fedaccord.core.packages import flatten
from fedaccord.core.processes import processor_kind, processor_model
from fedaccord.core.records import RoundLog, ServerState, Snapshot
from fedaccord.core.settings import LENGTH, OPERATION
from fedaccord.methods.registry import find
from fedaccord.runtime.build import from_task
from fedaccord.runtime.changes import other_settings
from fedaccord.runtime.checkpoints import manifests, sealed, write_checkpoint
from fedaccord.runtime.drive import checkpoint, drive
from fedaccord.runtime.folder import RunFolder, read_rounds
from fedaccord.runtime.identity import LATER, fingerprint, log_sha256, params_sha256
from fedaccord.runtime.live import View
from fedaccord.runtime.weights import newest
from fedaccord.tasks import find_task

ROUNDS = 12
OLD_PROCESSOR = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}


def simulation(**changes):
    task = find_task("digits")
    common = {"method": "FA", "rounds": ROUNDS, "fraction": 0.5, "steps": 2, "test_every": 5, "engine": "serial"}
    changes = {**common, **changes}
    return from_task(task, config.make(task.defaults("non-iid"), changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run: hash of the parameters, hash of the log."""
    path = tmp_path_factory.mktemp("whole") / "run"
    return finish(path, simulation())


def finish(path, sim):
    """Start or go on, to the end."""
    with RunFolder(path) if path.exists() else RunFolder.create(path, sim.settings) as folder:
        outcome = drive(sim, folder, None)
    return params_sha256(outcome.state.params), log_sha256(list(read_rounds(path)))


def about(sim):
    return fingerprint(sim.settings, sim.params, sim.experiment.data())


def stop_after(path, sim, rounds, save=True):
    """What a run leaves that ends after so many rounds; save=False: it dies between the log line and the checkpoint."""
    with RunFolder.create(path, sim.settings) as folder:
        engine = sim.experiment.engine
        engine.open(folder.private)
        state = start(sim.experiment, sim.params)
        checkpoint(engine, folder, state, about(sim))
        for state, log in run(sim.experiment, state):  # noqa: B020
            folder.append(log)
            if save or state.round < rounds:
                checkpoint(engine, folder, state, about(sim))
            elif sim.settings.store == "memory":
                engine.save()  # theta_i of the round that is lost is on disk already
            if state.round == rounds:
                break


@pytest.mark.slow
@pytest.mark.parametrize("save", [True, False])
@pytest.mark.parametrize("k", range(1, ROUNDS))
def test_stopped_after_any_round_a_run_resumes_to_the_same_bits(tmp_path, whole, k, save):
    stop_after(tmp_path / "run", simulation(), k, save)
    assert finish(tmp_path / "run", simulation()) == whole


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pool", "stacked"])
def test_on_other_engines_too(tmp_path, whole, engine):
    straight = finish(tmp_path / "straight", simulation(engine=engine))
    assert (straight == whole) == (engine == "pool")  # stacks have bits of their own
    for k, save in ((4, True), (7, False)):
        stop_after(tmp_path / f"{k}", simulation(engine=engine), k, save)
        assert finish(tmp_path / f"{k}", simulation(engine=engine)) == straight


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_with_private_parameters_too(tmp_path, store):
    """FA+RM: the hash covers theta_i of every client as well."""

    def thetas(path):
        kept = ClientStore(path / "private", in_memory=True)
        newest = [kept.generations(client)[-1][0] for client in range(10)]
        return [params_sha256(flatten(kept.get(client, newest[client]))) for client in range(10)]

    changes = {"method": "FA+RM", "store": store, "rm_weight": 1e-2}
    whole = finish(tmp_path / "whole", simulation(**changes))
    other = finish(tmp_path / "other", simulation(**{**changes, "store": "memory" if store == "disk" else "disk"}))
    assert other == whole  # where theta_i lives changes nothing
    for k, save in ((1, True), (4, False), (7, True), (11, False)):
        path = tmp_path / f"{k}"
        stop_after(path, simulation(**changes), k, save)
        assert finish(path, simulation(**changes)) == whole
        assert thetas(path) == thetas(tmp_path / "whole") == thetas(tmp_path / "other")
    assert whole != finish(tmp_path / "fresh", simulation(**changes, rm_memory="fresh"))


def test_matching_with_weight_zero_is_fa_to_the_bit(tmp_path, whole):
    assert finish(tmp_path / "run", simulation(method="FA+RM", rm_weight=0.0))[0] == whole[0]


def test_one_round_that_blew_up_does_not_spoil_the_next(tmp_path):
    """A rate of 1e30 makes every client's weights and theta_i infinite; a later, sane round must work again.

    After one step weights are of the order of 1e30, and the product of two is beyond float32's 3e38.
    """
    sim = simulation(method="FA+RM", rm_weight=1e-2, lr=1e30, lr_decay=1e-31, rounds=4)
    logs = [log for _, log in run(sim.experiment, start(sim.experiment, sim.params))]
    assert len(logs[0].refused) == 5
    assert not logs[1].refused
    assert logs[1].guard is None


def test_resuming_a_finished_run_changes_nothing(tmp_path, whole):
    assert finish(tmp_path / "run", simulation()) == whole
    assert finish(tmp_path / "run", simulation()) == whole


class Stopped(View):
    """A view at which somebody presses Ctrl-C, after the round of this number."""

    def __init__(self, last):
        self.last = last

    def show(self, log):
        if log.round == self.last:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("last", "over"), [(ROUNDS - 1, False), (ROUNDS, True)])
def test_ctrl_c_in_the_last_round_comes_too_late(tmp_path, last, over):
    """The run is over, so that the results by class are there. Before, the round that was shown is kept."""
    sim = simulation(checkpoint_every=7)
    with RunFolder.create(tmp_path / "run", sim.settings) as folder:
        outcome = drive(sim, folder, Stopped(last))
        assert folder.load().state.round == last
    assert outcome.stopped != over
    assert json.loads((tmp_path / "run" / "classes.json").read_text())["round"] == (ROUNDS if over else 0)


def test_sparse_checkpoints_resume_to_the_same_bits(tmp_path, whole):
    sim = simulation(checkpoint_every=5)
    with RunFolder.create(tmp_path / "run", sim.settings) as folder:
        state = start(sim.experiment, sim.params)
        folder.save(state, about=about(sim))
        for state, log in run(sim.experiment, state):  # noqa: B020
            folder.append(log)
            if state.round == 5:
                folder.save(state, about=about(sim))
            if state.round == 8:
                break
    assert finish(tmp_path / "run", sim) == whole


def truncate(newest):
    newest.with_suffix(".safetensors").write_bytes(newest.with_suffix(".safetensors").read_bytes()[:-10])


def flip_a_bit(newest):
    tensors = newest.with_suffix(".safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)


def lose_the_tensors(newest):
    newest.with_suffix(".safetensors").unlink()


def empty_the_manifest(newest):
    newest.write_bytes(b"")


def alter_the_manifest(newest):
    newest.write_text(newest.read_text().replace('"loss": ', '"loss": 1'))


def half_a_log_line(newest):
    log = newest.parent.parent / "rounds.jsonl"
    log.write_bytes(log.read_bytes() + b'{"round": 8, "hy')


@pytest.mark.parametrize(
    "damage", [truncate, flip_a_bit, lose_the_tensors, empty_the_manifest, alter_the_manifest, half_a_log_line]
)
def test_the_newest_good_checkpoint_is_used_and_the_log_cut_back_to_it(tmp_path, whole, damage):
    stop_after(tmp_path / "run", simulation(), 7)
    manifests = sorted((tmp_path / "run" / "checkpoints").glob("*.json"))
    assert len(manifests) == 2  # two generations
    damage(manifests[-1])
    folder = RunFolder(tmp_path / "run")
    state = folder.load().state
    assert state.round == (7 if damage is half_a_log_line else 6)
    assert len(folder.rounds()) == state.round
    folder.close()
    assert finish(tmp_path / "run", simulation()) == whole


def test_a_damaged_checkpoint_is_no_generation(tmp_path, whole):
    """Round 6 is the newest good one, and the next is of round 9: nothing writes over the damaged one of round 7."""
    stop_after(tmp_path / "run", simulation(checkpoint_every=3), 7)
    folder = tmp_path / "run" / "checkpoints"
    empty_the_manifest(folder / "000007.json")
    assert finish(tmp_path / "run", simulation(checkpoint_every=3)) == whole
    assert not (folder / "000007.json").exists()


def test_files_of_other_names_are_left_alone(tmp_path):
    """Copies that a person made, whole or not, and notes."""
    stop_after(tmp_path / "run", simulation(rounds=5), 3)
    place, kinds = tmp_path / "run" / "checkpoints", ("json", "safetensors")
    for kind in kinds:
        shutil.copy(place / f"000003.{kind}", place / f"000150 (copy).{kind}")
        (place / f"notes.{kind}").write_text("{}")
    assert newest(tmp_path / "run").round == 3
    finish(tmp_path / "run", simulation(rounds=5))
    stems = ("000004", "000005", "000150 (copy)", "notes")
    assert {path.name for path in place.iterdir()} == {f"{stem}.{kind}" for stem in stems for kind in kinds}


def test_checkpoints_go_by_their_number_beyond_six_digits(tmp_path):
    for round in (999_998, 999_999, 1_000_000, 1_000_001):
        write_checkpoint(tmp_path, ServerState(round, Snapshot({"w": torch.ones(2)}), None, {}), "", 0)
        assert int(manifests(tmp_path)[-1].stem) == round
    assert sorted(path.stem for path in tmp_path.glob("*.safetensors")) == ["1000000", "1000001"]


def test_with_no_readable_checkpoint_the_log_is_kept_and_the_error_says_so(tmp_path):
    stop_after(tmp_path / "run", simulation(), 3)
    for manifest in (tmp_path / "run" / "checkpoints").glob("*.json"):
        empty_the_manifest(manifest)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RunError, match="no checkpoint fits"):
        folder.load()
    assert len(folder.rounds()) == 3
    folder.close()


def delete_the_log(run):
    (run / "rounds.jsonl").unlink()


def delete_the_manifests(run):
    for manifest in (run / "checkpoints").glob("*.json"):
        manifest.unlink()


def delete_the_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


@pytest.mark.parametrize("delete", [delete_the_log, delete_the_manifests, delete_the_checkpoints])
def test_deleted_files_are_told_and_nothing_else_is_touched(tmp_path, delete):
    stop_after(tmp_path / "run", simulation(), 3)
    delete(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with RunFolder(tmp_path / "run") as folder, pytest.raises(RunError, match="damaged or missing"):
        folder.load()
    assert all(path.read_bytes() == data for path, data in before.items())


def test_private_parameters_that_are_gone_are_told(tmp_path):
    changes = {"method": "FA+RM", "rm_weight": 1e-2}
    stop_after(tmp_path / "run", simulation(**changes), 3)
    shutil.rmtree(tmp_path / "run" / "private")
    with pytest.raises(RunError, match="is missing"):
        finish(tmp_path / "run", simulation(**changes))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"lr": 0.3}, {"alpha": 0.1, "split": "dirichlet"}])
def test_a_run_goes_on_only_with_the_settings_it_began_with(tmp_path, changes):
    stop_after(tmp_path / "run", simulation(), 3)
    with pytest.raises(RunError, match=rf"other settings: .*{min(changes)} = \S+ there, {changes[min(changes)]} here"):
        finish(tmp_path / "run", simulation(**changes))


def test_more_rounds_may_be_asked_for(tmp_path, whole):
    stop_after(tmp_path / "run", simulation(rounds=5), 5)  # round 5 is tested in both runs: test_every is 5
    assert finish(tmp_path / "run", simulation()) == whole


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path, whole):
    RunFolder.create(tmp_path / "run", simulation().settings).close()
    assert finish(tmp_path / "run", simulation()) == whole


def test_only_one_process_may_hold_a_run(tmp_path):
    folder = RunFolder.create(tmp_path / "run", simulation().settings)
    with pytest.raises(RunError, match="another process"):
        RunFolder(tmp_path / "run")
    folder.close()
    RunFolder(tmp_path / "run").close()


def test_a_folder_is_never_overwritten_and_others_are_refused(tmp_path):
    settings = simulation().settings
    RunFolder.create(tmp_path / "run", settings).close()
    with pytest.raises(RunError, match="exists already"):
        RunFolder.create(tmp_path / "run", settings)
    assert not list(tmp_path.glob(".new-*"))
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder(tmp_path)


def test_settings_and_state_come_back_as_they_were(tmp_path):
    sim = simulation()
    folder = RunFolder.create(tmp_path / "run", sim.settings)
    assert folder.settings() == sim.settings
    odd = {
        "bits": torch.tensor([0.1, -0.0, 1e-45]),
        "count": torch.tensor(7),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    model = Snapshot(odd, {"SCAFFOLD.c": {"w": torch.tensor([0.3])}, "average.mean": odd}, {3: 4, 0: 2})
    before = Snapshot({"bits": torch.tensor([7.0])}, {}, {0: 2})
    state = ServerState(4, model, 0.1 + 0.2, {"mu": [0.1, 1 / 3], "window": [[1.5, None]]}, before)
    folder.save(state)
    back = folder.load().state
    assert folder.needed() == {3: 4, 0: 2}
    folder.close()
    none = Snapshot({})
    assert dataclasses.replace(back, model=none, previous=none) == dataclasses.replace(state, model=none, previous=none)
    for own, came in ((model, back.model), (before, back.previous)):
        assert params_sha256(came.params) == params_sha256(own.params)
        assert params_sha256(flatten(came.server)) == params_sha256(flatten(own.server))
        assert came.accepted == own.accepted


def test_the_hashes_see_every_bit_and_only_what_is_deterministic():
    params = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}
    assert params_sha256(params) == params_sha256(dict(reversed(params.items())))
    for other in ({"a": torch.tensor([1.0, -2.0])}, {"a": torch.tensor([[1.0, 2.0]])}, {"b": torch.tensor([3.0])}):
        assert params_sha256({**params, **other}) != params_sha256(params)
    assert params_sha256({"a": torch.tensor([0.0])}) != params_sha256({"a": torch.tensor([-0.0])})
    line = dataclasses.asdict(RoundLog(1, {}, [0], [], 1.0, {}, 0.1, {}, None, {}, seconds={"train": 1.0}))
    assert log_sha256([line]) == log_sha256([{**line, "seconds": {"train": 2.0}}])
    assert log_sha256([line]) != log_sha256([{**line, "loss": 1.0000001}])


def test_log_lines_have_all_that_the_design_names(tmp_path):
    stop_after(tmp_path / "run", simulation(), 1)
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())
    assert list(line) == [
        "round", "hyper", "cohort", "refused", "loss", "metrics", "reward", "policy", "guard", "clients",
        "step_norm", "method", "last_loss", "stretch", "handed", "score", "best", "bytes", "seconds"
    ]  # fmt: skip


def test_a_checkpoint_says_on_what_kind_of_processor_it_was_written(tmp_path):
    stop_after(tmp_path / "run", simulation(), 1)
    with RunFolder(tmp_path / "run") as folder:
        assert folder.load().processor == processor_kind()


def test_a_checkpoint_from_before_that_was_recorded_is_read_in_silence(tmp_path, whole, capsys):
    stop_after(tmp_path / "run", simulation(), 4)
    for manifest in (tmp_path / "run" / "checkpoints").glob("*.json"):
        body = json.loads(manifest.read_text())["body"]
        assert body.pop("processor")
        manifest.write_bytes(sealed(body))
    assert finish(tmp_path / "run", simulation()) == whole
    assert capsys.readouterr().err == f"fedaccord: {tmp_path / 'run'}: going on after round 4\n"


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_run_that_goes_on_with_other_instructions_is_told_once(tmp_path):
    """The variables make torch do its sums as on a processor of long ago; the run goes on, with a word about it."""
    words = [sys.executable, "-m", "fedaccord.cli"]
    begin = [*words, "run", "digits", "--runs", str(tmp_path), "--name", "run", "--rounds", "2", "--engine", "serial"]
    plain = {name: value for name, value in os.environ.items() if name not in OLD_PROCESSOR}
    subprocess.run(begin, env=plain, check=True, capture_output=True)

    def resumed(rounds, **environment):
        settings = tmp_path / "run" / "settings.toml"
        settings.write_text(re.sub(r"(?m)^rounds = \d+$", f"rounds = {rounds}", settings.read_text()))
        again = [*words, "resume", str(tmp_path / "run")]
        return subprocess.run(again, env={**plain, **environment}, check=True, capture_output=True, text=True).stderr

    with RunFolder(tmp_path / "run") as folder:
        before = folder.load().processor
    told = [line for line in resumed(4, **OLD_PROCESSOR).splitlines() if "kind of processor" in line]
    with RunFolder(tmp_path / "run") as folder:
        after = folder.load().processor
    assert after.endswith("DEFAULT ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE")
    assert told == [
        f"fedaccord: {tmp_path / 'run'}: the run was on another kind of processor so far "
        f"({before}; this one: {after}): from here on the last digits may differ"
    ]
    assert "kind of processor" not in resumed(5, **OLD_PROCESSOR)  # it was told already
    assert "kind of processor" not in resumed(5)  # nothing is left to do


X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("text", "model"), [(f"{X86}\n{X86}", "AuthenticAMD/25/17"), (ARM, "0x41/0xd40"), ("", "unknown")]
)
def test_the_model_of_a_processor(tmp_path, text, model):
    (tmp_path / "cpuinfo").write_text(text)
    assert processor_model(tmp_path / "cpuinfo") == model
    assert processor_model(tmp_path / "absent") != ""


BEFORE = """
address allow_empty alpha augment average baseline batch_size checkpoint_every classes_per_client client_test
clients clip_gradient clip_norm cohorts deadline device diagonal engine entropy_weight evaluate follow
fraction grid guards hold hyper_lr image_size init interval lr lr_decay method metrics min_replies mlflow
momentum nesterov optimizer optimizer_state paired patience precision psi readers replay reports rm_batch
rm_kernel rm_layers rm_memory rm_step rm_weight rounds seed server_lr shards_per_client split start
step_search steps steps_decay store task tensorboard test_every threads travels validation_per_class wandb
weight_decay weighting width workers yardstick
"""
"""What version 2 began with, for a run of FA+RM+AH."""


def test_a_setting_that_came_later_does_not_keep_a_run_from_going_on():
    """Whoever adds a setting notes in LATER what runs of before did."""
    settings = config.make({"task": "kws", "method": "FA+RM+AH"})
    brought = config.table(find(settings.method))
    new = {name: value for name, value in settings.values().items() if name not in BEFORE.split() and value is not None}
    new = {name: value for name, value in new.items() if brought[name].role not in (LENGTH, OPERATION)}
    assert new == {name: LATER[name] for name in new}
    text = config.to_toml(settings)
    before = {name: value for name, value in tomllib.loads(text).items() if name not in new}
    assert other_settings(before, settings) == []
