"""`federation up` and its folder: whatever is killed at whatever instant, the next start works.

Random instants with real processes are in benchmarks/kill_federation_start.py.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fedaccord import config
from fedaccord.cli import main
from fedaccord.core.errors import EngineError, RunError
from fedaccord.core.processes import activity
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import read_rounds
from fedaccord.tasks import find_task

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own
from fedaccord.flower import local as federation  # noqa: E402
from fedaccord.flower.local import LocalFederation  # noqa: E402
from fedaccord.flower.superlink import is_whole  # noqa: E402

OWN = {"task": "digits", "clients": 2, "method": "FA+RM+AH", "split": "dirichlet", "alpha": 0.3, "rounds": 4}
SETTINGS = config.make(find_task("digits").defaults("dirichlet"), OWN)


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A federation of two clients that was not started yet; ended in the end."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "federation"
    made = LocalFederation(folder, 2, json=True)
    (folder / "settings.toml").write_text(config.to_toml(SETTINGS))
    yield made
    made.end()


# ---------------------------------------------------------------- the SuperLink's database

KILLED_IN_MIGRATION = """
import os, signal, sys
from sqlalchemy import Engine, create_engine, event
from flwr.supercore.sql_mixin import _set_sqlite_pragmas
from flwr.supercore.state.alembic.utils import run_migrations

left = int(sys.argv[2])


@event.listens_for(Engine, "before_cursor_execute")
def count(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


engine = create_engine(f"sqlite:///{sys.argv[1]}")
event.listen(engine, "connect", _set_sqlite_pragmas)
run_migrations(engine)
"""


def make_database(path: Path, statements: int) -> int:
    """Let flwr make its database, killed before so many SQL statements were done; the exit status."""
    words = [sys.executable, "-c", KILLED_IN_MIGRATION, str(path), str(statements)]
    return subprocess.run(words, capture_output=True).returncode


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("statements", [12, 250, 518])
def test_a_database_that_was_left_half_made_is_set_aside_and_made_anew(local, statements, capsys):
    """Of 521 statements. With each of these three databases flwr 1.41 itself cannot start again."""
    assert make_database(local.database, statements) == -signal.SIGKILL
    assert not is_whole(local.database)
    with contextlib.closing(sqlite3.connect(local.database)) as opened:
        tables = set(opened.execute("SELECT name FROM sqlite_master"))
    local.start(local.link)
    (line,) = capsys.readouterr().err.splitlines()
    assert str(local.database) in line
    assert "link-half-made-1.db" in line
    with contextlib.closing(sqlite3.connect(local.folder / "link-half-made-1.db")) as opened:
        assert set(opened.execute("SELECT name FROM sqlite_master")) == tables
    local.end()
    assert is_whole(local.database)


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_whole_database_is_kept(local, capsys):
    assert make_database(local.database, -1) == 0
    assert is_whole(local.database)
    inode = local.database.stat().st_ino
    local.start(local.link)
    local.end()
    assert local.database.stat().st_ino == inode
    assert not list(local.folder.glob("*half-made*"))
    assert capsys.readouterr().err == ""


def test_every_rest_of_a_database_is_set_aside_under_a_name_of_its_own(local, capsys):
    """Also one that was killed while it was set aside, and one that is no database at all."""
    left = [{"link.db": b"junk" * 2000}, {"link.db-wal": b"rest", "link.db-shm": b"rest"}, {"link.db": b""}]
    for files in left:
        for name, content in files.items():
            (local.folder / name).write_bytes(content)
        local.set_aside_half_made()
        assert not list(local.folder.glob("link.db*"))
    found = {file.name: file.read_bytes() for file in local.folder.glob("link*")}
    assert found == {
        "link-half-made-1.db": b"junk" * 2000,
        "link-half-made-2.db-wal": b"rest",
        "link-half-made-2.db-shm": b"rest",
        "link-half-made-3.db": b"",
    }
    assert len(capsys.readouterr().err.splitlines()) == 3
    local.set_aside_half_made()
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_run_whose_database_is_set_aside_in_the_middle_ends_with_the_same_bits(local):
    """The nodes have other numbers then and the server another run of Flower's, but nothing of ours was in there.

    The server is killed as well: it would find out by itself that its run is gone, but only after some seconds.
    """
    log = local.folder / "run" / "rounds.jsonl"

    def spoil() -> None:
        while not log.exists() or log.read_bytes().count(b"\n") < 2:
            time.sleep(0.02)
        with contextlib.closing(sqlite3.connect(local.database, timeout=60)) as opened, opened:
            opened.execute("UPDATE alembic_version SET version_num = 'half'")
        for part in (local.link, local.server):
            os.kill(part.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=spoil, daemon=True)
    killer.start()
    assert local.run() == 0
    killer.join(1)
    assert local.link.deaths >= 1
    assert (local.folder / "link-half-made-1.db").exists()
    assert is_whole(local.database)
    outcome = drive(from_task(find_task("digits"), replace(SETTINGS, engine="serial")), None, None)
    found = [{**line, "seconds": 0} for line in read_rounds(local.folder / "run")]
    assert found == [{**vars(line), "seconds": 0} for line in outcome.rounds]


# ---------------------------------------------------------------- waiting for the SuperLink

SLOW_LINK = """
import pathlib, socket, sys, time
step, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for number in range(10):
    print("before step", number, flush=True)  # into superlink.log
    while step.read_text() != str(number):
        time.sleep(0.01)
listening = socket.create_server(("127.0.0.1", port))
print("up", flush=True)
while True:
    listening.accept()
"""


def clock(monkeypatch, sleep):
    """A clock that only the test moves forward, with each sleep."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(federation, "time", SimpleNamespace(monotonic=lambda: now.seconds, sleep=sleep))
    return now


def test_a_slow_superlink_is_waited_for_as_long_as_it_does_something(local, monkeypatch, capsys, tmp_path):
    """Ten steps of 200 s each: far beyond every limit, but each of them shows in the log."""
    step = tmp_path / "step"
    step.write_text("")
    local.link.words = [sys.executable, "-c", SLOW_LINK, str(step), str(local.port)]
    local.insecure = True  # it knows nothing of nodes
    wait, log = time.sleep, local.folder / "superlink.log"

    def sleep(seconds):
        number = int(now.seconds / 200)
        step.write_text(str(number))
        while log.read_bytes().count(b"\n") < number + 2:
            assert local.link.process.poll() is None
            wait(0.01)
        now.seconds += 200

    now = clock(monkeypatch, sleep)
    local.start(local.link)
    assert now.seconds == 2000
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 9
    assert all(line.startswith("waiting for the SuperLink, which starts (") for line in said)


def test_a_superlink_that_does_nothing_is_given_up_with_one_line(local, monkeypatch):
    local.link.words = ["sleep", "1000"]

    def sleep(seconds):
        settle(local.link.process.pid)
        now.seconds += 50

    now = clock(monkeypatch, sleep)
    with pytest.raises(EngineError, match=r"did nothing for 300 s; see .*superlink\.log"):
        local.start(local.link)
    assert 300 < now.seconds <= 500  # of the clock above, which the test sets
    assert local.link.deaths == 0


def settle(pid: int, wait=time.sleep) -> str:
    """Wait until a process does nothing; its activity then."""
    before = None
    while before != activity(pid):
        before = activity(pid)
        wait(0.1)
    return before


def test_activity_stands_still_only_while_a_process_does_nothing(tmp_path):
    code = "import sys\nfor line in sys.stdin: sum(range(10**7)); print(line, flush=True)"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        process.stdin.write("warm up\n")
        process.stdout.readline()
        before = settle(process.pid)
        process.stdin.write("work\n")
        process.stdin.flush()
        assert process.stdout.readline() == "\n"  # the rest of the first
        assert process.stdout.readline() == "work\n"
        assert activity(process.pid) != before
        process.stdin.close()
    assert activity(process.pid) == ""


KILLED_ONCE = 'if [ -e "$0" ]; then exec "$@"; else : > "$0"; kill -9 $$; fi'


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_superlink_that_is_killed_in_its_first_start_is_started_again(local, tmp_path):
    local.link.words = ["sh", "-c", KILLED_ONCE, str(tmp_path / "killed"), *local.link.words]
    local.start(local.link)
    assert local.link.deaths == 1
    assert local.link.process.poll() is None


def test_a_superlink_that_ends_by_itself_has_a_reason(local):
    local.link.words = ["sh", "-c", "echo broken; exit 3"]
    with pytest.raises(EngineError, match=r"ended with status 3 before it answered; see .*superlink\.log"):
        local.start(local.link)
    assert (local.folder / "superlink.log").read_text() == "broken\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_asks_to_stop_during_the_start_need_not_wait(local, number):
    local.link.words = ["sleep", "1000"]

    def ask() -> None:
        while local.link.process is None:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=ask, daemon=True).start()
    assert local.run() == 130
    assert local.link.process.returncode == -signal.SIGTERM
    assert [part.process for part in (*local.members, local.server)] == [None] * 3


# ---------------------------------------------------------------- keys and settings


def keys_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "keys").iterdir()}


def check_keys(folder: Path, nodes: int) -> None:
    """Every certificate and public key belongs to its private key, and the authority signed the SuperLink's."""
    keys = keys_of(folder)
    authority, server = (x509.load_pem_x509_certificate(keys[name]) for name in ("ca.pem", "server.pem"))
    server.verify_directly_issued_by(authority)
    for certificate, name in ((authority, "ca.key"), (server, "server.key")):
        private = serialization.load_pem_private_key(keys[name], None)
        assert certificate.public_key() == private.public_key()
    assert len(keys["secret"]) == 64
    for node in range(nodes):
        private = serialization.load_ssh_private_key(keys[f"node{node}"], None)
        assert serialization.load_ssh_public_key(keys[f"node{node}.pub"]) == private.public_key()


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


@pytest.mark.parametrize("writes", range(9))  # ca.key server.key ca.pem server.pem secret, two nodes with two each
@pytest.mark.parametrize("renamed", [False, True], ids=["before", "after"])
def test_keys_are_whole_after_a_kill_at_any_file(tmp_path, monkeypatch, writes, renamed):
    left, replace_file = [writes], os.replace

    def killed(source, target):
        left[0] -= 1
        if left[0] >= 0:
            return replace_file(source, target)
        if renamed:
            replace_file(source, target)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            LocalFederation(tmp_path, 2)
    before = keys_of(tmp_path)
    LocalFederation(tmp_path, 2).end()
    check_keys(tmp_path, 2)
    after = keys_of(tmp_path)
    whole = {"secret": ("ca.key", "ca.pem", "server.key", "server.pem"), "node0": ("node0.pub",)}
    for last, others in whole.items():
        for name in (last, *others) if last in before else ():
            assert before[name] == after[name]
    LocalFederation(tmp_path, 2).end()
    assert keys_of(tmp_path) == after


def test_a_second_federation_in_the_folder_changes_nothing(local, capsys):
    before = {file: file.read_bytes() for file in local.folder.rglob("*") if file.is_file()}
    with pytest.raises(RunError, match="is running here already"):
        LocalFederation(local.folder, 3)
    words = ["federation", "up", "--task", "digits", "--folder", str(local.folder), "--set", "rounds=77"]
    assert main(words) == 2
    assert "is running here already" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in local.folder.rglob("*") if file.is_file()} == before
    local.end()
    LocalFederation(local.folder, 2).end()
    check_keys(local.folder, 2)


@pytest.mark.anywhere
def test_a_server_that_fails_is_not_started_again(local, monkeypatch):
    """A hundred times, as one that is killed would be; its output may just have nobody who reads it."""
    monkeypatch.setattr(local, "start", local.spawn)
    for part in (local.link, *local.members):
        part.words = [sys.executable, "-c", "import time; time.sleep(60)"]
    local.server.words = [sys.executable, "-c", "raise SystemExit(1)"]
    assert local.run() == 1
    assert local.server.deaths == 0
