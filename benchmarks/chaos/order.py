"""Watch a run's system calls (strace) and check that everything is on disk before something else relies on it.

A file is flushed before it gets its name, the folder is flushed before the next commit relies on that name, and a
manifest comes after the log's line and the tensors that it speaks of.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.part import Outcome, Part
from benchmarks.chaos.runs import ENGINES, SMALL, run_words
from fedaccord.runtime.folder import CHECKPOINTS, ROUNDS

CALLS = "openat,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat"
LINE = re.compile(r"(?P<call>\w+)\((?P<words>.*)\)\s+= (?P<result>-?\d+)")


@dataclass
class Watcher:
    """A record of what one process has safely on disk, and of what a power cut could still take."""

    commits: int = 0
    faults: list[str] = field(default_factory=list)
    dirty: set[str] = field(default_factory=set)  # files that were written to since they were flushed
    flushed: set[str] = field(default_factory=set)  # files and folders that were flushed at least once
    nameless: dict[str, set[str]] = field(default_factory=dict)  # folder -> names in it that a power cut may take

    def see(self, call: str, paths: list[str], creates: bool) -> None:
        """Take note of a system call that succeeded, with the paths of the files that it is about."""
        path = Path(paths[0])
        if call in ("write", "pwrite64", "ftruncate"):
            if path.name == ROUNDS and call == "write":
                self.commit(paths[0])
            self.dirty.add(paths[0])
        elif call in ("fsync", "fdatasync"):
            self.dirty.discard(paths[0])
            self.flushed.add(paths[0])
            self.nameless.pop(paths[0], None)
        elif call.startswith("mkdir") or (creates and path.name == ROUNDS):
            self.named(path)
        elif call.startswith("rename"):
            self.rename(paths[0], Path(paths[1]))

    def rename(self, before: str, after: Path) -> None:
        if before in self.dirty or before not in self.flushed:
            self.faults.append(f"{after.name} got its name before it was flushed")
        if after.parent.name == CHECKPOINTS:
            self.commit(str(after), self.dirty_log())
        if after.parent.name == CHECKPOINTS and after.suffix == ".json":
            self.commits += 1
        if before in self.nameless:  # a folder, which takes the names in it along
            self.nameless[str(after)] = self.nameless.pop(before)
        self.named(after)

    def named(self, path: Path) -> None:
        self.nameless.setdefault(str(path.parent), set()).add(path.name)

    def dirty_log(self) -> set[str]:
        return {path for path in self.dirty if path.endswith(f"/{ROUNDS}")}

    def commit(self, what: str, also: Iterable[str] = ()) -> None:
        """Note as a fault whatever this step of a commit relies on and was not flushed before."""
        for folder, names in self.nameless.items():
            self.faults.append(f"{Path(what).name} came before {folder} was flushed, which has got {sorted(names)[0]}")
        self.faults += [f"{Path(what).name} came before {path} was flushed" for path in also]


def calls(trace: Path, root: Path) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the calls that succeeded on files below `root`, in order: call, paths, whether it may make a file."""
    for line in trace.read_text(errors="replace").splitlines():
        if not (found := LINE.match(line)) or int(found["result"]) < 0:
            continue
        named = found["call"].startswith(("rename", "mkdir", "openat"))
        paths = re.findall(r'"([^"]*)"' if named else r"^\d+<([^>]*)>", found["words"])
        if paths and all(path.startswith(f"{root}/") or path == str(root) for path in paths):
            yield found["call"], paths, "O_CREAT" in found["words"]


def watch(number: int, scratch: Path) -> Outcome:
    """Run a few rounds under strace; every commit is a trial."""
    if shutil.which("strace") is None:
        return Outcome(0, 0, "skipped: strace is not installed (apt install strace)")
    engine, root = ENGINES[number % len(ENGINES)], scratch.resolve() / "files"
    root.mkdir()
    words = run_words(root / "runs" / "run", engine, (*SMALL[:-1], "3"))
    trace = ["strace", "-ff", "-y", "-s", "0", "-e", f"trace={CALLS}", "-o", str(scratch / "trace")]
    done = subprocess.run([*trace, sys.executable, "-m", "fedaccord.cli", *words], capture_output=True, text=True)
    if "PTRACE" in done.stderr:
        return Outcome(0, 0, f"skipped: strace may not trace here: {done.stderr[-200:]}")
    if done.returncode:
        return Outcome(1, 1, f"the run ended with {done.returncode}: {done.stderr[-200:]}")
    commits, faults = 0, []
    for file in scratch.glob("trace.*"):
        watcher = Watcher()
        for seen in calls(file, root):
            watcher.see(*seen)
        watcher.commit("the end", watcher.dirty_log())
        commits += watcher.commits
        faults += watcher.faults
    if commits != 4:  # the start and three rounds
        faults.append(f"{commits} commits were seen, not 4")
    return Outcome(commits, min(commits, len(faults)) or len(faults), "; ".join(faults[:3]))


PARTS = (Part("order", "commits seen with strace: flush, rename, flush of the folder", watch, 1, len(ENGINES)),)
