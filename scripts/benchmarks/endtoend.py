"""Questions end to end through the real servers: search service, reader (or --base-url), agents; one line a question.

Agents: vrag, vimrag, and react, the baseline that has VimRAG's tools but sends its whole history again with every turn.
Several of them are asked the same questions one after the other. Reports the share of answers that contain the reference
(by rule judges), of citations on a reference page, of runs that finished, and what a question costs: pictures, pixels and
bytes are summed over all calls of the model. Resumable: with --results FILE a second run asks only what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from demo.defaults import READER, READER_MAX_PIXELS
from demo.launch import reader_service, search_service
from demo.services import Services, free_port
from demo.vimrag_agent import VimRAG
from demo.vrag_agent import VRAG
from search_engine.search_engine import SearchEngine
from vrag.chat import AsyncChatModel
from vrag.evaluation import Result, evaluate, summary
from vrag.events import Event
from vrag.judge import JUDGES
from vrag.questions import Question, read_questions
from vrag.react_episode import ReactEpisode
from vrag.retriever import AsyncHttpRetriever
from vrag.runner import arun
from vrag.settings import Settings

#: Asks an agent one question, with the services and limits of this run; the documents are those to search in.
Asks = Callable[[str, "tuple[str, ...] | None"], AsyncIterator[Event]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", nargs="+", choices=AGENTS, default=["vrag"], help="default: vrag")
    parser.add_argument("--data", type=Path, required=True, help="a folder with queries.jsonl and pdf/ (or documents/)")
    parser.add_argument("--questions", type=Path, help="default: queries.jsonl, or questions.jsonl, in the data folder")
    parser.add_argument("--documents", type=Path, help="default: pdf/, or documents/, in the data folder")
    parser.add_argument("--index", type=Path, help="keep the index here and use it again")
    parser.add_argument(
        "--results", type=Path, help="keep one line a question here, and go on from it; several agents: FILE-AGENT"
    )
    parser.add_argument("--base-url", help="a model server instead of the extractive reader")
    parser.add_argument("--model", help="the model's name on that server")
    parser.add_argument("--max-pixels", type=int, help="largest area of a displayed image")
    parser.add_argument("--top-k", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--limit", type=int, help="only the first N questions")
    parser.add_argument("--judge", choices=JUDGES, help="one more judge: model (VRAG_JUDGE_BASE_URL, ...) or a rule")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth question")


def first_of(folder: Path, *names: str) -> Path:
    return next((folder / name for name in names if (folder / name).exists()), folder / names[0])


def run(args: argparse.Namespace) -> dict[str, Any]:
    questions = read_questions(args.questions or first_of(args.data, "queries.jsonl", "questions.jsonl"))
    questions = questions[:: args.every][: args.limit]
    with tempfile.TemporaryDirectory() as scratch:
        index = args.index or Path(scratch) / "index"
        documents = args.documents or first_of(args.data, "pdf", "documents")
        SearchEngine("text_page").build_index(documents, index)
        results = ask_all(args, questions, index, args.results or Path(scratch) / "results.jsonl")
    return {
        "rows": [{"agent": agent, **row} for agent, of in results.items() for row in rows(questions, of)],
        "model": args.model or READER,
        "results": {agent: [result.model_dump() for result in of] for agent, of in results.items()},
    }


def ask_all(args: argparse.Namespace, questions: list[Question], index: Path, path: Path) -> dict[str, list[Result]]:
    """The results of every agent."""
    search_port, reader_port = free_port(), free_port()
    services = [search_service([index], search_port)]
    base_url, max_pixels = args.base_url, args.max_pixels
    if not base_url:
        services.append(reader_service(reader_port))
        base_url = f"http://127.0.0.1:{reader_port}/v1"
        max_pixels = max_pixels or READER_MAX_PIXELS
    common = {
        "base_url": base_url,
        "model": args.model,
        "search_url": f"http://127.0.0.1:{search_port}/search",
        "top_k": args.top_k,
    }
    with Services() as running:
        running.start(*services)
        out = {}
        for agent in args.agent:
            asks = AGENTS[agent](common, max_pixels)

            def ask(question: Question, asks: Asks = asks) -> AsyncIterator[Event]:
                only = (question.meta_info.file_name or "",) if question.scope == "document" else None
                return asks(question.query, only)

            kept = path if len(args.agent) == 1 else path.with_stem(f"{path.stem}-{agent}")
            print(agent, file=sys.stderr)
            out[agent] = asyncio.run(evaluate(questions, ask, kept, concurrency=args.concurrency, progress=show))
    return out


def vrag(common: dict[str, Any], max_pixels: int | None) -> Asks:
    given = {**common, "max_pixels": max_pixels}
    settings = Settings(**given)

    def ask(question: str, documents: tuple[str, ...] | None) -> AsyncIterator[Event]:
        return VRAG.from_settings(settings.replace(documents=documents)).astream(question)

    return ask


def vimrag(common: dict[str, Any], max_pixels: int | None) -> Asks:
    def ask(question: str, documents: tuple[str, ...] | None) -> AsyncIterator[Event]:
        return graph_agent(common, max_pixels, documents).astream(question)

    return ask


def react(common: dict[str, Any], max_pixels: int | None) -> Asks:
    async def ask(question: str, documents: tuple[str, ...] | None) -> AsyncIterator[Event]:
        settings = graph_agent(common, max_pixels, documents).settings()
        async with AsyncChatModel(settings) as chat, AsyncHttpRetriever(settings) as retriever:
            episode = ReactEpisode(question, settings.vimrag_options())
            async with aclosing(arun(episode, chat, retriever)) as course:
                async for event in course:
                    yield event

    return ask


def graph_agent(common: dict[str, Any], max_pixels: int | None, documents: tuple[str, ...] | None) -> VimRAG:
    """VimRAG as published, but greedy: a figure should come out the same twice."""
    named = {"model_name": common["model"], "search_top_k": common["top_k"]}
    limits: dict[str, Any] = {"max_pixels_image": max_pixels} if max_pixels else {}
    urls = {name: common[name] for name in ("base_url", "search_url")}
    return VimRAG(**urls, **named, **limits, enable_thinking=None, documents=documents)


AGENTS: dict[str, Callable[[dict[str, Any], int | None], Asks]] = {"vrag": vrag, "vimrag": vimrag, "react": react}


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
        "saw_reference_pages", "median_seconds", "mean_calls", "mean_searches", "mean_images", "mean_image_pixels",
        "mean_image_bytes",
    )  # fmt: skip
    out = []
    for name, part in slices.items():
        figures = summary(part)
        judged = {key: value for key, value in figures.items() if key.startswith("judge ")}
        out.append({"slice": name, **{column: figures[column] for column in columns}, **judged})
    return out
