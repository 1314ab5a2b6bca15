"""Questions end to end through the real servers: search service, reader (or --base-url), VRAG agent; one line a question.

Reports the share of answers that contain the reference (by rule judges), of citations on a reference page, of runs that
finished, and what a question costs. Resumable: with --results FILE a second run asks only what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from demo.defaults import READER, READER_MAX_PIXELS
from demo.launch import reader_service, search_service
from demo.services import Services, free_port
from demo.vrag_agent import VRAG
from search_engine.search_engine import SearchEngine
from vrag.evaluation import Result, evaluate, summary
from vrag.events import Event
from vrag.questions import Question, read_questions
from vrag.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="a folder with queries.jsonl and pdf/ (or documents/)")
    parser.add_argument("--questions", type=Path, help="default: queries.jsonl, or questions.jsonl, in the data folder")
    parser.add_argument("--documents", type=Path, help="default: pdf/, or documents/, in the data folder")
    parser.add_argument("--index", type=Path, help="keep the index here and use it again")
    parser.add_argument("--results", type=Path, help="keep one line a question here, and go on from it")
    parser.add_argument("--base-url", help="a model server instead of the extractive reader")
    parser.add_argument("--model", help="the model's name on that server")
    parser.add_argument("--max-pixels", type=int, help="largest area of a displayed image")
    parser.add_argument("--top-k", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--limit", type=int, help="only the first N questions")


def first_of(folder: Path, *names: str) -> Path:
    return next((folder / name for name in names if (folder / name).exists()), folder / names[0])


def run(args: argparse.Namespace) -> dict[str, Any]:
    questions = read_questions(args.questions or first_of(args.data, "queries.jsonl", "questions.jsonl"))[: args.limit]
    with tempfile.TemporaryDirectory() as scratch:
        index = args.index or Path(scratch) / "index"
        documents = args.documents or first_of(args.data, "pdf", "documents")
        SearchEngine("text_page").build_index(documents, index)
        results = ask_all(args, questions, index, args.results or Path(scratch) / "results.jsonl")
    return {
        "rows": rows(questions, results),
        "model": args.model or READER,
        "results": [r.model_dump() for r in results],
    }


def ask_all(args: argparse.Namespace, questions: list[Question], index: Path, path: Path) -> list[Result]:
    search_port, reader_port = free_port(), free_port()
    services = [search_service([index], search_port)]
    model = {"base_url": args.base_url, "model": args.model, "max_pixels": args.max_pixels}
    if not args.base_url:
        services.append(reader_service(reader_port))
        model["base_url"] = f"http://127.0.0.1:{reader_port}/v1"
        model["max_pixels"] = args.max_pixels or READER_MAX_PIXELS
    settings = Settings(**model, search_url=f"http://127.0.0.1:{search_port}/search", top_k=args.top_k)

    def ask(question: Question) -> AsyncIterator[Event]:
        only = (question.meta_info.file_name,) if question.scope == "document" else None
        agent = VRAG.from_settings(Settings(**{**settings.model_dump(), "documents": only}))
        return agent.astream(question.query)

    with Services() as running:
        running.start(*services)
        return asyncio.run(evaluate(questions, ask, path, concurrency=args.concurrency, progress=show))


def show(result: Result, done: int, total: int) -> None:
    """One line per question, on the terminal's error stream, so that the table stays clean."""
    verdict = "right" if result.scores.get("contains") or result.scores.get("numeric") else "-"
    cited = "cited" if result.cited else "-"
    print(f"[{done}/{total}] {result.uid}: {verdict} {cited} {result.reason} {result.seconds:.1f}s", file=sys.stderr)


def rows(questions: list[Question], results: list[Result]) -> list[dict[str, Any]]:
    """The table: all questions, then each language and source type."""
    slices: dict[str, list[Result]] = {"all": results}
    for question, result in zip(questions, results, strict=True):
        for name in (question.lang, question.meta_info.source_type):
            if name:
                slices.setdefault(name, []).append(result)
    columns = (
        "questions", "finish_rate", "exact", "contains", "numeric", "anls", "cited_reference_page",
        "saw_reference_pages", "median_seconds", "median_calls", "mean_image_pixels", "mean_image_bytes",
    )  # fmt: skip
    out = []
    for name, part in slices.items():
        figures = summary(part)
        out.append({"slice": name, **{column: figures[column] for column in columns}})
    return out
