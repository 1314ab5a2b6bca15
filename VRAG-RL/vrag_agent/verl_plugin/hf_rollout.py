"""A rollout server on ``transformers`` for verl: the test backend, for machines without a GPU engine.

Set ``actor_rollout_ref.rollout.name=hf``. One Ray actor holds the model and generates what comes in together in one batch
(:class:`vrag_agent.hf_model.HfModel`); the training worker that leads the replica hands it the new weights after a step.
"""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from vrag_agent.driver import Sampling
from vrag_agent.hf_model import HfModel

NAME = "hf"


def register() -> None:
    """Make ``rollout.name=hf`` known in this process; doing it again is harmless."""
    RolloutReplicaRegistry.register(NAME, lambda: HfReplica)
    # The adapter of the training workers has no public way in.
    base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.{HfServerAdapter.__name__}"


def _server_name(replica_rank: int) -> str:
    return f"vrag_hf_server_{replica_rank}"


class HfServer:
    """The actor: generates, and takes weights. The calls that manage a GPU's memory have nothing to do."""

    def __init__(self, model_path: str, max_batch: int, threads: int) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        torch.set_num_threads(threads)
        model = AutoModelForImageTextToText.from_pretrained(
            model_path, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self._policy = HfModel(model, AutoProcessor.from_pretrained(model_path), max_batch=max_batch)
        self._open = False
        self._step: int | None = None

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        **_: Any,
    ) -> TokenOutput:
        if not self._open:  # the event loop of the actor runs only now
            await self._policy.__aenter__()
            self._open = True
        sampling = Sampling(
            temperature=float(sampling_params.get("temperature", 1.0)),
            top_p=float(sampling_params.get("top_p", 1.0)),
            top_k=max(0, int(sampling_params.get("top_k", 0))),
            seed=sampling_params.get("seed"),
        )
        sampled = await self._policy.generate(
            list(prompt_ids),
            list(image_data or []),
            max_tokens=int(sampling_params["max_tokens"]),
            sampling=sampling,
            request_id=request_id,
        )
        return TokenOutput(
            token_ids=sampled.ids,
            log_probs=sampled.logprobs if sampling_params.get("logprobs") else None,
            stop_reason="completed" if sampled.stop_reason == "stop" else sampled.stop_reason,
            extra_fields={"global_steps": self._step},
        )

    async def load_weights(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        """Take all weights. Raises RuntimeError where the names are not those of the model."""
        result = self._policy.model.load_state_dict(weights, strict=False)
        # Tied embeddings travel once.
        tied = set(getattr(self._policy.model, "_tied_weights_keys", None) or ())
        missing = [name for name in result.missing_keys if name not in tied]
        if result.unexpected_keys or missing:
            raise RuntimeError(
                f"The trainer's weights do not fit the rollout model: {len(result.unexpected_keys)} unknown "
                f"{result.unexpected_keys[:3]}, {len(missing)} missing {missing[:3]}."
            )
        self._step = step

    async def counts(self) -> dict[str, int]:
        """Requests and batches so far."""
        return {"requests": self._policy.requests, "batches": self._policy.batches}

    async def set_global_steps(self, step: int) -> None:
        self._step = step

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """The weights stay where they are."""

    async def sleep(self) -> None:
        """The weights stay where they are."""

    async def clear_kv_cache(self) -> None:
        """No cache outlives a batch."""

    async def release_kv_cache(self) -> None:
        """No cache outlives a batch."""

    async def resume_kv_cache(self) -> None:
        """No cache outlives a batch."""

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        return {}

    async def resume_generation(self) -> None:
        """Nothing was aborted."""

    async def start_profile(self, **_: Any) -> None:
        """Not profiled."""

    async def stop_profile(self) -> None:
        """Not profiled."""


class HfReplica(RolloutReplica):  # type: ignore[misc]
    """Launches the actor."""

    async def launch_servers(self) -> None:
        server = ray.remote(HfServer).options(
            name=_server_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency
        )
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        self.servers = [server.remote(self.model_config.path, self.config.max_num_seqs, threads)]
        self._server_handle = self.servers[0]
        self._server_address = f"hf-{self.replica_rank}"
        await self.servers[0].sleep.remote()


class HfServerAdapter(BaseRollout):  # type: ignore[misc]
    """The side of the training workers: gathers the weights and hands them over."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        size = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        self.replica_rank = rank // size if replica_rank == -1 else replica_rank
        self._leads = rank % size == 0
        self.sleep_level = 2

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Nothing is kept on a device."""

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **kwargs: Any) -> None:
        gathered: dict[str, torch.Tensor] = {}
        async for name, tensor in ensure_async_iterator(
            weights
        ):  # gathering is collective: every rank has to go through
            if self._leads:
                gathered[name] = tensor.detach().float().cpu().clone()
        if self._leads:
            server = ray.get_actor(_server_name(self.replica_rank))
            await server.load_weights.remote(gathered, kwargs.get("global_steps"))
