"""The benchmark runs and counts rightly; how fast anything is, no test says."""

import gzip
import json

import pytest

from fedaccord import cli
from fedaccord.experiments import bench, field, scaling
from fedaccord.report import evolution
from fedaccord.runtime.folder import read_rounds


def test_flops_of_a_step_by_hand():
    """Digits: 64-64-64-10 on 32 examples. Forward and weight gradients each 2 * 32 * (64*64 + 64*64 + 64*10); the
    gradient of the activations without the input's, 2 * 32 * (64*64 + 64*10). RM, on 16 of them: the frozen model's
    forward pass, and f_1, f_2 of 64x64 and f_3 of 10x64, three times forward (both gradients)."""
    layers = 64 * 64 + 64 * 64 + 64 * 10
    plain = 2 * 32 * (2 * layers + 64 * 64 + 64 * 10)
    assert bench.step_flops(bench.prepared("digits", "FA", engine="serial")) == plain
    matching = 2 * 16 * (layers + 3 * layers)
    assert bench.step_flops(bench.prepared("digits", "FA+RM", engine="serial")) == plain + matching


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_command_writes_figures_table_and_picture(tmp_path, capsys, monkeypatch):
    """With a clock by which everything takes half a second: shares and ratios by hand, on any machine."""

    def half_a_second(work):
        work()
        return 0.5

    peak = bench.peak
    monkeypatch.setattr(bench, "seconds", half_a_second)
    monkeypatch.setattr(bench, "peak", lambda threads: peak(threads, size=100))
    monkeypatch.setitem(bench.STEPS, "digits", 5)
    assert cli.main(["bench", "shares", "methods", "--tasks", "digits", "--repeats", "1", "-o", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "bench.json").read_text())
    shares = found["shares"]["digits"]
    assert shares["engine"].startswith("stacked")
    # ten clients of five steps against a product of two 100x100 matrices, in the same time; four digits are kept
    for method, share in shares["share_of_peak"].items():
        flops = shares["flops_a_step"]["FA" if method == "bare loop" else method]
        assert share == pytest.approx(flops * 10 * 5 / (2 * 100**3), rel=1e-3)
    assert set(shares["share_of_peak"]) == {"FA", "FA+WD", "FA+RM", "bare loop"}
    assert set(shares["ms_a_client_step"].values()) == {10.0}  # 500 ms by 50 steps
    assert shares["times_the_bare_loop"] == 1.0
    assert shares["times_the_plain"] == {"FA": 1.0, "FA+WD": 1.0, "FA+RM": 1.0}
    # with a tuner, all that it costs the server comes on top
    assert {method: entry["to_FA"] for method, entry in found["methods"]["digits"].items()} == {
        "FA": 1.0, "FA+WD": 1.0, "FA+RM": 1.0, "FA+AH": 2.0, "FA+RM+AH": 2.0,
    }  # fmt: skip
    assert (tmp_path / "bench.md").read_text() in capsys.readouterr().out
    assert "share of the matrix-product peak" in (tmp_path / "bench.svg").read_text()


@pytest.mark.slow
def test_whole_rounds_of_all_methods_there_are(tmp_path, capsys, monkeypatch):
    """Four and the paper's stand for all, since each is traced anew.

    Bytes by hand: SCAFFOLD sends c down and its change up beside the model, and the size of c_i (a float64).
    """
    monkeypatch.setattr(field, "METHODS", ("FA", "SCAFFOLD", "FedNova", "FATHOM"))
    assert cli.main(["bench", "rounds", "--tasks", "digits", "--repeats", "1", "-o", str(tmp_path)]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    table = {name: (float(time), float(sent)) for name, time, sent in rows[1:]}
    assert table.keys() == {*field.METHODS, "FA+WD", "FA+RM", "FA+AH", "FA+RM+AH"}
    assert table["FA"] == (1, 1)
    assert all(time > 0 for time, _ in table.values())
    assert {name for name, (_, sent) in table.items() if sent != 1} == {"SCAFFOLD"}
    assert table["SCAFFOLD"][1] == 2
    model = 4 * (2 * (64 * 64 + 64) + 64 * 10 + 10)
    found = json.loads((tmp_path / "bench.json").read_text())["rounds"]["digits"]
    assert found["FA"]["bytes"] == 10 * 2 * model
    assert found["SCAFFOLD"]["bytes"] == 10 * (4 * model + 8)


@pytest.mark.parametrize("wrong", [["speed"], ["shares", "--tasks", "moon"], ["shares", "--repeats", "0"]])
def test_what_cannot_be_measured_is_told(wrong, capsys):
    assert cli.main(["bench", *wrong]) == 2
    assert "expected" in (told := capsys.readouterr().err) or "unknown" in told


def test_a_folder_that_cannot_be_is_told_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "run", lambda *args: pytest.fail("measured"))
    (file := tmp_path / "bench").touch()
    assert cli.main(["bench", "rounds", "-o", str(file)]) != 0
    assert f"{file}: not a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_evolution_figure_from_a_compressed_log(tmp_path):
    run = ["run", "digits", "--method", "FA+AH", "--rounds", "3", "--runs", str(tmp_path), "--name", "a", "--json"]
    assert cli.main(run) == 0
    log = tmp_path / "a" / "rounds.jsonl"
    whole = list(read_rounds(tmp_path / "a"))
    (tmp_path / "a" / "rounds.jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    assert list(read_rounds(tmp_path / "a")) == whole
    evolution.draw({"digits": {"non-iid": [tmp_path / "a"]}}, tmp_path / "e.svg")
    assert (tmp_path / "e.svg").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_scaling_benchmark_measures(capsys):
    scaling.one_size(4, 2, rounds=4)
    found = json.loads(capsys.readouterr().out)
    assert (found["clients"], found["cohort"]) == (4, 2)
    assert found["ms_a_client_round"] > 0
