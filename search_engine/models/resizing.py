"""Opening pictures and sizing them as Qwen's processors do; Pillow alone, no torch."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vrag.errors import MediaError

ImageSource = Path | str | bytes | Image.Image
"""A picture: the path of its file, its encoded bytes, or decoded."""

#: The sides of a picture may differ this many times.
MAX_ASPECT = 200
#: What Pillow itself regards as a decompression bomb.
MAX_IMAGE_PIXELS = 2**31 // 12


@dataclass(frozen=True, slots=True)
class Area:
    """The least and the most pixels that a picture is resized to."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most:
            raise ValueError(f"pixel limits have to be positive and in order, got {self.least} to {self.most}")


def smart_resize(width: int, height: int, factor: int, area: Area) -> tuple[int, int]:
    """The (width, height) nearest in shape whose sides are multiples of ``factor`` and whose area lies within ``area``.

    Raises MediaError for a picture more than 200 times as long as wide.
    """
    if max(width, height) / min(width, height) > MAX_ASPECT:
        raise MediaError(
            f"a picture of {width} x {height} pixels is too narrow; its sides may differ {MAX_ASPECT}-fold."
        )
    new_height = max(factor, round(height / factor) * factor)
    new_width = max(factor, round(width / factor) * factor)
    if new_height * new_width > area.most:
        shrink = math.sqrt(height * width / area.most)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < area.least:
        grow = math.sqrt(area.least / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_width, new_height


def open_image(source: ImageSource) -> Image.Image:
    """Open a picture; only its header is read. Raises MediaError for what is no picture or too large to decode."""
    if isinstance(source, Image.Image):
        return source
    try:
        image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else os.fspath(source))
    except Image.DecompressionBombError as error:
        raise MediaError(f"{_name(source)} has more pixels than are decoded here.") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise MediaError(f"{_name(source)} cannot be opened as a picture: {error}") from error
    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise MediaError(f"{_name(source)} has {image.width} x {image.height} pixels, more than are decoded here.")
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """RGB, what is transparent in an RGBA picture on white. Every other mode is converted as Pillow does it.

    EXIF rotation is not applied, as it was not when the models were trained: hand over upright pictures.
    """
    if image.mode != "RGBA":
        return image.convert("RGB")
    canvas = Image.new("RGB", image.size, (255, 255, 255))
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas


def rgb_at(source: ImageSource, sizes: Iterable[tuple[int, int]]) -> Image.Image:
    """The picture in RGB, resized (bicubic) to each of ``sizes`` in turn. Raises MediaError when it cannot be decoded."""
    opened = open_image(source)
    try:
        image = to_rgb(opened)
    except Exception as error:  # Pillow's decoders raise almost anything on damaged data.
        reason = "there is not enough memory for it" if isinstance(error, MemoryError) else str(error)
        raise MediaError(f"{_name(source)} cannot be decoded: {reason}") from error
    finally:
        if opened is not source:
            opened.close()
    for size in sizes:
        if size != image.size:
            image = image.resize(size, Image.Resampling.BICUBIC)
    return image


def _name(source: ImageSource) -> str:
    return "the picture" if isinstance(source, bytes | Image.Image) else Path(source).name
