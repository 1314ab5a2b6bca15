"""One trajectory for verl: an episode of vrag on the token driver, scored by our own rewards.

verl asks for a trajectory by :meth:`EpisodeAgentLoop.run` and gets a list of (prompt, response) samples; the last of them
carries the reward. A trajectory that has no reward (the judge or the retriever failed) is one sample without a token to
learn from that says why: the sampler (`replay.py`) takes it out and counts it. A trajectory that raised would be dropped by
verl with nothing but a line in a log.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from PIL import Image
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from vrag.errors import ModelError, VragError
from vrag.judge import Judge
from vrag.records import RecordWriter
from vrag.retriever import AsyncHttpRetriever, AsyncRetriever
from vrag_agent import settings as training
from vrag_agent.driver import Limits, Sampled, Sampling, roll_out
from vrag_agent.page_cache import PageCache
from vrag_agent.scoring import Scored, Task, marks, score, task_of
from vrag_agent.template import ChatTemplate
from vrag_agent.trajectory import Trajectory
from vrag_agent.verl_plugin import assert_loaded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Shared:
    """What the trajectories of one process share."""

    settings: training.TrainSettings
    retriever: AsyncRetriever
    judge: Judge


@functools.lru_cache(maxsize=4)
def _shared(section: str) -> _Shared:
    assert_loaded()
    settings = training.read(json.loads(section))
    retriever: AsyncRetriever = AsyncHttpRetriever(settings.search_settings())
    if settings.page_cache_mb:
        retriever = PageCache(retriever, settings.page_cache_mb * 2**20)
    return _Shared(settings, retriever, settings.open_judge())


class EpisodeAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """See the module's text. Made anew for every trajectory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        section = OmegaConf.to_container(self.config.vrag, resolve=True)
        self._shared = _shared(json.dumps(section, sort_keys=True))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        settings = self._shared.settings
        step, session = int(row.get("global_steps", 0)), int(row.get("session_id", 0))
        uid = f"{row.get('uid', '')}_{session}"
        policy = _ServerPolicy(self.server_manager, bool(sampling_params.get("logprobs")))
        try:
            task = task_of(row)
            episode = settings.make_episode()(task.question)
            record = self._record(task, step, session, greedy=sampling_params.get("temperature", 1.0) == 0)
            trajectory = await roll_out(
                episode,
                policy,
                self._shared.retriever,
                _template(self.processor),
                self._limits(),
                record,
                uid=uid,
                sampling=self._sampling(sampling_params, task, step, session),
            )
            scored = await score(trajectory, task, self._shared.judge, settings.weights(), settings.reward_function())
            outputs = self._outputs(trajectory, task, scored, policy)
        except VragError as error:
            return [self._excluded(Scored(None, "data", str(error)), policy)]
        except Exception as error:  # verl would drop it with a line in a log; here it is counted
            log.exception("a trajectory failed")
            return [self._excluded(Scored(None, "unexpected", f"{type(error).__name__}: {error}"), policy)]
        self._keep(trajectory, scored, step, record)
        return outputs

    # In

    def _limits(self) -> Limits:
        limits = self._shared.settings.limits
        return Limits(
            max_prompt_tokens=self.rollout_config.prompt_length,
            max_response_tokens=self.rollout_config.response_length,
            max_turn_tokens=limits.turn_tokens,
            min_turn_tokens=limits.min_turn_tokens,
            model_seconds=limits.model_seconds,
            retriever_seconds=limits.retriever_seconds,
        )

    def _sampling(self, params: dict[str, Any], task: Task, step: int, session: int) -> Sampling:
        seed = self._shared.settings.seed
        if seed is not None:
            named = f"{seed}/{step}/{task.index}/{task.question}/{session}"
            seed = int.from_bytes(hashlib.sha256(named.encode()).digest()[:6], "big")
        return Sampling(
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=max(0, int(params.get("top_k", 0))),
            seed=seed,
        )

    def _record(self, task: Task, step: int, session: int, greedy: bool) -> RecordWriter | None:
        records = self._shared.settings.records
        if records.folder is None or session >= max(records.train_sessions, int(greedy)):
            return None
        kind = self._shared.settings.episode.kind
        about = {"step": step, "session": session, "answer": task.answer, "relevant": sorted(task.relevant)}
        return RecordWriter(_folder(records.folder, step, greedy), task.question, agent=kind, settings=about)

    # Out

    def _outputs(
        self, trajectory: Trajectory, task: Task, scored: Scored, policy: _ServerPolicy
    ) -> list[AgentLoopOutput]:
        reward = scored.reward
        if reward is None or reward.total is None:
            return [self._excluded(scored, policy)]
        if policy.logprobs and any(sample.logprobs is None for sample in trajectory.samples):
            return [self._excluded(Scored(None, "model", "The engine gave no log-probabilities."), policy)]
        info = {
            "correct": float(reward.right),
            "pattern": reward.pattern,
            "ndcg": reward.retrieval,
            "answered": float(trajectory.answer is not None),
            "searches": float(len((trajectory.graph or {"nodes": ()})["nodes"])),
            "truncated": float(any(sample.truncated for sample in trajectory.samples)),
            "cut_turns": float(trajectory.notes.get("cut", 0)),
            "waited_for_retriever": trajectory.retriever_seconds / max(trajectory.seconds, 1e-9),
        }
        outputs = []
        for sample, spans in zip(trajectory.samples, marks(trajectory, task.relevant, reward.right), strict=True):
            marked = [[mark.start, mark.end, mark.segment, int(mark.masked)] for mark in spans]
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=sample.prompt_ids,
                    response_ids=sample.response_ids,
                    response_mask=sample.response_mask,
                    response_logprobs=sample.logprobs if policy.logprobs else None,
                    # Without the key at all where there is no picture: an empty list kills the sample in verl.
                    multi_modal_data={"images": sample.images} if sample.images else {},
                    reward_score=reward.total,
                    num_turns=len(trajectory.turns),
                    metrics=AgentLoopMetrics(
                        generate_sequences=trajectory.model_seconds, tool_calls=trajectory.retriever_seconds
                    ),
                    extra_fields={
                        **policy.versions(),
                        "reward_extra_info": info,
                        "marks": marked,
                        "excluded": "",
                        "why": "",
                    },
                )
            )
        return outputs

    def _excluded(self, scored: Scored, policy: _ServerPolicy) -> AgentLoopOutput:
        end = self.tokenizer.eos_token_id
        return AgentLoopOutput(
            prompt_ids=[end],
            response_ids=[end],
            response_mask=[0],
            response_logprobs=[0.0] if policy.logprobs else None,
            multi_modal_data={},
            reward_score=0.0,
            num_turns=0,
            metrics=AgentLoopMetrics(),
            extra_fields={
                **policy.versions(),
                "reward_extra_info": {},
                "marks": [],
                "excluded": scored.excluded,
                "why": scored.why,
            },
        )

    def _keep(self, trajectory: Trajectory, scored: Scored, step: int, record: RecordWriter | None) -> None:
        """A line about a recorded trajectory: its reward, or why it has none. It stands above the folders of records: those
        hold nothing else."""
        if record is None:
            return
        reward, above = scored.reward, record.path.parents[1]
        line = {
            "record": str(record.path.relative_to(above)),
            **trajectory.summary(),
            "reward": None
            if reward is None
            else {
                "total": reward.total,
                "outcome": reward.outcome,
                "pattern": reward.pattern,
                "ndcg": reward.retrieval,
            },
            "judge": self._shared.judge.name,
            "excluded": scored.excluded,
            "why": scored.why,
        }
        try:
            with open(above / "trajectories.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:  # a full disk costs the log, not the step
            log.warning("a trajectory was not kept: %s", error)


def _folder(root: Path, step: int, greedy: bool) -> Path:
    return root / ("validation" if greedy else "train") / f"step_{step:06d}"


@functools.lru_cache(maxsize=2)
def _template(processor: Any) -> ChatTemplate:
    return ChatTemplate(processor)


class _ServerPolicy:
    """The rollout servers of verl as a :class:`vrag_agent.driver.TokenModel`; remembers the versions of the weights."""

    def __init__(self, client: Any, logprobs: bool) -> None:
        self.logprobs = logprobs
        self._client = client
        self._turns = 0
        self._seen: list[int] = []

    async def generate(
        self,
        prompt_ids: list[int],
        images: list[Image.Image],
        *,
        max_tokens: int,
        sampling: Sampling,
        request_id: str,
    ) -> Sampled:
        params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "repetition_penalty": 1.0,
            "logprobs": self.logprobs,
            "max_tokens": max_tokens,
        }
        if sampling.seed is not None:
            params["seed"] = (sampling.seed + self._turns) % 2**31
        self._turns += 1
        try:
            output = await self._client.generate(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=params, image_data=images or None
            )
        except Exception as error:  # whatever became of the server, the policy is not to blame
            said = (str(error).strip().splitlines() or [""])[0][:300]  # Ray adds paragraphs of advice
            raise ModelError(f"The rollout server failed: {type(error).__name__}: {said}") from error
        for name in ("min_global_steps", "max_global_steps"):
            version = output.extra_fields.get(name)
            if version is not None:
                self._seen.append(int(version))
        ids = list(output.token_ids)
        # verl says "completed" also where the limit was reached.
        stop: Literal["stop", "length", "aborted"]
        stop = "aborted" if output.stop_reason == "aborted" else "length" if len(ids) >= max_tokens else "stop"
        return Sampled(ids, output.log_probs, stop)

    def versions(self) -> dict[str, int]:
        """The versions of the weights that the turns were sampled with, as verl's metrics want them."""
        return {"min_global_steps": min(self._seen, default=0), "max_global_steps": max(self._seen, default=0)}
