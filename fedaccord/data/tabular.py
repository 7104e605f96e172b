"""Two small tables that come with scikit-learn; nothing to download. Columns have mean 0 and deviation 1."""

import numpy as np
import torch

from fedaccord.core.records import Examples
from fedaccord.core.seeds import numpy_generator
from fedaccord.data.sets import DataSet

TEST_SHARE = 0.2


def diabetes() -> DataSet:
    """442 patients, 10 measurements; how far the illness went within a year, in standard deviations."""
    from sklearn.datasets import load_diabetes  # here, not above: it takes a second to import

    x, y = load_diabetes(return_X_y=True)
    return divided(x, torch.tensor(standard(y, y), dtype=torch.float32), ())


def breast_cancer() -> DataSet:
    """569 tumours, 30 measurements: malignant or benign."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return divided(x, torch.tensor(y), ("malignant", "benign"))


def divided(x: np.ndarray, targets: torch.Tensor, classes: tuple[str, ...]) -> DataSet:
    """A fifth, the same one every time, is the test set; the columns are scaled by the rest."""
    order = numpy_generator(0, f"test part of {len(x)}").permutation(len(x))
    cut = round(TEST_SHARE * len(x))
    train, test = np.sort(order[cut:]), np.sort(order[:cut])
    inputs = torch.tensor(standard(x, x[train]), dtype=torch.float32)
    everything = Examples(inputs, targets)
    return DataSet(everything[train], everything[test], classes)


def standard(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = (values - of.mean(axis=0)) / of.std(axis=0)
    return scaled
