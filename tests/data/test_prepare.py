"""Scaling and augmentation, against hand arithmetic and a slow loop over numpy.pad."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.data.prepare import PAD, Pixels, as_stored, crop_and_flip

DTYPES = [torch.uint8, torch.float32]


def images(count: int = 6, channels: int = 3, height: int = 7, width: int = 9, dtype=torch.uint8) -> torch.Tensor:
    shape = (count, channels, height, width)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_as_stored_changes_nothing():
    inputs = torch.randn(4, 5)
    assert as_stored(inputs, seeded()) is inputs


# --- scaling ---


def test_pixels_are_scaled_by_the_formula():
    """(x / 255 - mean) / std: 0 -> -2, 51 -> (0.2 - 0.5) / 0.25 = -1.2, 255 -> 2."""
    got = Pixels((0.5,), (0.25,))(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8), None)
    torch.testing.assert_close(got, torch.tensor([[[[-2.0, -1.2, 2.0]]]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_channel_has_its_own_mean_and_deviation(dtype):
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    inputs = images(dtype=dtype)
    expected = inputs.double().clone()
    for channel in range(3):
        expected[:, channel] = (expected[:, channel] / 255 - mean[channel]) / std[channel]
    torch.testing.assert_close(Pixels(mean, std)(inputs, None), expected.float())


@given(st.floats(0, 1), st.floats(0.01, 2))
def test_any_mean_and_deviation_follow_the_formula(mean, std):
    """Twice the rounding unit of float32 for each of the two products, which are as large as 1/std and mean/std."""
    values = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1)
    expected = (values.double() / 255 - mean) / std
    got = Pixels((mean,), (std,))(values, None).double()
    assert (got - expected).abs().max() <= 4 * 2**-24 * (1 + mean) / std


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("augment", [True, False])
def test_the_stored_inputs_are_left_as_they_are(dtype, augment):
    inputs = images(dtype=dtype)
    before = inputs.clone()
    Pixels((0.5,) * 3, (0.25,) * 3, augment)(inputs, seeded())
    assert torch.equal(inputs, before)


def test_the_wrong_number_of_deviations_is_refused():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        Pixels((0.5, 0.5, 0.5), (0.25, 0.25))(images(), None)


# --- augmentation ---


def slow_crop_and_flip(inputs: np.ndarray, rows: list[int], columns: list[int], flips: list[bool]) -> np.ndarray:
    """One picture after another, as one would say it: pad, crop, mirror."""
    height, width = inputs.shape[2:]
    out = []
    for image, row, column, flip in zip(inputs, rows, columns, flips, strict=True):
        padded = np.pad(image, [(0, 0), (PAD, PAD), (PAD, PAD)], mode="reflect")
        crop = padded[:, row : row + height, column : column + width]
        out.append(crop[:, :, ::-1] if flip else crop)
    return np.stack(out)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 3), st.integers(5, 12), st.integers(5, 12))
def test_a_batch_equals_the_slow_loop_with_the_same_draws(seed, count, channels, height, width):
    inputs = images(count, channels, height, width)
    draws = seeded(seed)
    rows, columns = torch.randint(0, 2 * PAD + 1, (2, count), generator=draws).tolist()
    flips = (torch.rand(count, generator=draws) < 0.5).tolist()
    got = crop_and_flip(inputs, seeded(seed))
    np.testing.assert_array_equal(got, slow_crop_and_flip(inputs.numpy(), rows, columns, flips))


def test_every_picture_is_one_of_the_crops_and_all_crops_occur():
    """81 places x 2 ways; of 3,000 draws none is missed but with probability 162 (1 - 1/162)^3000 = 1.4e-6."""
    side = 12  # a smaller picture lies wholly in its own reflection at some places, and crops coincide
    image = images(1, 1, side, side)
    numbers = np.arange(2 * PAD + 1)
    crops = {
        slow_crop_and_flip(image.numpy(), [row], [column], [flip]).tobytes(): (row, column, flip)
        for row in numbers
        for column in numbers
        for flip in (False, True)
    }
    got = crop_and_flip(image.expand(3000, 1, side, side), seeded())
    seen = [crops[each.to(torch.uint8).numpy().tobytes()] for each in got]
    assert len(crops) == 162  # the picture is random, so no two crops are alike
    assert len(set(seen)) == 162
    # mirrored half of the time: 1500 +- 5 standard deviations, sqrt(3000) / 2 = 27.4 each
    assert abs(sum(flip for *_, flip in seen) - 1500) < 137


def test_augmentation_depends_only_on_the_generator():
    prepare = Pixels((0.5,) * 3, (0.25,) * 3, augment=True)
    assert torch.equal(prepare(images(), seeded(1)), prepare(images(), seeded(1)))
    assert not torch.equal(prepare(images(), seeded(1)), prepare(images(), seeded(2)))


@pytest.mark.parametrize(("augment", "generator"), [(True, None), (False, seeded())])
def test_without_generator_or_without_augment_nothing_is_augmented(augment, generator):
    got = Pixels((0.5,) * 3, (0.25,) * 3, augment)(images(), generator)
    torch.testing.assert_close(got, (images().float() / 255 - 0.5) / 0.25)


def test_augmentation_comes_before_scaling():
    prepare = Pixels((0.5,) * 3, (0.25,) * 3, augment=True)
    torch.testing.assert_close(
        prepare(images(), seeded(3)), (crop_and_flip(images(), seeded(3)).float() / 255 - 0.5) / 0.25
    )
