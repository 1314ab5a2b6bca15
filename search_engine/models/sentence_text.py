"""Any text model of the sentence-transformers library, such as BAAI/bge-m3, over the text of pages and passages.

It reads what the page says, never how it looks. A model may know no Chinese, or no English, and gives a vector all the same:
:meth:`SentenceText.reads_script` says when its ranking should not be listened to.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.models.checkpoint import Checkpoint
from search_engine.models.scripts import readable_scripts, words_by_script
from vrag.errors import ConfigError, MediaError

log = logging.getLogger(__name__)


class SentenceText:
    """:class:`search_engine.models.base.Embedder` over ``Document.text``; pictures and clips are not looked at.

    ``query_prompt``, ``document_prompt``: the name of a prompt of the checkpoint, or text put in front; by default the checkpoint's
    own ``query`` and ``document`` prompts where it has them. ``dimension``: keep the first so many numbers (Matryoshka).
    """

    #: What this channel is worth beside BM25 where nothing else is said: measured with a small model, so as never to harm.
    fusion_weight = 0.1

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str | None = None,
        dimension: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        batch_size: int = 32,
    ) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ModuleNotFoundError as error:
            raise ConfigError(f'{checkpoint.name} needs {error.name}: pip install "vrag[sentence]".') from error
        try:
            self._model: Any = SentenceTransformer(str(checkpoint.path), device=device)
        except Exception as error:  # Missing modules, foreign weights: the library's words name the file.
            raise ConfigError(
                f"{checkpoint.path} cannot be loaded as a sentence-transformers model: {error}"
            ) from error
        self.checkpoint = checkpoint
        # Renamed in release 6 of the library.
        measure = getattr(self._model, "get_embedding_dimension", None) or self._model.get_sentence_embedding_dimension
        full = int(measure())
        if dimension is not None and not 1 <= dimension <= full:
            raise ConfigError(f"{checkpoint.name} has {full} dimensions; {dimension} cannot be kept of them.")
        self._dimension = dimension or full
        prompts = dict(getattr(self._model, "prompts", None) or {})
        self._query_prompt = prompts.get(query_prompt or "query", query_prompt or "")
        self._document_prompt = prompts.get(document_prompt or "document", document_prompt or "")
        self._batch_size = batch_size

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def fingerprint(self) -> str:
        prompt = hashlib.sha256(self._document_prompt.encode()).hexdigest()[:8] if self._document_prompt else "none"
        weights = hashlib.sha256(self._encode(["fingerprint"], "").astype(np.float16).tobytes()).hexdigest()[:12]
        return f"sentence_text:prompt={prompt},length={self._model.max_seq_length},probe={weights}"

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        """A document without text gets the zero vector: there is nothing to find it by, and that is no failure."""
        vectors = np.zeros((len(documents), self._dimension), dtype=np.float32)
        rows = [row for row, document in enumerate(documents) if (document.text or "").strip()]
        if rows:
            vectors[rows] = self._encode([documents[row].text or "" for row in rows], self._document_prompt)
        return Embedded(vectors)

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        """Raises MediaError for a query that is a picture only."""
        for number, query in enumerate(queries, 1):
            if query.image is not None and not query.text:
                raise MediaError(
                    f"Query {number} is a picture; {self.name} reads text. Search by picture needs a visual model."
                )
        if not queries:
            return np.zeros((0, self._dimension), dtype=np.float32)
        return self._encode([query.text or "" for query in queries], self._query_prompt)

    def reads_script(self, text: str) -> bool:
        """Whether the model knows the scripts that ``text`` is written in: all but a quarter of its words at most.

        A model that cannot read a query gives a vector all the same, and its ranking is noise. What it can read shows in its
        vocabulary (see :mod:`search_engine.models.scripts`): one for English has letters of Russian and a few hundred Chinese
        characters in it, so that counting unknown tokens would not do.
        """
        written = words_by_script(text)
        unread = sum(count for script, count in written.items() if script not in self._scripts)
        return unread * 4 <= sum(written.values())

    @cached_property
    def _scripts(self) -> Collection[str]:
        return readable_scripts(self._model.tokenizer)

    def _encode(self, texts: list[str], prompt: str) -> Vectors:
        vectors = self._model.encode(
            [prompt + text for text in texts],
            batch_size=self._batch_size,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        kept = np.asarray(vectors, dtype=np.float32)[:, : self._dimension]
        norms = np.linalg.norm(kept, axis=1, keepdims=True)
        scaled: Vectors = kept / np.maximum(norms, 1e-12)
        return scaled
