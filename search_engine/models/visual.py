"""What the visual models share: a prompt of text, pictures and clips in, the state of its last token out, batch by batch.

An input is *prepared* (prompt rendered, tokens counted; of pictures only the header is read), the prepared inputs are packed
into batches by their length, and a batch's pictures are decoded just before it is its turn, while the model works on another.
With several devices each holds a replica and takes the next batch when it is free. Whatever goes wrong with one input is
written down for that input; the others come out as if it had not been there.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.models.checkpoint import Checkpoint, image_statistics
from search_engine.models.loading import (
    load_model,
    load_prompt_format,
    resolve_devices,
    resolve_dtype,
    weights_digest,
)
from search_engine.models.positions import Positions, Run, flat, multimodal
from search_engine.models.resizing import ImageSource
from search_engine.models.vision import MERGE, PAIR, Visual, normalised, plan_batches
from vrag.errors import ConfigError, MediaError

log = logging.getLogger(__name__)

#: Tokens of a batch, padding counted, where nothing else is said.
CPU_BATCH_TOKENS = 1_024
GPU_BATCH_TOKENS = 32_768
#: Threads that decode pictures ahead of the model, for every device.
_DECODERS = 4
#: No token of these vocabularies is longer, in characters: more text than this per token of the limit cannot matter.
_LONGEST_TOKEN = 256


@dataclass(frozen=True, slots=True)
class Content:
    """What one vector is made of. ``video`` is the path of a file, or frames in order (two a second).

    Empty content is embedded as each model's authors do it (Qwen3-VL-Embedding: as the word NULL).
    """

    text: str | None = None
    image: ImageSource | None = None
    video: Path | str | Sequence[ImageSource] | None = None
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the user's message: text, or something to look at and the text that stands for it in the prompt."""

    text: str = ""
    visual: Visual | None = None
    is_clip: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt, ready but for its pixels."""

    ids: list[int] = field(repr=False)
    positions: Positions = field(repr=False)
    images: tuple[Visual, ...] = ()
    clips: tuple[Visual, ...] = ()

    @property
    def visual_tokens(self) -> int:
        return sum(visual.tokens for visual in self.images + self.clips)


@dataclass(frozen=True, slots=True)
class _Loaded:
    index: int
    prepared: Prepared
    images: list[torch.Tensor]
    clips: list[torch.Tensor]


@dataclass(slots=True)
class _Replica:
    device: torch.device
    model: Any
    lock: threading.Lock = field(default_factory=threading.Lock)


class VisualEncoder:
    """A vision-language checkpoint that turns prompts into the final hidden state of their last token.

    ``devices``: None for every GPU (else the CPU), or names; each gets a whole replica. ``dtype``: auto, float32 or bfloat16.
    ``batch_tokens``: how many tokens go through a device at once, padding counted.
    """

    #: Mean and deviation of the colours where the checkpoint carries no processor file.
    STATISTICS: tuple[tuple[float, ...], tuple[float, ...]] = ((0.5,) * 3, (0.5,) * 3)
    #: Whether the pairs of frames of a clip stand apart in the prompt, each after its time.
    TIMED_PAIRS = False
    #: Whether a prompt that is too long simply ends where the room does.
    CUTS_THE_END = True
    #: Whether the head of the language model is used, and so has to be among the weights.
    NEEDS_HEAD = False

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        max_length: int,
        dtype: str = "auto",
        devices: str | Sequence[str] | None = None,
        batch_tokens: int | None = None,
        attention: str | None = None,
        flat_positions: bool = False,
    ) -> None:
        self.checkpoint = checkpoint
        self.max_length = max_length
        self.flat_positions = flat_positions
        vision = checkpoint.config.get("vision_config") or {}
        self.patch = int(vision.get("patch_size", vision.get("spatial_patch_size", 0)))
        if self.patch < 1:
            raise ConfigError(f"{checkpoint.path / 'config.json'} does not say vision_config.patch_size.")
        self.time_rate = float(vision.get("tokens_per_second", 1.0))
        self.mean, self.std = image_statistics(checkpoint, self.patch, self.STATISTICS)
        self.format = load_prompt_format(checkpoint, max_length if self.CUTS_THE_END else None)
        config = checkpoint.config
        self.image_id, self.video_id = int(config["image_token_id"]), int(config["video_token_id"])
        self._replicas: list[_Replica] = []
        for device in resolve_devices(devices if devices is None or isinstance(devices, str) else tuple(devices)):
            whole = load_model(
                checkpoint, resolve_dtype(dtype, device), device, attention=attention, head=self.NEEDS_HEAD
            )
            if not self._replicas:
                self.weights = weights_digest(whole.model)
                self._adopt(whole)
            self._replicas.append(_Replica(device, whole.model))
        on_gpu = any(replica.device.type == "cuda" for replica in self._replicas)
        self.batch_tokens = batch_tokens or (GPU_BATCH_TOKENS if on_gpu else CPU_BATCH_TOKENS)
        log.info("%s on %s", checkpoint.name, ", ".join(str(replica.device) for replica in self._replicas))

    def _adopt(self, whole: Any) -> None:
        """Called once with the whole causal model, for those that need its head."""

    def _finish(self, ids: list[int]) -> list[int]:
        """What a model appends to the tokens of a prompt."""
        return ids

    # --- from messages to tokens

    def assemble(self, system: str | None, parts: Sequence[Part]) -> Prepared:
        """The prompt for one user message. Raises MediaError when its pictures alone are longer than a prompt may be."""
        room = self.max_length * _LONGEST_TOKEN
        messages: list[dict[str, Any]] = []
        if system is not None:
            messages.append({"role": "system", "content": [{"type": "text", "text": self.format.plain(system[:room])}]})
        content: list[dict[str, Any]] = []
        for part in parts:
            if part.visual is not None:
                content.append({"type": "video" if part.is_clip else "image"})
            else:
                content.append({"type": "text", "text": self.format.plain(part.text[:room])})
        messages.append({"role": "user", "content": content})
        prompt = self.format.render(messages)
        images = tuple(part.visual for part in parts if part.visual is not None and not part.is_clip)
        clips = tuple(part.visual for part in parts if part.visual is not None and part.is_clip)
        for image in images:
            prompt = prompt.replace(self.format.image_token, _HOLE * image.tokens, 1)
        prompt = prompt.replace(_HOLE, self.format.image_token)
        for clip in clips:
            prompt = self._with_clip(prompt, clip)
        prompt = prompt.replace(_HOLE, self.format.video_token)

        ids = self._finish(self.format.encode(prompt))
        for kind, token, visuals in (("picture", self.image_id, images), ("clip", self.video_id, clips)):
            if ids.count(token) != sum(visual.tokens for visual in visuals):
                raise TooLong(
                    f"the {kind} takes {sum(visual.tokens for visual in visuals):,} tokens, and the prompt may have "
                    f"{self.max_length:,}; allow fewer pixels or frames."
                )
        if self.flat_positions:
            positions = flat(len(ids))
        else:
            positions = multimodal(len(ids), self._runs(ids, images, clips))
        return Prepared(ids, positions, images, clips)

    def _with_clip(self, prompt: str, clip: Visual) -> str:
        opening, closing = self.format.frame
        framed = opening + self.format.video_token + closing
        if not self.TIMED_PAIRS:
            return prompt.replace(self.format.video_token, _HOLE * clip.tokens, 1)
        pair = opening + _HOLE * clip.tokens_per_pair + closing
        spelled = "".join(f"<{seconds:.1f} seconds>{pair}" for seconds in clip.times)
        # Some templates already put the frame around the clip; each pair brings its own.
        return prompt.replace(framed if framed in prompt else self.format.video_token, spelled, 1)

    def _runs(self, ids: list[int], images: Sequence[Visual], clips: Sequence[Visual]) -> list[Run]:
        """Where the visual tokens stand, in the order of the prompt."""
        grids: dict[int, deque[tuple[int, int, int, float, float]]] = {self.image_id: deque(), self.video_id: deque()}
        for image in images:
            grids[self.image_id].append((1, image.grid[1] // MERGE, image.grid[2] // MERGE, 1.0, 1.0))
        for clip in clips:
            pairs, rows, columns = clip.grid[0], clip.grid[1] // MERGE, clip.grid[2] // MERGE
            if self.TIMED_PAIRS:
                grids[self.video_id].extend([(1, rows, columns, 1.0, 1.0)] * pairs)
            else:
                grids[self.video_id].append((pairs, rows, columns, PAIR / clip.sampled_fps, self.time_rate))
        runs: list[Run] = []
        cursor = 0
        while cursor < len(ids):
            if ids[cursor] in grids:
                runs.append(Run(cursor, *grids[ids[cursor]].popleft()))
                cursor += runs[-1].length
            else:
                cursor += 1
        return runs

    # --- from tokens to states

    def states(
        self, count: int, prepare: Callable[[int], Prepared], take: Callable[[int, torch.Tensor], None]
    ) -> dict[int, str]:
        """Run inputs ``0 .. count - 1``; ``take(index, state)`` is called with float32 states on the device they came from.

        Returns the reasons of the inputs that failed. ``take`` is called from several threads when there are several devices,
        never twice for one index.
        """
        failed: dict[int, str] = {}
        ready: dict[int, Prepared] = {}
        for index in range(count):
            try:
                ready[index] = prepare(index)
            except Exception as error:  # noqa: PERF203 - one bad input must not stop the others
                failed[index] = _reason(error)
        order = list(ready)
        batches = [
            [order[i] for i in batch]
            for batch in plan_batches([len(ready[index].ids) for index in order], self.batch_tokens)
        ]
        with ThreadPoolExecutor(_DECODERS * len(self._replicas)) as decoders:
            queue = _Ahead(batches, ready, failed, decoders, ahead=len(self._replicas))
            workers = [
                threading.Thread(target=self._work, args=(replica, queue, take, failed), daemon=True)
                for replica in self._replicas[1 : len(batches)]
            ]
            for worker in workers:
                worker.start()
            self._work(self._replicas[0], queue, take, failed)
            for worker in workers:
                worker.join()
        return failed

    def _work(
        self,
        replica: _Replica,
        queue: _Ahead,
        take: Callable[[int, torch.Tensor], None],
        failed: dict[int, str],
    ) -> None:
        while (batch := queue.next()) is not None:
            with replica.lock:
                self._run(replica, batch, take, failed)

    def _run(
        self,
        replica: _Replica,
        batch: list[_Loaded],
        take: Callable[[int, torch.Tensor], None],
        failed: dict[int, str],
    ) -> None:
        """One batch; if it fails it is halved, down to the input that is at fault."""
        if not batch:
            return
        try:
            states = self._forward(replica, batch)
            for loaded, state in zip(batch, states, strict=True):
                if bool(torch.isfinite(state).all()):
                    take(loaded.index, state)
                else:
                    failed[loaded.index] = "the model answered with numbers that are not finite."
            return
        except Exception as error:
            if len(batch) == 1:
                failed[batch[0].index] = _reason(error)
                return
            log.warning("a batch of %d is halved: %s", len(batch), _reason(error))
        if replica.device.type == "cuda":
            torch.cuda.empty_cache()
        middle = len(batch) // 2
        self._run(replica, batch[:middle], take, failed)
        self._run(replica, batch[middle:], take, failed)

    def _forward(self, replica: _Replica, batch: Sequence[_Loaded]) -> torch.Tensor:
        """``(n, hidden)`` float32: the state of every prompt's last token, after the final norm. Shorter ones are padded behind.

        Attention looks back only, so padding behind a prompt cannot reach it.
        """
        device = replica.device
        lengths = [len(loaded.prepared.ids) for loaded in batch]
        ids = torch.zeros((len(batch), max(lengths)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        positions = torch.zeros((3, *ids.shape), dtype=torch.long)
        for row, (loaded, length) in enumerate(zip(batch, lengths, strict=True)):
            ids[row, :length] = torch.tensor(loaded.prepared.ids)
            mask[row, :length] = 1
            positions[:, row, :length] = torch.from_numpy(loaded.prepared.positions)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        images = [visual for loaded in batch for visual in loaded.prepared.images]
        clips = [visual for loaded in batch for visual in loaded.prepared.clips]
        if images:
            inputs["pixel_values"] = torch.cat([patches for loaded in batch for patches in loaded.images])
            inputs["image_grid_thw"] = torch.tensor([image.grid for image in images])
        if clips:
            inputs["pixel_values_videos"] = torch.cat([patches for loaded in batch for patches in loaded.clips])
            inputs["video_grid_thw"] = torch.tensor([clip.grid for clip in clips])
        inputs = {key: value.to(device) for key, value in inputs.items()}
        for key in ("pixel_values", "pixel_values_videos"):
            if key in inputs:
                inputs[key] = normalised(inputs[key], self.mean, self.std)
        with torch.inference_mode():
            hidden = replica.model(**inputs, use_cache=False).last_hidden_state
        last = torch.tensor(lengths, device=hidden.device) - 1
        return hidden[torch.arange(len(batch), device=hidden.device), last].float()


class VisualEmbedder(VisualEncoder):
    """An encoder whose state is the embedding; :class:`search_engine.models.base.Embedder`.

    ``dimension``: keep the first so many numbers and normalise again (Matryoshka; the model has to be trained for it).
    ``text_with_media``: embed a document's text together with its picture or clip; by default the text of a document that has
    either is left to the lexical channel, as published.
    ``query_instruction``: what the model is told about a query; None for the model's own default for documents.
    """

    sees_pictures = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dimension: int | None = None,
        query_instruction: str | None = None,
        text_with_media: bool = False,
        **options: Any,
    ) -> None:
        if dimension is not None and not 1 <= dimension <= checkpoint.dimension:
            raise ConfigError(
                f"{checkpoint.name} has {checkpoint.dimension} dimensions; {dimension} cannot be kept of them."
            )
        self._dimension = dimension or checkpoint.dimension
        self.query_instruction = query_instruction
        self.text_with_media = text_with_media
        super().__init__(checkpoint, **options)

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def fingerprint(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self._settings().items())
        extra = ",text+media" if self.text_with_media else ""
        return f"{self.checkpoint.family}:{settings}{extra},template={self.format.digest},weights={self.weights}"

    def _settings(self) -> dict[str, object]:
        """What beside template and weights decides about a document's vector."""
        raise NotImplementedError

    def prepare(self, content: Content) -> Prepared:
        """The prompt of one content. Raises MediaError for what cannot be looked at."""
        raise NotImplementedError

    def embed(self, contents: Sequence[Content]) -> Embedded:
        """One row for each content, whatever mixture they are; the order of the batch changes nothing."""
        vectors = np.zeros((len(contents), self._dimension), dtype=np.float32)

        def take(index: int, state: torch.Tensor) -> None:
            kept = torch.nn.functional.normalize(state[: self._dimension], dim=-1)
            vectors[index] = kept.cpu().numpy()

        failed = self.states(len(contents), lambda index: self.prepare(contents[index]), take)
        return Embedded(vectors, failed)

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        return self.embed([self._content(document) for document in documents])

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        """Raises MediaError when one cannot be embedded."""
        embedded = self.embed([Content(query.text, query.image, None, self.query_instruction) for query in queries])
        if embedded.failed:
            index, reason = min(embedded.failed.items())
            raise MediaError(f"Query {index + 1} cannot be embedded: {reason}")
        return embedded.vectors

    def _content(self, document: Document) -> Content:
        media = document.image is not None or document.video is not None
        text = document.text if self.text_with_media or not media else None
        return Content(text, document.image, document.video)


class TooLong(MediaError):
    """The pictures of a prompt do not fit into it."""


class _Ahead:
    """Batches in order, their pictures decoded in other threads ``ahead`` batches before they are asked for."""

    def __init__(
        self,
        batches: Sequence[Sequence[int]],
        ready: dict[int, Prepared],
        failed: dict[int, str],
        decoders: ThreadPoolExecutor,
        ahead: int,
    ) -> None:
        self._batches: Iterator[Sequence[int]] = iter(batches)
        self._ready, self._failed, self._decoders = ready, failed, decoders
        self._started: deque[list[tuple[int, Future[_Loaded]]]] = deque()
        self._lock = threading.Lock()
        for _ in range(ahead):
            self._start()

    def next(self) -> list[_Loaded] | None:
        """The next batch without those of its inputs that could not be decoded; None when there is none left."""
        with self._lock:
            if not self._started:
                return None
            batch = self._started.popleft()
            self._start()
        loaded = []
        for index, future in batch:
            try:
                loaded.append(future.result())
            except Exception as error:  # noqa: PERF203 - one bad picture must not stop the others
                self._failed[index] = _reason(error)
        return loaded

    def _start(self) -> None:
        batch = next(self._batches, None)
        if batch is not None:
            self._started.append([(index, self._decoders.submit(_load, index, self._ready[index])) for index in batch])


def _load(index: int, prepared: Prepared) -> _Loaded:
    return _Loaded(
        index,
        prepared,
        [image.load() for image in prepared.images],
        [clip.load() for clip in prepared.clips],
    )


def _reason(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


#: Stands for one visual token while a prompt is put together; a private character of Unicode that no prompt contains.
_HOLE = "\uf8ff"
