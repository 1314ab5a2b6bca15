"""Everything about a VimRAG episode that can be set, and the texts that its model is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from vrag import prompts
from vrag.errors import ConfigError
from vrag.graph_energy import PUBLISHED, EnergyModel


@dataclass(frozen=True)
class VimragPrompts:
    """The texts that a model is given; :meth:`load` takes other wordings from a folder."""

    system: str = field(default_factory=lambda: prompts.load("vimrag"))  # {tools}, {example}
    native: str = field(default_factory=lambda: prompts.load("vimrag_native"))
    question: str = field(default_factory=lambda: prompts.load("vimrag_question"))  # {question}, {graph}
    memory: str = field(default_factory=lambda: prompts.load("vimrag_memory"))
    results: str = field(default_factory=lambda: prompts.load("vimrag_results"))  # {names}
    nothing_new: str = field(default_factory=lambda: prompts.load("vimrag_nothing_new"))  # {node}, {query}, {seen}
    invalid: str = field(default_factory=lambda: prompts.load("vimrag_invalid"))  # {reason}, {allowed}
    invalid_again: str = field(default_factory=lambda: prompts.load("vimrag_invalid_again"))  # and {attempt}, {example}
    answer_now: str = field(default_factory=lambda: prompts.load("vimrag_answer_now"))  # {example}
    fallback: str = field(default_factory=lambda: prompts.load("vimrag_fallback"))  # {question}

    def __post_init__(self) -> None:
        for name in ("question", "graph"):
            if f"{{{name}}}" not in self.question:
                raise ConfigError(f"The prompt vimrag_question.txt has to hold {{{name}}} where it belongs.")

    @classmethod
    def load(cls, folder: Path | None = None) -> VimragPrompts:
        """The prompts of ``folder``: ``vimrag.txt`` for the system's, ``vimrag_question.txt``, ...; ours for the rest."""
        names = {name.name: "vimrag" if name.name == "system" else f"vimrag_{name.name}" for name in fields(cls)}
        return cls(**{name: prompts.load(file, folder) for name, file in names.items()})


@dataclass(frozen=True)
class VimragOptions:
    """Everything about an episode that can be set; the defaults are the published ones. Raises ConfigError."""

    max_steps: int = 20
    """Turns in which the model may act; one or two more ask for the answer."""
    top_k: int = 3
    """Hits per search; what was shown already is dropped from them."""
    max_pixels_image: int = 1_003_520
    """Area of a picture that a search brings, at most."""
    max_pixels_video: int = 401_408
    """The same of one frame of a clip."""
    fps: float = 1.0
    max_frames: int = 32
    """How clips are sampled: frames per second, and frames at most."""
    memory: EnergyModel = PUBLISHED
    """How the pixel budget of the memory is spent."""
    memory_chars: int = 16_000
    """Characters of kept passages in one prompt."""
    history: Literal["graph", "linear"] = "graph"
    """Ablation: "linear" makes the memory a plain history, without parents."""
    native_tools: bool = False
    """Speak to the endpoint by its own tool calls instead of tags in the text."""
    max_corrections: int = 3
    """Unusable replies in a row, after which the answer is asked for."""
    max_seconds: float | None = None
    max_tokens: int | None = None
    """Budgets of the whole episode, checked before each turn: wall-clock seconds; prompt and reply tokens, summed."""
    prompts: VimragPrompts = field(default_factory=VimragPrompts)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        positive = ("max_steps", "top_k", "max_pixels_image", "max_pixels_video", "fps", "max_frames", "memory_chars")
        for name in (*positive, "max_corrections", "max_seconds", "max_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} has to be above 0, not {value}.")
        if self.history not in ("graph", "linear"):
            raise ConfigError(f"history has to be 'graph' or 'linear', not {self.history!r}.")
