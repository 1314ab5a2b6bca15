"""Recorded runs for the tests of reports: real agents' episodes against scripted services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import ScriptedModel, TinyRetriever, clip, page, passage, serve
from vrag.chat import ChatModel
from vrag.episode import Episode
from vrag.records import Record, RecordWriter, read_record
from vrag.retriever import HttpRetriever
from vrag.runner import run
from vrag.settings import Settings, VimragSettings
from vrag.vimrag_episode import VimragEpisode
from vrag.vrag_episode import VragEpisode

VRAG_SCRIPT = (
    "<think>I need the page.</think><search>wind power</search>",
    "<think>Too small.</think><bbox>[10, 20, 300, 200]</bbox>",
    "<think>The table says 42 MW.</think><answer>42 MW</answer>",
)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def keep(*names: str, summary: str, times: tuple[float, ...] = ()) -> str:
    entries = [
        {"information_id": name, "is_useful": True, "key_timestamp": list(times), "priority_score": 4} for name in names
    ]
    return call("summarize_and_memorize", summarize=summary, memorize=entries)


VIMRAG_SCRIPT = (
    call("add_search_node", id="solar", parent_ids=["root"], query="solar power"),
    call("summarize_and_memorize", summarize="Nothing on wind.", memorize=[]),
    call("add_search_node", id="wind", parent_ids=["root"], query="wind power"),
    keep("Picture 1", summary="A page on wind power."),
    call("add_search_node", id="film", parent_ids=["root", "wind"], query="turbine film notes"),
    keep("Video 1", "Text 1", summary="The film shows the turbines, the notes name 42 MW.", times=(3.0,)),
    call("add_answer_node", parent_ids=["film"], answer="42 MW"),
)


def retriever() -> TinyRetriever:
    return TinyRetriever(
        [
            page("report_1", "solar power"),
            page("roofs_1", "solar roofs"),
            page("report_2", "wind power"),
            clip("film", "turbine film"),
            passage("notes", "turbine notes: the park has 42 MW"),
        ]
    )


@contextmanager
def search_service() -> Iterator[str]:
    with serve(retriever().app) as url:
        yield f"{url}/search"


def record_vrag(folder: Path, search_url: str, question: str = "How much wind power?") -> Record:
    return _record(folder, Settings(search_url=search_url, model="scripted", retries=0), question, VRAG_SCRIPT)


def record_vimrag(folder: Path, search_url: str, question: str = "How much wind power?") -> Record:
    settings = VimragSettings(search_url=search_url, model="scripted", retries=0, top_k=2)
    return _record(folder, settings, question, VIMRAG_SCRIPT)


def _record(folder: Path, settings: Settings | VimragSettings, question: str, script: tuple[str, ...]) -> Record:
    with serve(ScriptedModel(script).app) as url:
        settings = settings.replace(base_url=f"{url}/v1")
        episode: Episode
        if isinstance(settings, Settings):
            agent, episode = "vrag", VragEpisode(question, settings.vrag_options())
        else:
            agent, episode = "vimrag", VimragEpisode(question, settings.vimrag_options())
        writer = RecordWriter(folder, question, agent=agent, settings=settings.public())
        with ChatModel(settings) as chat, HttpRetriever(settings) as pages:
            run(episode, chat, pages, record=writer).wait()
    return read_record(writer.path)
