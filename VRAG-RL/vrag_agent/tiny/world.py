"""Pages of a colour with a digit on them, questions about them, and a running search service that knows their titles.

    with serve(write_world(Path("world"), corners=True)) as url: ...

There is a page for every colour and animal, 256 in all. Its picture shows the colour, and a white card with a black digit;
which animal it is, only the search index knows. So a question can be answered only by a search for both words and a look at
the page that it brings. With ``corners`` the card fills a quarter of the page, and the digit is easy to read only after a
crop. Questions about a quarter of the pages are held out from training. Digits are random: no text gives them away.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import httpx
from PIL import Image, ImageDraw, ImageFont

from vrag.errors import ConfigError, RetrieverError
from vrag_agent.tiny.words import ANIMALS, COLOURS, QUESTION

#: The document that all pages belong to; the id of a page is ``cards_{number}``.
DOCUMENT = "cards.pdf"
#: Pixels of a page's side.
SIDE = 224
_SEED = 1234


@dataclass(frozen=True, slots=True)
class Card:
    """A page. ``number`` counts from 1; ``corner``: 0 to 3, row by row."""

    number: int
    colour: str
    animal: str
    digit: int
    corner: int

    @property
    def id(self) -> str:
        return f"cards_{self.number}"

    @property
    def title(self) -> str:
        return f"{self.colour} {self.animal}"

    @property
    def question(self) -> str:
        return QUESTION.format(colour=self.colour, animal=self.animal)


@dataclass(frozen=True)
class World:
    """``folder`` holds the pages and the index, once it is written."""

    folder: Path
    corners: bool

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        """All pages, in the order of their numbers; the same in every world."""
        rng = random.Random(_SEED)
        titles = [(colour, animal) for colour in COLOURS for animal in ANIMALS]
        rng.shuffle(titles)
        return tuple(
            Card(number, colour, animal, rng.randint(0, 9), rng.randint(0, 3))
            for number, (colour, animal) in enumerate(titles, 1)
        )

    @cached_property
    def by_id(self) -> dict[str, Card]:
        return {card.id: card for card in self.cards}

    @property
    def held_out(self) -> tuple[Card, ...]:
        return self.cards[: len(self.cards) // 4]

    @property
    def training(self) -> tuple[Card, ...]:
        return self.cards[len(self.cards) // 4 :]

    @property
    def index(self) -> Path:
        return self.folder / "index"


def draw(card: Card, corners: bool, rng: random.Random | None = None) -> Image.Image:
    """The page, 224 x 224 pixels. Colour and place of the digit vary a little: by its number, or as ``rng`` says."""
    rng = rng or random.Random(card.number)
    background = tuple(max(0, min(255, value + rng.randint(-12, 12))) for value in COLOURS[card.colour])
    page = Image.new("RGB", (SIDE, SIDE), background)
    side = SIDE // 2 if corners else SIDE
    left, top = (side * (card.corner % 2), side * (card.corner // 2)) if corners else (0, 0)
    edge = side // 7
    pen = ImageDraw.Draw(page)
    if corners:  # a line along the top and one along the left: a corner can be told by what is in it
        pen.rectangle((0, 0, SIDE - 1, 6), fill="black")
        pen.rectangle((0, 0, 10, SIDE - 1), fill="white")
    pen.rectangle((left + edge, top + edge // 2, left + side - edge - 1, top + side - edge // 2 - 1), fill="white")
    shift = side / 56
    middle = (left + side / 2 + rng.uniform(-shift, shift), top + side / 2 + rng.uniform(-shift, shift))
    pen.text(middle, str(card.digit), font=ImageFont.load_default(size=int(side * 0.7)), fill="black", anchor="mm")
    return page


def write_world(folder: Path, corners: bool) -> World:
    """Draw the pages into ``folder`` and index them; what is there already is kept."""
    from search_engine.ingest import IngestOptions
    from search_engine.search_engine import SearchEngine

    world = World(folder, corners)
    pages = folder / "pages"
    for card in world.cards:
        _write_page(pages, card, draw(card, corners))
    report = SearchEngine("text_page").build_index(
        pages, world.index, progress=False, workers=1, bs=64, ingest=IngestOptions(ocr=False)
    )
    if report.problems:
        raise ConfigError(f"The pages of the tiny world could not be indexed: {report.problems[0]}")
    return world


def _write_page(folder: Path, card: Card, page: Image.Image) -> None:
    """The picture, and beside it the record of a page: its title is its text layer, as of a rendered PDF."""
    from search_engine.companions import record_path
    from search_engine.documents import Line
    from search_engine.page_records import PageRecord, stored_lines
    from vrag.geometry import Box

    path = folder / f"{card.id}.png"
    record = record_path(path)
    assert record is not None  # the name is one of a page
    record.parent.mkdir(parents=True, exist_ok=True)
    page.save(path)
    data = path.read_bytes()
    line = Line(card.title, Box(0, 0, page.width, 8))
    content = PageRecord(
        image_sha256=hashlib.sha256(data).hexdigest(),
        image_bytes=len(data),
        document=DOCUMENT,
        page=card.number,
        width=page.width,
        height=page.height,
        hidden=True,
        lines=stored_lines((line,)),
        id=card.id,
        key=card.id,
        path=DOCUMENT,
        pdf_sha256="",
        rendering="",
    )
    record.write_text(content.model_dump_json(), "utf-8")


def write_questions(world: World, path: Path, cards: Sequence[Card]) -> Path:
    """Questions in the form of the published datasets: ``{"examples": [...]}``, as the converter reads them."""
    examples = [
        {
            "uid": card.id,
            "query": card.question,
            "reference_answer": str(card.digit),
            "meta_info": {"file_name": DOCUMENT, "reference_page": [card.number]},
        }
        for card in cards
    ]
    path.write_text(json.dumps({"examples": examples}, indent=1) + "\n", "utf-8")
    return path


@contextmanager
def serve(world: World, *, start_seconds: float = 90.0) -> Iterator[str]:
    """The project's search service over the world's index, as a process of its own; gives its search URL.

    Raises RetrieverError when it does not come up.
    """
    from search_engine.service.server import listen

    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    log = world.folder / "service.log"
    command = [sys.executable, "-m", "search_engine.search_engine_api", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--index", str(world.index)], stdout=output, stderr=output)
    try:
        _wait(process, base, start_seconds, log)
        yield f"{base}/search"
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], base: str, seconds: float, log: Path) -> None:
    deadline = time.monotonic() + seconds
    with httpx.Client(trust_env=False, timeout=5) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if client.get(f"{base}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    raise RetrieverError(f"The search service of the tiny world did not start; see {log}.")
