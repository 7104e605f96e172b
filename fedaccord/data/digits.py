"""Digits: 1,797 real 8x8 handwritten digits that come with scikit-learn; nothing to download."""

import numpy as np

from fedaccord.data.sets import DataSet, examples

TEST_EXAMPLES = 360


def load() -> DataSet:
    """Load the digits, the last 360 as test set: the file is ordered by writer, so these have writers of their own."""
    from sklearn.datasets import load_digits  # here, not above: it takes a second to import

    images, labels = load_digits(return_X_y=True)
    pixels = np.minimum(images.reshape(-1, 1, 8, 8) * 16, 255).astype(np.uint8)  # 0-16 -> 0-255
    cut = len(labels) - TEST_EXAMPLES
    train = examples(pixels[:cut], labels[:cut], 10, "digits")
    return DataSet(train, examples(pixels[cut:], labels[cut:], 10, "digits"), tuple("0123456789"))
