"""What OCR reads of the answers that stand in pictures: standalone images, chart figures and pages with known answer boxes.

Reads ``queries_images.jsonl`` and ``regions/queries.jsonl`` of the data folder. "contains": the answer is somewhere in the
text of the picture; "in place": a line with the answer overlaps the answer's box. Case, blanks, per cent signs and
thousands separators do not count. PDF pages are rendered as ingestion does, and their text layers are not looked at.
"""

from __future__ import annotations

import argparse
import re
import time
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from search_engine.documents import Line
from search_engine.ocr import read_lines
from vrag.errors import ConfigError
from vrag.geometry import Box, Size
from vrag.pages import decode_rgb
from vrag.questions import Question, read_questions

SETS = {"images": "queries_images.jsonl", "regions": "regions/queries.jsonl"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help=f"a folder with {' and '.join(SETS.values())}")


def run(args: argparse.Namespace) -> dict[str, Any]:
    rows, results = [], []
    for name, file in SETS.items():
        if not (args.data / file).exists():
            continue
        judged = [judge(question, args.data) for question in read_questions(args.data / file)]
        results += judged
        pictures = {one["picture"]: one["seconds"] for one in judged}
        rows.append(
            {
                "set": name,
                "questions": len(judged),
                "contains": sum(one["contains"] for one in judged) / len(judged),
                "in place": sum(one["in place"] for one in judged) / len(judged),
                "pictures": len(pictures),
                "seconds/picture": sum(pictures.values()) / len(pictures),
            }
        )
    if not rows:
        raise ConfigError(f"{args.data} has neither {' nor '.join(SETS.values())}")
    return {"rows": rows, "results": results}


def judge(question: Question, data: Path) -> dict[str, Any]:
    extra = question.model_extra or {}
    region = extra["region"]
    name, page = question.meta_info.file_name, int(region.get("page", 1))
    size, lines, seconds = read(data, name, page)
    x1, y1, x2, y2 = region["box"]
    box = Box(x1 * size[0], y1 * size[1], x2 * size[0], y2 * size[1])
    answer = normalised(question.reference_answer or "")
    hits = [line for line in lines if answer in normalised(line.text)]
    return {
        "uid": question.uid,
        "picture": f"{name}, {page}",
        "contains": bool(hits) or answer in normalised("".join(line.text for line in lines)),
        "in place": any(line.box.intersection(box) > 0 for line in hits),
        "seconds": seconds,
    }


@cache
def read(data: Path, name: str, page: int) -> tuple[Size, tuple[Line, ...], float]:
    """Size, lines and seconds of one picture; each is read once."""
    image = picture(data, name, page)
    started = time.perf_counter()
    lines = read_lines(image)
    return image.size, lines, time.perf_counter() - started


def picture(data: Path, name: str, page: int) -> Image.Image:
    for folder in ("images", "regions/images", "pdf", "."):
        path = data / folder / name
        if path.is_file() and path.suffix.lower() == ".pdf":
            from search_engine import pdf

            with pdf.open_pdf(path, max_pages=page + 10_000) as document:
                return pdf.render(pdf.load_page(document, page), pdf.RenderOptions())
        if path.is_file():
            return decode_rgb(path.read_bytes(), name)
    raise ConfigError(f"{name} is not in {data}")


def normalised(text: str) -> str:
    return re.sub(r"[\s%,]", "", unicodedata.normalize("NFKC", text).casefold())
