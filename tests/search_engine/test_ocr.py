"""OCR of pictures whose text is known, and the choice between it and a PDF's text layer."""

from __future__ import annotations

import json
from pathlib import Path

import pymupdf
import pytest
from PIL import Image

from search_engine import ocr
from search_engine.documents import Line
from search_engine.page_text import doubt, page_text, preferred, without, writing_outside
from search_engine.pdf import RenderOptions, is_scan_with_text, layer_lines, load_page, open_pdf, render
from tests import hostile
from vrag.geometry import Box, whole


def at(text: str, x: float = 0, y: float = 0) -> Line:
    return Line(text, Box(x, y, x + 10 * len(text), y + 20))


def chinese(path: Path, text: str) -> Image.Image:
    """A picture of Chinese text (the font comes with PyMuPDF)."""
    with open_pdf(hostile.pdf(path, [text], font="china-s"), 1) as document:
        return render(load_page(document, 1), RenderOptions())


def test_lines_are_read_with_their_boxes_in_english_and_chinese(tmp_path: Path) -> None:
    with Image.open(hostile.image_of(tmp_path / "en.png", "Revenue 2024: 46%")) as image:
        (line,) = ocr.read_lines(image)
    assert line.text.replace(" ", "") == "Revenue2024:46%"
    assert line.box.intersection(Box(40, 58, 380, 90)) > 0.8 * Box(40, 58, 380, 90).area
    assert line.box.area < 2.5 * Box(40, 58, 380, 90).area
    (line,) = ocr.read_lines(chinese(tmp_path / "zh.pdf", "数据安全报告"))
    assert line.text == "数据安全报告"


@pytest.mark.parametrize("mode", ["CMYK", "L", "P", "RGBA", "1"])
def test_a_blank_picture_of_any_mode_has_no_lines(mode: str) -> None:
    assert ocr.read_lines(Image.new(mode, (300, 200))) == ()
    assert ocr.read_lines(Image.new(mode, (1, 3000))) == ()


@pytest.mark.parametrize("size", [(100, 100), (3000, 800), (500, 9000), (9000, 500), (2001, 700), (3, 70_000)])
def test_windows_cover_the_picture_and_count_every_place_once(size: tuple[int, int]) -> None:
    windows = ocr._windows(size)
    assert sum(counted.area for _, counted in windows) == pytest.approx(whole(size).area)
    assert all(window.covers(counted, 1.0) for window, counted in windows)
    if len(windows) > 1:
        assert max(max(window.width, window.height) for window, _ in windows) <= max(1.8 * min(size), 750)


def test_a_long_screenshot_is_read_window_by_window() -> None:
    from PIL import ImageDraw, ImageFont

    image = Image.new("RGB", (700, 3000), "white")
    draw = ImageDraw.Draw(image)
    for y in (100, 1090, 2900):  # the second stands where two windows meet
        draw.text((30, y), f"Mark {y}", fill="black", font=ImageFont.load_default(30))
    lines = ocr.read_lines(image)
    assert [line.text.replace(" ", "") for line in lines] == ["Mark100", "Mark1090", "Mark2900"]
    assert [abs(line.box.y1 - y) < 20 for line, y in zip(lines, (100, 1090, 2900), strict=True)] == [True] * 3


def test_a_picture_is_read_once_and_a_damaged_memory_is_replaced(tmp_path: Path) -> None:
    image = Image.open(hostile.image_of(tmp_path / "a.png", "Once", (240, 120)))
    cache = ocr.OcrCache(tmp_path / "cache")
    first = cache.read_lines(image)
    assert [line.text for line in first] == ["Once"]
    (file,) = (tmp_path / "cache").glob("*/*.json")
    known = json.loads(file.read_text(encoding="utf-8"))
    known["lines"][0][0] = "From memory"
    file.write_text(json.dumps(known), encoding="utf-8")
    assert [line.text for line in ocr.OcrCache(tmp_path / "cache").read_lines(image)] == ["From memory"]
    for damage in ("", "{", '{"lines": [["x", 1]]}', '{"lines": 3}', "[]"):
        file.write_text(damage, encoding="utf-8")
        assert cache.read_lines(image) == first
    assert [path.name for path in (tmp_path / "cache" / ".partial").iterdir()] == []


# --- the choice between layer and OCR; the reader here is a function argument, and says what it is told


def test_a_sound_layer_is_not_read_again(tmp_path: Path) -> None:
    with open_pdf(hostile.pdf(tmp_path / "a.pdf", ["Annual report of the office"]), 1) as document:
        page = load_page(document, 1)
        image = render(page, RenderOptions())
        layer = layer_lines(page, image.size)

    def never(picture: Image.Image) -> tuple[Line, ...]:
        raise AssertionError("nothing is left to read")

    text = page_text(image, layer, False, never)
    assert (text.source, text.text) == ("layer", "Annual report of the office")
    assert writing_outside(image, ()) > 0.01 > writing_outside(image, [line.box for line in layer])
    # Painted over, the page has no ink left.
    assert writing_outside(without(image, layer), ()) == 0


def test_a_picture_beside_the_text_is_read_and_added(tmp_path: Path) -> None:
    chart = hostile.image_of(tmp_path / "chart.png", "Growth 71.38%")
    with pymupdf.open() as document:
        page = document.new_page(width=400, height=300)
        page.insert_text((40, 60), "Figure 3 shows growth", fontsize=16)
        page.insert_image(pymupdf.Rect(40, 150, 340, 230), filename=str(chart))
        document.save(tmp_path / "mixed.pdf")
    with open_pdf(tmp_path / "mixed.pdf", 1) as document:
        page = load_page(document, 1)
        image = render(page, RenderOptions())
        layer = layer_lines(page, image.size)
        text = page_text(image, layer, is_scan_with_text(page), ocr.read_lines)
    assert text.source == "layer+ocr"
    assert [line.text.replace(" ", "") for line in text.lines] == ["Figure3showsgrowth", "Growth71.38%"]
    scale = image.width / 400
    assert Box(40 * scale, 150 * scale, 340 * scale, 230 * scale).covers(text.lines[1].box)


def test_layers_in_doubt_are_those_with_unreadable_or_impossible_words() -> None:
    assert doubt([at("\ufffd\ufffd\ue001 Total")])
    # A font whose encoding is off by three: "Annual report of the office ...".
    shifted = "Dqqxdo uhsruw ri wkh riilfh iru wkh wklug txduwhu, zlwk wkh ehqhilwv sdlg wr hpsor|hhv lq hyhu| glvwulfw"
    assert doubt([at(shifted)])
    assert not doubt([at("This is the text of a report, 2024: 46 % in Q3; HTTP, XML, CSRF, SSL and TLS.")])
    assert not doubt([at("数据安全报告")])
    assert not doubt([])


def test_of_a_doubtful_layer_and_ocr_the_one_that_holds_up_is_kept() -> None:
    good, noise = (at("Annual report of the office"),), (at("Xnnq1 rcpqt zf thx 0ffkz"),)
    assert preferred(noise, good).source == "ocr"
    assert preferred(good, good).source == "layer"
    assert preferred(good, ()).source == "layer"
    # Russian, which the OCR cannot read.
    assert preferred((at("Годовой отчёт"),), (at("TogoBon oTuem"),)).source == "layer"


def test_without_ocr_only_the_layer_speaks() -> None:
    blank = Image.new("RGB", (100, 100), "white")
    assert page_text(blank, [], False, None).source == "none"
    assert page_text(blank, [at("x")], True, None).source == "layer"
    assert page_text(blank, [], False, ocr.read_lines).source == "none"
