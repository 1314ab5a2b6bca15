"""Draws the whole corpus, writes it, or compares it with what is committed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pymupdf
from PIL import Image

from . import ashgrove, lanting, mossly, posters, tallowmere, veyford, yunting
from .canvas import Book, Mark, Poster, overlaps
from .questions import QUESTIONS, record

DOCUMENTS = "documents"
QUESTION_FILE = "questions.jsonl"
# Mean difference of grey levels, 0 to 255: what another version of a JPEG or font library may change.
TOLERANCE = 2.0


def generate() -> dict[str, bytes]:
    """All files as relative path -> bytes. ValueError when text overlaps or leaves a page, or a question misses its answer."""
    files: dict[str, bytes] = {}
    marks: dict[str, Mark] = {}
    works: list[Book | Poster] = [
        module.build() for module in (tallowmere, veyford, mossly, ashgrove, yunting, lanting)
    ]
    works += posters.build()
    for work in works:
        for number, canvas in enumerate(work.pages):
            faults = overlaps(canvas)
            if faults:
                raise ValueError(f"{work.file}, page {number + 1}: " + "; ".join(faults))
        files[f"{DOCUMENTS}/{work.file}"], found = work.finish()
        marks |= found
    lines = [json.dumps(record(question, marks), ensure_ascii=False) for question in QUESTIONS]
    files[QUESTION_FILE] = ("\n".join(lines) + "\n").encode()
    return files


def write(folder: Path) -> list[str]:
    """Writes the corpus into `folder`, removes documents that are no longer part of it; returns the paths written."""
    files = generate()
    (folder / DOCUMENTS).mkdir(parents=True, exist_ok=True)
    for old in (folder / DOCUMENTS).iterdir():
        if f"{DOCUMENTS}/{old.name}" not in files:
            old.unlink()
    for path, data in files.items():
        (folder / path).write_bytes(data)
    return list(files)


def check(folder: Path) -> list[str]:
    """What differs between `folder` and a fresh drawing, as sentences; empty when the same.

    Text, questions, page counts and sizes are compared exactly, pictures by their mean difference, because the bytes of a
    JPEG depend on the version of the library that wrote it.
    """
    files = generate()
    kept = (
        {f"{DOCUMENTS}/{path.name}" for path in (folder / DOCUMENTS).iterdir()}
        if (folder / DOCUMENTS).is_dir()
        else set()
    )
    faults = [f"{path} is not part of the corpus" for path in sorted(kept - set(files))]
    for path, data in files.items():
        if not (folder / path).is_file():
            faults.append(f"{path} is missing")
            continue
        faults += [f"{path}: {fault}" for fault in differences((folder / path).read_bytes(), data, Path(path).suffix)]
    return faults


def differences(kept: bytes, fresh: bytes, suffix: str) -> list[str]:
    if kept == fresh:
        return []
    if suffix == ".pdf":
        return _pdf_differences(kept, fresh)
    if suffix == ".jsonl":
        return ["the questions differ"]
    return _picture_difference(Image.open(io.BytesIO(kept)), Image.open(io.BytesIO(fresh)))


def _pdf_differences(kept: bytes, fresh: bytes) -> list[str]:
    with pymupdf.open("pdf", kept) as old, pymupdf.open("pdf", fresh) as new:
        if old.page_count != new.page_count:
            return [f"{old.page_count} pages instead of {new.page_count}"]
        faults = []
        for number, (a, b) in enumerate(zip(old, new, strict=True), 1):
            if a.get_text("words", sort=True) != b.get_text("words", sort=True):
                faults.append(f"the text of page {number} differs")
            views = [p.get_pixmap(dpi=48) for p in (a, b)]
            pictures = [Image.frombytes("RGB", (v.width, v.height), v.samples) for v in views]
            faults += [f"page {number}: {fault}" for fault in _picture_difference(*pictures)]
        return faults


def _picture_difference(kept: Image.Image, fresh: Image.Image) -> list[str]:
    if kept.size != fresh.size:
        return [f"the size is {kept.size} instead of {fresh.size}"]
    a, b = (np.asarray(image.convert("L"), dtype=np.float32) for image in (kept, fresh))
    mean = float(np.abs(a - b).mean())
    return [f"the picture differs by {mean:.1f} grey levels on average"] if mean > TOLERANCE else []
