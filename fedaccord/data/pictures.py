"""Picture files, read within bounds: their size is checked before a pixel is unpacked."""

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from fedaccord.core.errors import DataError, first_line

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
"""The formats that are read, whatever a file is called: Pillow knows others, for some of which it starts programs."""
MOST, MOST_RESIZED = 13_000_000, 32_000_000
"""The most pixels that a picture may have, and that one which is to be resized may have."""


def read(file: Path | BinaryIO, label: object, mode: str | None = None, size: int = 0) -> np.ndarray:
    """Read a picture as bytes, (height, width) if it is grey and (height, width, 3) if it is in colour.

    `mode`: L or RGB; None: as the picture is. `size`: resize it to size x size; 0: leave its size.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, and of sizes, which are checked here
            return unpacked(file, label, mode, size)
    except DataError:
        raise
    except Exception as error:  # Pillow raises whatever its decoders stumble over
        raise DataError(f"{label}: truncated or not a picture: {first_line(error) or type(error).__name__}") from error


def unpacked(file: Path | BinaryIO, label: object, mode: str | None, size: int) -> np.ndarray:
    """Read a picture as bytes, and let through whatever Pillow raises."""
    with Image.open(file, formats=FORMATS) as picture:
        check_size(picture, label, MOST_RESIZED if size else MOST)
        eight = eight_bit(picture, label)
        mode = mode or ("L" if eight.mode in ("1", "L") else "RGB")
        plain = eight if eight.mode == mode else eight.convert(mode)
        return np.asarray(plain.resize((size, size)) if size else plain)


def check_size(picture: Image.Image, label: object, most: int) -> None:
    if not 0 < picture.width * picture.height <= most:
        smaller = "; make them smaller first" if most == MOST_RESIZED else "; give --image-size to resize them all"
        raise DataError(f"{label}: {picture.width:,} x {picture.height:,} pixels, expected {most:,} at most{smaller}")


def eight_bit(picture: Image.Image, label: object) -> Image.Image:
    """Reduce 16-bit grey to its upper byte: Pillow's own conversion would cut everything above 255 to white."""
    if picture.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise DataError(f"{label}: pixels of 32 bits, expected 8 or 16")
    return picture
