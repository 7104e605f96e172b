"""Spoiled archives: tar, gzipped or not, and the zip files of NumPy."""

import gzip
import io
import os
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.chaos.mutations import EDGES, spoiled
from benchmarks.chaos.target import Target
from fedaccord.core.errors import FedAccordError
from fedaccord.data import archives, own
from fedaccord.data import speech_commands as speech

# --- tar ---

NAMES = ("good", "./good", "other", "../../evil", "/tmp/evil", "a" * 120, "é" * 60, "good\0x", "", "sub/../../x")
TYPES = (*(bytes((each,)) for each in range(48, 56)), *(each.encode() for each in "xgLKSDXV\0A"))
PAX = (b"path=good", b"size=99999999999", b"size=-1", b"size=x", b"GNU.sparse.major=1", b"GNU.sparse.minor=0",
       b"GNU.sparse.size=99999999999", b"GNU.sparse.map=0,1,5,1", b"GNU.sparse.realsize=9999999999999",
       b"hdrcharset=BINARY", b"mtime=1e999", b"path=\xff\xfe", b"uid=99999999999999999999999")  # fmt: skip


def header(rng: random.Random, size: int, kind: bytes | None = None) -> bytes:
    """Return the header of a tar member with odd fields and the right checksum."""
    said = size if rng.random() < 0.7 else rng.choice(EDGES)
    field = b"%011o\0" % said if said < 8**11 and rng.random() < 0.9 else b"\x80" + said.to_bytes(11, "big")
    if rng.random() < 0.05:
        field = rng.choice((b"\xff" * 12, b"-0000000001\0", b"            ", b"zz", b"\xff" * 4 + b"\0" * 8))
    link = rng.choice((b"", b"good", b"../../evil", b"/etc/passwd"))
    magic = rng.choice((b"ustar\x0000", b"ustar\x0000", b"ustar  \0", bytes(8)))
    name = rng.choice(NAMES).encode()[:100]
    kind = kind or rng.choice(TYPES)
    rest = b"0000644\0" + b"0000000\0" * 2 + field.ljust(12, b"\0") + b"00000000000\0" + b" " * 8 + kind
    made = bytearray((name.ljust(100, b"\0") + rest + link.ljust(100, b"\0") + magic).ljust(512, b"\0"))
    if kind == b"S":
        made[386:482] = rng.choice((b"%011o\0" % 5, b"\x80" + b"\xff" * 11, b"77777777777\0")) * 8
        made[482] = rng.choice((0, 1))
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def tar_bytes(rng: random.Random) -> bytes:
    found = b""
    for _ in range(rng.choice((1, 2, 3, 6))):
        kind, content = None, rng.randbytes(rng.choice((0, 1, 30, 600)))
        if rng.random() < 0.2:
            kind, fields = rng.choice((b"x", b"g")), rng.choices(PAX, k=rng.choice((1, 2, 3)))
            content = b"".join(b"%d %s\n" % (len(each) + 4, each) for each in fields)
        found += header(rng, len(content), kind) + content + bytes(-len(content) % 512)
    return found + bytes(rng.choice((0, 512, 1024)))


def plain_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in (("good", b"1" * 700), ("é" * 90, b"2"), ("other", b"")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()[:6144]


WHOLE = plain_tar()
PACKED = gzip.compress(WHOLE, mtime=0)


def make_tar(rng: random.Random) -> bytes:
    draw = rng.random()
    if draw < 0.15:
        return spoiled(rng, PACKED)
    found = spoiled(rng, WHOLE) if draw < 0.3 else tar_bytes(rng)
    return gzip.compress(found, 1, mtime=0) if rng.random() < 0.3 else found


def read_tar(data: bytes, folder: Path) -> bool:
    """Read an archive that is alone in its folder, and check that this creates no file there, outside or in /tmp."""
    home = folder / "outer" / "inner"  # ../../ stays within the folder
    home.mkdir(parents=True, exist_ok=True)
    file = home / "some.tgz"
    file.write_bytes(data)
    os.chdir(home)
    try:
        found = list(archives.members(file, {each: each for each in NAMES}.get))
    finally:
        there = [os.listdir(each) for each in (folder, home.parent, home)]
        assert there == [["outer"], ["inner"], ["some.tgz"]]
        assert not os.path.lexists("/tmp/evil")
    assert all(isinstance(content, bytes) for _, content in found)
    return bool(found)


def worst_tar() -> Sequence[bytes]:
    """Return archives: members and headers of a GiB, a missing member of a TiB, 200,000 members, a chain of headers."""
    rng = random.Random(0)

    def packed(start: bytes, gigabyte: bool) -> bytes:
        body = gzip.compress(start, 9, mtime=0)
        return body + gzip.compress(bytes(1 << 24), 9, mtime=0) * (64 if gigabyte else 0)

    def plain(kind: bytes, size: int) -> bytes:
        made = bytearray(header(random.Random(1), size, kind))
        made[:100] = b"good".ljust(100, b"\0")
        made[124:136] = b"\x80" + size.to_bytes(11, "big")
        made[148:156] = b" " * 8
        made[148:156] = b"%06o\0 " % sum(made)
        return bytes(made)

    chain = header(rng, 0, b"x") * 3000
    many = gzip.compress(plain(b"0", 0) * 20_000, 9, mtime=0) * 10
    huge = [packed(plain(kind, 1 << 30), True) for kind in (b"0", b"x", b"L", b"g", b"5")]
    return [*huge, plain(b"0", 1 << 40), many, chain, packed(chain, False)]


# --- npz ---

X, Y = np.arange(60, dtype=np.uint8).reshape(6, 10), np.arange(6) % 3
CLIPS = {"X": np.zeros((3, 32, 32), np.uint8), "y": np.arange(3), "split": np.array((0, 2, 0)), "speaker": np.arange(3)}
KEYS = ("x", "y", "x_test", "y_test", "classes", "client", "X", "split", "speaker")
KINDS = ("|u1", "<i8", "<f4", "<f8", ">i2", "|b1", "<U3", "<U0", "|S0", "|V0", "|O", "<c8", "|V2147483647", "<M8[s]",
         "<U536870911", "zz", "", [("a", "<i4")], "<f2", "|i1", "<u8")  # fmt: skip


def npz_bytes(save: object, **arrays: object) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)  # type: ignore[operator]
    return buffer.getvalue()


NPZ = (
    npz_bytes(np.savez, x=X, y=Y),
    npz_bytes(np.savez_compressed, x=X.astype(float), y=Y, x_test=X.astype(float), y_test=Y),
    npz_bytes(np.savez, x=X, y=Y, classes=np.array(["a", "b", "c"]), client=Y),
    npz_bytes(np.savez_compressed, **CLIPS),
)


def npy(rng: random.Random, key: str) -> bytes:
    """Return an .npy file whose header is made up and may not fit its content."""
    kind = rng.choice(KINDS) if rng.random() < 0.3 else "<i8" if key.startswith("y") else "|u1"
    shape = (rng.choice((0, 1, 6, 6, 6)),) if key.startswith("y") else (6, rng.choice((0, 1, 10)))
    if rng.random() < 0.3:
        shape = tuple(rng.choice((*EDGES, -1, 6)) for _ in range(rng.choice((0, 1, 1, 2, 3, 40))))
    said = f"{{'descr': {kind!r}, 'fortran_order': {rng.choice(('False', 'True', '1'))}, 'shape': {shape!r}, }}"
    if rng.random() < 0.1:
        said = rng.choice(
            ("{}", "[" * 3000, "(" * 90 + ")" * 90, said + "+1", said[:-3], "9" * 5000, said * 300, "{'a':" * 50)
        )
    text = said.encode() + b"\n"
    version = rng.choice((1, 1, 1, 2, 3, 9))
    length = struct.pack("<H" if version == 1 else "<I", len(text) % 65536)
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + rng.randbytes(rng.choice((0, 6, 48, 60)))


def make_npz(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return spoiled(rng, rng.choice(NPZ), NPZ)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice((0, 0, 8))) as made:
        for key in ("x", "y", *rng.choices(KEYS, k=rng.choice((0, 0, 1, 2)))):
            if rng.random() < 0.5 and key in ("x", "y"):
                content = npy_of(X if key == "x" else Y)
                content = spoiled(rng, content) if rng.random() < 0.3 else content
            else:
                content = npy(rng, key)
            name = f"{key}.npy" if rng.random() < 0.95 else rng.choice((key, "../../evil.npy", "/tmp/evil.npy", ".npy"))
            made.writestr(zipfile.ZipInfo(name), content, made.compression)
    data = buffer.getvalue()
    return data if rng.random() < 0.8 else spoiled(rng, data)


def npy_of(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def read_npz(data: bytes, folder: Path) -> bool:
    accepted = False
    for read in (lambda: own.from_npz(io.BytesIO(data), Path("it")), lambda: speech.from_features(data, "it")):
        try:
            found = read()
        except FedAccordError:
            continue
        for part in (found.train, found.test):
            assert len(part.inputs) == len(part.targets) > 0
            assert 0 <= int(part.targets.min()) <= int(part.targets.max()) < len(found.classes)
            assert part.inputs.dim() >= 2
            assert not part.inputs.is_floating_point() or bool(part.inputs.isfinite().all())
        accepted = True
    return accepted


def zipped(content: bytes, size: int, name: str = "x.npy", method: int = 8, copies: int = 1) -> bytes:
    """Return a zip file of an already packed stream, which all its members share, with the size to claim for it."""
    found, table = b"", b""
    for number in range(copies):
        label = (name if copies == 1 else f"{number}.npy").encode()
        fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 0, 0, len(content), size, len(label), 0)
        table += b"PK\1\2\x14\0" + fields + bytes(6) + struct.pack("<II", 0, 0 if copies > 1 else len(found)) + label
        if not number:
            found += b"PK\3\4" + fields + label + content
    end = struct.pack("<HHHHIIH", 0, 0, copies, copies, len(table), len(found), 0)
    return found + table + b"PK\5\6" + end


def worst_npz() -> Sequence[bytes]:
    """Return .npz files: a GiB of zeros, the most that is let through, overlapping members, names of 2^40 classes."""
    flood = []
    for megabytes, kind, items in ((1024, "|i1", 1), (15, "|i1", 1), (15, "<f8", 8)):
        shape = ((megabytes << 20) // items // 64, 64)
        start = b"\x93NUMPY\1\0" + struct.pack("<H", 118)
        start += f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
        pack = zlib.compressobj(9, wbits=-15)
        content = pack.compress(start) + pack.compress(bytes(min(megabytes, 15) << 20)) + pack.flush()
        flood.append(zipped(content, len(start) + (megabytes << 20)))
    both = io.BytesIO()
    with zipfile.ZipFile(both, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("x.npy", npy_of(np.zeros((1 << 18, 60), np.int8)))
        made.writestr("y.npy", npy_of(np.zeros(1 << 18, np.int8)))
    names = io.BytesIO()
    with zipfile.ZipFile(names, "w") as made:
        made.writestr("x.npy", npy_of(X))
        made.writestr("y.npy", npy_of(Y))
        said = b"{'descr': '<U0', 'fortran_order': False, 'shape': (1099511627776,), }\n"
        made.writestr("classes.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(said)) + said)
    return [*flood, both.getvalue(), names.getvalue(), zipped(flood[1][30:-80], 1 << 20, copies=900)]


TARGETS = {"tar": Target("tar", make_tar, read_tar, worst_tar), "npz": Target("npz", make_npz, read_npz, worst_npz)}
