"""A policy on plain transformers: requests that come in together are generated together.

    async with HfModel(model, processor) as policy:
        await roll_out(episode, policy, ...)

For tests, small models and machines without a GPU engine. :func:`generate_batch` is all there is to generating and knows
no concurrency; :class:`HfModel` gathers requests for it.

Rows of a batch are padded on the left and give what they give alone. Tokens that stand for pictures are never drawn: a
forged one would leave the model without the picture it stands for. Log-probabilities are those of the model's own logits
at the request's temperature, before any filter, which is what training computes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from PIL import Image

from vrag.errors import ConfigError, ModelError
from vrag_agent.driver import Sampled, Sampling
from vrag_agent.inputs import model_inputs

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """One row of a batch: ids with expanded image tokens, and the pictures in their order."""

    prompt_ids: Sequence[int]
    images: Sequence[Image.Image] = ()
    max_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)


def generate_batch(model: Any, processor: Any, requests: Sequence[Request]) -> list[Sampled]:
    """Continue all requests in one batch, each under its own sampling and limit.

    ``model`` is a Qwen-VL ``...ForConditionalGeneration``, ``processor`` its processor. With a ``seed`` a row is drawn
    from its own stream, the same whatever stands beside it; without one, from torch's.
    """
    import torch
    from transformers import LogitsProcessorList

    if not requests:
        return []
    rows = [(request.prompt_ids, request.images) for request in requests]
    inputs = model_inputs(processor, rows, padding="left", device=model.device)
    stops = _stops(model)
    draw = _Draw(processor, requests, stops)
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            out = model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=max(request.max_tokens for request in requests),
                logits_processor=LogitsProcessorList([draw]),
                pad_token_id=processor.tokenizer.pad_token_id,
                eos_token_id=stops,
                # What the checkpoint's own generation settings would add to the sampling of the request.
                temperature=None,
                top_p=None,
                top_k=None,
                repetition_penalty=1.0,
            )
    finally:
        model.train(was_training)
    drawn = out[:, inputs["input_ids"].shape[1] :].tolist()
    logprobs = torch.stack(draw.logprobs, 1).tolist()
    return [_cut(ids, row, request, stops) for ids, row, request in zip(drawn, logprobs, requests, strict=True)]


def _cut(ids: list[int], logprobs: list[float], request: Request, stops: Sequence[int]) -> Sampled:
    """The row up to its first stop token, within its own limit."""
    ids = ids[: request.max_tokens]
    end = next((at + 1 for at, token in enumerate(ids) if token in stops), None)
    if end is None:
        return Sampled(ids, logprobs[: len(ids)], "length")
    return Sampled(ids[:end], logprobs[:end], "stop")


def _stops(model: Any) -> list[int]:
    stops = model.generation_config.eos_token_id
    if stops is None:
        raise ConfigError("The checkpoint's generation_config.json names no eos_token_id, so no turn would end.")
    return list(stops) if isinstance(stops, list | tuple) else [int(stops)]


class _Draw:
    """Draws the next token of every row; a logits processor that leaves one token for greedy search to find.

    Gumbel's trick: the argmax of logits and Gumbel noise is a draw from their softmax.
    """

    def __init__(self, processor: Any, requests: Sequence[Request], stops: Sequence[int]) -> None:
        import torch

        self.logprobs: list[torch.Tensor] = []
        """Of the tokens drawn, B per step."""
        self._requests = requests
        self._stop = stops[0]
        tokens = (processor.image_token, getattr(processor, "video_token", None))
        self._forbidden = [processor.tokenizer.convert_tokens_to_ids(token) for token in tokens if token]
        self._greedy = torch.tensor([request.sampling.temperature <= 0 for request in requests])
        self._temperature = torch.tensor([request.sampling.temperature or 1.0 for request in requests])[:, None]
        self._limits = torch.tensor([request.max_tokens for request in requests])
        self._filtered = [n for n, r in enumerate(requests) if r.sampling.top_p < 1 or r.sampling.top_k > 0]
        self._streams: dict[int, torch.Generator] = {}
        for number, request in enumerate(requests):
            if request.sampling.seed is not None:
                # On the CPU, so that a seed means the same on every device.
                self._streams[number] = torch.Generator().manual_seed(request.sampling.seed)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        temperature = self._temperature.to(scores.device)
        logits = scores.float() / temperature
        allowed = logits.clone()
        allowed[:, self._forbidden] = -torch.inf
        for number in self._filtered:
            _filter(allowed[number], self._requests[number].sampling)
        noise = torch.zeros_like(logits)
        if not bool(self._greedy.all()):
            uniform = torch.rand_like(logits)
            for number, stream in self._streams.items():
                uniform[number] = torch.rand(logits.shape[1], generator=stream).to(logits.device)
            noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
            noise[self._greedy.to(logits.device)] = 0.0
        chosen = (allowed + noise).argmax(-1)
        picked = torch.log_softmax(logits, -1).gather(-1, chosen[:, None])[:, 0]
        self.logprobs.append(picked.cpu())
        # A row that is as long as it may be has nothing to wait for.
        chosen[(self._limits <= len(self.logprobs) - 1).to(chosen.device)] = self._stop
        return torch.full_like(scores, -torch.inf).scatter_(-1, chosen[:, None], 0.0)


def _filter(row: torch.Tensor, sampling: Sampling) -> None:
    """Keep the ``top_k`` most likely tokens, and of those the fewest that together reach ``top_p``; in place."""
    import torch

    order = row.argsort(descending=True)
    keep = len(order) if sampling.top_k <= 0 else min(sampling.top_k, len(order))
    if sampling.top_p < 1:
        before = torch.softmax(row[order[:keep]], -1).cumsum(-1) - torch.softmax(row[order[:keep]], -1)
        keep = max(1, int((before < sampling.top_p).sum()))
    row[order[keep:]] = -torch.inf


class HfModel:
    """A :class:`vrag_agent.driver.TokenModel` on one model in this process. Use it as an async context manager.

    While a batch is generated, new requests gather for the next one; ``window`` seconds are waited for company when there
    was none. Requests keep their order. ``batches`` and ``requests`` count what was done.
    """

    def __init__(self, model: Any, processor: Any, *, max_batch: int = 256, window: float = 0.005) -> None:
        if max_batch < 1:
            raise ConfigError(f"max_batch has to be at least 1, not {max_batch}.")
        self.model, self.processor = model, processor
        self.max_batch, self.window = max_batch, window
        self.batches = self.requests = 0
        self._waiting: list[tuple[Request, asyncio.Future[Sampled]]] = []
        self._running: list[tuple[Request, asyncio.Future[Sampled]]] = []
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for _, future in [*self._running, *self._waiting]:
            if not future.done():
                future.set_exception(ModelError("The model was closed."))
        self._running, self._waiting = [], []

    async def generate(
        self,
        prompt_ids: list[int],
        images: list[Image.Image],
        *,
        max_tokens: int,
        sampling: Sampling,
        request_id: str = "",
    ) -> Sampled:
        if self._task is None or self._task.done():
            raise ModelError("The model is not open: use it inside `async with`.")
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._waiting.append((Request(prompt_ids, images, max_tokens, sampling), future))
        self._arrived.set()
        return await future

    async def _serve(self) -> None:
        while True:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                await asyncio.sleep(self.window)
            batch, self._waiting = self._waiting[: self.max_batch], self._waiting[self.max_batch :]
            batch = [(request, future) for request, future in batch if not future.done()]
            if not batch:
                continue
            self._running = batch
            self.batches += 1
            self.requests += len(batch)
            replies = await asyncio.to_thread(self._guarded, [request for request, _ in batch])
            for number, (_, future) in enumerate(batch):
                if future.done():
                    continue
                if isinstance(replies, Exception):
                    future.set_exception(replies)
                else:
                    future.set_result(replies[number])

    def _guarded(self, requests: list[Request]) -> list[Sampled] | ModelError:
        """A failed batch as an error to hand out. Nothing is raised: a StopIteration, which the position code of the
        models can raise, would never arrive through a future, and its waiters would hang."""
        try:
            return generate_batch(self.model, self.processor, requests)
        except Exception as error:
            log.exception("a batch of %d requests failed", len(requests))
            return ModelError(f"The model failed on a batch of {len(requests)}: {type(error).__name__}: {error}")
