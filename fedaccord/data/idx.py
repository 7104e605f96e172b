"""The idx format of MNIST and Fashion-MNIST."""

import math

import numpy as np

from fedaccord.core.errors import DataError
from fedaccord.data.sets import DataSet, examples

MOST = 1 << 20
"""The most examples, rows or columns: NumPy has no shape for a file that claims none of one and 2^32 of the others."""
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def parse(data: bytes, dimensions: int, label: str) -> np.ndarray:
    """Parse an idx file of unsigned bytes into an array.

    The format: two zero bytes, the type (8 = unsigned byte), the number of dimensions, each dimension as a big-endian
    int32, then the bytes.
    """
    header = 4 + 4 * dimensions
    if len(data) < header or data[:2] != b"\0\0":
        raise DataError(f"{label}: not an idx file")
    if data[2] != 8 or data[3] != dimensions:
        raise DataError(f"{label}: idx type {data[2]} with {data[3]} dimensions, expected 8 with {dimensions}")
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, header, 4))
    if math.prod(shape) != len(data) - header or max(shape) > MOST:
        claimed = f"{' x '.join(map(str, shape))} = {math.prod(shape):,} bytes"
        raise DataError(f"{label}: the header claims {claimed}, the file holds {len(data) - header:,}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()


def data_set(files: dict[str, bytes], classes: tuple[str, ...]) -> DataSet:
    """Parse the four files of a data set into (examples, 1, rows, columns) images and their labels."""
    parts = []
    for images, labels in ((TRAIN_IMAGES, TRAIN_LABELS), (TEST_IMAGES, TEST_LABELS)):
        pixels = parse(files[images], 3, images)[:, None]
        parts.append(examples(pixels, parse(files[labels], 1, labels), len(classes), labels))
    return DataSet(parts[0], parts[1], classes)
