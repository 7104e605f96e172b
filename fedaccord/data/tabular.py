"""Two small tables that come with scikit-learn; nothing to download. Their columns have mean 0 and deviation 1."""

import numpy as np
import torch

from fedaccord.core.records import Examples
from fedaccord.data.own import with_test_part
from fedaccord.data.sets import DataSet


def diabetes() -> DataSet:
    """Load the diabetes table: 442 patients, 10 measurements.

    The target is how far the illness went within a year, in standard deviations.
    """
    from sklearn.datasets import load_diabetes  # here, not above: it takes a second to import

    x, y = load_diabetes(return_X_y=True)
    return divided(x, torch.tensor(standard(y, y), dtype=torch.float32), ())


def breast_cancer() -> DataSet:
    """Load the breast cancer table: 569 tumours, 30 measurements, malignant or benign."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return divided(x, torch.tensor(y), ("malignant", "benign"))


def divided(x: np.ndarray, targets: torch.Tensor, classes: tuple[str, ...]) -> DataSet:
    """Split off the test part that a user's own data would have, and scale the columns by the training part."""
    data = with_test_part(Examples(torch.tensor(x), targets), classes, None, "table")
    rest = data.train.inputs.numpy()
    train, test = (
        Examples(torch.tensor(standard(part.inputs.numpy(), rest), dtype=torch.float32), part.targets)
        for part in (data.train, data.test)
    )
    return DataSet(train, test, classes)


def standard(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = (values - of.mean(axis=0)) / of.std(axis=0)
    return scaled
