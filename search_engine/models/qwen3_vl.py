"""Qwen3-VL-Embedding (Qwen/Qwen3-VL-Embedding-2B, -8B; 2048 and 4096 dimensions, cut at will: Matryoshka).

The system message is an instruction, the user's message the content (clip, picture, text), followed by the header of the answer;
the state of the last token, normalised, is the vector. Documents carry the default instruction. Queries carry one that says what
is being looked for, as the model was trained; ``query_instruction=None`` gives them the default too, which is what the published
search engine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from search_engine.models.checkpoint import Checkpoint
from search_engine.models.instructions import DOCUMENT_INSTRUCTION, QUERY_INSTRUCTION, punctuated
from search_engine.models.resizing import Area
from search_engine.models.vision import MERGE, PAIR, Sampling, Visual, plan_clip, plan_frames, plan_image
from search_engine.models.visual import Content, Part, Prepared, TooLong, VisualEmbedder

#: The context for which the authors' tools leave room when they size the frames of a clip, in visual tokens.
_CONTEXT = 128_000 * 0.9


class Qwen3Vision:
    """How Qwen3-VL checkpoints look at pictures and clips.

    ``image_tokens``, ``frame_tokens``: least and most visual tokens (32 x 32 pixels each) of a picture and of a frame of a clip;
    ``list_tokens``: how many a clip given as frames shares out among them.
    """

    def __init__(
        self,
        patch: int,
        image_tokens: tuple[int, int] = (4, 1800),
        frame_tokens: tuple[int, int] = (128, 768),
        list_tokens: int = 7680,
        fps: float = 1.0,
        min_frames: int = 4,
        max_frames: int = 64,
    ) -> None:
        self.patch = patch
        self.pixels = (patch * MERGE) ** 2
        self.image_area = Area(image_tokens[0] * self.pixels, image_tokens[1] * self.pixels)
        self.frame_tokens = frame_tokens
        self.list_tokens = list_tokens
        self.sampling = Sampling(fps, min_frames, max_frames)

    @property
    def settings(self) -> dict[str, object]:
        frames, sampling = self.frame_tokens, self.sampling
        return {
            "image": f"{self.image_area.least}-{self.image_area.most}",
            "video": f"{sampling.fps}fps/{sampling.least}-{sampling.most}x{frames[0]}-{frames[1]}/{self.list_tokens}",
        }

    def image(self, source: Any) -> Visual:
        return plan_image(source, self.patch, (self.image_area,))

    def clip(self, video: Any, most_tokens: int | None = None) -> Visual:
        """A clip; ``most_tokens`` caps the tokens of a pair of frames below what the limits would give."""
        if isinstance(video, Sequence) and not isinstance(video, str | bytes):
            double = self.pixels * 4
            first = Area(4 * double, 16_384 * double)
            total = self.list_tokens
            return plan_frames(
                video, self.patch, first, self.sampling.most, lambda n: self._frame(total, n, most_tokens)
            )
        return plan_clip(video, self.patch, self.sampling, lambda n: self._frame(_CONTEXT, n, most_tokens))

    def _frame(self, total: float, count: int, most_tokens: int | None) -> Area:
        """The limits of one of ``count`` frames that share ``total`` tokens."""
        least = self.frame_tokens[0] * self.pixels
        shared = total * self.pixels / count * PAIR
        most = max(min(self.frame_tokens[1] * self.pixels, shared), int(least * 1.05))
        if most_tokens is not None:
            most = min(most, most_tokens * self.pixels)
        return Area(int(min(least, most)), int(most))


class Qwen3VLEmbedding(VisualEmbedder):
    """:class:`search_engine.models.base.Embedder` over text, pictures and clips; ``vision`` options as :class:`Qwen3Vision`."""

    TIMED_PAIRS = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        query_instruction: str | None = QUERY_INSTRUCTION,
        document_instruction: str = DOCUMENT_INSTRUCTION,
        image_tokens: tuple[int, int] = (4, 1800),
        frame_tokens: tuple[int, int] = (128, 768),
        list_tokens: int = 7680,
        fps: float = 1.0,
        min_frames: int = 4,
        max_frames: int = 64,
        max_length: int = 8192,
        **options: Any,
    ) -> None:
        super().__init__(checkpoint, max_length=max_length, query_instruction=query_instruction, **options)
        self.document_instruction = document_instruction
        self.vision = Qwen3Vision(self.patch, image_tokens, frame_tokens, list_tokens, fps, min_frames, max_frames)

    def _settings(self) -> dict[str, object]:
        return {
            "pool": "last",
            "instruction": repr(self.document_instruction),
            **self.vision.settings,
            "length": self.max_length,
        }

    def prepare(self, content: Content) -> Prepared:
        try:
            return self._prepare(content, None)
        except TooLong:
            if not content.video:
                raise
        # A long clip of large frames: the published code fails on it; here its frames get as many tokens as there is room for.
        bare = self._prepare(replace(content, video=None), None)
        clip = self.vision.clip(content.video)
        captions = (
            len(self.format.encode("".join(f"<{seconds:.1f} seconds>" for seconds in clip.times))) + 2 * clip.grid[0]
        )
        room = self.max_length - min(len(bare.ids) + captions, self.max_length // 2)
        return self._prepare(content, max(1, room // clip.grid[0]))

    def _prepare(self, content: Content, most_tokens: int | None) -> Prepared:
        parts: list[Part] = []
        if content.video:
            parts.append(Part(visual=self.vision.clip(content.video, most_tokens), is_clip=True))
        if content.image is not None:
            parts.append(Part(visual=self.vision.image(content.image)))
        if content.text or not parts:
            parts.append(Part(content.text or "NULL"))
        return self.assemble(punctuated(content.instruction) or self.document_instruction, parts)
