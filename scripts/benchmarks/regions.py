"""The reader on single images: does its crop cover the answer's box, and does its answer contain the reference?

The image of each question is given to the extractive reader in a whole VRAG episode, as the only hit of every search; the
crops are those of the episode (its geometry and its padding), in page pixels. Two sets of questions: ``regions`` and
``images``, each with the answer's box; with ``--pages`` also the page questions, on their first reference page.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from PIL import Image

from demo.reading import dialogue, tags
from demo.reading.chat import ChatMessage
from demo.reading.sight import Sight
from vrag.episode import Fetch, Generate, Generation, Outcome, Retrieve
from vrag.errors import ConfigError
from vrag.events import Event, ViewShown
from vrag.geometry import MAX_PIXELS, Box
from vrag.items import Hit, Item
from vrag.matching import contains, numeric
from vrag.messages import Message
from vrag.pages import encode_jpeg
from vrag.vrag_episode import VragEpisode, VragOptions

DPI = 144
#: A crop covers a box when it has this share of its area.
COVERED = 0.9


@dataclass(frozen=True)
class Case:
    """One question on one image; ``box`` is the answer's place, as fractions of the image, where it is known."""

    kind: str
    uid: str
    query: str
    reference: str
    file: Path
    page: int
    box: tuple[float, float, float, float] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, required=True, help="a folder with regions/, queries_images.jsonl and pdf/"
    )
    parser.add_argument("--max-pixels", type=int, nargs="+", default=[MAX_PIXELS, 1_605_632], help="limits to compare")
    parser.add_argument("--cache", type=Path, help="keep the OCR here (timings then mean little)")
    parser.add_argument("--pages", action="store_true", help="also the page questions, on their first reference page")
    parser.add_argument("--limit", type=int, help="only the first N questions of each set")


def run(args: argparse.Namespace) -> dict[str, Any]:
    cases = list(_cases(args))
    if not cases:
        raise ConfigError(f"{args.data} holds neither regions/queries.jsonl nor queries_images.jsonl.")
    sight = Sight(args.cache, capacity=4096)
    details = [ask(case, sight, limit) for limit in args.max_pixels for case in cases]
    rows = [
        _row(kind, limit, [d for d in details if d["kind"] == kind and d["max_pixels"] == limit])
        for limit in args.max_pixels
        for kind in dict.fromkeys(case.kind for case in cases)
    ]
    return {"rows": rows, "details": details}


def ask(case: Case, sight: Sight, max_pixels: int) -> dict[str, Any]:
    """One episode on one image."""
    data = _encoded(case)
    item = Item(id=case.uid, kind="image", document=case.file.name, page=case.page)
    episode = VragEpisode(case.query, VragOptions(max_pixels=max_pixels))
    started = time.perf_counter()
    outcome, events = drive(episode, sight, Hit(item=item, score=1.0), data)
    crops = [event.view for event in events if isinstance(event, ViewShown) and event.source == "crop"]
    page = next((event.view for event in events if isinstance(event, ViewShown) and event.source == "search"), None)
    covered = share = None
    if page is not None and crops:
        share = crops[-1].box.area / page.box.area
        if case.box is not None:
            x1, y1, x2, y2 = case.box
            width, height = page.box.width, page.box.height
            answer_box = Box(x1 * width, y1 * height, x2 * width, y2 * height)
            covered = any(crop.box.covers(answer_box, COVERED) for crop in crops)
    return {
        "kind": case.kind,
        "uid": case.uid,
        "max_pixels": max_pixels,
        "query": case.query,
        "reference": case.reference,
        "answer": outcome.answer,
        "reason": outcome.reason,
        "steps": outcome.steps,
        "right": contains(outcome.answer or "", case.reference),
        "numbers_right": numeric(outcome.answer or "", case.reference),
        "covered": covered,
        "area": share,
        "seconds": round(time.perf_counter() - started, 3),
    }


def drive(episode: VragEpisode, sight: Sight, hit: Hit, data: bytes) -> tuple[Outcome, list[Event]]:
    """Run an episode against the reader in this process; every search finds the one image."""
    run, events, reply = episode.run(), [], None
    while True:
        try:
            step = run.send(reply) if events or reply is not None else next(run)
        except StopIteration as end:
            return cast(Outcome, end.value), events
        reply = None
        if isinstance(step, Generate):
            conversation, _ = tags.read([_wire(message) for message in step.messages])
            reply = Generation(tags.write(dialogue.decide(conversation, sight.read), conversation.demand))
        elif isinstance(step, Retrieve):
            reply = [hit]
        elif isinstance(step, Fetch):
            reply = data
        else:
            events.append(cast(Event, step))


def _wire(message: Message) -> ChatMessage:
    return ChatMessage(message.role, tuple(part if isinstance(part, str) else part.jpeg() for part in message.content))


def _row(kind: str, limit: int, details: list[dict[str, Any]]) -> dict[str, Any]:
    boxed = [d for d in details if kind != "pages"]
    areas = [d["area"] for d in details if d["area"] is not None]
    return {
        "questions": kind,
        "max_pixels": limit,
        "n": len(details),
        "answer_contains": sum(d["right"] for d in details) / len(details),
        "answer_numeric": sum(d["numbers_right"] for d in details) / len(details),
        "crop_covers_box": sum(bool(d["covered"]) for d in boxed) / len(boxed) if boxed else None,
        "cropped": len(areas) / len(details),
        "mean_crop_share": statistics.fmean(areas) if areas else None,
        "finished": sum(d["reason"] == "answer" for d in details) / len(details),
        "mean_steps": statistics.fmean(d["steps"] for d in details),
        "median_seconds": statistics.median(d["seconds"] for d in details),
    }


def _cases(args: argparse.Namespace) -> Iterator[Case]:
    sets = {"regions": "regions/queries.jsonl", "images": "queries_images.jsonl"}
    if args.pages:
        sets["pages"] = "queries.jsonl"
    for kind, name in sets.items():
        path = args.data / name
        if not path.is_file():
            continue
        for line in path.read_text(encoding="utf-8").splitlines()[: args.limit]:
            row = json.loads(line)
            meta, region = row["meta_info"], row.get("region") or {}
            file = _find(args.data, kind, meta["file_name"])
            if file is not None:
                box = tuple(region["box"]) if kind != "pages" and region.get("box") else None
                yield Case(
                    kind, row["uid"], row["query"], row["reference_answer"], file, meta["reference_page"][0], box
                )


def _find(data: Path, kind: str, name: str) -> Path | None:
    folders = [data / "regions" / "images", data / "images", data / "pdf"]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _encoded(case: Case) -> bytes:
    """The page as the index stores it: images as they are, pages of PDFs as JPEG at 144 dpi."""
    if case.file.suffix.lower() != ".pdf":
        return case.file.read_bytes()
    import pymupdf

    with pymupdf.open(case.file) as document:
        picture = document[case.page - 1].get_pixmap(dpi=DPI)
        return encode_jpeg(Image.frombytes("RGB", (picture.width, picture.height), picture.samples))
