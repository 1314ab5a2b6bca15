"""Demonstrations to dialogues: played again at training's sizes, with exact regions; what does not fit is dropped by reason."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.servers import page_image
from vrag.actions import Crop, parse_tags
from vrag.errors import ConfigError
from vrag.geometry import CROP_PADDING, MAX_PIXELS, Box, whole
from vrag.items import Item
from vrag.pages import View, open_page, padded_on_page, region_on_page, view_of
from vrag.vrag_episode import VragOptions
from vrag_agent.data.demonstration import Attempt, Turn
from vrag_agent.data.dialogue import REPORT, Conversion, Unfit, displayed_region, main, play, sft_row, written

PAGE = Item(id="solar_1", kind="image", document="solar.pdf", page=1, width=1600, height=2000)
OTHER = Item(id="wind_1", kind="image", document="wind.pdf", page=1, width=1600, height=2000)

SEARCH = Turn(step=1, action="search", thought="Where?", query="solar power", shown=(PAGE,))
CROP = Turn(
    step=2,
    action="crop",
    thought="Small.",
    item_id="solar_1",
    page_box=Box(400, 500, 800, 900),
    displayed=Box(1, 2, 3, 4),
)
INNER = Turn(step=3, action="crop", thought="Smaller.", item_id="solar_1", page_box=Box(500, 600, 600, 700))
ANSWER = Turn(step=4, action="answer", thought="Read.", text="42 MW")


def attempt(folder: Path, *turns: Turn, **changes: Any) -> Attempt:
    (folder / "pages").mkdir(exist_ok=True)
    pages = {}
    for item in (PAGE, OTHER):
        pages[item.id] = f"pages/{item.id}.img"
        (folder / pages[item.id]).write_bytes(page_image(item.id, (1600, 2000)))
    values: dict[str, Any] = {
        "id": "a",
        "attempt": 0,
        "status": "correct",
        "question": "How much?",
        "reference": "42",
        "answer": "42 MW",
        "turns": turns or (SEARCH, CROP, INNER, ANSWER),
        "pages": pages,
    }
    return Attempt(**{**values, **changes})


def write(folder: Path, *attempts: Attempt) -> Path:
    path = folder / "demonstrations.jsonl"
    path.write_text("".join(one.model_dump_json() + "\n" for one in attempts))
    return path


def test_turns_pictures_and_regions_are_those_of_training(tmp_path: Path) -> None:
    options = VragOptions()
    dialogue = play(attempt(tmp_path), tmp_path, options)
    assert [turn.role for turn in dialogue.messages] == ["user", "assistant"] * 4
    assert dialogue.messages[0].text.endswith("Question: How much?")
    assert dialogue.messages[1].text == "<think>Where?</think>\n<search>solar power</search>"
    assert dialogue.messages[-1].text == "<think>Read.</think>\n<answer>42 MW</answer>"
    whole_page, first, second = dialogue.views
    assert all(view.pixels <= options.max_pixels for view in dialogue.views)
    assert whole_page.box == whole((1600, 2000))
    assert first.box.covers(Box(400, 500, 800, 900))
    # The crop of a crop is named in the pixels of the crop, and cut from the page.
    _, action = parse_tags(dialogue.messages[5].text)
    assert isinstance(action, Crop)
    on_page = region_on_page(action.box, first)
    assert isinstance(on_page, Box)
    for found, meant in zip(on_page.as_list(), (500, 600, 600, 700), strict=True):
        assert abs(found - meant) <= 1600 / first.size[0] + 1
    assert second.box.covers(on_page.padded(CROP_PADDING - 1))


def test_the_size_at_which_the_expert_looked_does_not_matter(tmp_path: Path) -> None:
    """The recorded displayed box is ignored; the region is carried from the page to training's picture."""
    small = play(attempt(tmp_path), tmp_path, VragOptions(max_pixels=MAX_PIXELS // 2))
    large = play(attempt(tmp_path), tmp_path, VragOptions(max_pixels=4 * MAX_PIXELS))
    boxes = []
    for dialogue in (small, large):
        _, action = parse_tags(dialogue.messages[3].text)
        assert isinstance(action, Crop)
        boxes.append(region_on_page(action.box, dialogue.views[0]))
    assert boxes[0] != boxes[1]
    for box in boxes:
        assert isinstance(box, Box)
        assert box.covers(Box(400, 500, 800, 900))
        assert box.area < 1.03 * 400 * 400


@settings(max_examples=60, deadline=None)
@given(
    x=st.floats(0, 1500),
    y=st.floats(0, 1900),
    width=st.floats(4, 1600),
    height=st.floats(4, 2000),
    side=st.integers(200, 900),
)
def test_a_region_is_whole_pixels_inside_the_picture_and_covers_what_was_meant(
    x: float, y: float, width: float, height: float, side: int
) -> None:
    meant = Box(x, y, min(x + width, 1600), min(y + height, 2000))
    view = View(PAGE, whole((1600, 2000)), (side, side * 5 // 4), b"")
    turn = Turn(step=1, action="crop", thought="t", item_id="solar_1", page_box=meant)
    try:
        x1, y1, x2, y2 = displayed_region(turn, view)
    except Unfit:
        # Only what lies on the last row or column, or is thinner than a pixel of the picture, is lost.
        assert min(meant.width, meant.height) < 12 * 1600 / side
        return
    assert 0 <= x1 < x2 < side
    assert 0 <= y1 < y2 < side * 5 // 4
    found = region_on_page(Box(x1, y1, x2, y2), view)
    assert isinstance(found, Box)
    assert found.covers(meant, 0.9)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ((CROP, ANSWER), "a crop before any picture"),
        ((SEARCH, CROP.model_copy(update={"item_id": "wind_1"}), ANSWER), "a crop of another picture"),
        (
            (SEARCH, CROP.model_copy(update={"page_box": Box(1700, 2100, 1800, 2200)}), ANSWER),
            "a region leaves nothing",
        ),
        ((SEARCH, CROP), "the last turn is no answer"),
        ((SEARCH, ANSWER, ANSWER), "it does not end where"),
        ((SEARCH, SEARCH, ANSWER), "an action cannot be done again"),
        ((SEARCH, Turn(step=2, action="other", thought="x"), ANSWER), "an action could not be used"),
        ((SEARCH, ANSWER.model_copy(update={"thought": ""})), "a turn without a thought"),
        ((SEARCH, ANSWER.model_copy(update={"text": "a</answer> or <answer>b"})), "a turn does not parse back"),
        ((SEARCH.model_copy(update={"query": "a </search> b"}), ANSWER), "a turn does not parse back"),
        ((SEARCH, ANSWER.model_copy(update={"text": "see <image>"})), "a text holds <image>"),
        ((), "the last turn is no answer"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, turns: tuple[Turn, ...], reason: str) -> None:
    with pytest.raises(Unfit, match=re.escape(reason)):
        play(attempt(tmp_path, *turns).model_copy(update={"turns": turns}), tmp_path, VragOptions())


def test_a_region_outside_of_the_zoomed_picture_is_refused(tmp_path: Path) -> None:
    """After a crop, the picture shows a part of the page; a region elsewhere cannot be named in it."""
    elsewhere = INNER.model_copy(update={"page_box": Box(1200, 1500, 1500, 1900)})
    with pytest.raises(Unfit, match="region"):
        play(attempt(tmp_path, SEARCH, CROP, elsewhere, ANSWER), tmp_path, VragOptions())


def test_pages_are_read_below_the_folder_only(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    secret = tmp_path / "secret.img"
    secret.write_bytes(page_image("secret", (1600, 2000)))
    for name in ("../secret.img", str(secret), "pages/nothing.img"):
        with pytest.raises(Unfit, match="a page is missing"):
            play(
                attempt(tmp_path / "in").model_copy(update={"pages": {"solar_1": name}}), tmp_path / "in", VragOptions()
            )


def test_a_damaged_page_is_refused(tmp_path: Path) -> None:
    one = attempt(tmp_path)
    (tmp_path / one.pages["solar_1"]).write_bytes(b"\xff\xd8 nothing")
    with pytest.raises(Unfit, match="cannot be done again"):
        play(one, tmp_path, VragOptions())


def test_llamafactory(tmp_path: Path) -> None:
    report = Conversion(write(tmp_path, attempt(tmp_path)), tmp_path / "out").run()
    assert (report["dialogues"], report["images"], report["dropped"]) == (1, 3, {})
    (row,) = json.loads((tmp_path / "out" / "sft_llamafactory.json").read_text())
    assert [turn["role"] for turn in row["messages"]] == ["user", "assistant"] * 4
    assert [turn["content"] for turn in row["messages"][2::2]] == ["<image>"] * 3
    assert "<image>" not in row["messages"][0]["content"]
    for name in row["images"]:
        with Image.open(tmp_path / "out" / name) as image:
            assert image.size[0] * image.size[1] <= MAX_PIXELS
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert info["vrag_sft"]["file_name"] == "sft_llamafactory.json"
    assert json.loads((tmp_path / "out" / REPORT).read_text()) == report


def test_trl(tmp_path: Path) -> None:
    Conversion(write(tmp_path, attempt(tmp_path)), tmp_path / "out", "trl").run()
    (row,) = json.loads((tmp_path / "out" / "sft_trl.json").read_text())
    assert row["messages"][2]["content"] == [{"type": "image"}]
    assert row["messages"][1]["content"] == [
        {"type": "text", "text": "<think>Where?</think>\n<search>solar power</search>"}
    ]
    assert (
        sum(part["type"] == "image" for turn in row["messages"] for part in turn["content"]) == len(row["images"]) == 3
    )


def test_a_picture_in_a_question_is_no_place_for_a_picture(tmp_path: Path) -> None:
    bad = attempt(tmp_path, question="What is in <image>?")
    report = Conversion(write(tmp_path, bad, attempt(tmp_path)), tmp_path / "out").run()
    assert report["dropped"] == {"a text holds <image>": 1}


def test_what_was_judged_wrong_or_is_too_long_stays_out(tmp_path: Path) -> None:
    path = write(tmp_path, attempt(tmp_path, status="dropped"), attempt(tmp_path))
    assert Conversion(path, tmp_path / "out").run()["dropped"] == {"not judged right": 1}
    with pytest.raises(ConfigError, match="longer than the cutoff"):
        Conversion(path, tmp_path / "out", cutoff=500).run()


def test_a_damaged_demonstration_is_one_demonstration(tmp_path: Path) -> None:
    path = write(tmp_path, attempt(tmp_path))
    good = path.read_bytes()
    path.write_bytes(good[:100] + b"\n" + good)
    assert Conversion(path, tmp_path / "out").run()["dropped"] == {"a damaged line": 1}


def test_a_picture_that_a_killed_run_cut_off_is_written_again(tmp_path: Path) -> None:
    path, out = write(tmp_path, attempt(tmp_path)), tmp_path / "out"
    Conversion(path, out).run()
    pictures = {one: one.read_bytes() for one in (out / "images").iterdir()}
    cut, *_ = pictures
    cut.write_bytes(pictures[cut][:200])
    Conversion(path, out).run()
    assert {one: one.read_bytes() for one in (out / "images").iterdir()} == pictures


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk while a file is being written never stands under its name."""
    path, out = write(tmp_path, attempt(tmp_path)), tmp_path / "out"
    Conversion(path, out).run()
    before = {one: one.read_bytes() for one in out.rglob("*") if one.is_file()}

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        Conversion(path, out, options=VragOptions(max_pixels=MAX_PIXELS // 2)).run()
    with pytest.raises(ConfigError, match=r"sft_llamafactory\.json cannot be written"):
        Conversion(path, out).run()
    assert {one: one.read_bytes() for one in out.rglob("*") if one.is_file()} == before


def test_places_and_pictures_have_to_agree(tmp_path: Path) -> None:
    dialogue = play(attempt(tmp_path), tmp_path, VragOptions())
    with pytest.raises(Unfit, match="do not agree"):
        sft_row(dialogue, ["one.jpg"], "llamafactory")


def test_passages_are_shown_as_text(tmp_path: Path) -> None:
    note = Item(id="note_1", kind="text", document="note.md", content="Solar: 42 MW.")
    dialogue = play(attempt(tmp_path, SEARCH.model_copy(update={"shown": (note,)}), ANSWER), tmp_path, VragOptions())
    assert "Solar: 42 MW." in dialogue.messages[2].text
    assert sft_row(dialogue, [], "llamafactory")["images"] == []


def test_the_view_is_what_the_agent_itself_would_cut(tmp_path: Path) -> None:
    """The same bytes as the product renders for the same box."""
    dialogue = play(attempt(tmp_path, SEARCH, CROP, ANSWER), tmp_path, VragOptions())
    page = open_page((tmp_path / "pages/solar_1.img").read_bytes(), PAGE)
    _, action = parse_tags(dialogue.messages[3].text)
    assert isinstance(action, Crop)
    region = region_on_page(action.box, dialogue.views[0])
    assert isinstance(region, Box)
    expected = view_of(page, padded_on_page(region, CROP_PADDING, page))
    assert dialogue.views[1].jpeg() == expected.jpeg()
    with Image.open(io.BytesIO(expected.jpeg())) as image:
        assert image.size == expected.size


def test_written_turns_parse_back() -> None:
    view = View(PAGE, whole((1600, 2000)), (400, 500), b"")
    assert written(CROP, view) == "<think>Small.</think>\n<bbox>[100, 125, 200, 225]</bbox>"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, attempt(tmp_path))
    assert main([str(path), "--output", str(tmp_path / "out"), "--format", "trl"]) == 0
    assert json.loads(capsys.readouterr().out)["dialogues"] == 1
    assert main([str(tmp_path / "nothing.jsonl"), "--output", str(tmp_path / "out")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main([str(path), "--output", str(tmp_path / "out"), "--min-pixels", "9999999"]) == 1
    assert "min_pixels" in capsys.readouterr().err
