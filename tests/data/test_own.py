"""A user's own .npz file or folder of pictures, good and bad."""

import contextlib
import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedaccord.cli import main
from fedaccord.core.errors import DataError
from fedaccord.data import own

X = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
Y = np.arange(20) % 4


def npz(path: Path, **arrays: object) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def picture(path: Path, shape: tuple[int, ...] = (6, 5, 3), value: int | None = None) -> np.ndarray:
    """A random picture, or one of a single value; stored without loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    if value is not None:
        pixels[:] = value
    Image.fromarray(pixels).save(path)
    return pixels


def two_classes(folder: Path, shape: tuple[int, ...] = (6, 5, 3)) -> Path:
    """Five cats of values 0 to 4 and five dogs of 100 to 104."""
    for i in range(5):
        picture(folder / "cat" / f"{i}.png", shape, i)
        picture(folder / "dog" / f"{i}.png", shape, 100 + i)
    return folder


# --- .npz, good ---


def test_a_file_with_a_test_part_is_taken_as_it_is(tmp_path):
    path = npz(tmp_path / "a.npz", x=X, y=Y, x_test=X[:3], y_test=Y[:3], classes=["a", "b", "c", "d"], client=Y * 10)
    got = own.load_npz(path)
    np.testing.assert_array_equal(got.train.inputs, X)
    np.testing.assert_array_equal(got.train.targets, Y)
    np.testing.assert_array_equal(got.test.inputs, X[:3])
    np.testing.assert_array_equal(got.test.targets, Y[:3])
    assert got.classes == ("a", "b", "c", "d")
    np.testing.assert_array_equal(got.owner, Y * 10)


def test_without_a_test_part_a_fifth_is_kept_and_nothing_is_lost(tmp_path):
    """Each example is its own number, so that it can be told where it went."""
    number = np.arange(20, dtype=np.float32)[:, None]
    got = own.load_npz(npz(tmp_path / "a.npz", X=number, Y=Y, client=np.arange(20)))
    assert (len(got.train), len(got.test)) == (16, 4)  # 20 / 5 = 4
    train, test = (part.inputs[:, 0].int().tolist() for part in (got.train, got.test))
    assert sorted(train + test) == list(range(20))
    assert got.train.targets.tolist() == [Y[i] for i in train]
    assert got.test.targets.tolist() == [Y[i] for i in test]
    assert got.owner.tolist() == train
    assert got.classes == ("0", "1", "2", "3")
    again = own.load_npz(tmp_path / "a.npz")
    assert torch.equal(again.test.inputs, got.test.inputs)


def test_whom_the_examples_came_from_makes_clients_or_groups_of_them(tmp_path, capsys):
    """Four owners (Y * 10) of five examples, of which the server keeps one: a client each, two in pairs, never five."""
    file = npz(tmp_path / "a.npz", x=X, y=Y, x_test=X, y_test=Y, client=Y * 10)
    words = ["data", "split", str(file), "--split", "natural", "--validation-per-class", "1"]
    sizes = {}
    for clients in ("", "2", "4"):
        assert main([*words, *(["--clients", clients] if clients else [])]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        sizes[clients] = [int(line[-1]) for line in lines if len(line) == 6 and line[0].isdigit()]
    assert sizes == {"": [4, 4, 4, 4], "2": [8, 8], "4": [4, 4, 4, 4]}
    assert main([*words, "--clients", "5"]) == 2
    assert "came from 4 owners; give at most that many" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stored", "loaded"),
    [(np.uint8, torch.uint8), (np.float64, torch.float32), (np.float16, torch.float32), (np.int32, torch.float32)],
)
def test_inputs_stay_bytes_or_become_floats(stored, loaded, tmp_path):
    got = own.load_npz(npz(tmp_path / "a.npz", x=X.astype(stored), y=Y, x_test=X.astype(stored), y_test=Y))
    assert got.train.inputs.dtype == loaded
    np.testing.assert_array_equal(got.train.inputs, X)


# --- .npz, bad ---

FLOATS = X.astype(np.float64)


def changed(value: float) -> np.ndarray:
    array = FLOATS.copy()
    array[7, 0, 2, 2] = value
    return array


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({}, "has no array 'x'; found nothing"),
        ({"y": Y, "z": Y}, "has no array 'x'; found y, z"),
        ({"x": X}, "has no array 'y'; found x"),
        ({"x": X[:-1], "y": Y}, "19 inputs but 20 labels"),
        ({"x": X[:0], "y": Y[:0]}, "there are no examples"),
        ({"x": X[:1], "y": Y[:1]}, "1 examples are too few to keep a test set"),
        ({"x": changed(np.nan), "y": Y}, "an input is not finite"),
        ({"x": changed(-np.inf), "y": Y}, "an input is not finite"),
        ({"x": changed(1e300), "y": Y}, "an input is not finite"),  # beyond float32
        ({"x": FLOATS + 1j, "y": Y}, "inputs of type complex128, expected uint8 or floats"),
        ({"x": FLOATS.astype(str), "y": Y}, "inputs of type <U32, expected uint8 or floats"),
        ({"x": X.astype("m8[s]"), "y": Y}, r"inputs of type timedelta64\[s\], expected uint8 or floats"),
        ({"x": X > 3, "y": Y}, "inputs of type bool, expected uint8 or floats"),
        ({"x": np.uint8(3), "y": Y}, r"inputs of shape \(\), expected"),
        ({"x": X[:, 0, 0, 0], "y": Y}, r"inputs of shape \(20,\), expected"),
        ({"x": X, "y": Y.astype(float)}, r"labels of type float64 and shape \(20,\), expected one integer each"),
        ({"x": X, "y": Y.astype("m8[s]")}, r"labels of type timedelta64\[s\] and shape \(20,\), expected one integer"),
        ({"x": X, "y": Y[:, None]}, r"labels of type int64 and shape \(20, 1\), expected one integer each"),
        ({"x": X, "y": np.int64(0)}, r"labels of type int64 and shape \(\), expected one integer each"),
        ({"x": X, "y": Y - 1}, "label -1 is out of range, expected 0 to 2"),
        ({"x": X, "y": Y, "classes": ["a", "b", "c"]}, "label 3 is out of range, expected 0 to 2"),
        ({"x": X, "y": Y, "classes": np.array("a")}, "label 3 is out of range, expected 0 to 0"),
        # not a name for each of four thousand million classes, please
        ({"x": X, "y": Y + 2**32}, "label 4294967299 is out of range, expected 0 to 99,999"),
        ({"x": X, "y": Y, "client": Y[:5]}, r"20 examples but client ids of shape \(5,\)"),
        ({"x": X, "y": Y, "client": np.stack([Y, Y], 1)}, r"20 examples but client ids of shape \(20, 2\)"),
        ({"x": X, "y": Y, "x_test": X}, "has only one of 'x_test' and 'y_test'"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:3]}, "20 inputs but 3 labels"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y + 1}, "label 4 is out of range, expected 0 to 3"),
        (
            {"x": X, "y": Y, "x_test": X[:, :, :3], "y_test": Y},
            r"x_test is uint8 of \(1, 3, 4\) per example, x uint8 of \(1, 4, 4\)",
        ),
        ({"x": X, "y": Y, "x_test": FLOATS, "y_test": Y}, "x_test is float32 of .*, x uint8 of"),
        ({"x": X, "y": Y, "x_test": changed(np.nan), "y_test": Y}, "an input is not finite"),
        ({"x": np.array([{}] * 20), "y": Y}, "not a readable .npz file: it holds Python objects"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_the_files_name(arrays, complaint, tmp_path):
    path = npz(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=rf"^{path}: {complaint}"):
        own.load_npz(path)


def bytes_of(save: object, *args: object, **arrays: object) -> bytes:
    buffer = io.BytesIO()
    save(buffer, *args, **arrays)
    return buffer.getvalue()


STORED = {save: bytes_of(save, x=X, y=Y) for save in (np.savez, np.savez_compressed)}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a readable .npz file"),
        (b"something else", "not a readable .npz file"),
        (STORED[np.savez][:-30], "not a readable .npz file"),
        (STORED[np.savez_compressed][: len(STORED[np.savez_compressed]) // 2], "not a readable .npz file"),
        (bytes_of(np.save, X), "not a readable .npz file: holds one array without a name"),
    ],
    ids=["empty", "foreign", "truncated", "truncated compressed", "npy"],
)
def test_a_file_that_is_no_whole_npz_is_refused_with_its_name(content, complaint, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^{path}: {complaint}"):
        own.load_npz(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"^{tmp_path}/a\.npz: not a readable"):
        own.load_npz(tmp_path / "a.npz")


@given(st.sampled_from(list(STORED)), st.data())
def test_a_damaged_npz_is_a_data_error_or_loads(tmp_path_factory, save, data):
    """Zip, zlib and NumPy have each their own exceptions for each field that may be wrong; none gets through."""
    damaged = bytearray(STORED[save])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    path.write_bytes(damaged)
    with contextlib.suppress(DataError):
        own.load_npz(path)


# --- folders, good ---


@pytest.mark.parametrize(
    ("shape", "loaded"),
    [((6, 5, 3), (3, 6, 5)), ((6, 5), (1, 6, 5)), ((6, 5, 4), (3, 6, 5))],
    ids=["colour", "grey", "with transparency"],
)
def test_a_folder_a_class_is_loaded_with_a_fifth_as_test_set(shape, loaded, tmp_path):
    (tmp_path / "notes.txt").write_text("not a class")
    (tmp_path / ".hidden").mkdir()
    (two_classes(tmp_path, shape) / "cat" / "notes.txt").write_text("not a picture")
    got = own.load_folder(tmp_path)
    assert got.classes == ("cat", "dog")
    assert got.train.inputs.shape == (8, *loaded)  # 10 less a fifth
    assert got.test.inputs.shape == (2, *loaded)
    value = torch.cat([got.train.inputs, got.test.inputs])[:, 0, 0, 0]
    assert sorted(value.tolist()) == [*range(5), *range(100, 105)]
    assert torch.equal(torch.cat([got.train.targets, got.test.targets]), (value >= 100).long())


def test_the_test_folder_is_grey_or_coloured_as_the_training_folder_is(tmp_path):
    two_classes(tmp_path / "train")
    two_classes(tmp_path / "test", (6, 5))
    assert own.load_folder(tmp_path).test.inputs.shape == (10, 3, 6, 5)


def test_train_and_test_folders_are_taken_as_they_are(tmp_path):
    two_classes(tmp_path / "train")
    picture(tmp_path / "test/cat/a.png", value=7)
    picture(tmp_path / "test/dog/a.png", value=8)
    got = own.load_folder(tmp_path)
    assert (len(got.train), len(got.test)) == (10, 2)
    assert got.test.inputs[:, 0, 0, 0].tolist() == [7, 8]
    assert got.test.targets.tolist() == [0, 1]


def test_the_pixels_of_a_picture_are_stored_by_channel(tmp_path):
    pixels = picture(tmp_path / "a.png")
    got, _ = own.decode([(tmp_path / "a.png", 0)], 0)
    for channel in range(3):
        np.testing.assert_array_equal(got[0, channel], pixels[:, :, channel])


def test_the_first_picture_decides_between_grey_and_colour(tmp_path):
    picture(tmp_path / "grey.png", (6, 5), 9)
    picture(tmp_path / "colour.png", (6, 5, 3), 9)
    files = [(tmp_path / "grey.png", 0), (tmp_path / "colour.png", 1)]
    assert own.decode(files, 0)[0].shape == (2, 1, 6, 5)
    assert own.decode(files[::-1], 0)[0].shape == (2, 3, 6, 5)


def test_sixteen_bit_grey_keeps_its_upper_byte(tmp_path):
    """256 times a byte plus anything below is that byte."""
    upper = np.arange(256).reshape(16, 16)
    Image.fromarray((256 * upper + 255 - upper).astype(np.uint16)).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(own.decode([(tmp_path / "deep.png", 0)], 0)[0], upper[None, None])


def test_pictures_of_different_sizes_are_refused_and_image_size_cures_it(tmp_path):
    picture(two_classes(tmp_path) / "dog" / "9.png", (8, 7, 3), 9)
    with pytest.raises(
        DataError, match=rf"^{tmp_path}/dog/9\.png: 7x8 pixels, the first has 5x6; give --image-size to resize"
    ):
        own.load_folder(tmp_path)
    got = own.load_folder(tmp_path, 4)
    assert got.train.inputs.shape[1:] == got.test.inputs.shape[1:] == (3, 4, 4)
    assert len(got.train) + len(got.test) == 11
    # a picture of a single value has that value in any size
    pictures = [each.unique().tolist() for part in (got.train, got.test) for each in part.inputs]
    assert sorted(pictures) == [[value] for value in (*range(5), 9, *range(100, 105))]


# --- folders, bad ---


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def corrupt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[45:55] = bytes(10)
    path.write_bytes(data)


def replace_by_text(path: Path) -> None:
    path.write_text("no picture")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def deepen(path: Path) -> None:
    Image.fromarray(np.ones((6, 5), np.int32)).save(path, "tiff")


@pytest.mark.parametrize("damage", [truncate, corrupt, replace_by_text, replace_by_folder, deepen])
def test_a_picture_that_cannot_be_read_is_named(damage, tmp_path):
    damage(two_classes(tmp_path) / "dog" / "3.png")
    with pytest.raises(DataError, match=rf"^{tmp_path}/dog/3\.png: (truncated or not a picture|pixels of 32 bits)"):
        own.load_folder(tmp_path)


def empty_class(folder: Path) -> str:
    (two_classes(folder) / "emu").mkdir()
    return "emu: no pictures"


def one_class(folder: Path) -> str:
    picture(folder / "cat" / "a.png")
    return "{folder}: expected one folder of pictures for each class, found 1 folders"


def no_folder(folder: Path) -> str:
    picture(folder / "a.png")
    return "{folder}: expected one folder of pictures for each class, found 0 folders"


def other_classes(folder: Path) -> str:
    two_classes(folder / "train")
    picture(folder / "test/cat/a.png")
    picture(folder / "test/emu/a.png")
    return "{folder}: train/ has classes cat, dog and test/ cat, emu"


def other_size_in_test(folder: Path) -> str:
    two_classes(folder / "train")
    two_classes(folder / "test", (8, 7, 3))
    return "{folder}/test/cat/0.png: 7x8 pixels, the first has 5x6; give --image-size"


@pytest.mark.parametrize("spoil", [empty_class, one_class, no_folder, other_classes, other_size_in_test])
def test_a_folder_that_is_not_laid_out_so_is_named(spoil, tmp_path):
    complaint = spoil(tmp_path).format(folder=tmp_path)
    with pytest.raises(DataError) as caught:
        own.load_folder(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert complaint in str(caught.value)


GREY = Image.fromarray(np.full((6, 5, 3), 77, np.uint8))
FORMATS = {name: bytes_of(GREY.save, name) for name in ("png", "jpeg", "gif", "bmp", "tiff", "webp")}


@pytest.mark.slow
@given(st.sampled_from(list(FORMATS)), st.data())
def test_a_damaged_picture_is_a_data_error_or_loads(tmp_path_factory, kind, data):
    damaged = bytearray(FORMATS[kind])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("picture") / f"a.{kind}"
    path.write_bytes(damaged)
    with contextlib.suppress(DataError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata
        own.decode([(path, 0)], 0)
