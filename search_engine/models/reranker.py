"""Qwen3-VL-Reranker: a second, closer look at the pages that a search found.

The model reads query and document together and is asked whether the document meets the query; the score is how much more it
leans to "yes" than to "no": ``sigmoid(h . (W_yes - W_no))`` with the state ``h`` of the last token and the rows of the language
model's head for the two words. The published code scores one pair at a time; here pairs are packed into batches like any other
input (they are padded behind, where causal attention cannot see it, which scores the same as padding in front).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from search_engine.models.base import Document, Query, Scores
from search_engine.models.checkpoint import Checkpoint, open_checkpoint
from search_engine.models.qwen3_vl import Qwen3Vision
from search_engine.models.visual import Content, Part, Prepared, TooLong, VisualEncoder
from vrag.errors import ConfigError

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a search query, retrieve relevant candidates that answer the query."
#: The end of a prompt that stays when a long document is cut: the end of the turn and the header of the answer.
_TAIL = 5


class Reranker(VisualEncoder):
    """:class:`search_engine.models.base.PairScorer`. ``vision`` options as :class:`search_engine.models.qwen3_vl.Qwen3Vision`."""

    TIMED_PAIRS = True
    NEEDS_HEAD = True
    CUTS_THE_END = False

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        instruction: str = INSTRUCTION,
        image_tokens: tuple[int, int] = (4, 1800),
        max_frames: int = 64,
        max_length: int = 10_240,
        **options: Any,
    ) -> None:
        if checkpoint.family != "qwen3_vl":
            raise ConfigError(
                f"{checkpoint.path / 'config.json'} is not of a Qwen3-VL model; a reranker has to be one."
            )
        self.instruction = instruction
        self._direction: torch.Tensor | None = None
        super().__init__(checkpoint, max_length=max_length, **options)
        self.vision = Qwen3Vision(self.patch, image_tokens, max_frames=max_frames)

    @property
    def name(self) -> str:
        return self.checkpoint.name

    def score(self, query: Query, documents: Sequence[Document]) -> Scores:
        """How well each document answers the query. A document that cannot be read fails alone.

        A document with a picture or a clip is judged by that; its text is read where it has neither.
        """
        contents = [
            Content(None if document.image or document.video else document.text, document.image, document.video)
            for document in documents
        ]
        return self.score_contents(Content(query.text, query.image), contents)

    def score_contents(self, query: Content, documents: Sequence[Content]) -> Scores:
        """The same for content of any kind; ``query.instruction`` replaces the reranker's own."""
        values = np.zeros(len(documents), dtype=np.float32)

        def take(index: int, state: torch.Tensor) -> None:
            assert self._direction is not None
            values[index] = float(torch.sigmoid(state.cpu() @ self._direction))

        failed = self.states(len(documents), lambda index: self.prepare_pair(query, documents[index]), take)
        return Scores(values, failed)

    def prepare_pair(self, query: Content, document: Content) -> Prepared:
        """The prompt of one pair. Raises MediaError for what cannot be looked at."""
        return self.assemble(
            SYSTEM,
            [
                Part(f"<Instruct>: {query.instruction or self.instruction}"),
                Part("<Query>:"),
                *self._parts(query),
                Part("\n<Document>:"),
                *self._parts(document),
            ],
        )

    def _parts(self, content: Content) -> list[Part]:
        parts: list[Part] = []
        if content.video:
            parts.append(Part(visual=self.vision.clip(content.video), is_clip=True))
        if content.image is not None:
            parts.append(Part(visual=self.vision.image(content.image)))
        if content.text or not parts:
            parts.append(Part(content.text or "NULL"))
        return parts

    def _finish(self, ids: list[int]) -> list[int]:
        """Cut to length: what is not special goes from the end, the tail stays."""
        if len(ids) <= self.max_length:
            return ids
        # The special tokens, among them those of the pictures, all have to stay.
        body, tail = ids[:-_TAIL], ids[-_TAIL:]
        room = self.max_length - _TAIL - sum(token in self._special for token in body)
        if room < 0:
            raise TooLong(
                f"the pictures take more than the {self.max_length:,} tokens of a prompt; allow fewer pixels or frames."
            )
        kept = []
        for token in body:
            if token in self._special:
                kept.append(token)
            elif room > 0:
                kept.append(token)
                room -= 1
        return kept + tail

    def _adopt(self, whole: Any) -> None:
        words = {word: self.format.tokenizer.token_to_id(word) for word in ("yes", "no")}
        if None in words.values():
            raise ConfigError(f"{self.checkpoint.path / 'tokenizer.json'} has no token for yes and no.")
        rows = whole.lm_head.weight.detach()
        self._direction = (rows[words["yes"]].float() - rows[words["no"]].float()).cpu()
        added = self.format.tokenizer.get_added_tokens_decoder()
        self._special = {token for token, entry in added.items() if entry.special}


def load_reranker(name_or_path: str, **options: Any) -> Reranker:
    """The reranker of a checkpoint: a directory or a name on the hub. Raises ConfigError, naming the file at fault."""
    try:
        return Reranker(open_checkpoint(name_or_path), **options)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'{name_or_path} needs a package that is missing or broken ({error.name or error}): pip install "vrag[models]".'
        ) from error
