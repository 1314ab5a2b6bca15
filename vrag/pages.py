"""Pages and the pictures of them that a model is shown.

A :class:`PageImage` is the encoded image of an item, checked but not decoded. A :class:`View` is what the model sees: a
box on the page, at some size, as JPEG. Every view is rendered from the page itself, never from another view, and at the
resolution that it needs, so the crop of a crop is as sharp and as exact as if it had been cut from the page at once.

Boxes are in *page pixels*: those of ``Item.width`` x ``Item.height``, upright (after EXIF rotation).
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vrag.errors import MediaError
from vrag.events import ViewRef
from vrag.geometry import MAX_PIXELS, MIN_PIXELS, Box, Size, fit_area, to_page, whole
from vrag.items import Item

#: What a page may be encoded in; everything else that Pillow can read stays unread.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
#: Limits that hold before anything is decoded. The pixels are those above which Pillow itself begins to warn.
MAX_PAGE_BYTES = 64 * 2**20
MAX_PAGE_PIXELS = 2**30 // 12
#: The aspect ratio of a view at most: Qwen's processors refuse beyond 200, and JPEG sides beyond 65,500 pixels.
MAX_ASPECT = 100.0
JPEG_QUALITY = 85

_ORIENTATION_TAG = 0x0112
#: EXIF orientation -> what turns the stored picture upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = frozenset({5, 6, 7, 8})


@dataclass(frozen=True, slots=True)
class View:
    """A picture as a model sees it: ``box`` of ``item`` (page pixels) at ``size`` (pixels), encoded as JPEG."""

    item: Item
    box: Box
    size: Size
    data: bytes = field(repr=False)
    timestamp: float | None = None

    @property
    def pixels(self) -> int:
        return self.size[0] * self.size[1]

    def jpeg(self) -> bytes:
        """The JPEG itself: the bytes that travel to a model."""
        return self.data

    def ref(self) -> ViewRef:
        return ViewRef(item=self.item, box=self.box, size=self.size, timestamp=self.timestamp)


@dataclass(frozen=True, slots=True)
class PageImage:
    """The encoded image of ``item``, whose width and height are always set; only the header has been read."""

    item: Item
    data: bytes = field(repr=False)
    stored_size: Size
    """Size of the image as stored, before ``orientation`` is applied."""
    orientation: int = 1

    @property
    def size(self) -> Size:
        """(width, height) in page pixels."""
        return self.item.width or self.stored_size[0], self.item.height or self.stored_size[1]

    @property
    def box(self) -> Box:
        return whole(self.size)


def open_page(
    data: bytes, item: Item, *, max_bytes: int = MAX_PAGE_BYTES, max_pixels: int = MAX_PAGE_PIXELS
) -> PageImage:
    """Check the encoded image of ``item``; nothing is decoded yet.

    An item without a size gets that of the image; where the two differ, boxes stay in the item's pixels and are scaled.
    Raises MediaError for what is no image, too many bytes or too many pixels.
    """
    image = _open(data, item.id, max_bytes, max_pixels)
    orientation = _orientation(image)
    width, height = image.size[::-1] if orientation in _SIDEWAYS else image.size
    if not (item.width and item.height and item.width > 0 and item.height > 0):
        item = item.model_copy(update={"width": width, "height": height})
    return PageImage(item, data, image.size, orientation)


def view_of(
    page: PageImage,
    box: Box | None = None,
    min_pixels: int = MIN_PIXELS,
    max_pixels: int = MAX_PIXELS,
    *,
    timestamp: float | None = None,
    quality: int = JPEG_QUALITY,
) -> View:
    """Render ``box`` of the page (page pixels; None: all of it) at an area between the limits, aspect kept.

    A JPEG is decoded at the smallest of its DCT scales that still has the pixels the view needs. Raises MediaError when
    the image is damaged, ValueError for a box without area on the page.
    """
    box = page.box if box is None else box.clamped(page.box)
    if not box.area > 0:
        raise ValueError(f"a view needs a box on the page, not {box}")
    upright = (page.stored_size[1], page.stored_size[0]) if page.orientation in _SIDEWAYS else page.stored_size
    scale_x, scale_y = upright[0] / page.size[0], upright[1] / page.size[1]
    part = Box(box.x1 * scale_x, box.y1 * scale_y, box.x2 * scale_x, box.y2 * scale_y)
    size = shown_size((part.width, part.height), min_pixels, max_pixels)
    picture = _render(page, _as_stored(part, upright, page.orientation), size)
    return View(page.item, box, size, encode_jpeg(picture, quality), timestamp)


def shown_size(size: tuple[float, float], min_pixels: int, max_pixels: int) -> Size:
    """:func:`vrag.geometry.fit_area` with the aspect ratio bounded by ``MAX_ASPECT``: a thinner one is stretched."""
    width, height = size
    return fit_area((max(width, height / MAX_ASPECT), max(height, width / MAX_ASPECT)), min_pixels, max_pixels)


def region_on_page(displayed: Box, view: View) -> Box | str:
    """Where a box that a model named on ``view`` (displayed pixels) lies on the page; or why it cannot be used.

    Total: corners given in another order name the same rectangle and are sorted; what reaches over the edge of the
    picture is cut off; a box that leaves less than one displayed pixel, or less than one pixel of the page, gives a
    sentence that is fit to show to the model.
    """
    width, height = view.size
    if not all(math.isfinite(value) for value in displayed.as_list()):
        return "The coordinates of the region have to be ordinary numbers."
    ordered = Box(
        min(displayed.x1, displayed.x2),
        min(displayed.y1, displayed.y2),
        max(displayed.x1, displayed.x2),
        max(displayed.y1, displayed.y2),
    )
    inside = ordered.clamped(whole(view.size))
    if inside.width < 1 or inside.height < 1:
        where = "is empty" if ordered.width < 1 or ordered.height < 1 else "lies outside of the picture"
        return f"The region {where}: the last picture is {width} pixels wide and {height} pixels high."
    box = to_page(inside, view.size, view.box).clamped(view.box)
    if box.width < 1 or box.height < 1:
        return "The region is smaller than one pixel of the page: there is nothing more to see in it."
    return box


def padded_on_page(box: Box, padding: float, page: PageImage) -> Box:
    """``box`` with ``padding`` page pixels of its surroundings on each side, as far as the page reaches."""
    return box.padded(padding).clamped(page.box)


def encode_jpeg(image: Image.Image, quality: int = JPEG_QUALITY) -> bytes:
    """An RGB image as JPEG: the only encoding in which pictures travel to a model."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def decode_rgb(
    data: bytes, name: str = "the image", *, max_bytes: int = MAX_PAGE_BYTES, max_pixels: int = MAX_PAGE_PIXELS
) -> Image.Image:
    """The whole image at full size, upright, in RGB, under the same limits as a page. Raises MediaError."""
    image = _open(data, name, max_bytes, max_pixels)
    orientation = _orientation(image)
    try:
        return _turned(to_rgb(image), orientation)
    except Exception as error:  # see _open
        raise _damaged(name, error) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB: transparent parts on white, 16 bits and more scaled down to 8, the first frame of several."""
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode[0] in "IF":
        return Image.fromarray(_to_8_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        # "La" and "RGBa" (premultiplied) convert only by way of their plain forms.
        straight = {"La": "LA", "RGBa": "RGBA"}.get(image.mode)
        layer = (image.convert(straight) if straight else image).convert("RGBA")
        paper = Image.new("RGB", layer.size, "white")
        paper.paste(layer, mask=layer.getchannel("A"))
        return paper
    return image.convert("RGB")


def _to_8_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey of any depth as uint8: 16 bits by their full range, others from their least to their largest value."""
    grey = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(grey.min()), float(grey.max())
    if values.dtype == np.uint16 or (values.dtype.kind == "i" and low >= 0 and 255 < high <= 65535):
        low, high = 0.0, 65535.0
    elif low >= 0 and 1 < high <= 255:
        low, high = 0.0, 255.0
    return np.asarray((grey - low) * (255.0 / max(high - low, 1e-12)) + 0.5).astype(np.uint8)


def _open(data: bytes, name: str, max_bytes: int, max_pixels: int) -> Image.Image:
    """Read the header, within the limits."""
    if len(data) > max_bytes:
        raise MediaError(f"{name}: the image has {len(data):,} bytes, more than the {max_bytes:,} allowed.")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaError(f"{name}: the image has more than the {max_pixels:,} pixels allowed.") from error
    except Exception as error:  # the decoders raise whatever hostile bytes lead them to; all of it means the same here
        raise MediaError(f"{name}: not a readable image ({', '.join(FORMATS)} can be read).") from error
    if image.width * image.height > max_pixels:
        raise MediaError(
            f"{name}: the image is {image.width} x {image.height}, more than the {max_pixels:,} pixels allowed."
        )
    return image


def _damaged(name: str, error: Exception) -> MediaError:
    if isinstance(error, MemoryError):
        return MediaError(f"{name}: there is not enough memory to decode the image.")
    return MediaError(f"{name}: the image is damaged and cannot be decoded ({error}).")


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation that is still to be applied, 1 to 8; 1 where there is none or it cannot be read."""
    if image.format == "TIFF":  # Pillow turns these by itself
        return 1
    # A PNG without EXIF in its header would be decoded whole in the search for it.
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # metadata is never worth losing the picture for
        return 1
    return value if value in _UPRIGHT else 1


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def _as_stored(box: Box, upright: Size, orientation: int) -> Box:
    """Carry a box on the upright image to the image as stored (the inverse of the turn)."""
    width, height = upright
    left, top, right, bottom = box.x1, box.y1, width - box.x2, height - box.y2
    if orientation == 2:
        return Box(right, top, right + box.width, box.y2)
    if orientation == 3:
        return Box(right, bottom, right + box.width, bottom + box.height)
    if orientation == 4:
        return Box(left, bottom, box.x2, bottom + box.height)
    if orientation == 5:
        return Box(top, left, box.y2, box.x2)
    if orientation == 6:
        return Box(top, right, box.y2, right + box.width)
    if orientation == 7:
        return Box(bottom, right, bottom + box.height, right + box.width)
    if orientation == 8:
        return Box(bottom, left, bottom + box.height, box.x2)
    return box


def _render(page: PageImage, part: Box, size: Size) -> Image.Image:
    """Decode what is needed, cut ``part`` (pixels of the image as stored) and scale it to ``size`` (upright), RGB."""
    stored_width, stored_height = page.stored_size
    width, height = size[::-1] if page.orientation in _SIDEWAYS else size
    try:
        file = Image.open(io.BytesIO(page.data), formats=FORMATS)
        # The least size of the whole image at which ``part`` still has ``size``; a no-op for all but JPEG.
        least = math.ceil(stored_width * width / part.width), math.ceil(stored_height * height / part.height)
        drafted = file.draft(file.mode, least)
        shrink = stored_width / drafted[1][2] if drafted else 1.0
        image = file if file.mode in ("L", "CMYK") and not file.has_transparency_data else to_rgb(file)
        source = Box(part.x1 / shrink, part.y1 / shrink, part.x2 / shrink, part.y2 / shrink).clamped(whole(image.size))
        small = image.resize(
            (width, height),
            Image.Resampling.BICUBIC,
            box=(source.x1, source.y1, source.x2, source.y2),
            reducing_gap=2.0,
        )
        return _turned(small if small.mode == "RGB" else small.convert("RGB"), page.orientation)
    except Exception as error:  # see _open
        raise _damaged(page.item.id, error) from error
