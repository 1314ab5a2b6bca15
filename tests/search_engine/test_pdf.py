"""Pages of real PDFs, made on the spot: where their text stands, how they are rendered, and what cannot be opened."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pymupdf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from search_engine.documents import Line, union
from search_engine.pdf import (
    LONGEST_SIDE,
    RenderOptions,
    is_scan_with_text,
    layer_lines,
    load_page,
    open_pdf,
    render,
    rendering_scale,
)
from tests import hostile
from vrag.errors import MediaError
from vrag.geometry import Box

OPTIONS = RenderOptions()


def ink(image: Image.Image) -> Box:
    """The box around everything that is not white."""
    left, top, right, bottom = ImageOps.invert(image.convert("L")).point(lambda v: 255 * (v > 60)).getbbox()
    return Box(left, top, right, bottom)


def first_page(path: Path) -> tuple[Image.Image, tuple[Line, ...]]:
    with open_pdf(path, 100) as document:
        page = load_page(document, 1)
        image = render(page, OPTIONS)
        return image, layer_lines(page, image.size)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("cropped", [False, True])
def test_the_boxes_of_the_text_lie_on_its_ink(tmp_path: Path, rotation: int, cropped: bool) -> None:
    path = tmp_path / "turned.pdf"
    with pymupdf.open() as document:
        page = document.new_page(width=400, height=300)
        page.insert_text((150, 120), "Quarterly Hxg", fontsize=20)
        if cropped:
            page.insert_text((20, 20), "outside", fontsize=12)
            page.set_cropbox(pymupdf.Rect(100, 60, 390, 250))
        page.set_rotation(rotation)
        document.save(path)
    image, lines = first_page(path)
    assert [line.text for line in lines] == ["Quarterly Hxg"]
    assert (image.width > image.height) == (rotation % 180 == 0)
    # The box of the font (ascender to descender) is a little higher than the ink of these letters.
    assert lines[0].box.padded(3).covers(ink(image))
    assert lines[0].box.area < 2.2 * ink(image).area
    assert len(lines[0].words) == 2
    assert union(lines[0].words) == lines[0].box


def test_cells_are_lines_of_their_own_and_words_keep_their_boxes(tmp_path: Path) -> None:
    path = tmp_path / "table.pdf"
    with pymupdf.open() as document:
        page = document.new_page()
        page.insert_text((72, 100), "Average wait in minutes", fontsize=11)
        page.insert_text((300, 100), "31.02", fontsize=11)
        document.save(path)
    _, lines = first_page(path)
    assert [line.text for line in lines] == ["Average wait in minutes", "31.02"]
    start = lines[0].text.index("wait")
    assert lines[0].part(start, start + 4) == lines[0].words[1]


def test_chinese_text_is_read(tmp_path: Path) -> None:
    _, lines = first_page(hostile.pdf(tmp_path / "zh.pdf", ["二零二五年数据安全报告"], font="china-s"))
    assert [line.text for line in lines] == ["二零二五年数据安全报告"]


def test_pages_are_rendered_within_the_limits_and_shown_right(tmp_path: Path) -> None:
    sizes = {}
    for name, size in {"a4": (595, 842), "slide": (453, 255), "poster": (4000, 3000), "thin": (14_000, 3)}.items():
        sizes[name] = first_page(hostile.pdf(tmp_path / f"{name}.pdf", ["x"], size))[0].size
    assert sizes["a4"] == (1190, 1684)
    assert sizes["slide"][0] * sizes["slide"][1] == pytest.approx(OPTIONS.min_pixels, rel=0.01)
    assert sizes["poster"][0] * sizes["poster"][1] == pytest.approx(OPTIONS.max_pixels, rel=0.01)
    assert sizes["thin"][0] <= LONGEST_SIDE


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_no_page_is_rendered_without_pixels_or_with_too_many(width: float, height: float) -> None:
    scale_x, scale_y = rendering_scale(width, height, OPTIONS)
    across, down = width * scale_x, height * scale_y
    assert min(across, down) >= 0.99
    assert max(across, down) <= LONGEST_SIDE * 1.01
    assert across * down <= OPTIONS.max_pixels * 1.01


def test_an_invisible_layer_on_a_scan_is_noticed(tmp_path: Path) -> None:
    for hidden, visible in (("Hidden words", False), (None, True)):
        path = hostile.scanned_pdf(tmp_path / "scan.pdf", "Scanned", hidden=hidden)
        with open_pdf(path, 10) as document:
            assert is_scan_with_text(load_page(document, 1)) is not visible
    with open_pdf(hostile.pdf(tmp_path / "text.pdf", ["visible"]), 10) as document:
        assert not is_scan_with_text(load_page(document, 1))


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    good = hostile.pdf(tmp_path / "good.pdf", ["one", "two", "three"]).read_bytes()
    (tmp_path / "empty.pdf").write_bytes(b"")
    (tmp_path / "noise.pdf").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "stump.pdf").write_bytes(good[:20])
    hostile.image_of(tmp_path / "picture.png", "a picture").rename(tmp_path / "picture.pdf")
    hostile.encrypted_pdf(tmp_path / "locked.pdf")
    hostile.empty_pdf(tmp_path / "pageless.pdf")
    expected = {
        "empty": "empty",
        "noise": "not a PDF|no pages",
        "stump": "not a PDF|no pages",
        "picture": "not a PDF|no pages",
        "locked": "encrypted",
        "pageless": "no pages",
    }
    for name, reason in expected.items():
        with pytest.raises(MediaError, match=reason):
            open_pdf(tmp_path / f"{name}.pdf", 100)
    with pytest.raises(MediaError, match=r"3 pages, more than the 2 allowed"):
        open_pdf(tmp_path / "good.pdf", 2)


def test_a_pdf_cut_at_any_place_is_read_or_refused(tmp_path: Path) -> None:
    good = hostile.pdf(tmp_path / "good.pdf", ["one", "two", "three"]).read_bytes()
    path = tmp_path / "cut.pdf"
    for length in range(0, len(good), max(1, len(good) // 25)):
        path.write_bytes(good[:length])
        with contextlib.suppress(MediaError), open_pdf(path, 100) as document:
            assert 1 <= document.page_count <= 3
            for number in range(1, document.page_count + 1):
                page = load_page(document, number)
                assert len(layer_lines(page, render(page, OPTIONS).size)) <= 1


def test_one_broken_page_does_not_hide_the_others(tmp_path: Path) -> None:
    with open_pdf(hostile.half_broken_pdf(tmp_path / "half.pdf"), 10) as document:
        render(load_page(document, 1), OPTIONS)
        with pytest.raises(MediaError, match="cannot be read"):
            load_page(document, 2)
        render(load_page(document, 3), OPTIONS)


def test_the_reason_of_a_damaged_file_does_not_tell_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "broken.pdf"
    path.write_bytes(b"%PDF-1.7\nnothing of a document")
    with pytest.raises(MediaError, match="damaged beyond repair") as error:
        open_pdf(path, 10)
    assert str(tmp_path) not in str(error.value)
    assert tmp_path.name not in str(error.value)
