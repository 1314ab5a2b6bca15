"""The ``vrag`` section of a training configuration, typed: what the episodes, rewards and masks are set to.

The rest of the configuration is verl's own. Hydra composes both (``vrag_agent/config``); here the section is checked, so that
a misspelt key or a value out of range is a sentence before anything starts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vrag import rewards
from vrag.episode import Episode
from vrag.errors import ConfigError
from vrag.graph_energy import EnergyModel
from vrag.judge import JUDGES, JudgeSettings, ModelJudge, RuleJudge, open_judge
from vrag.settings import SearchSettings
from vrag.vimrag_episode import VimragEpisode
from vrag.vimrag_options import VimragOptions, VimragPrompts
from vrag.vrag_episode import VragEpisode, VragOptions, VragPrompts
from vrag_agent.loss import Aggregation, LossSettings, Ratio


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EpisodeSection(_Section):
    kind: Literal["vrag", "vimrag"] = "vrag"
    factory: str | None = Field(
        default=None, description="module:function of an own episode, called with (question, options)"
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="fields of VragOptions or VimragOptions; for an own episode, whatever it takes",
    )
    prompts: Path | None = Field(default=None, description="a folder of prompt files that replace the built-in ones")


class LimitsSection(_Section):
    """Prompt and response are limited by verl's data.max_prompt_length and data.max_response_length."""

    turn_tokens: int = Field(default=2048, ge=1, description="tokens of one turn of the model")
    min_turn_tokens: int = Field(default=1, ge=1, description="less room than this ends a trajectory")
    model_seconds: float = Field(default=600.0, gt=0, description="for one turn, waiting in the queue included")
    retriever_seconds: float = Field(default=120.0, gt=0, description="for one request, its attempts included")


class RewardSection(_Section):
    preset: Literal["published", "paper", "vimrag"] = "published"
    alpha: float | None = Field(default=None, description="retrieval; for the preset paper")
    beta: float | None = Field(default=None, description="outcome; for the preset paper")
    gamma: float | None = Field(default=None, description="pattern; for the preset paper")
    function: str | None = Field(
        default=None, description="module:function of an own reward, called with (trajectory, row, verdict)"
    )


class JudgeSection(_Section):
    kind: str = Field(default="model", description=f"one of {', '.join(JUDGES)}")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="fields of JudgeSettings; VRAG_JUDGE_* give the rest"
    )


class GgpoSection(_Section):
    enable: bool = False
    ratio: Ratio = "sequence"
    aggregation: Aggregation = "segment-mean"


class RecordsSection(_Section):
    folder: Path | None = Field(default=None, description="where trajectories are kept; none: nowhere")
    train_sessions: int = Field(default=1, ge=0, description="of each group, how many are recorded in full")


class TrainSettings(_Section):
    """The ``vrag`` section; :func:`read` makes it from a configuration."""

    episode: EpisodeSection = EpisodeSection()
    search: dict[str, Any] = Field(default_factory=dict, description="fields of SearchSettings")
    page_cache_mb: int = Field(
        default=512,
        ge=0,
        description="pages kept by each rollout process; the index must not change meanwhile; 0: none",
    )
    limits: LimitsSection = LimitsSection()
    reward: RewardSection = RewardSection()
    judge: JudgeSection = JudgeSection()
    ggpo: GgpoSection = GgpoSection()
    records: RecordsSection = RecordsSection()
    excluded_limit: float = Field(
        default=0.2, ge=0, le=1, description="share of a step's trajectories without a reward that ends the run"
    )
    skip_silent_groups: bool = Field(
        default=False,
        description="leave out groups whose rewards are all equal before anything is computed on them: it saves their "
        "forward passes, but it changes what the batch is (the denominators count only the groups that are left, and "
        "the KL of those left out is not taken), so the papers' objectives keep them",
    )
    seed: int | None = Field(
        default=None, description="draw reproducibly: each request by its question, step, session and turn"
    )
    probe_gradient: bool = Field(
        default=False, description="count the tokens outside of the mask whose log-probability gets a gradient"
    )
    preflight: bool = Field(default=True, description="check the services and the data before the start")

    def search_settings(self) -> SearchSettings:
        return SearchSettings(**_given(self.search))

    def judge_settings(self) -> JudgeSettings:
        """Of the judge of one process. It never ends the run by itself: the share is taken over the whole step."""
        return JudgeSettings(**{**_given(self.judge.settings), "failure_limit": 1.0})

    def open_judge(self) -> ModelJudge | RuleJudge:
        return open_judge(self.judge.kind, self.judge_settings)

    def weights(self) -> rewards.Weights:
        one = self.reward
        return rewards.weights(one.preset, one.alpha, one.beta, one.gamma)

    def make_episode(self) -> Callable[[str], Episode]:
        """What makes an episode of a question. Raises ConfigError for options that the episode does not have."""
        section = self.episode
        if section.factory is not None:
            factory = _load(section.factory)
            return lambda question: factory(question, dict(section.options))
        options = dict(section.options)
        try:
            if section.kind == "vrag":
                vrag_options = VragOptions(**options, prompts=VragPrompts.load(section.prompts))
                return lambda question: VragEpisode(question, vrag_options)
            if isinstance(options.get("memory"), Mapping):
                options["memory"] = EnergyModel(**options["memory"])
            vimrag_options = VimragOptions(**options, prompts=VimragPrompts.load(section.prompts))
            return lambda question: VimragEpisode(question, vimrag_options)
        except TypeError as error:
            raise ConfigError(f"vrag.episode.options: {str(error).split('__init__() ')[-1]}.") from error

    def reward_function(self) -> Callable[..., rewards.Reward] | None:
        return None if self.reward.function is None else _load(self.reward.function)

    def loss(self, clip_low: float, clip_high: float, clip_c: float | None, kl_coef: float) -> LossSettings:
        return LossSettings(self.ggpo.ratio, self.ggpo.aggregation, clip_low, clip_high, clip_c, kl_coef)


def read(section: Mapping[str, Any] | None) -> TrainSettings:
    """Check the ``vrag`` section of a configuration. Raises ConfigError that names every wrong key."""
    try:
        settings = TrainSettings.model_validate(dict(section or {}))
    except ValidationError as error:
        wrong = [f"vrag.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise ConfigError("The training configuration is wrong: " + "; ".join(wrong) + ".") from error
    if settings.judge.kind not in JUDGES:
        raise ConfigError(f"vrag.judge.kind: there is no judge {settings.judge.kind!r}; there are {', '.join(JUDGES)}.")
    try:
        settings.weights()
        settings.search_settings()
        if settings.judge.kind == "model":
            settings.judge_settings()
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise ConfigError("The training configuration is wrong: " + "; ".join(wrong) + ".") from error
    settings.make_episode()
    settings.reward_function()
    return settings


def _given(section: Mapping[str, Any]) -> dict[str, Any]:
    """What is set; a null leaves it to the environment and the defaults."""
    return {name: value for name, value in section.items() if value is not None}


def _load(name: str) -> Callable[..., Any]:
    """``package.module:function``."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name!r} cannot be loaded ({error}); it has to be written package.module:function."
        ) from error
    if not callable(found):
        raise ConfigError(f"{name!r} is nothing that can be called.")
    return found  # type: ignore[no-any-return]
