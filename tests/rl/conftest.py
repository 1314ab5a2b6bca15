"""Tiny checkpoints of both families, made once. Without torch and transformers, only the tests of the data are collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vrag_agent  # noqa: F401 - mends torchvision before transformers is imported

#: Run without torch: what needs it skips itself.
CORE = "test_data_"

if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    collect_ignore_glob = [
        path.name for path in Path(__file__).parent.glob("test_*.py") if not path.name.startswith(CORE)
    ]

FAMILIES = ("qwen2_5_vl", "qwen3_vl")


class Checkpoint:
    """A folder and what is loaded from it."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        from vrag_agent.template import ChatTemplate

        self.folder = folder
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder)
        self.template = ChatTemplate(self.processor)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    from vrag_agent.tiny.checkpoint import make_checkpoint

    root = tmp_path_factory.mktemp("checkpoints")
    return {family: Checkpoint(make_checkpoint(family, root / family)) for family in FAMILIES}


@pytest.fixture(params=FAMILIES)
def tiny(request: pytest.FixtureRequest, checkpoints: dict[str, Checkpoint]) -> Checkpoint:
    return checkpoints[request.param]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny world with large digits, indexed."""
    from vrag_agent.tiny.world import write_world

    return write_world(tmp_path_factory.mktemp("world"), corners=False)


@pytest.fixture(scope="session")
def search_url(world: Any) -> Iterator[str]:
    """The project's search service over the tiny world, in its own process."""
    from vrag_agent.tiny.world import serve

    with serve(world) as url:
        yield url
