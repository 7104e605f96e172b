"""A user's own data: an .npz file or a folder of pictures by class."""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from rich.console import Console
from rich.progress import track

from fedaccord.core.errors import DataError
from fedaccord.core.records import Examples
from fedaccord.core.seeds import numpy_generator
from fedaccord.data import npz, pictures
from fedaccord.data.sets import DataSet, examples

TEST_SHARE = 0.2
MOST_CLASSES = 100_000
MAKE = "numpy.savez(file, x=inputs, y=labels) makes one"
NUMBER = "classes, y = numpy.unique(y, return_inverse=True)"
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


def load_npz(path: Path) -> DataSet:
    """Load an .npz file of x and y and, if given, x_test and y_test, classes (names) and client.

    x is (examples, channels, height, width) or (examples, features), uint8 or float32; client is one id per training
    example. Without a test part, a fifth of the examples (the same one every time) is kept as test set.
    """
    try:
        with open(path, "rb") as stream:
            return from_npz(stream, path)
    except OSError as error:
        raise DataError(f"{path}: not a readable .npz file: {error.strerror}; {MAKE}") from error


def from_npz(stream: BinaryIO, path: Path) -> DataSet:
    """Load a data set from an open .npz file; `path` is what error messages call it."""
    try:
        arrays = npz.read(stream, "not a readable .npz file")
    except DataError as error:
        told = f"{error}; of labels: {NUMBER}" if npz.OBJECTS in str(error) else f"{error}; {MAKE}"
        told = str(error) if npz.UNCOMPRESSED in str(error) else told
        raise DataError(f"{path}: {told}") from error
    for key in ("x", "y"):
        if key not in arrays:
            found = ", ".join(sorted(arrays)) or "nothing"
            raise DataError(
                f"{path}: has no array '{key}'; found {found}: save them again under the names x and y, and x_test and "
                "y_test if there is a test set"
            )
    x, y = as_inputs(arrays["x"], path), as_labels(arrays["y"], path)
    most = int(y.max(initial=0))
    if "classes" not in arrays and most >= MOST_CLASSES:
        raise DataError(f"{path}: label {most} is out of range, expected 0 to {MOST_CLASSES - 1:,}")
    if "classes" in arrays and arrays["classes"].size > MOST_CLASSES:
        raise DataError(f"{path}: {arrays['classes'].size:,} names of classes, expected {MOST_CLASSES:,} at most")
    names = tuple(map(str, arrays["classes"].flat if "classes" in arrays else range(most + 1)))
    everything = examples(x, y, len(names), str(path))
    owner = arrays.get("client")
    if owner is not None and owner.shape != y.shape:
        raise DataError(f"{path}: {len(y):,} examples but client ids of shape {owner.shape}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path}: has only one of 'x_test' and 'y_test'")
    if "x_test" in arrays:
        x_test = as_inputs(arrays["x_test"], path)
        if (x_test.shape[1:], x_test.dtype) != (x.shape[1:], x.dtype):
            raise DataError(
                f"{path}: x_test is {x_test.dtype} of {x_test.shape[1:]} per example, x {x.dtype} of {x.shape[1:]}"
            )
        test = examples(x_test, as_labels(arrays["y_test"], path), len(names), str(path))
        return DataSet(everything, test, names, owner)
    return with_test_part(everything, names, owner, str(path))


def load_folder(path: Path, size: int = 0) -> DataSet:
    """Load pictures from one folder per class, or from folders train/ and test/ with one folder per class each.

    `size`: resize the pictures to size x size; 0: leave them as they are.
    """
    if (path / "train").is_dir() and (path / "test").is_dir():
        train_files, classes = pictures_in(path / "train")
        test_files, test_classes = pictures_in(path / "test")
        if test_classes != classes:
            raise DataError(f"{path}: train/ has classes {', '.join(classes)} and test/ {', '.join(test_classes)}")
        everything = examples(*decode(train_files + test_files, size), len(classes), str(path))  # of one size and mode
        cut = len(train_files)
        return DataSet(everything[:cut], everything[cut:], classes)
    files, classes = pictures_in(path)
    return with_test_part(examples(*decode(files, size), len(classes), str(path)), classes, None, str(path))


def pictures_in(path: Path) -> tuple[list[tuple[Path, int]], tuple[str, ...]]:
    folders = [entry for entry in entries(path) if entry.is_dir() and not entry.name.startswith(".")]
    if len(folders) < 2:
        raise DataError(f"{path}: expected one folder of pictures for each class, found {len(folders)} folders")
    files = []
    for number, folder in enumerate(folders):
        found = [file for file in entries(folder) if file.suffix.lower() in PICTURES and not file.is_fifo()]
        if not found:
            raise DataError(f"{folder}: no pictures ({', '.join(sorted(PICTURES))})")
        files += [(file, number) for file in found]
    return files, tuple(folder.name for folder in folders)


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, in order; raise DataError if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None


def decode(files: list[tuple[Path, int]], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode pictures of one size, grey if the first is, into (examples, channels, height, width) uint8 and labels."""
    pixels: list[np.ndarray] = []
    mode = None
    for file, _ in track(files, "pictures", console=Console(stderr=True)):
        array = pictures.read(file, file, mode, size)
        mode = mode or ("L" if array.ndim == 2 else "RGB")
        if pixels and array.shape != pixels[0].shape:
            raise DataError(
                f"{file}: {array.shape[1]}x{array.shape[0]} pixels, the first has {pixels[0].shape[1]}x"
                f"{pixels[0].shape[0]}; give --image-size to resize them all"
            )
        pixels.append(array)
    stack = np.stack(pixels)
    stack = stack[:, None] if mode == "L" else stack.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(stack), np.array([label for _, label in files])


def with_test_part(data: Examples, classes: tuple[str, ...], owner: np.ndarray | None, label: str) -> DataSet:
    order = numpy_generator(0, f"test part of {len(data)}").permutation(len(data))
    cut = max(1, round(TEST_SHARE * len(data)))
    if len(data) - cut < 1:
        raise DataError(f"{label}: {len(data)} examples are too few to keep a test set")
    train, test = np.sort(order[cut:]), np.sort(order[:cut])
    return DataSet(data[train], data[test], classes, None if owner is None else owner[train])


def as_inputs(array: np.ndarray, path: Path) -> np.ndarray:
    if array.ndim < 2:
        raise DataError(f"{path}: inputs of shape {array.shape}, expected (examples, features) or pictures")
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "iuf":
        raise DataError(f"{path}: inputs of type {array.dtype}, expected uint8 or floats")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise DataError(f"{path}: an input is not finite")
    return array


def as_labels(array: np.ndarray, path: Path) -> np.ndarray:
    if array.ndim == 1 and array.dtype.kind in "iu":
        return array
    told = f"{path}: labels of type {array.dtype} and shape {array.shape}, expected one integer each"
    if array.dtype.kind in "US":
        raise DataError(f"{told}; number them: {NUMBER}")
    if array.ndim == 2 and array.shape[1] == 1:
        raise DataError(f"{told}; y[:, 0] has them")
    if array.dtype.kind == "f":
        raise DataError(
            f"{told}; class numbers: y.astype(int); for a regression write a task with a loss (docs/tasks.md)"
        )
    raise DataError(told)
