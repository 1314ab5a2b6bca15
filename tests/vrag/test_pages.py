"""Pages and views: limits, odd images, and crops that are exact however deep."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageDraw, ImageOps, ImageStat

from vrag.errors import MediaError
from vrag.geometry import MAX_PIXELS, MIN_PIXELS, Box, whole
from vrag.items import Item
from vrag.pages import (
    MAX_ASPECT,
    PageImage,
    View,
    decode_rgb,
    open_page,
    padded_on_page,
    region_on_page,
    shown_size,
    view_of,
)

ITEM = Item(id="page", kind="image", document="page.jpg")


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def gradient(width: int, height: int) -> Image.Image:
    """Red tells x, green tells y: where a pixel comes from can be read from its colour."""
    x = np.broadcast_to(np.linspace(0, 255, width), (height, width))
    y = np.broadcast_to(np.linspace(0, 255, height)[:, None], (height, width))
    return Image.fromarray(np.stack([x, y, np.full_like(x, 128)], axis=-1).astype(np.uint8))


def shown(view: View) -> Image.Image:
    image = Image.open(io.BytesIO(view.jpeg()))
    assert image.format == "JPEG"
    assert image.mode == "RGB"
    assert image.size == view.size
    return image


def difference(one: Image.Image, other: Image.Image) -> float:
    return max(ImageStat.Stat(ImageChops.difference(one, other)).mean)


def test_a_page_is_shown_within_the_published_limits() -> None:
    page = open_page(encoded(gradient(1224, 1584), "JPEG", quality=90), ITEM)
    assert page.size == (1224, 1584)
    view = view_of(page)
    assert view.box == Box(0, 0, 1224, 1584)
    assert MIN_PIXELS <= view.pixels <= MAX_PIXELS
    assert view.ref().size == view.size == (556, 720)
    assert view.ref().item.width == 1224
    assert difference(shown(view), gradient(*view.size)) < 3


def test_a_small_page_is_enlarged_and_the_limits_can_be_set() -> None:
    page = open_page(encoded(gradient(100, 90)), ITEM)
    assert MIN_PIXELS * 0.99 < view_of(page).pixels <= MIN_PIXELS
    assert view_of(page, min_pixels=1, max_pixels=100_000).size == (100, 90)
    assert view_of(page, min_pixels=1, max_pixels=900).pixels <= 900


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_rotation_holds_for_pages_and_crops(orientation: int, format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(gradient(161, 103), format, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    page = open_page(data, ITEM)
    assert page.size == upright.size
    assert difference(decode_rgb(data), upright) == 0
    box = (20, 30, 90, 80)
    view = view_of(page, Box(*box), 3500, 3500)
    assert difference(shown(view), upright.crop(box)) < 3
    # Small enough for a JPEG to be decoded at a DCT scale; the sides are odd, so its edge pixels are partial.
    view = view_of(page, None, 1, 800)
    assert difference(shown(view), upright.resize(view.size)) < 3


def _sixteen_bit(width: int, height: int) -> Image.Image:
    ramp = np.broadcast_to(np.linspace(0, 65535, width), (height, width))
    return Image.fromarray(ramp.astype(np.uint16))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "YCbCr"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    grey = Image.linear_gradient("L").rotate(90).resize((120, 80))  # black on the left, white on the right
    if mode == "I;16":
        data = encoded(_sixteen_bit(120, 80))
    elif mode in ("I", "F"):
        data = encoded(Image.fromarray(np.asarray(grey).astype(np.int32 if mode == "I" else np.float32)), "TIFF")
    else:
        data = encoded(grey.convert("RGB").convert(mode), "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
    image = shown(view_of(open_page(data, ITEM), None, 1, MAX_PIXELS))
    assert image.size == (120, 80)
    left, right = (ImageStat.Stat(image.crop(box)).mean for box in ((0, 0, 20, 80), (100, 0, 120, 80)))
    assert max(left) < 45
    assert min(right) > 210
    assert difference(decode_rgb(data), image) < 12


def test_a_cmyk_jpeg_keeps_its_colours() -> None:
    data = encoded(Image.new("RGB", (300, 200), (200, 30, 40)).convert("CMYK"), "JPEG", quality=95)
    assert Image.open(io.BytesIO(data)).mode == "CMYK"
    red, green, blue = ImageStat.Stat(shown(view_of(open_page(data, ITEM)))).mean
    assert abs(red - 200) < 8
    assert abs(green - 30) < 8
    assert abs(blue - 40) < 8


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_lie_on_white(mode: str) -> None:
    image = Image.new("RGBA", (60, 40), (0, 0, 0, 0))
    ImageDraw.Draw(image).rectangle((0, 0, 29, 39), fill=(0, 0, 0, 255))
    options: dict[str, Any] = {}
    if mode == "P":
        image, options = Image.new("P", (60, 40), 1), {"transparency": b"\xff\x00"}
        image.putpalette([0, 0, 0, 9, 9, 9])
        image.paste(0, (0, 0, 30, 40))
    picture = shown(view_of(open_page(encoded(image.convert(mode), "PNG", **options), ITEM), None, 1, MAX_PIXELS))
    assert max(picture.getpixel((4, 20))) < 10  # type: ignore[arg-type]
    assert min(picture.getpixel((55, 20))) > 245  # type: ignore[arg-type]


def test_crops_come_from_the_full_resolution_of_the_page() -> None:
    page_image = Image.new("L", (3000, 2000), 255)
    for x in range(1000, 1200, 4):  # stripes of two pixels: gone on the whole page, clear in a crop
        page_image.paste(0, (x, 900, x + 2, 1000))
    page = open_page(encoded(page_image, "JPEG", quality=95), ITEM)
    overview = view_of(page)
    left, top = 1000 * overview.size[0] / 3000, 900 * overview.size[1] / 2000
    blurred = np.asarray(shown(overview).convert("L"))[int(top) + 3 : int(top) + 12, int(left) + 3 : int(left) + 24]
    assert int(blurred.max()) - int(blurred.min()) < 80
    crop = view_of(page, Box(1000, 900, 1200, 1000))
    stripes = np.asarray(shown(crop).convert("L"))
    assert int(stripes.max()) - int(stripes.min()) > 220
    row = stripes[stripes.shape[0] // 2] < 128
    assert int(np.count_nonzero(row[1:] & ~row[:-1])) in (49, 50)


fractions = st.floats(0, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(40, 900),
    st.integers(40, 900),
    st.lists(st.tuples(fractions, fractions, fractions, fractions), min_size=1, max_size=4),
    st.sampled_from([0, 7, 56]),
)
def test_a_crop_of_a_crop_is_the_same_as_one_crop(
    width: int, height: int, crops: list[tuple[float, float, float, float]], padding: int
) -> None:
    page = open_page(encoded(gradient(width, height)), ITEM)
    view = view_of(page, None, 10_000, 20_000)
    for x1, y1, x2, y2 in crops:
        named = Box(x1 * view.size[0], y1 * view.size[1], x2 * view.size[0], y2 * view.size[1])
        region = region_on_page(named, view)
        if isinstance(region, str):
            continue
        padded = padded_on_page(region, padding, page)
        deeper = view_of(page, padded, 10_000, 20_000)
        assert 0 <= deeper.box.x1 < deeper.box.x2 <= width
        assert 0 <= deeper.box.y1 < deeper.box.y2 <= height
        assert deeper.box.covers(region)
        # Exact by the map: the fractions of the view are fractions of its box on the page.
        assert region.x1 == pytest.approx(view.box.x1 + min(x1, x2) * view.box.width, abs=1e-6)
        assert region.y2 == pytest.approx(view.box.y1 + max(y1, y2) * view.box.height, abs=1e-6)
        view = deeper
    # Exact by the pixels: the colour in the middle tells where on the page it is.
    picture = shown(view)
    pixel = picture.getpixel((view.size[0] // 2, view.size[1] // 2))
    assert isinstance(pixel, tuple)
    x = view.box.x1 + view.box.width * (view.size[0] // 2 + 0.5) / view.size[0] - 0.5
    y = view.box.y1 + view.box.height * (view.size[1] // 2 + 0.5) / view.size[1] - 0.5
    assert pixel[0] == pytest.approx(255 * x / (width - 1), abs=8)
    assert pixel[1] == pytest.approx(255 * y / (height - 1), abs=8)


@settings(deadline=None)
@given(*[st.floats(allow_nan=True, allow_infinity=True)] * 4)
def test_any_box_gives_a_region_on_the_page_or_a_reason(x1: float, y1: float, x2: float, y2: float) -> None:
    view = View(ITEM, Box(100.5, 200, 700.25, 1100), (500, 750), b"")
    region = region_on_page(Box(x1, y1, x2, y2), view)
    if isinstance(region, Box):
        assert view.box.x1 <= region.x1 < region.x2 <= view.box.x2
        assert view.box.y1 <= region.y1 < region.y2 <= view.box.y2
    else:
        assert region.endswith(".")


@pytest.mark.parametrize(
    ("named", "outcome"),
    [
        ((50, 100, 150, 200), Box(150, 300, 250, 400)),
        ((150, 200, 50, 100), Box(150, 300, 250, 400)),  # corners in the other order
        ((150, 100, 50, 200), Box(150, 300, 250, 400)),
        ((-20, 100, 150, 9999), Box(100, 300, 250, 1000)),  # over the edges
        ((50, 100, 50, 200), "is empty"),
        ((50, 100, 150, 100.5), "is empty"),
        ((0.1, 0.2, 0.8, 0.9), "is empty"),  # fractions instead of pixels
        ((600, 100, 700, 200), "outside"),
        ((-9, -9, -1, -1), "outside"),
        ((float("nan"), 1, 2, 3), "ordinary numbers"),
        ((0, 0, float("inf"), 5), "ordinary numbers"),
    ],
)
def test_what_a_named_region_means(named: tuple[float, float, float, float], outcome: Box | str) -> None:
    region = region_on_page(Box(*named), View(ITEM, Box(100, 200, 600, 1000), (500, 800), b""))
    if isinstance(outcome, Box):
        assert region == outcome
    else:
        assert isinstance(region, str)
        assert outcome in region


def test_a_region_below_one_page_pixel_is_refused() -> None:
    view = View(ITEM, Box(10, 10, 12, 12), (500, 500), b"")
    assert region_on_page(Box(0, 0, 250, 250), view) == Box(10, 10, 11, 11)
    assert "one pixel of the page" in str(region_on_page(Box(0, 0, 100, 100), view))


def test_boxes_stay_in_the_pixels_of_the_item() -> None:
    item = ITEM.model_copy(update={"width": 400, "height": 200})
    page = open_page(encoded(gradient(200, 100)), item)
    assert page.size == (400, 200)
    view = view_of(page, Box(200, 0, 400, 200), 10_000, 10_000)
    assert view.box == Box(200, 0, 400, 200)
    assert view.size == (100, 100)
    assert difference(shown(view), gradient(200, 100).crop((100, 0, 200, 100))) < 3
    # A size that cannot be is no size.
    assert open_page(encoded(gradient(20, 10)), ITEM.model_copy(update={"width": 0, "height": -4})).size == (20, 10)


@settings(deadline=None)
@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_no_view_is_thinner_than_models_accept(width: float, height: float) -> None:
    out = shown_size((width, height), MIN_PIXELS, MAX_PIXELS)
    assert out[0] * out[1] <= MAX_PIXELS
    assert max(out) / min(out) <= MAX_ASPECT * 1.05
    assert min(out) >= 28


def test_a_line_of_pixels_can_be_looked_at() -> None:
    page = open_page(encoded(Image.new("RGB", (1, 9000), "red")), ITEM)
    view = view_of(page)
    shown(view)
    region = region_on_page(whole(view.size), view)
    assert region == page.box


def _bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


GOOD = encoded(gradient(300, 200), "JPEG")


@pytest.mark.parametrize("size", [(10_000, 10_000), (13_000, 13_000), (100_000, 100_000), (2**31 - 1, 2**31 - 1)])
def test_a_decompression_bomb_is_refused_by_its_header(size: tuple[int, int]) -> None:
    with pytest.raises(MediaError, match=r"pixels|readable"):
        open_page(_bomb(*size), ITEM)
    with pytest.raises(MediaError):
        decode_rgb(_bomb(*size))


def test_limits_can_be_set() -> None:
    with pytest.raises(MediaError, match=r"page: the image is 300 x 200, more than the 1,000 pixels allowed"):
        open_page(GOOD, ITEM, max_pixels=1000)
    with pytest.raises(MediaError, match="bytes, more than the 100 allowed"):
        open_page(GOOD, ITEM, max_bytes=100)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 100, b"<html></html>", b"%PDF-1.7", GOOD[:20], b"\xff\xd8\xff", b"GIF89a", b"RIFF1234WEBPVP8 "],
)
def test_what_is_no_image_is_a_media_error(data: bytes) -> None:
    with pytest.raises(MediaError, match="page: "):
        view_of(open_page(data, ITEM))


def test_other_formats_stay_unread() -> None:
    with pytest.raises(MediaError, match="not a readable image"):
        open_page(encoded(gradient(9, 9), "PPM"), ITEM)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_damage_is_a_media_error_or_a_picture(format: str) -> None:
    data = encoded(gradient(80, 60), format)
    with pytest.raises(MediaError):
        view_of(open_page(data[: len(data) * 2 // 3], ITEM))
    noise = np.random.default_rng(5)
    for _ in range(60):
        damaged = bytearray(data)
        for position in noise.integers(0, len(data), 6):
            damaged[position] = int(noise.integers(256))
        # Nothing but MediaError may come out.
        with contextlib.suppress(MediaError):
            shown(view_of(open_page(bytes(damaged), ITEM), None, 1, 5_000))


@pytest.mark.parametrize("box", [Box(5, 5, 5, 9), Box(900, 5, 990, 9), Box(float("nan"), 0, 5, 5)])
def test_a_view_of_nothing_is_a_mistake_of_the_caller(box: Box) -> None:
    with pytest.raises(ValueError, match="a view needs a box"):
        view_of(open_page(GOOD, ITEM), box)


def test_a_page_holds_the_bytes_it_was_given() -> None:
    page = open_page(GOOD, ITEM)
    assert isinstance(page, PageImage)
    assert page.data is GOOD
    assert len(repr(page)) < 300
    assert len(repr(view_of(page))) < 300


def test_too_little_memory_is_not_called_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")

    def starved(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", starved)
    with pytest.raises(MediaError, match="not enough memory") as error:
        decode_rgb(buffer.getvalue(), "page 3")
    assert isinstance(error.value.__cause__, MemoryError)
