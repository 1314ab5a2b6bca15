"""The driving half of scripts/vllm_agents_check: planned runs of both agents against a model server that keeps to a form.

Every turn goes through the product's chat client, retriever client and episode. The request of a turn carries the form of
its reply (a regular expression or a JSON schema) in vLLM's ``structured_outputs``; the model, whose weights are random,
fills in what the form leaves open: thoughts, boxes, ratings, summaries, answers.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from demo import defaults
from demo.launch import EXAMPLE, build_index, search_service
from demo.services import Services, free_port
from vrag.chat import ChatModel, Piece
from vrag.episode import Episode, Generate, Generation, Outcome
from vrag.events import CropRequested, Event, GraphChanged, Memorized, SearchResults, SearchStarted, Thought, Usage
from vrag.retriever import HttpRetriever
from vrag.runner import run
from vrag.settings import Settings, VimragSettings
from vrag.vimrag_episode import VimragEpisode
from vrag.vrag_episode import VragEpisode

QUESTION = "In which quarter are the test runs on Veyford's tram line D planned?"
Form = dict[str, Any]


def regex(pattern: str) -> Form:
    return {"structured_outputs": {"regex": pattern}}


def schema(value: dict[str, Any]) -> Form:
    return {"structured_outputs": {"json": value}}


THINK = r"<think>[a-z]{3,8}( [a-z]{2,8}){2,4}</think>\n"
ANSWER = r"[A-Z][a-z]{2,9}( [a-z]{2,9}){0,2}"


def tagged(name: str, pattern: str) -> Form:
    return regex(f"{THINK}<{name}>{pattern}</{name}>")


def call(name: str, arguments: str) -> Form:
    """A tool call whose arguments are JSON as a pattern."""
    return regex(rf'{THINK}<tool_call>\n\{{"name": "{name}", "arguments": \{{{arguments}\}}\}}\n</tool_call>')


def judgement(*names: str) -> Form:
    """The whole reply as one JSON object: a call without its tags, every entry judged."""
    entries = [
        {
            "type": "object",
            "properties": {
                "information_id": {"const": name},
                "is_useful": {"const": True} if number == 0 else {"type": "boolean"},
                "priority_score": {"enum": [1, 2, 3, 4, 5]},
            },
            "required": ["information_id", "is_useful", "priority_score"],
            "additionalProperties": False,
        }
        for number, name in enumerate(names)
    ]
    arguments = {
        "type": "object",
        "properties": {
            "summarize": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}( [a-z]{2,8}){3,5}$"},
            "memorize": {"type": "array", "prefixItems": entries, "minItems": len(entries), "maxItems": len(entries)},
        },
        "required": ["summarize", "memorize"],
        "additionalProperties": False,
    }
    return schema(
        {
            "type": "object",
            "properties": {"name": {"const": "summarize_and_memorize"}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
    )


VRAG_PLAN = (
    tagged("search", "Veyford tram line D test runs"),
    tagged("bbox", r"\[[1-9]\d, [1-9]\d, [3-4]\d\d, [3-5]\d\d\]"),
    tagged("search", "Veyford tram line D opening"),
    tagged("answer", ANSWER),
)
VIMRAG_PLAN = (
    call("add_search_node", r'"id": "line D", "parent_ids": \["root"\], "query": "Veyford tram line D test runs"'),
    judgement("Picture 1", "Picture 2"),
    call("add_search_node", r'"id": "fares", "parent_ids": \["line D"\], "query": "Veyford month ticket zones"'),
    call(
        "summarize_and_memorize",
        r'"summarize": "[A-Z][a-z]{2,8}( [a-z]{2,8}){3,5}", "memorize": \[\{"information_id": "Picture 1", '
        r'"is_useful": (true|false), "priority_score": [1-5]\}\]',
    ),
    call("add_answer_node", rf'"parent_ids": \["(line D|fares)"\], "answer": "{ANSWER}"'),
)


class Planned:
    """The product's chat client, with the form of the next reply in every request."""

    def __init__(self, settings: Settings | VimragSettings, plan: Sequence[Form]) -> None:
        self.settings = settings
        self.forms = list(plan)
        self.replies: list[Generation] = []

    def stream(self, request: Generate) -> Generator[Piece | Generation, None, None]:
        form = self.forms[len(self.replies)] if len(self.replies) < len(self.forms) else {}
        with ChatModel(self.settings.replace(extra_body=form)) as chat:
            for part in chat.stream(request):
                if isinstance(part, Generation):
                    self.replies.append(part)
                yield part


def drive(
    name: str, episode: Episode, settings: Settings | VimragSettings, plan: Sequence[Form]
) -> tuple[Outcome, list[Event]]:
    """A whole run; a line for every turn: what was sent, what the server counted, and what it wrote."""
    chat = Planned(settings, plan)
    events: list[Event] = []
    print(name, flush=True)
    with HttpRetriever(settings) as retriever:
        course = run(episode, chat, retriever)
        for event in course:
            events.append(event)
            if isinstance(event, Usage):
                said = " ".join(re.sub(r"<think>.*?</think>", "", chat.replies[-1].text, flags=re.DOTALL).split())
                print(
                    f"  turn {event.step}: {event.images} pictures, {event.image_pixels:>9,} px, {event.prompt_tokens:>6,} prompt "
                    f"and {event.completion_tokens:>4} reply tokens, {event.seconds:5.1f} s  {said}",
                    flush=True,
                )
    assert course.outcome is not None, "the run has an end"
    print(f"  {course.outcome.reason}: {course.outcome.answer!r}", flush=True)
    return course.outcome, events


def kinds(events: Sequence[Event], *wanted: type[Event]) -> list[str]:
    return [event.type for event in events if isinstance(event, wanted)]


def check_vrag(common: dict[str, Any]) -> None:
    settings = Settings(**common, top_k=2, max_steps=len(VRAG_PLAN))
    outcome, events = drive("VRAG", VragEpisode(QUESTION, settings.vrag_options()), settings, VRAG_PLAN)
    acted = kinds(events, SearchStarted, CropRequested, SearchResults, Thought)
    assert acted == ["thought", "search", "results", "thought", "crop", "thought", "search", "results", "thought"], (
        acted
    )
    assert outcome.reason == "answer"
    assert re.fullmatch(ANSWER, outcome.answer or "")
    _saw_pictures(events, [0, 1, 2, 3])
    assert len(outcome.citations) > 0


def check_vimrag(common: dict[str, Any]) -> None:
    settings = VimragSettings(**common, top_k=2, max_steps=len(VIMRAG_PLAN), max_pixels_image=602_112)
    episode = VimragEpisode(QUESTION, settings.vimrag_options())
    outcome, events = drive("VimRAG", episode, settings, VIMRAG_PLAN)
    acted = kinds(events, SearchStarted, SearchResults, Memorized)
    assert acted == ["search", "results", "memory"] * 2, acted
    assert outcome.reason == "answer"
    assert re.fullmatch(ANSWER, outcome.answer or "")
    graph = [event for event in events if isinstance(event, GraphChanged)][-1].graph
    assert [(node["id"], node["parent_ids"]) for node in graph["nodes"]] == [
        ("line D", ["root"]),
        ("fares", ["line D"]),
    ]
    assert graph["answer"]["parent_ids"][0] in graph["critical_path"]
    assert episode.graph.violations() == []
    kept = next(event for event in events if isinstance(event, Memorized))
    assert 1 <= len(kept.kept) <= 2
    # The first turn sees none; the judging one what the search brought; later ones what was kept as well.
    usages = [event for event in events if isinstance(event, Usage)]
    assert usages[0].images == 0
    assert usages[1].images == 2
    assert usages[2].images == len(kept.kept)
    assert usages[3].images > usages[2].images
    _counted(events)


def _saw_pictures(events: Sequence[Event], images: Sequence[int]) -> None:
    assert [event.images for event in events if isinstance(event, Usage)] == list(images)
    _counted(events)


def _counted(events: Sequence[Event]) -> None:
    """The server took the pictures in: a visual token stands for 32 x 32 pixels."""
    for event in events:
        if isinstance(event, Usage):
            assert event.prompt_tokens > 0.8 * event.image_pixels / 1024, event


def main(base_url: str, work: Path) -> int:
    os.environ[defaults.STATE_VARIABLE] = str(work / "state")
    port = free_port()
    with Services() as services:
        services.start(search_service([build_index(EXAMPLE, work / "index")], port))
        common = {
            "base_url": base_url,
            "search_url": f"http://127.0.0.1:{port}/search",
            "model": "tiny-qwen3-vl",
            "max_tokens": 700,
            "temperature": 1.0,
        }
        check_vrag(common)
        check_vimrag(common)
    print(json.dumps({"ok": True}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
