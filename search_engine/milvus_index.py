"""Vectors served by Milvus: a local file (Milvus Lite) or a cluster, by the same code, through ``pymilvus``.

An export copies the vectors of an index into a collection whose name says of which state of the index it is::

    vrag_{name of the corpus}_{state}      number INT64 (primary), document VARCHAR, vector FLOAT_VECTOR; inner product

So a collection is never changed once it is complete, a server never searches vectors that are not those of its items, and
another export does not disturb those who still serve the one before. Milvus finds candidates; their scores come from the
stored vectors, as for every other kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_engine.candidate_index import CandidateIndex, candidates
from search_engine.index_store import StoredIndex
from search_engine.models.base import Vectors
from search_engine.settings import RetrievalSettings
from search_engine.vector_rows import Rows
from vrag.errors import ConfigError, IndexMismatch, RetrieverError

log = logging.getLogger(__name__)

#: What Milvus takes: bytes of a message, queries of a search, results of a query, bytes of a string.
_MESSAGE_BYTES, _QUERIES, _RESULTS, _STRING_BYTES = 16 << 20, 1024, 16_384, 65_535
#: A filter that names no documents is sent as numbers up to here, and answered from the stored vectors beyond.
_NUMBERS = 10_000
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
#: The index that Milvus keeps; FLAT is exact.
INDEX_TYPES = ("FLAT", "AUTOINDEX", "HNSW", "IVF_FLAT", "IVF_SQ8", "DISKANN")


@dataclass(frozen=True, slots=True)
class Export:
    """``others`` are collections of earlier states of the same index; ``copied`` is 0 when everything was there already."""

    collection: str
    vectors: int
    copied: int
    others: tuple[str, ...]


class MilvusIndex(CandidateIndex):
    """A complete collection as a :class:`VectorIndex`. ``rows`` are the stored vectors that it was exported from."""

    def __init__(self, uri: str, token: str, collection: str, rows: Rows) -> None:
        super().__init__(rows)
        self._uri = uri
        self._client = connect(uri, token)
        self._collection = collection
        with _speaking(uri):
            if not self._client.has_collection(collection):
                raise IndexMismatch(f"{uri} has no collection {collection}")
            held = _loaded_count(self._client, uri, collection)
        if held is None:
            raise IndexMismatch(f"{uri} holds {collection}, which was left half-written")
        if held != len(rows):
            raise IndexMismatch(f"{uri} holds {held:,} of the {len(rows):,} vectors in {collection}")

    def _candidates(
        self,
        queries: Vectors,
        k: int,
        admitted: int,
        allowed: NDArray[np.bool_] | None,
        documents: Sequence[str] | None,
    ) -> Iterable[NDArray[np.int64]] | None:
        """Raises :class:`RetrieverError` when Milvus does not answer."""
        count = min(admitted, max(k, min(candidates(k), _RESULTS)))
        if count > _RESULTS or (allowed is not None and documents is None and admitted > _NUMBERS):
            return None
        expression = ""
        if documents is not None and allowed is not None:
            expression = document_filter(documents)
        elif allowed is not None:
            expression = f"number in {np.flatnonzero(allowed).tolist()}"
        batches = (queries[start : start + _QUERIES] for start in range(0, len(queries), _QUERIES))
        found = (rows for some in batches for rows in self._find(some, count, expression))
        return found if allowed is None else (rows[allowed[rows]] for rows in found)

    def _find(self, queries: Vectors, count: int, expression: str) -> list[NDArray[np.int64]]:
        with _speaking(self._uri):
            answers = self._client.search(
                self._collection, data=list(queries), limit=count, filter=expression, output_fields=["number"]
            )
            found = [np.array([hit["number"] for hit in hits], np.int64) for hits in answers]
        if len(found) != len(queries) or any(len(row) and not 0 <= row.min() <= row.max() < len(self) for row in found):
            raise RetrieverError(f"{self._uri} answered a search in {self._collection} with vectors that are not in it")
        return found


def open_collection(index: StoredIndex, rows: Rows, settings: RetrievalSettings) -> MilvusIndex:
    """The collection of the present state of ``index``, whose live vectors are ``rows``.

    Raises :class:`ConfigError` when no address is set or pymilvus is missing, :class:`IndexMismatch` when this state was
    not (completely) exported, :class:`RetrieverError` when Milvus does not answer.
    """
    uri, token = _address(settings)
    try:
        return MilvusIndex(uri, token, collection_name(index), rows)
    except IndexMismatch as error:
        raise IndexMismatch(
            f"{error}: this state of {index.path} was not exported; run "
            f"python -m search_engine milvus-export {index.path} --uri {uri}"
        ) from None


def export(
    index: StoredIndex, settings: RetrievalSettings, *, index_type: str = "FLAT", drop_others: bool = False
) -> Export:
    """Copy the live vectors of an index into Milvus; a complete collection is left as it is, a partial one made again.

    ``index_type``: one of :data:`INDEX_TYPES`; Milvus Lite searches exactly with every one but HNSW and IVF. ``drop_others``
    removes the collections of earlier states, which nobody may be serving then.

    Raises :class:`ConfigError` for settings that cannot be used, :class:`RetrieverError` when Milvus does not answer.
    """
    if index_type not in INDEX_TYPES:
        raise ConfigError(f"index_type is one of {', '.join(INDEX_TYPES)}, not {index_type!r}")
    uri, token = _address(settings)
    name = collection_name(index)
    rows, documents = _live(index)
    client = connect(uri, token)
    with _speaking(uri):
        complete = client.has_collection(name) and _loaded_count(client, uri, name) == len(rows)
        if not complete:
            if client.has_collection(name):
                log.info("%s is not complete; it is made again", name)
                client.drop_collection(name)
            _create(client, name, index.manifest.model.dimension, index_type)
            _insert(client, name, rows, documents)
        others = tuple(sorted(set(_earlier(client, index)) - {name}))
        for other in others if drop_others else ():
            client.drop_collection(other)
    return Export(name, len(rows), 0 if complete else len(rows), () if drop_others else others)


def collection_name(index: StoredIndex) -> str:
    """The collection of the present state of an index: equal for equal vectors of equal documents, else another."""
    return f"{_stem(index)}_{_state(index)}"


def document_filter(documents: Sequence[str]) -> str:
    """The Milvus expression for "of one of these documents".

    A name can hold quotes, backslashes, line breaks or the text of another expression and still is only a name.
    """
    names = [documents] if isinstance(documents, str) else documents
    return f"document in [{', '.join(_literal(_storable(name)) for name in names)}]"


def _literal(text: str) -> str:
    # These escapes a cluster and Milvus Lite both know; both take every other character as it is.
    return '"' + text.translate(_ESCAPES) + '"'


def connect(uri: str, token: str = "") -> Any:
    """A client. Raises :class:`ConfigError` without pymilvus, :class:`RetrieverError` when nobody answers."""
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise ConfigError('Milvus needs the package pymilvus: pip install "vrag[milvus]"') from error
    if "://" not in uri:
        folder = Path(uri).expanduser().absolute().parent
        if not uri.endswith(".db"):
            raise ConfigError(
                f"{uri} is no address (http://host:19530) and no file of Milvus Lite, whose name ends in .db"
            )
        if not folder.is_dir():
            raise ConfigError(f"{folder} does not exist; make it, or choose another place for {Path(uri).name}")
        uri = os.fspath(folder / Path(uri).name)
    # Everything it raises becomes a sentence; it logs each with its traceback besides.
    for library in ("pymilvus", "milvus_lite"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    with _speaking(uri):
        return MilvusClient(uri, token=token, timeout=30)


def _address(settings: RetrievalSettings) -> tuple[str, str]:
    if not settings.milvus_uri:
        raise ConfigError(
            "vectors=milvus needs an address: set VRAG_SEARCH_MILVUS_URI to http://host:19530, or to a local file that ends in .db"
        )
    return settings.milvus_uri, "" if settings.milvus_token is None else settings.milvus_token.get_secret_value()


@contextlib.contextmanager
def _speaking(uri: str) -> Iterator[None]:
    """What the library raises, as a sentence."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        if "Open local milvus failed" in str(error.message):
            raise RetrieverError(
                f"{uri} cannot be opened: another process has it open (Milvus Lite serves one at a time), or it is damaged"
            ) from error
        raise RetrieverError(f"Milvus at {uri} failed: {str(error.message).strip().splitlines()[0]}") from error


def _stem(index: StoredIndex) -> str:
    slug = re.sub(r"\W+", "_", index.manifest.name, flags=re.ASCII).strip("_")[:80]
    return f"vrag_{slug or 'corpus'}"


def _state(index: StoredIndex) -> str:
    """A digest of the vectors that are alive, their order, and the documents they are of."""
    digest = hashlib.sha256(index.manifest.model.model_dump_json().encode())
    for segment in index.manifest.segments:
        digest.update(f"{segment.vectors_sum} {segment.items_sum} {segment.removed}\0".encode())
    return digest.hexdigest()[:16]


def _live(index: StoredIndex) -> tuple[Rows, list[str]]:
    """The live vectors of an index and the document of each."""
    parts: list[tuple[NDArray[np.floating], NDArray[np.bool_]]] = []
    documents: list[str] = []
    for segment in index.segments:
        mask = segment.alive & np.any(segment.vectors, axis=1)
        parts.append((segment.vectors, mask))
        documents += [segment.items[row].item.document for row in map(int, np.flatnonzero(mask))]
    return Rows(index.manifest.model.dimension, parts), documents


def _storable(document: str) -> str:
    """A name as Milvus stores it: valid UTF-8 that is not too long."""
    data = document.encode("utf-8", "backslashreplace")
    if len(data) <= _STRING_BYTES:
        return data.decode()
    return f"{data[: _STRING_BYTES - 70].decode('utf-8', 'ignore')} {hashlib.sha256(data).hexdigest()}"


def _create(client: Any, name: str, dimension: int, index_type: str) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("number", DataType.INT64, is_primary=True)
    schema.add_field("document", DataType.VARCHAR, max_length=_STRING_BYTES)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
    chosen = client.prepare_index_params()
    params = {"HNSW": {"M": 32, "efConstruction": 128}, "IVF_FLAT": {"nlist": 1024}, "IVF_SQ8": {"nlist": 1024}}
    chosen.add_index("vector", index_type=index_type, metric_type="IP", params=params.get(index_type, {}))
    client.create_collection(name, schema=schema, consistency_level="Strong")
    # Loading waits for the index; Milvus Lite has no call to wait for it here.
    client.create_index(name, chosen, sync=False)


def _insert(client: Any, name: str, rows: Rows, documents: Sequence[str]) -> None:
    step = max(1, _MESSAGE_BYTES // (4 * rows.dimension + 512))
    number = 0
    for block in rows.blocks():
        for start in range(0, len(block), step):
            some = block[start : start + step]
            client.insert(
                name,
                [
                    {"number": number + row, "document": _storable(documents[number + row]), "vector": vector}
                    for row, vector in enumerate(some)
                ],
            )
            number += len(some)
            log.info("exported %s of %s vectors to %s", f"{number:,}", f"{len(rows):,}", name)
    client.flush(name)


def _loaded_count(client: Any, uri: str, name: str) -> int | None:
    """How many vectors a collection holds; None for one in a local file that a killed export left half-written."""
    from pymilvus.exceptions import MilvusException

    try:
        client.load_collection(name)
    except MilvusException as error:
        if "://" in uri:  # a server that does not answer is no reason to make a collection again
            raise
        log.info("%s in %s cannot be read: %s", name, uri, error.message)
        return None
    return _count(client, name)


def _count(client: Any, name: str) -> int:
    return int(client.query(name, filter="", output_fields=["count(*)"])[0]["count(*)"])


def _earlier(client: Any, index: StoredIndex) -> list[str]:
    """Collections of other states of an index of this name."""
    pattern = re.compile(re.escape(_stem(index)) + r"_[0-9a-f]{16}")
    return [name for name in client.list_collections() if pattern.fullmatch(name)]
