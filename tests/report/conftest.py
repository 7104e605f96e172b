"""Real runs for the report page."""

import pytest
from folders import train


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """FA, FA+AH, and FA+AH with half the clients."""
    root = tmp_path_factory.mktemp("real")
    return [
        train(root / "plain", method="FA"),
        train(root / "tuned", method="FA+AH"),
        train(root / "half", method="FA+AH", fraction=0.5, rounds=6),
    ]
