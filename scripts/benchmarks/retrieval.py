"""How well pages are found: recall@k, MRR@10 and nDCG@5 over checked questions, overall, by slice, and by channel.

The data folder holds ``pdf/`` (or ``images/``) with the documents and ``queries.jsonl`` with the questions, in the
form of ViDoSeek: ``query``, ``evidence: [{file_name, pages}]``, ``evidence_mode`` ("any": each listed page is enough,
"all": every page is needed, and recall is the share found), ``lang``, ``meta_info.source_type``. The index is built
the usual way.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from search_engine.search_engine import SearchEngine
from search_engine.settings import RetrievalSettings
from vrag.questions import Question, read_questions

METRICS = ("recall@1", "recall@3", "recall@5", "recall@10", "MRR@10", "nDCG@5")
_DEPTH = 10

#: The channels, alone and together: what each contributes. The slices of the first two are shown.
FUSED, LEXICAL = "fused", "bm25"
CHANNELS: dict[str, dict[str, Any]] = {
    LEXICAL: {"vector_weight": 0.0},
    FUSED: {},
    "bm25 without context": {"vector_weight": 0.0, "context_weight": 0.0},
    "vectors": {"hybrid": False},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="folder with queries.jsonl and pdf/ or images/")
    parser.add_argument("--queries", default="queries.jsonl", help="the questions, inside the data folder")
    parser.add_argument("--documents", help="the documents, inside the data folder (default: pdf)", default="pdf")
    parser.add_argument("--index", type=Path, help="keep the index here and use it again (default: a temporary folder)")
    parser.add_argument("--model", default="text_page", help="the embedding model")
    parser.add_argument("--workers", type=int, help="processes that read the documents")
    parser.add_argument(
        "--weights", type=float, nargs="*", default=[], metavar="W", help="weights of the vectors to try as well"
    )
    parser.add_argument("--ranks", action="store_true", help="also fuse by reciprocal rank, at the same weights")


def run(args: argparse.Namespace) -> dict[str, Any]:
    # What the corpus does not answer has no page to be found.
    questions = [question for question in read_questions(args.data / args.queries) if question.pages]
    keep = nullcontext(args.index) if args.index else tempfile.TemporaryDirectory(prefix="retrieval-")
    with keep as folder:
        engine = SearchEngine(args.model)
        report = engine.build_index(args.data / args.documents, Path(folder), workers=args.workers)
        rows = []
        for channel, changes in _channels(args).items():
            settings = RetrievalSettings(**changes)
            variant = SearchEngine(engine.embedder, settings=settings)
            variant.load_index(Path(folder))
            for scope in ("corpus", "document"):
                scored = [(question, score(question, search(variant, question, scope))) for question in questions]
                rows += summarise(channel, scope, scored, sliced=channel in (FUSED, LEXICAL))
    return {
        "model": engine.model_name,
        "questions": len(questions),
        "pages": report.items,
        "problems": [str(problem) for problem in report.problems],
        "settings": RetrievalSettings().model_dump(mode="json"),
        "below_bm25": below(rows),
        "rows": rows,
    }


def _channels(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    tried = dict(CHANNELS)
    for weight in args.weights:
        tried[f"weight {weight:g}"] = {"vector_weight": weight}
        if args.ranks:
            tried[f"weight {weight:g}, ranks"] = {"vector_weight": weight, "fusion": "ranks"}
    return tried


def below(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The slices in which fusing finds less than BM25 alone, and by how many questions."""
    lexical = {(row["scope"], row["slice"]): row for row in rows if row["channel"] == LEXICAL}
    found = []
    for row in rows:
        alone = lexical.get((row["scope"], row["slice"]))
        if row["channel"] != FUSED or alone is None:
            continue
        for metric in METRICS:
            lost = (alone[metric] - row[metric]) * row["n"]
            if metric.startswith("recall") and lost > 1e-6:
                found.append({"scope": row["scope"], "slice": row["slice"], "metric": metric, "questions": lost})
    return found


def search(engine: SearchEngine, question: Question, scope: str) -> list[tuple[str, int]]:
    documents = None if scope == "corpus" else [question.meta_info.file_name or ""]
    (hits,) = engine.retrieve([question.query], _DEPTH, documents=documents)
    return [(hit.item.document, hit.item.page or 1) for hit in hits]


def score(question: Question, ranking: Sequence[tuple[str, int]]) -> dict[str, float]:
    """The metrics of one ranking (binary relevance, no page twice)."""
    ranks = [rank for rank, page in enumerate(ranking, start=1) if page in question.pages]

    def recall(k: int) -> float:
        found = sum(rank <= k for rank in ranks)
        return found / len(question.pages) if question.evidence_mode == "all" else float(found > 0)

    gain = sum(1 / math.log2(rank + 1) for rank in ranks if rank <= 5)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(5, len(question.pages)) + 1))
    return {
        **{f"recall@{k}": recall(k) for k in (1, 3, 5, 10)},
        "MRR@10": 1 / ranks[0] if ranks else 0.0,
        "nDCG@5": gain / ideal,
    }


def summarise(
    channel: str, scope: str, scored: Sequence[tuple[Question, dict[str, float]]], sliced: bool
) -> list[dict[str, Any]]:
    """Means over all questions, and with ``sliced`` over every language, source type and half."""
    groups: dict[str, list[dict[str, float]]] = {"all": [metrics for _, metrics in scored]}
    if sliced:
        for number, (question, metrics) in enumerate(scored):
            half = "even" if number % 2 == 0 else "odd"
            for name in (f"lang {question.lang}", f"source {question.meta_info.source_type}", f"{half} questions"):
                groups.setdefault(name, []).append(metrics)
    return [
        {
            "scope": scope,
            "channel": channel,
            "slice": name,
            "n": len(chosen),
            **{metric: sum(metrics[metric] for metrics in chosen) / len(chosen) for metric in METRICS},
        }
        for name, chosen in groups.items()
    ]
