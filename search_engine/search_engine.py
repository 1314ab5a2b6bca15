"""The public face of the retriever: build an index from a folder, load it, search it.

    engine = SearchEngine("text_page")
    engine.build_index(input_dir="docs", index_output_path="docs_index", corpus_output_path="docs_index", bs=16)
    engine.search(["Which region grew fastest?"], top_k=3)

On the command line: ``python -m search_engine.search_engine build docs docs_index``; ``--help`` lists the rest.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from search_engine.builder import BuildOptions, BuildReport, compact_index, remove_documents, update_index
from search_engine.collection import Collection
from search_engine.documents import Line
from search_engine.index_records import ModelKey, Precision
from search_engine.index_source import index_name, open_index
from search_engine.index_store import StoredIndex
from search_engine.models.base import Document, Embedder, PairScorer, Query, close, reads, sees_pictures
from search_engine.models.registry import load_model, load_pair_scorer
from search_engine.moments import best_moment
from search_engine.progress import OnProgress, reporting
from search_engine.reranking import NO_RERANKER, Reranked, depth_of, second_look
from search_engine.settings import RetrievalSettings
from search_engine.vector_index import Ranking
from vrag.errors import ConfigError, ModelError, RetrieverError, VragError
from vrag.items import Hit, Item

log = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]


class SearchEngine:
    """One embedding model and the indexes that are loaded with it.

    ``model`` is ``"text_page"``, the name or folder of a checkpoint, or an embedder; ``reranker`` the name or folder of a
    reranker's checkpoint, or a scorer, for searches with ``rerank=``. Searching is thread-safe, and a search under way
    keeps the state it began with when another is loaded. :meth:`close` it, or use it as a context manager, when its
    model holds connections.

    Raises :class:`ConfigError` when a model or a setting cannot be used.
    """

    def __init__(
        self,
        model: str | Embedder = "text_page",
        *,
        settings: RetrievalSettings | None = None,
        reranker: str | PairScorer | None = None,
        **model_options: Any,
    ) -> None:
        self.embedder: Embedder = load_model(model, **model_options) if isinstance(model, str) else model
        self.reranker: PairScorer | None = load_pair_scorer(reranker) if isinstance(reranker, str) else reranker
        self.settings = settings or RetrievalSettings()
        self._loading = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._collection = self._collect({})

    def close(self) -> None:
        """Close the connections that the models hold, those of models handed in as well; the engine is not used after."""
        close(self.embedder)
        close(self.reranker)

    def __enter__(self) -> SearchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------- building

    def build_index(
        self,
        input_dir: StrPath,
        index_output_path: StrPath,
        corpus_output_path: StrPath | None = None,
        bs: int = 16,
        save_interval: int = 512,
        *,
        progress: OnProgress | bool | None = None,
        **options: Any,
    ) -> BuildReport:
        """Index the documents below ``input_dir`` (or the rows of a ``.jsonl`` list), then load the result.

        Run again, it reads only what is new or changed, drops what is gone, and goes on where it was interrupted.
        ``corpus_output_path`` takes page images and OCR results (by default the index folder); ``bs`` documents go to
        the model at once; a commit holds about ``save_interval`` items. ``progress`` is a function, or whether to show
        a bar (by default where there is a terminal). ``options``: the other fields of
        :class:`search_engine.builder.BuildOptions`.

        Files that cannot be read do not stop the build; ``report.problems`` lists them with their reasons.
        """
        with reporting(progress) as report_to:
            report = update_index(
                Path(index_output_path),
                self.embedder,
                [Path(input_dir)],
                corpus=None if corpus_output_path is None else Path(corpus_output_path),
                options=BuildOptions(batch_size=bs, save_interval=save_interval, **options),
                on_progress=report_to,
            )
        self._take_in(Path(index_output_path))
        return report

    def add(
        self,
        paths: StrPath | Sequence[StrPath],
        index: StrPath | None = None,
        *,
        progress: OnProgress | bool | None = None,
        **options: Any,
    ) -> BuildReport:
        """Add files, folders or lists to an index (a folder or the name of a loaded corpus; by default the only one)."""
        folder = self._folder(index)
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        with reporting(progress) as report_to:
            report = update_index(
                folder,
                self.embedder,
                [Path(path) for path in given],
                options=BuildOptions(**{"prune": False, **options}),
                on_progress=report_to,
            )
        self._take_in(folder)
        return report

    def remove(self, documents: str | Sequence[str], index: StrPath | None = None) -> int:
        """Take documents out of an index by file name; returns the number of items that went.

        A file that still lies in the input folder comes back with the next build.
        """
        folder = self._folder(index)
        removed = remove_documents(folder, self.embedder, [documents] if isinstance(documents, str) else documents)
        self._take_in(folder)
        return removed

    def compact(self, index: StrPath | None = None, precision: Precision | None = None) -> None:
        """Rewrite an index without what was removed from it; ``precision``: of its vectors, float32 or float16."""
        folder = self._folder(index)
        compact_index(folder, self.embedder, precision)
        self._take_in(folder)

    # -------------------------------------------------------------------------------------------------------- loading

    def load_index(self, index: StrPath | Sequence[StrPath] | Mapping[str, StrPath]) -> None:
        """Load one or several indexes in place of what is loaded; a mapping gives the corpora names of its own choice.

        Otherwise a corpus is called as its manifest says, which is the folder's name unless it was built under another;
        equal names get a suffix (``docs_index~2``). Every index must have been built with this engine's model.

        Raises :class:`IndexCorrupt` or :class:`IndexMismatch`; what was loaded before stays then.
        """
        with self._loading:
            if isinstance(index, Mapping):
                self._load({name: Path(path) for name, path in index.items()})
            else:
                given = [index] if isinstance(index, (str, os.PathLike)) else list(index)
                self._load_unnamed([Path(path) for path in given])

    def _take_in(self, folder: Path) -> None:
        """Load an index that was written just now, again or beside the others."""
        with self._loading:
            paths = dict(self._paths)
            if not any(_same(folder, path) for path in paths.values()):
                paths[_free_name(_own_name(folder), paths)] = folder
            self._load(paths)

    def _load_unnamed(self, folders: Sequence[Path]) -> None:
        paths: dict[str, Path] = {}
        for folder in folders:
            paths[_free_name(_own_name(folder), paths)] = folder
        self._load(paths)

    def _load(self, paths: dict[str, Path]) -> None:
        key = ModelKey.of(self.embedder)
        stored = {name: open_index(path, key) for name, path in paths.items()}
        self._collection = self._collect(stored)
        self._paths = paths

    def _collect(self, stored: Mapping[str, StoredIndex]) -> Collection:
        recommended = float(getattr(self.embedder, "fusion_weight", 1.0))
        return Collection(stored, self.embedder.dimension, self.settings, recommended)

    def _folder(self, index: StrPath | None) -> Path:
        if index is None:
            if len(self._paths) != 1:
                raise ConfigError(f"say which index: loaded are {', '.join(self._paths) or 'none'}")
            return next(iter(self._paths.values()))
        return self._paths.get(str(index), Path(index))

    # ------------------------------------------------------------------------------------------------------ searching

    def retrieve(
        self,
        queries: Sequence[str | Query],
        top_k: int = 3,
        corpus: str | Sequence[str] | None = None,
        documents: Sequence[str] | None = None,
        rerank: bool | int = False,
    ) -> list[list[Hit]]:
        """One ranked list of at most ``top_k`` hits per query, best first.

        ``corpus`` and ``documents`` (file names) restrict what is searched. Scores are comparable within one query:
        fused scores between 0 and 1, or cosines with ``hybrid`` off. ``rerank``: look again at the best
        ``settings.rerank_depth`` hits, or at so many, with the reranker, whose scores they get then; without one, or
        when it fails, the order stays and the log says so.

        Raises :class:`ConfigError` for ``top_k`` below 1 or an unknown corpus or document, :class:`ModelError` when
        the model gives something that is no vector.
        """
        return [found.hits for _, found in self._find(self._collection, queries, top_k, corpus, documents, rerank)]

    def search(
        self,
        queries: Sequence[str | Query],
        top_k: int = 3,
        search_corpus: str | Sequence[str] | None = None,
        documents: Sequence[str] | None = None,
        rerank: bool | int = False,
    ) -> list[dict[str, list[Any]]]:
        """The same in the published form: per query ``{"score": [...], "indice": [...], "data": [...]}``.

        ``indice`` is an item's number among all that are loaded; ``data`` describes it, with ``file_path`` on this
        machine. ``"notes"`` is there when reranking was asked for and something of it did not work: sentences.
        """
        collection = self._collection
        answers = []
        for _, found in self._find(collection, queries, top_k, search_corpus, documents, rerank):
            answer: dict[str, list[Any]] = {
                "score": [hit.score for hit in found.hits],
                "indice": [collection.position(hit.item.id) for hit in found.hits],
                "data": [_published(hit.item, collection.media_path(hit.item.id)) for hit in found.hits],
            }
            answers.append({**answer, "notes": list(found.notes)} if found.notes else answer)
        return answers

    def rerank_depth(self, rerank: bool | int, top_k: int) -> int:
        """How many hits a search with ``rerank`` looks at again (0: none); raises :class:`ConfigError` below 1."""
        return depth_of(rerank, top_k, self.settings.rerank_depth)

    def rerank(self, query: str | Query, hits: Sequence[Hit], top_k: int) -> Reranked:
        """The best ``top_k`` of ``hits`` by the reranker; see :func:`search_engine.reranking.second_look`. Raises nothing."""
        return self._reranked(self._collection, Query(text=query) if isinstance(query, str) else query, hits, top_k)

    def _reranked(self, collection: Collection, query: Query, hits: Sequence[Hit], top_k: int) -> Reranked:
        if self.reranker is None:
            log.warning(NO_RERANKER)
            return Reranked(list(hits[:top_k]), (NO_RERANKER,))
        found = second_look(self.reranker, query, hits, [_document(collection, hit.item) for hit in hits])
        return Reranked(found.hits[:top_k], found.notes)

    def _find(
        self,
        collection: Collection,
        queries: Sequence[str | Query],
        top_k: int,
        corpus: str | Sequence[str] | None,
        documents: Sequence[str] | None,
        rerank: bool | int,
    ) -> list[tuple[Query, Reranked]]:
        depth = self.rerank_depth(rerank, top_k)
        reach = depth if depth and self.reranker is not None else top_k
        answers = []
        for query, ranking in self._rank(collection, queries, reach, corpus, documents):
            hits = [
                Hit(item=_found(collection, row, query), score=float(score))
                for row, score in zip(*ranking, strict=True)
            ]
            answers.append((query, self._reranked(collection, query, hits, top_k) if depth else Reranked(hits)))
        return answers

    def _rank(
        self,
        collection: Collection,
        queries: Sequence[str | Query],
        top_k: int,
        corpus: str | Sequence[str] | None,
        documents: Sequence[str] | None,
    ) -> list[tuple[Query, Ranking]]:
        if isinstance(queries, str):
            raise ConfigError("queries is a list of questions, not one string")
        if top_k < 1:
            raise ConfigError(f"top_k must be at least 1, not {top_k}")
        allowed = collection.allowed(corpus, documents)
        if not queries:
            return []
        asked = [Query(text=query) if isinstance(query, str) else query for query in queries]
        if not self.sees_pictures and any(query.image is not None for query in asked):
            raise ConfigError(
                f"{self.model_name} reads text alone; to search by picture, build the index with a visual model"
            )
        vectors = np.array(self.embedder.embed_queries(asked), np.float32)
        if vectors.shape != (len(asked), self.embedder.dimension):
            raise ModelError(f"{self.embedder.name} gave {vectors.shape} for {len(asked)} queries; it cannot be used")
        if self.settings.hybrid:
            # A model that cannot read a question gives a vector all the same; BM25 is not to be disturbed by it.
            unread = [query.image is None and not reads(self.embedder, query.text or "") for query in asked]
            vectors[unread] = 0.0
        rankings = collection.search([query.text for query in asked], vectors, top_k, allowed, documents)
        return list(zip(asked, rankings, strict=True))

    # ---------------------------------------------------------------------------------------------------------- state

    def item(self, item_id: str) -> Item:
        """An item by its id; raises ``KeyError`` for an unknown one, as do the three methods below."""
        return self._collection.item(item_id)

    def position(self, item_id: str) -> int:
        """The number of an item among all that are loaded (``indice``)."""
        return self._collection.position(item_id)

    def media_path(self, item_id: str) -> Path | None:
        """The stored image or video of an item; None for a text."""
        return self._collection.media_path(item_id)

    def lines(self, item_id: str) -> tuple[Line, ...]:
        """The text of an item line by line, with boxes in page pixels."""
        return self._collection.lines(item_id)

    @property
    def corpora(self) -> dict[str, int]:
        """The number of items of each loaded corpus."""
        return self._collection.corpora

    @property
    def documents(self) -> dict[str, int]:
        """The number of items of each loaded document, by file name."""
        return self._collection.documents

    @property
    def version(self) -> str:
        """Changes whenever what is searched changes."""
        return self._collection.version

    @property
    def model_name(self) -> str:
        return self.embedder.name

    @property
    def dimension(self) -> int:
        return self.embedder.dimension

    @property
    def reranker_name(self) -> str | None:
        return None if self.reranker is None else self.reranker.name

    @property
    def sees_pictures(self) -> bool:
        """Whether queries may be pictures."""
        return sees_pictures(self.embedder)

    def __len__(self) -> int:
        return len(self._collection)


class EngineRetriever:
    """:class:`vrag.retriever.Retriever` over an engine in the same process."""

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine

    def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]:
        try:
            return self._engine.retrieve(queries, top_k, corpus)
        except VragError as error:
            raise RetrieverError(str(error)) from error

    def image(self, item_id: str) -> bytes:
        try:
            item, path = self._engine.item(item_id), self._engine.media_path(item_id)
            if item.kind != "image" or path is None:
                raise RetrieverError(f"{item.label} is a {item.kind} and has no image")
            return path.read_bytes()
        except KeyError:
            raise RetrieverError(f"there is no item {item_id!r} in the index") from None
        except OSError as error:
            raise RetrieverError(f"the image of {item_id} cannot be read: {error.strerror}") from error


def _found(collection: Collection, row: int, query: Query) -> Item:
    """An item as a hit shows it: ``metadata["moment"]`` says where in a clip what is asked for is said, by its transcript."""
    item = collection.items[row]
    if item.kind != "video" or not query.text:
        return item
    moment = best_moment(collection.lines(item.id), query.text)
    return (
        item if moment is None else item.model_copy(update={"metadata": {**item.metadata, "moment": moment.as_dict()}})
    )


def _document(collection: Collection, item: Item) -> Document:
    """What a reranker may look at; an item that is not loaded any more has nothing to be looked at."""
    try:
        path = collection.media_path(item.id)
        text = item.content or "\n".join(line.text for line in collection.lines(item.id))
    except KeyError:
        return Document(item.id)
    return Document(
        id=item.id,
        text=text,
        image=path if item.kind == "image" else None,
        video=path if item.kind == "video" else None,
    )


def _published(item: Item, path: Path | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": item.kind,
        "id": item.id,
        "document": item.document,
        "page": item.page,
        "width": item.width,
        "height": item.height,
        "file_path": None if path is None else str(path),
        "metadata": item.metadata,
    }
    if item.content is not None:
        entry["content"] = item.content
    if item.duration is not None:
        entry["duration"] = item.duration
    return entry


def _own_name(folder: Path) -> str:
    return index_name(folder)


def _free_name(name: str, taken: Mapping[str, Path]) -> str:
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name}~{count}"
    return free


def _same(a: Path, b: Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


if __name__ == "__main__":
    from search_engine.cli import main

    raise SystemExit(main())
