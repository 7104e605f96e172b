import numpy as np
import pytest
from helpers import hyper
from hypothesis import given
from hypothesis import strategies as st

from fedaccord import config
from fedaccord.config import GRID
from fedaccord.core.errors import SettingsError
from fedaccord.methods.registry import PARTS, find
from fedaccord.policy.grid import Axis, HyperGrid
from fedaccord.runtime.build import policy_of

values = st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=12, unique=True).map(lambda v: tuple(sorted(v)))


@given(values, st.booleans())
def test_points_have_zero_mean_and_touch_a_half_for_any_spacing(numbers, log):
    points = Axis("lr", numbers, log).points
    assert abs(points.mean()) < 1e-9
    assert np.abs(points).max() == pytest.approx(0.5)
    assert (np.diff(points) >= 0).all()


@given(values, st.booleans())
def test_value_and_point_are_inverse(numbers, log):
    axis = Axis("lr", numbers, log)
    for number, z in zip(numbers, axis.points, strict=True):
        assert axis.value_at(z) == pytest.approx(number, rel=1e-6, abs=1e-6)
        assert axis.point_of(number) == pytest.approx(z, abs=1e-9)


def test_the_default_grid_is_fine_and_wide():
    """Rates over three powers of ten, a third apart: the middle is 0.03; one to eighty iterations."""
    grid = HyperGrid.parse(GRID)
    assert grid.names == ("lr", "steps")
    assert [len(axis.values) for axis in grid.axes] == [25, 10]
    assert grid.axes[0].value_at(0.0) == pytest.approx(0.0316, rel=1e-2)
    assert (grid.axes[1].values[0], grid.axes[1].values[-1]) == (1, 80)
    ratios = np.diff(np.log(grid.axes[0].values))
    assert np.allclose(ratios, ratios[0], atol=1e-4)  # log-spaced, to the six digits that are kept


def test_values_come_in_the_type_that_a_client_wants():
    grid = HyperGrid.parse("lr = 0.1, 0.2; steps = 1..4/4; batch_size = 16, 64; momentum = 0, 0.9")
    choice = grid.choice((1, 2, 0, 1))
    assert choice == {"lr": 0.2, "steps": 3, "batch_size": 16, "momentum": 0.9}
    assert isinstance(choice["steps"], int)


def test_a_start_is_given_in_the_users_units():
    grid = HyperGrid.parse("lr = 0.01..1/9 log; steps = 5..45/9")
    assert grid.place("") == ()
    assert grid.place("lr = 0.1") == pytest.approx((0.0, 0.0), abs=1e-6)  # the middle, in the logarithm
    assert grid.place("steps = 45, lr = 1") == pytest.approx((0.5, 0.5))


BAD = [
    ("lr = 1", "at least two values"),
    ("lr = 2, 1", "larger than the one before"),
    ("lr = 0..1/3 log", "must be positive"),
    ("lr = 1..2/99999999999", "at most 10,000"),
    ("lr = 0, 1 log", "must be positive"),
    ("lr 1, 2", "expected name = low"),
    ("lr = a, b", "expected name = low"),
    ("lr = 1, 2; lr = 3, 4", "each once"),
    ("", "at least one"),
]


@pytest.mark.parametrize(("text", "complaint"), BAD)
def test_a_wrong_grid_is_one_clear_line(text, complaint):
    with pytest.raises(SettingsError, match=complaint), np.errstate(all="ignore"):
        HyperGrid.parse(text)


@pytest.mark.parametrize(
    ("method", "grid", "says"),
    [
        ("FA+AH", "steps = 0, 5", "grid: steps = 0: expected 1 or more"),
        ("FATHOM", "lr = -1, 1", "grid: lr = -1.0: expected more than 0"),
        ("FedEx", "momentum = 0.5, 1.5", r"grid: momentum = 1.5: expected in \[0, 1\)"),
        ("FedRS+AH", "fedrs_alpha = 0.5, 2", "grid: fedrs_alpha = 2.0: expected "),
    ],
)
def test_a_value_of_the_grid_obeys_its_settings_own_rule(method, grid, says):
    with pytest.raises(SettingsError, match=says):
        policy_of(config.make({"method": method, "grid": grid, "clients": 10}), find(method))


@pytest.mark.parametrize("grid", ["lr = 0.1, 0.2", "steps = 1..4/4", "batch_size = 16, 64", "momentum = 0, 0.9"])
def test_a_sound_grid_is_taken(grid):
    assert policy_of(config.make({"method": "FA+AH", "grid": grid, "clients": 10}), find("FA+AH")).names


TUNABLE = [(part, each) for part in PARTS.values() for each in part.settings if each.hyper]


@pytest.mark.parametrize(("part", "setting"), TUNABLE, ids=[setting.name for _, setting in TUNABLE])
def test_every_tunable_setting_of_a_method_names_an_axis_that_holds_its_default(part, setting):
    method = f"{part.name}+AH"
    policy = policy_of(
        config.make({"method": method, "grid": f"{setting.name} = {setting.axis}", "clients": 10}), find(method)
    )
    assert policy.names == (setting.name,)
    values = HyperGrid.parse(f"{setting.name} = {setting.axis}").axes[0].values
    assert min(values) <= setting.default <= max(values)
    assert f"{setting.name} = {setting.axis}" in setting.help


def test_what_is_no_hyper_parameter_cannot_be_tuned():
    with pytest.raises(SettingsError, match="'colour' cannot be tuned; expected one of lr, steps"):
        HyperGrid.parse("colour = 1, 2").check(["lr", "steps"])


def test_a_wrong_start_is_one_clear_line():
    grid = HyperGrid.parse("lr = 0.1, 0.2")
    for text, complaint in (("lr = 5", "outside the grid"), ("steps = 5", "not in the grid"), ("lr", "expected name")):
        with pytest.raises(SettingsError, match=complaint):
            grid.place(text)


def test_a_methods_own_whole_number_stays_one():
    """A grid's values are floats, but whoever writes range(hyper["depth"]) declared a whole number."""
    first = hyper(depth=3, weight=1.0)
    chosen = first.but(HyperGrid.parse("depth = 2, 4; weight = 1, 2; steps = 1, 5").choice((1, 1, 1)))
    assert [chosen["depth"], chosen["weight"], chosen.steps] == [4, 2.0, 5]
    assert [type(chosen[name]) for name in ("depth", "weight", "steps")] == [int, float, int]
