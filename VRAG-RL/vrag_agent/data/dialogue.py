"""Demonstrations -> dialogues for supervised fine-tuning: ``python VRAG-RL/scripts/cot_convert_sft.py --help``.

Every demonstration is *played again* through the product's :class:`vrag.vrag_episode.VragEpisode` with the options of
training: the recorded searches return the recorded pages, and each region is carried from page pixels into the pixels of
the picture as training shows it (:mod:`vrag.geometry`). So prompts, pictures, sizes, crops and coordinates are exactly
those that reinforcement learning and the agent itself go on with.

    llamafactory   {"messages": [{"role", "content": "... <image> ..."}], "images": [paths]}, with dataset_info.json
    trl            {"messages": [{"role", "content": [{"type": "text", "text"}, {"type": "image"}]}], "images": [paths]}

Checked of every dialogue: it is played to its end, regions lie in their picture and map back onto what the expert meant,
places for pictures and pictures agree, each turn parses back to its action, the area limits hold, and it fits the cutoff.
What fails is dropped and counted under its reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vrag.actions import Answer, Crop, Search, parse_tags
from vrag.episode import Fetch, Generate, Generation, Outcome, Reply, Retrieve
from vrag.errors import ConfigError, VragError
from vrag.events import Note
from vrag.geometry import CROP_PADDING, MAX_PIXELS, MIN_PIXELS, Box, to_displayed, whole
from vrag.items import Hit
from vrag.messages import Message, message
from vrag.pages import View, region_on_page
from vrag.vrag_episode import VragEpisode, VragOptions, VragPrompts
from vrag_agent.data import show_progress
from vrag_agent.data.demonstration import Attempt, Turn, read_attempts
from vrag_agent.data.files import write_once, write_whole
from vrag_agent.data.rows import Dropped

log = logging.getLogger("vrag_agent.dialogue")

Format = Literal["llamafactory", "trl"]
FORMATS: tuple[Format, ...] = ("llamafactory", "trl")
REPORT = "sft_report.json"
IMAGE = "<image>"
#: Roughly, for the check of the length: pixels of one visual token, characters of one token of text.
_PIXELS_PER_TOKEN, _CHARS_PER_TOKEN = 28 * 28, 3


class Unfit(Exception):
    """Why a demonstration makes no dialogue: the reason it is counted under, and what is particular to it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason


@dataclass(frozen=True)
class Dialogue:
    """The turns of a demonstration as the model in training would have lived through them."""

    messages: tuple[Message, ...]

    @property
    def views(self) -> list[View]:
        return [view for turn in self.messages for view in turn.views]

    @property
    def tokens(self) -> int:
        """Roughly how long it is."""
        text = sum(len(turn.text) for turn in self.messages)
        return text // _CHARS_PER_TOKEN + sum(view.pixels for view in self.views) // _PIXELS_PER_TOKEN


def play(attempt: Attempt, folder: Path, options: VragOptions) -> Dialogue:
    """Play a demonstration again under ``options``; ``folder`` holds its pages. Raises Unfit."""
    if not attempt.turns or attempt.turns[-1].action != "answer":
        raise Unfit("the last turn is no answer")
    course = VragEpisode(attempt.question, options).run()
    turns = iter(attempt.turns)
    turn: Turn | None = None
    view: View | None = None
    context: tuple[Message, ...] = ()
    reply: Reply = None
    said = ""
    while True:
        try:
            asked = course.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            break
        reply = None
        if isinstance(asked, Generate):
            turn = next(turns, None)
            if turn is None or asked.purpose != "act":
                raise Unfit("it does not end where the demonstration ends")
            context = asked.messages
            view = context[-1].views[-1] if context[-1].views else view
            said = written(turn, view)
            reply = Generation(said)
        elif isinstance(asked, Retrieve):
            reply = [Hit(item=item, score=1.0) for item in turn.shown] if turn is not None else []
        elif isinstance(asked, Fetch):
            reply = _page(attempt, folder, asked.item_id)
        elif isinstance(asked, Note):
            raise Unfit("an action cannot be done again", asked.text)
    if outcome.reason != "answer" or next(turns, None) is not None:
        raise Unfit("it does not end where the demonstration ends", outcome.reason)
    return Dialogue((*context, message("assistant", said)))


def written(turn: Turn, view: View | None) -> str:
    """A turn in the grammar, ``<think>`` first; a region in whole pixels of ``view``, the last picture. Raises Unfit."""
    if not turn.thought.strip():
        raise Unfit("a turn without a thought")
    if turn.action == "search":
        action = f"<search>{turn.query}</search>"
    elif turn.action == "answer":
        action = f"<answer>{turn.text}</answer>"
    elif turn.action == "crop":
        action = f"<bbox>{displayed_region(turn, view)}</bbox>"
    else:
        raise Unfit("an action could not be used")
    text = f"<think>{turn.thought}</think>\n{action}"
    _, parsed = parse_tags(text)
    meant = {"search": Search, "answer": Answer, "crop": Crop}[turn.action]
    same = isinstance(parsed, meant)
    if isinstance(parsed, Search):
        same = same and parsed.query == turn.query
    if isinstance(parsed, Answer):
        same = same and parsed.text == turn.text
    if not same:
        raise Unfit("a turn does not parse back to its action", text[-80:])
    if IMAGE in text:
        raise Unfit(f"a text holds {IMAGE}")
    return text


def displayed_region(turn: Turn, view: View | None) -> list[int]:
    """A crop's region in pixels of ``view``: rounded outwards, inside the picture, and still what the expert meant."""
    if view is None:
        raise Unfit("a crop before any picture")
    if turn.page_box is None or turn.item_id != view.item.id:
        raise Unfit("a crop of another picture than the last one")
    box = to_displayed(turn.page_box, view.size, view.box).clamped(whole(view.size))
    x1, y1, x2, y2 = math.floor(box.x1), math.floor(box.y1), math.ceil(box.x2), math.ceil(box.y2)
    # As Qwen's coordinates go: the last pixel of a side is side - 1.
    x2, y2 = min(x2, view.size[0] - 1), min(y2, view.size[1] - 1)
    region = region_on_page(Box(x1, y1, x2, y2), view) if x1 < x2 and y1 < y2 else "It lies at the edge."
    if isinstance(region, str):
        raise Unfit("a region leaves nothing of the picture", region)
    if not region.covers(turn.page_box.clamped(view.box), 0.9):
        raise Unfit("a region lies outside of the picture that training shows")
    return [x1, y1, x2, y2]


def _page(attempt: Attempt, folder: Path, item_id: str) -> bytes:
    name = attempt.pages.get(item_id)
    path = (folder / name).resolve() if name else None
    if path is None or not path.is_relative_to(folder.resolve()):
        raise Unfit("a page is missing", item_id)
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unfit("a page is missing", f"{path.name}: {error.strerror}") from None


# --- formats


def check(dialogue: Dialogue, options: VragOptions, cutoff: int) -> None:
    """What a trainer relies on. Raises Unfit."""
    roles = [turn.role for turn in dialogue.messages]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        raise Unfit("the turns do not alternate")
    if any(IMAGE in turn.text for turn in dialogue.messages):
        raise Unfit(f"a text holds {IMAGE}")
    if any(view.pixels > options.max_pixels for view in dialogue.views):
        raise Unfit("a picture is larger than training allows")
    if dialogue.tokens > cutoff:
        raise Unfit("longer than the cutoff")


def sft_row(dialogue: Dialogue, paths: Sequence[str], form: Format) -> dict[str, Any]:
    """A dialogue as a row; ``paths`` are those of its pictures, in order."""
    turns: list[dict[str, Any]] = []
    for turn in dialogue.messages:
        if form == "llamafactory":
            content: Any = "".join(part if isinstance(part, str) else IMAGE for part in turn.content)
        else:
            content = [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in turn.content
            ]
        turns.append({"role": turn.role, "content": content})
    places = json.dumps(turns).count(IMAGE) if form == "llamafactory" else len(dialogue.views)
    if places != len(paths):
        raise Unfit("places for pictures and pictures do not agree")
    return {"messages": turns, "images": list(paths)}


def dataset_info(name: str, file_name: str) -> dict[str, Any]:
    """The entry of LLaMA-Factory's ``dataset_info.json``."""
    return {
        name: {
            "file_name": file_name,
            "formatting": "sharegpt",
            "columns": {"messages": "messages", "images": "images"},
            "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"},
        }
    }


@dataclass
class Conversion:
    """The whole of it: ``demonstrations.jsonl`` -> ``sft_<form>.json`` and the pictures."""

    demonstrations: Path
    output: Path
    form: Format = "llamafactory"
    options: VragOptions = field(default_factory=VragOptions)
    cutoff: int = 16_384

    def run(self) -> dict[str, Any]:
        """Raises VragError where nothing can be converted or written."""
        rows: list[dict[str, Any]] = []
        dropped: Counter[str] = Counter()
        lengths: list[int] = []
        name = f"sft_{self.form}"
        for attempt in read_attempts(self.demonstrations):
            if isinstance(attempt, Dropped):
                log.warning("%s", attempt)
                dropped[attempt.reason] += 1
                continue
            try:
                dialogue = self._dialogue(attempt)
                row = sft_row(dialogue, self._pictures(dialogue), self.form)
            except Unfit as error:
                log.warning("%s #%d: dropped, %s", attempt.id, attempt.attempt, error)
                dropped[error.reason] += 1
                continue
            rows.append(row | {"id": attempt.id})
            lengths.append(dialogue.tokens)
        if not rows:
            raise ConfigError(f"{self.demonstrations} gives no dialogue: {dict(dropped) or 'it is empty'}.")
        write_whole(self.output / f"{name}.json", json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
        if self.form == "llamafactory":
            info = json.dumps(dataset_info("vrag_sft", f"{name}.json"), indent=2)
            write_whole(self.output / "dataset_info.json", info + "\n")
        report = {
            "dialogues": len(rows),
            "dropped": dict(dropped),
            "images": sum(len(row["images"]) for row in rows),
            "longest_tokens_estimate": max(lengths),
            "min_pixels": self.options.min_pixels,
            "max_pixels": self.options.max_pixels,
            "crop_padding": self.options.crop_padding,
            "file": f"{name}.json",
        }
        write_whole(self.output / REPORT, json.dumps(report, indent=2) + "\n")
        return report

    def _dialogue(self, attempt: Attempt) -> Dialogue:
        if attempt.status != "correct":
            raise Unfit("not judged right")
        dialogue = play(attempt, self.demonstrations.parent, self.options)
        check(dialogue, self.options, self.cutoff)
        return dialogue

    def _pictures(self, dialogue: Dialogue) -> list[str]:
        """Write the pictures, named by their content; paths relative to the output folder."""
        paths = []
        for view in dialogue.views:
            data = view.jpeg()
            path = Path("images") / f"{hashlib.sha256(data).hexdigest()[:32]}.jpg"
            write_once(self.output / path, data)
            paths.append(str(path))
        return paths


# --- the command


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="cot_convert_sft.py", description="Convert demonstrations to dialogues for supervised fine-tuning."
    )
    out.add_argument("demonstrations", type=Path, help="demonstrations.jsonl of data_construct_pipeline.py")
    out.add_argument("--output", type=Path, required=True, help="folder for sft_<format>.json and images/")
    out.add_argument("--format", choices=FORMATS, default="llamafactory")
    out.add_argument(
        "--min-pixels", type=int, default=MIN_PIXELS, help="of a picture in training (default: %(default)s)"
    )
    out.add_argument(
        "--max-pixels", type=int, default=MAX_PIXELS, help="of a picture in training (default: %(default)s)"
    )
    out.add_argument("--crop-padding", type=float, default=CROP_PADDING, help="page pixels (default: %(default)s)")
    out.add_argument(
        "--max-steps", type=int, default=VragOptions.max_steps, help="turns in training (default: %(default)s)"
    )
    out.add_argument("--cutoff", type=int, default=16_384, help="tokens of a dialogue at most (default: %(default)s)")
    out.add_argument("--prompts", type=Path, help="a folder of prompt files that replace the built-in ones")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    show_progress()
    try:
        options = VragOptions(
            max_steps=args.max_steps,
            min_pixels=args.min_pixels,
            max_pixels=args.max_pixels,
            crop_padding=args.crop_padding,
            prompts=VragPrompts.load(args.prompts),
        )
        report = Conversion(args.demonstrations, args.output, args.format, options, args.cutoff).run()
    except VragError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0
