"""GVE, the General Video Embedder (Alibaba-NLP/GVE-3B, GVE-7B; arXiv 2510.27571), built on Qwen2.5-VL.

The prompt is the checkpoint's chat template around the content, its header for the answer, and one ``<|endoftext|>`` behind it;
the state of that last token, normalised, is the vector. Without the token retrieval is much worse (recall@1 0.31 against 0.44
in an independent measurement). Queries and documents are treated alike.

*Positions.* The published code computes three-dimensional rotary positions for the first batch of a process and plain 1, 2, 3 for
all later ones, by an oversight; an index built with it mixes both. The default here is ``mrope``, the three-dimensional ones:
they are what Qwen2.5-VL was trained with, and the independent measurement that reproduces the paper's recall (0.44 against
0.431) ran the stock Qwen2.5-VL class, which uses them for every batch. ``1d`` matches vectors that the published code made after
its first batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from search_engine.models.checkpoint import Checkpoint
from search_engine.models.resizing import Area
from search_engine.models.vision import MERGE, Sampling, Visual, plan_clip, plan_frames, plan_image
from search_engine.models.visual import Content, Part, Prepared, VisualEmbedder
from vrag.errors import ConfigError

END = "<|endoftext|>"


class GVE(VisualEmbedder):
    """:class:`search_engine.models.base.Embedder` over text, pictures and clips. 2048 dimensions (3B) or 3584 (7B).

    ``image_tokens``, ``frame_tokens``: least and most visual tokens of a picture and of one frame of a clip (28 x 28 pixels each).
    ``fps``, ``min_frames``, ``max_frames``: how a clip is sampled; the published numbers ask for at least 32 frames and at most
    8, and the most wins, so that every clip of 8 frames or more is seen in 8. A clip handed over as frames was sampled by whoever
    did so: all of them are seen, thinned out evenly beyond ``list_frames``. ``query_instruction`` replaces the system message.
    """

    STATISTICS = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        positions: Literal["mrope", "1d"] = "mrope",
        image_tokens: tuple[int, int] = (4, 256),
        frame_tokens: tuple[int, int] = (128, 200),
        fps: float = 1.0,
        min_frames: int = 32,
        max_frames: int = 8,
        list_frames: int = 64,
        max_length: int = 8192,
        **options: Any,
    ) -> None:
        if positions not in ("mrope", "1d"):
            raise ConfigError(f"positions has to be mrope or 1d, not {positions!r}.")
        # One token is kept for END.
        super().__init__(
            _windowed(checkpoint, max_length), max_length=max_length - 1, flat_positions=positions == "1d", **options
        )
        end = self.format.tokenizer.token_to_id(END)
        if end is None:
            raise ConfigError(f"{checkpoint.path / 'tokenizer.json'} has no token {END}; it is of another model.")
        self._end = int(end)
        pixels = (self.patch * MERGE) ** 2
        self._image_areas = (
            Area(4 * pixels, 16_384 * pixels),
            Area(image_tokens[0] * pixels, image_tokens[1] * pixels),
        )
        self._frame_area = Area(frame_tokens[0] * pixels, frame_tokens[1] * pixels)
        self._sampling = Sampling(fps, min_frames, max_frames)
        self._list_frames = list_frames

    def _settings(self) -> dict[str, object]:
        limits, frames, sampling = self._image_areas[1], self._frame_area, self._sampling
        return {
            "pool": "last",
            "end": END,
            "positions": "1d" if self.flat_positions else "mrope",
            "image": f"{limits.least}-{limits.most}",
            "video": f"{sampling.fps}fps/{sampling.least}-{sampling.most}x{frames.least}-{frames.most}/{self._list_frames}",
            "length": self.max_length + 1,
        }

    def prepare(self, content: Content) -> Prepared:
        parts: list[Part] = []
        if content.video:
            parts.append(Part(visual=self._clip(content.video), is_clip=True))
        if content.image is not None:
            parts.append(Part(visual=plan_image(content.image, self.patch, self._image_areas)))
        if content.text or not parts:
            parts.append(Part(content.text or ""))
        return self.assemble(content.instruction, parts)

    def _clip(self, video: Any) -> Visual:
        if isinstance(video, Sequence) and not isinstance(video, str | bytes):
            double = (self.patch * MERGE * 2) ** 2
            first = Area(4 * double, max(4 * double, self._frame_area.most))
            return plan_frames(video, self.patch, first, self._list_frames, lambda count: self._frame_area)
        return plan_clip(video, self.patch, self._sampling, lambda count: self._frame_area)

    def _finish(self, ids: list[int]) -> list[int]:
        return [*ids, self._end]


def _windowed(checkpoint: Checkpoint, longest: int) -> Checkpoint:
    """The checkpoint with attention limited to ``sliding_window`` tokens in every layer, as the published modelling code has it.

    That code does not ask ``use_sliding_window`` (which says false), newer releases of transformers do. The window of the released
    checkpoints, 32,768 tokens, is wider than any prompt here; it matters for checkpoints with a smaller one.
    """
    config = dict(checkpoint.config)
    nested = config.get("text_config")
    text = dict(nested) if isinstance(nested, dict) else config
    if 0 < (text.get("sliding_window") or 0) < longest:
        text.update(use_sliding_window=True, max_window_layers=0)
        text.pop("layer_types", None)
    if isinstance(nested, dict):
        config["text_config"] = text
    return replace(checkpoint, config=config)
