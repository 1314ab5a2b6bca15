"""The example corpus: its questions point at pages and boxes that hold the answer, and the script still draws it."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pymupdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "search_engine" / "corpus" / "example"
DOCUMENTS = CORPUS / "documents"
SCRIPT = ROOT / "scripts" / "make_example_corpus"
QUESTIONS: list[dict[str, Any]] = [
    json.loads(line) for line in (CORPUS / "questions.jsonl").read_text("utf-8").splitlines()
]
ANSWERABLE = [question for question in QUESTIONS if question["answerable"]]
# Pages that only OCR can read.
WITHOUT_TEXT = {
    ("veyford_transport_plan_2030.pdf", 7),
    ("mossly_p2_launch_deck.pdf", 5),
    ("ashgrove_lab_safety_handbook.pdf", 5),
    ("yunting_water_report_2025.pdf", 6),
    ("lanting_tea_deck_2025.pdf", 6),
}


def normalised(text: str) -> str:
    return "".join(text.split()).lower()


def drawing(module: str) -> ModuleType:
    """A module of the drawing package, which lives beside the script and is not installed."""
    folder = str(ROOT / "scripts")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(f"example_corpus.{module}")


def text_in(page: pymupdf.Page, box: list[float]) -> str:
    """The characters whose middle lies inside `box` (fractions of the page)."""
    frame = pymupdf.Rect(
        box[0] * page.rect.width, box[1] * page.rect.height, box[2] * page.rect.width, box[3] * page.rect.height
    )
    out = []
    for block in page.get_text("rawdict")["blocks"]:
        for line in block.get("lines", ()):
            for span in line["spans"]:
                for char in span["chars"]:
                    x0, y0, x1, y1 = char["bbox"]
                    if pymupdf.Point((x0 + x1) / 2, (y0 + y1) / 2) in frame:
                        out.append(char["c"])
    return "".join(out)


def test_names_and_kinds() -> None:
    assert 36 <= len(QUESTIONS) <= 50
    assert len({question["uid"] for question in QUESTIONS}) == len(QUESTIONS)
    kinds = Counter(question["meta_info"]["source_type"] for question in ANSWERABLE)
    assert set(kinds) == {"Text", "Table", "Chart", "Layout", "Image"}
    assert min(kinds.values()) >= 4
    languages = Counter(question["lang"] for question in ANSWERABLE)
    assert languages["en"] >= 15
    assert languages["zh"] >= 12
    for question in QUESTIONS:
        assert question["query"].strip().endswith(("?", "？")), question["uid"]
        assert question["scope"] == "corpus"


def test_examples_for_the_demo() -> None:
    examples = [question for question in QUESTIONS if question["example"]]
    assert 4 <= len(examples) <= 6
    assert {question["lang"] for question in examples} == {"en", "zh"}
    assert {"Text", "Table", "Chart"} <= {question["meta_info"]["source_type"] for question in examples}
    assert all(question["answerable"] for question in examples)


def test_questions_without_an_answer() -> None:
    unanswerable = [question for question in QUESTIONS if not question["answerable"]]
    assert len(unanswerable) >= 4
    for question in unanswerable:
        assert question["reference_answer"] is None
        assert question["evidence"] == []
        assert question["meta_info"]["reference_page"] == []
        assert "region" not in question


def test_questions_over_several_pages() -> None:
    hops = [question for question in QUESTIONS if question["meta_info"]["query_type"] == "Multi-Hop"]
    assert len(hops) >= 4
    for question in hops:
        assert question["evidence_mode"] == "all"
        assert sum(len(each["pages"]) for each in question["evidence"]) >= 2, question["uid"]
    assert any(len(question["evidence"]) > 1 for question in hops)


@pytest.mark.parametrize("question", ANSWERABLE, ids=lambda question: question["uid"])
def test_answer_stands_in_its_region(question: dict[str, Any]) -> None:
    info, region = question["meta_info"], question["region"]
    for each in question["evidence"]:
        with pymupdf.open(DOCUMENTS / each["file_name"]) as document:
            assert all(1 <= page <= document.page_count for page in each["pages"])
    assert {"file_name": info["file_name"], "pages": info["reference_page"]} in question["evidence"]
    assert region["page"] in info["reference_page"]
    x0, y0, x1, y1 = region["box"]
    assert 0 <= x0 < x1 <= 1
    assert 0 <= y0 < y1 <= 1
    with pymupdf.open(DOCUMENTS / info["file_name"]) as document:
        page = document[region["page"] - 1]
        if question["text_layer_has_answer"]:
            assert normalised(question["reference_answer"]) in normalised(text_in(page, region["box"]))
        else:
            assert text_in(page, region["box"]) == ""
        # Something dark on light (or light on dark) is really there.
        clip = pymupdf.Rect(x0 * page.rect.width, y0 * page.rect.height, x1 * page.rect.width, y1 * page.rect.height)
        pixels = page.get_pixmap(dpi=100, clip=clip, colorspace=pymupdf.csGRAY)
        grey = np.frombuffer(pixels.samples, dtype=np.uint8)
        assert int(grey.max()) - int(grey.min()) > 60


def test_pages_without_a_text_layer() -> None:
    found, pages = set(), 0
    for path in sorted(DOCUMENTS.glob("*.pdf")):
        with pymupdf.open(path) as document:
            pages += document.page_count
            found |= {(path.name, page.number + 1) for page in document if not page.get_text().strip()}
    assert found == WITHOUT_TEXT
    images = [path for path in DOCUMENTS.iterdir() if path.suffix in (".png", ".jpg")]
    assert pages + len(images) >= 40


def test_files_are_small_and_described() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    readme = (CORPUS / "README.md").read_text("utf-8")
    assert all(path.name in readme for path in DOCUMENTS.iterdir())
    assert "CC0 1.0 Universal" in (CORPUS / "LICENSE").read_text("utf-8")


def test_script_still_draws_what_is_committed() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_check_sees_changes() -> None:
    differences = drawing("build").differences
    kept = (DOCUMENTS / "lanting_tea_deck_2025.pdf").read_bytes()

    def changed(change: Any) -> bytes:
        with pymupdf.open("pdf", kept) as document:
            change(document)
            data: bytes = document.tobytes()
            return data

    assert differences(kept, kept, ".pdf") == []
    assert differences(changed(lambda d: None), kept, ".pdf") == []
    assert differences(changed(lambda d: d.delete_page(2)), kept, ".pdf") == ["5 pages instead of 6"]
    written = changed(lambda d: d[1].insert_text((60, 480), "133"))
    assert differences(written, kept, ".pdf") == ["the text of page 2 differs"]
    painted = changed(lambda d: d[5].draw_rect((100, 100, 500, 400), fill=(0, 0, 0)))
    (fault,) = differences(painted, kept, ".pdf")
    assert fault.startswith("page 6: the picture differs")

    picture = (DOCUMENTS / "lunde_harbour_tides.png").read_bytes()
    smaller = io.BytesIO()
    Image.open(io.BytesIO(picture)).resize((300, 200)).save(smaller, "PNG")
    assert "the size is (300, 200)" in differences(smaller.getvalue(), picture, ".png")[0]
    assert differences(b"{}\n", b"[]\n", ".jsonl") == ["the questions differ"]


@pytest.mark.parametrize("angle", [0.7, -1.1, 3.0])
def test_a_box_turns_with_the_scanned_page(angle: float) -> None:
    canvas = drawing("canvas")
    size, box = (600, 800), (420, 90, 520, 130)
    image = Image.new("RGB", size, "white")
    image.paste("black", box)
    page = np.asarray(canvas.scanned(image, canvas.Scan(paper=False, angle=angle, noise=0, blur=0), seed=1))
    rows, columns = np.nonzero(page < 128)
    seen = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert canvas.turned(box, size, angle) == pytest.approx(seen, abs=2)


def test_overlapping_text_is_a_fault() -> None:
    canvas = drawing("canvas")
    theme = canvas.Theme("#000000", "#666666", "#0000aa", "#aa0000", "#cccccc", "#eeeeee", ("#0000aa",))
    book = canvas.Book("a.pdf", "A", "B", theme, canvas.A4)
    page = book.page()
    page.text(100, 100, "first line", 12)
    page.text(100, 118, "second line", 12)
    assert canvas.overlaps(page) == []
    page.text(130, 103, "across", 12)
    page.text(560, 300, "over the edge", 12)
    assert canvas.overlaps(page) == ["'over the edge' leaves the page", "'first line' overlaps 'across'"]


def test_an_answer_that_is_not_drawn_is_refused() -> None:
    questions, canvas = drawing("questions"), drawing("canvas")
    mark = canvas.Mark("a.pdf", 1, (0.1, 0.1, 0.2, 0.2), "€3.20", True)
    question = questions.Question("q", "How much?", "€3.50", "Text", ("a:price",))
    with pytest.raises(ValueError, match="does not stand in"):
        questions.record(question, {"a:price": mark})


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab c，。（）水城年1%", max_size=60), width=st.floats(20, 200))
def test_lines_fit_and_keep_the_text(text: str, width: float) -> None:
    typeset = drawing("typeset")
    glyphs = typeset.glyphs(text)
    lines = typeset.break_lines(glyphs, 10, width)
    assert normalised("".join(g.char for line in lines for g in line)) == normalised(text)
    for previous, line in pairwise(lines):
        assert previous
        assert not line or line[0].char not in typeset.NOT_AT_START
