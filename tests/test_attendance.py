"""Nobody is lost in silence: who does not count is told while a run goes on, at its end, and on the page."""

import json
import os
import sys

import pytest
import torch
from torch import nn

from fedaccord import FedAccordWarning, federate
from fedaccord.cli import main
from fedaccord.core.errors import RunError
from fedaccord.core.records import RoundLog
from fedaccord.report.condense import page_data
from fedaccord.runtime.attendance import Attendance, names


def log(round, counted, refused=(), cohort=None):
    """A round in which these clients counted and these were refused, (client, why) each."""
    cohort = sorted({*counted, *(client for client, _ in refused)}) if cohort is None else cohort
    entries = {str(client): {"examples": 5, "loss": 1.0, "update_norm": 0.1} for client in counted}
    refusals = [{"client": client, "why": why} for client, why in refused]
    return RoundLog(round, {}, list(cohort), refusals, 1.0, None, None, {}, None, entries)


def test_a_client_is_told_once_when_lost_and_once_when_back():
    present = Attendance()
    assert present.add(log(1, [0, 1, 2])) == []
    assert present.add(log(2, [0], [(1, "late"), (2, "late")])) == [
        "clients 1 and 2 do not count from round 2 on: late"
    ]
    assert present.add(log(3, [0], [(1, "late"), (2, "a NaN")])) == []
    assert present.now() == "without clients 1 and 2"
    assert present.add(log(4, [0, 1], cohort=[0, 1])) == ["client 1 counts again from round 4 on"]
    assert present.sentences() == ["client 2 did not count since round 2: a NaN"]
    assert present.never() == []


def test_who_never_counted_is_told_with_the_newest_reason():
    present = Attendance()
    present.add(log(1, [0], [(3, "late")], cohort=[0, 2, 3]))
    present.add(log(2, [0], [(3, "a NaN")]))
    assert present.sentences() == ["client 2 never counted: it has no data", "client 3 never counted: a NaN"]


def test_rounds_without_anybody_are_counted_in_a_row():
    present = Attendance()
    for round, counted in ((1, [0]), (2, []), (3, []), (4, [0]), (5, [])):
        present.add(log(round, counted, [] if counted else [(0, "late")]))
        assert present.empty_rounds == {1: 0, 2: 1, 3: 2, 4: 0, 5: 1}[round]


def test_many_clients_are_counted_not_listed():
    assert names(range(120)) == "120 clients (0, 1, 2, 3, 4 ...)"
    assert names([3, 4, 7]) == "clients 3, 4 and 7"


def sites(bad=()):
    """Four clients of 20 examples; those named have such large numbers that training on them blows up."""
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(20, 3, generator=draw), torch.arange(20) % 2) for _ in range(4)]
    for client in bad:
        data[client][0][:] = 3e38
    return data


def net():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_a_client_that_blows_up_is_seen_at_once_and_in_the_end(capsys):
    good = sites()[0]
    with pytest.warns(FedAccordWarning, match=r"client 2 never counted: a value is not finite"):
        history = federate(net(), sites(bad=[2]), good, rounds=3, show=True, engine="serial")
    assert len(history.rounds) == 3
    shown = capsys.readouterr().out
    assert shown.count("client 2 does not count from round 1 on: a value is not finite") == 1
    assert "round 3/3" in shown
    assert "without client 2" in shown.splitlines()[-1]


def test_without_show_the_warning_comes_all_the_same(capsys):
    with pytest.warns(FedAccordWarning, match="client 2 never counted"):
        federate(net(), sites(bad=[2]), sites()[0], rounds=2, engine="serial")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("every", [1, 20])
@pytest.mark.parametrize(("chosen", "ends"), [
    ({"method": "FA", "lr_decay": 0.9}, 3), ({"method": "FA", "lr_decay": 0.3}, 3), ({"method": "FA+AH"}, 5),
])  # fmt: skip
def test_a_run_in_which_nobody_counts_ends_and_can_be_gone_on_with(tmp_path, every, chosen, ends):
    """Three rounds without anybody end it; called again, it gives everybody another three. A schedule goes on falling,
    by however much, which is no reason to wait; a tuner has brought the rate down to the end of its grid in the two
    rounds before."""
    settings = {"rounds": 50, "engine": "serial", "folder": tmp_path / "run", "checkpoint_every": every}
    settings |= chosen
    everybody = sites(bad=range(4))
    with pytest.raises(RunError, match=rf"in the last 3 rounds \(up to round {ends}\): a value is not finite"):
        federate(net(), everybody, sites()[0], **settings)
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes().count(b"\n") == ends
    with pytest.raises(RunError, match=f"up to round {ends + 3}"):
        federate(net(), everybody, sites()[0], **settings)


def test_a_run_that_is_over_is_not_to_be_gone_on_with(tmp_path):
    """Its last three rounds were those without anybody: there is no round left for which to mend anything."""
    for _ in ("first", "again"):
        settings = {"method": "FA", "rounds": 3, "engine": "serial", "folder": tmp_path / "run"}
        with pytest.warns(FedAccordWarning) as told:
            history = federate(net(), sites(bad=range(4)), sites()[0], **settings)
        assert len(history.rounds) == 3
        assert "no round was kept" in str(told[-1].message)


TASK = """
import torch
from torch import nn
from fedaccord import Examples, Task
from fedaccord.data.sets import DataSet

def data():
    x, y = torch.randn(90, 3, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3
    x[(y == 1) & (torch.arange(90) > 60)] = 3e38  # it blows up; class 1 is client 1's, and these are not the server's
    return DataSet(Examples(x, y), Examples(x[:6], y[:6]), ("a", "b", "c"))

task = Task("odd", data, lambda: nn.Linear(3, 3), settings={"clients": 3, "validation_per_class": 2, "rounds": 3})
"""


@pytest.mark.slow
def test_the_command_line_and_the_page_tell_of_lost_clients(tmp_path, capsys):
    (tmp_path / "odd.py").write_text(TASK)
    words = ["run", f"{tmp_path / 'odd.py'}:task", "--runs", str(tmp_path), "--name", "r", "--batch-size", "64"]
    assert main([*words, "--seed", "1"]) == 0
    printed = capsys.readouterr()
    assert "client 1 does not count from round 1 on: a value is not finite" in printed.out
    assert "fedaccord: warning: client 1 never counted: a value is not finite" in printed.err
    (run,) = page_data([tmp_path / "r"])["runs"]
    assert run["absent"] == ["client 1 never counted: a value is not finite"]
    assert main(["resume", str(tmp_path / "r"), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["warnings"] == ["client 1 never counted: a value is not finite"]


@pytest.mark.slow
def test_the_live_view_marks_them(tmp_path):
    """In a real terminal of 110 columns."""
    pty = pytest.importorskip("pty")
    (tmp_path / "odd.py").write_text(TASK)
    seen = bytearray()

    def read(descriptor):
        data = os.read(descriptor, 65536)
        seen.extend(data)
        return data

    script = (
        "import sys; from fedaccord.cli import main; "
        f"sys.exit(main(['run', r'{tmp_path / 'odd.py'}:task', '--runs', r'{tmp_path}', '--name', 'r', '--seed', '1']))"
    )
    saved = {name: os.environ.get(name) for name in ("COLUMNS", "TERM")}
    os.environ.update(COLUMNS="110", TERM="xterm")
    try:
        status = pty.spawn([sys.executable, "-c", script], read, lambda descriptor: b"")
    finally:
        for name, value in saved.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    assert status == 0
    assert b"not since round 1: a value is not finite" in seen
