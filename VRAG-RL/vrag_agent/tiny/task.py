"""What is asked in the tiny world and how it is run: the settings that learn, for both episodes and both model families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vrag.episode import Episode
from vrag.graph_energy import EnergyModel
from vrag.judge import RuleJudge
from vrag.retriever import AsyncRetriever
from vrag.rewards import PUBLISHED, VIMRAG, Weights
from vrag.vimrag_episode import VimragEpisode
from vrag.vimrag_options import VimragOptions, VimragPrompts
from vrag.vrag_episode import VragEpisode, VragOptions, VragPrompts
from vrag_agent.driver import Limits
from vrag_agent.plain_grpo import Surroundings
from vrag_agent.scoring import Task
from vrag_agent.template import ChatTemplate
from vrag_agent.tiny.checkpoint import Family, picture_side
from vrag_agent.tiny.world import Card

PROMPTS = Path(__file__).with_name("prompts")
Agent = Literal["vrag", "vimrag"]


@dataclass(frozen=True)
class TinyTask:
    """``crop`` (VRAG only): the world has its digits in corners, and looking closer pays."""

    agent: Agent = "vrag"
    family: Family = "qwen2_5_vl"
    crop: bool = False

    @property
    def corners(self) -> bool:
        return self.crop and self.agent == "vrag"

    @property
    def side(self) -> int:
        return picture_side(self.family)

    @property
    def limits(self) -> Limits:
        return Limits(max_prompt_tokens=256, max_response_tokens=160, max_turn_tokens=28)

    @property
    def lr(self) -> float:
        """Of the reinforcement. A VimRAG trajectory is several samples, and at 3e-4 its reading was lost for some steps."""
        return 3e-4 if self.agent == "vrag" else 2e-4

    @property
    def weights(self) -> Weights:
        return PUBLISHED if self.agent == "vrag" else VIMRAG

    def episode(self, question: str) -> Episode:
        area = self.side**2
        if self.agent == "vrag":
            return VragEpisode(
                question,
                VragOptions(
                    max_steps=5 if self.crop else 3,
                    min_pixels=area,
                    max_pixels=area,
                    crop_padding=0,
                    prompts=VragPrompts.load(PROMPTS),
                ),
            )
        return VimragEpisode(
            question,
            VimragOptions(
                max_steps=5,
                top_k=1,
                max_pixels_image=area,
                memory=EnergyModel(pixels=4 * area, top_k=2, min_pixels=1),
                max_corrections=2,
                prompts=VimragPrompts.load(PROMPTS),
            ),
        )

    def surroundings(self, retriever: AsyncRetriever, template: ChatTemplate, concurrency: int = 256) -> Surroundings:
        return Surroundings(
            self.episode, retriever, template, self.limits, RuleJudge("exact"), self.weights, concurrency
        )


def tasks_of(cards: Sequence[Card]) -> list[Task]:
    return [Task(card.question, str(card.digit), frozenset({card.id}), card.number) for card in cards]
