"""What VRAG-RL/README.md shows works as it stands: the code in it, the options of its commands, the files it names."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import ScriptedModel, TinyRetriever, page, serve
from vrag.chat import ChatModel
from vrag.judge import Verdict
from vrag.retriever import HttpRetriever
from vrag.runner import run
from vrag.settings import Settings

HOME = Path(__file__).resolve().parents[2] / "VRAG-RL"
TEXT = (HOME / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def snippet(name: str) -> Any:
    """What a code block of the README defines under ``name``."""
    (block,) = [code for kind, code in BLOCKS if kind == "python" and re.search(rf"(def|class) {name}\b", code)]
    space: dict[str, Any] = {}
    exec(block, space)
    return space[name]


def test_the_episode_runs() -> None:
    model = ScriptedModel(["It is 42."])
    retriever = TinyRetriever([page("solar_1", "solar power"), page("wind_1", "wind power")])
    with serve(model.app) as url, serve(retriever.app) as search:
        settings = Settings(base_url=f"{url}/v1", model="m", search_url=f"{search}/search")
        episode = snippet("TitlesEpisode")("How much solar?", {"top_k": 2})
        with ChatModel(settings) as chat, HttpRetriever(settings) as pages:
            outcome = run(episode, chat, pages).wait()
    assert outcome.answer == "It is 42."
    assert outcome.shown == ("solar_1", "wind_1")
    assert "solar.pdf, page 1" in model.requests[0]["messages"][0]["content"]


def test_the_reward_is_one() -> None:
    class Trajectory:
        turns = ("a", "b")

    reward = snippet("brief")(Trajectory(), None, Verdict(1.0, "judge-7b"))
    assert reward.total == pytest.approx(0.96)
    assert not reward.excluded


def commands() -> list[list[str]]:
    """Commands of the README that start one of the scripts, as words."""
    found = []
    for block in (code for kind, code in BLOCKS if not kind):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            starts = [at for at, word in enumerate(words) if word.startswith("scripts/")]
            if starts:
                found.append(words[starts[0] :])
    return found


def test_the_commands_use_options_that_exist() -> None:
    assert len(commands()) >= 7
    known: dict[str, str] = {}
    for script, *words in commands():
        if script not in known:
            command = [sys.executable, str(HOME / script), "--help"]
            known[script] = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", known[script]), f"{script} {option}"


def test_the_files_exist() -> None:
    for name in re.findall(r"`(train_\w+\.sh|scripts/\w+\.py|vrag/\w+\.py)`", TEXT):
        assert (HOME / name).is_file() or (HOME.parent / name).is_file(), name
