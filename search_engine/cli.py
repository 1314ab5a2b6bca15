"""``python -m search_engine``: build, add, remove, compact, look into, convert and search indexes from the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from search_engine.builder import BuildReport
from search_engine.compressed_index import KINDS
from search_engine.index_info import describe, sentences
from search_engine.index_records import ModelKey, Precision
from search_engine.index_source import open_index
from search_engine.models.registry import load_model
from search_engine.progress import OnProgress
from search_engine.published_index import import_published
from search_engine.search_engine import SearchEngine
from search_engine.settings import RetrievalSettings, VectorKind
from search_engine.vector_advice import try_vectors
from vrag.errors import IndexCorrupt, VragError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1: it failed with a sentence, 130: stopped by Ctrl-C)."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except VragError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. What was committed is kept; run the same command again to go on.\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m search_engine", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(run=run)
        sub.add_argument("--model", default="text_page", help="the embedding model (default: text_page)")
        return sub

    build = command("build", _build, "index a folder of documents or a .jsonl list, or bring its index up to date")
    build.add_argument("input", type=Path)
    build.add_argument("index", type=Path)
    build.add_argument("--corpus", type=Path, help="where page images and OCR results go (default: the index folder)")
    build.add_argument("--name", help="what the corpus is called in searches (default: the index folder's name)")
    build.add_argument("--keep", action="store_true", help="keep documents whose files are gone from the input")
    add = command("add", _add, "add files, folders or lists to an index")
    add.add_argument("index", type=Path)
    add.add_argument("paths", type=Path, nargs="+")
    for sub in (build, add):
        sub.add_argument("--batch-size", type=int, default=16, help="documents per model call (default: 16)")
        sub.add_argument("--save-interval", type=int, default=512, help="items per commit, about (default: 512)")
        sub.add_argument("--workers", type=int, help="processes that read files (default: one per core)")
        sub.add_argument("--retry", action="store_true", help="read files again that failed before")
        sub.add_argument("--ray", action="store_true", help="embed on a Ray cluster: one model for every GPU")
        sub.add_argument(
            "--ray-workers", type=int, metavar="N", help="models at work (default: the number of GPUs, else 1)"
        )
        sub.add_argument("--ray-address", help="the cluster to join (default: RAY_ADDRESS, else one on this machine)")
        sub.add_argument("--progress", choices=("auto", "bar", "json", "none"), default="auto")
    remove = command("remove", _remove, "take documents out of an index, by file name")
    remove.add_argument("index", type=Path)
    remove.add_argument("documents", nargs="+")
    compact = command("compact", _compact, "rewrite an index without what was removed from it")
    compact.add_argument("index", type=Path)
    for sub in (build, compact):
        sub.add_argument("--precision", choices=get_args(Precision), help="of the stored vectors (default: float32)")
    for name in ("index-info", "info"):
        info = command(name, _info, "say what an index is and check every file of it")
        info.add_argument("index", type=Path)
        info.add_argument("--json", action="store_true")
    derive = command("derive", _derive, "make (or bring up to date) a faster index of the vectors, and measure it")
    derive.add_argument("index", type=Path)
    derive.add_argument("--vectors", choices=KINDS, required=True)
    taken = command("import", _import, "make an index of one that the published code built")
    taken.add_argument("source", type=Path, help="the folder with ..._faiss_index.bin")
    taken.add_argument("index", type=Path, help="the folder of the new index")
    taken.add_argument("--renamed", action="store_true", help="the model is the same under another name")
    milvus = command(
        "milvus-export", _milvus_export, "copy the vectors of an index into Milvus, to be served from there"
    )
    milvus.add_argument("index", type=Path)
    milvus.add_argument("--uri", help="http://host:19530 or a local file.db (default: VRAG_SEARCH_MILVUS_URI)")
    milvus.add_argument("--index-type", default="FLAT", help="FLAT is exact (default); AUTOINDEX, HNSW, IVF_FLAT, ...")
    milvus.add_argument("--drop-others", action="store_true", help="remove what earlier states of the index left")
    search = command("search", _search, "search an index once")
    search.add_argument("index", type=Path)
    search.add_argument("query")
    search.add_argument("--top-k", type=int, default=5)
    search.add_argument("--vectors", choices=get_args(VectorKind), help="how vectors are searched (default: flat)")
    search.add_argument("--reranker", help="a reranker's checkpoint, for a second look at what was found")
    search.add_argument("--rerank", type=int, metavar="N", help="hits that the reranker looks at (default: 20)")
    return parser


def _building(options: argparse.Namespace) -> SearchEngine:
    if not (options.ray or options.ray_workers or options.ray_address):
        return SearchEngine(options.model)
    from search_engine.ray_build import RayEmbedder

    return SearchEngine(RayEmbedder(options.model, workers=options.ray_workers, address=options.ray_address))


def _build(options: argparse.Namespace) -> None:
    with _building(options) as engine:
        report = engine.build_index(
            options.input,
            options.index,
            options.corpus,
            bs=options.batch_size,
            save_interval=options.save_interval,
            workers=options.workers,
            prune=not options.keep,
            retry=options.retry,
            name=options.name,
            precision=options.precision,
            progress=_reporter(options.progress),
        )
    _tell(report, options.progress)


def _add(options: argparse.Namespace) -> None:
    with _building(options) as engine:
        report = engine.add(
            options.paths,
            options.index,
            batch_size=options.batch_size,
            save_interval=options.save_interval,
            workers=options.workers,
            retry=options.retry,
            progress=_reporter(options.progress),
        )
    _tell(report, options.progress)


def _remove(options: argparse.Namespace) -> None:
    removed = SearchEngine(options.model).remove(options.documents, options.index)
    _say(f"{removed} items removed from {options.index}.")


def _compact(options: argparse.Namespace) -> None:
    SearchEngine(options.model).compact(options.index, options.precision)
    _say(f"{options.index} was compacted.")


def _info(options: argparse.Namespace) -> None:
    info = describe(options.index)
    if options.json:
        _say(json.dumps(info.as_dict(), ensure_ascii=False, indent=1))
    else:
        for line in sentences(info):
            _say(line)
        for path, items in info.documents.items():
            _say(f"  {items:6,}  {path}")
        _list("Problems", info.problems)
    if info.damage:
        raise IndexCorrupt("\n".join(info.damage))


def _derive(options: argparse.Namespace) -> None:
    tried = try_vectors(options.index, RetrievalSettings(vectors=options.vectors, exact_rows=0))
    _say(
        f"{options.vectors} finds {tried.recall:.1%} of the 10 nearest of {tried.queries} of the index' own vectors, in "
        f"{tried.milliseconds:.2f} ms each; exact search takes {tried.exact_milliseconds:.2f} ms. Made in {tried.seconds:.1f} s."
    )
    _say(f"Serve it with VRAG_SEARCH_VECTORS={options.vectors}, or --vectors {options.vectors}.")


def _import(options: argparse.Namespace) -> None:
    embedder = load_model(options.model)
    items = import_published(options.source, options.index, ModelKey.of(embedder), renamed=options.renamed)
    _say(f"{items:,} items of {options.source} were taken over into {options.index}.")


def _milvus_export(options: argparse.Namespace) -> None:
    from search_engine.milvus_index import export

    settings = RetrievalSettings(vectors="milvus", **({"milvus_uri": options.uri} if options.uri else {}))
    done = export(open_index(options.index), settings, index_type=options.index_type, drop_others=options.drop_others)
    _say(
        f"{done.vectors:,} vectors are in the collection {done.collection}"
        + (f", {done.copied:,} of them copied now." if done.copied else ", complete as it was.")
    )
    _list("Collections of earlier states, which --drop-others removes", done.others)
    _say(f"Serve them with VRAG_SEARCH_VECTORS=milvus VRAG_SEARCH_MILVUS_URI={settings.milvus_uri}")


def _search(options: argparse.Namespace) -> None:
    settings = RetrievalSettings(**({"vectors": options.vectors} if options.vectors else {}))
    engine = SearchEngine(options.model, settings=settings, reranker=options.reranker)
    engine.load_index(options.index)
    rerank = options.rerank if options.rerank is not None else options.reranker is not None
    for hit in engine.retrieve([options.query], options.top_k, rerank=rerank)[0]:
        _say(f"{hit.score:.4f}  {hit.item.id}  ({hit.item.label})")


def _reporter(kind: str) -> OnProgress | bool | None:
    if kind == "json":
        return lambda state: _say(json.dumps({"done": state.pages_done, "total": state.pages_total}))
    return {"auto": None, "bar": True, "none": False}[kind]


def _tell(report: BuildReport, progress: str) -> None:
    if progress == "json":
        _say(json.dumps({"report": report.as_dict()}, ensure_ascii=False))
        return
    _say(
        f"{report.indexed:,} items of {report.read:,} files indexed in {report.seconds:.1f} s, {report.unchanged:,} files were "
        f"up to date; {report.index} holds {report.items:,} items."
    )
    _list("Gone from the input, and removed", report.removed)
    _list("Not indexed", [str(problem) for problem in report.problems])


def _list(title: str, lines: Sequence[str]) -> None:
    if lines:
        _say(f"{title} ({len(lines)}):")
        for line in lines:
            _say(f"  {line}")


def _say(text: str) -> None:
    # A file name may hold what the terminal cannot show.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    sys.stdout.flush()
