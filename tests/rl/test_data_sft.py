"""Supervised fine-tuning of tiny checkpoints on converted dialogues: exact labels, frozen towers, falling loss, merging."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.servers import page_image
from vrag.errors import ConfigError
from vrag_agent.data.sft_rows import IGNORE, encode, encode_all, read_dialogues
from vrag_agent.template import ChatTemplate

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "VRAG-RL" / "scripts" / "sft.py"
TURNS = ("<think>Where?</think>\n<search>solar</search>", "<think>Read.</think>\n<answer>42 MW</answer>")


def dialogue(form: str, number: int = 0) -> dict[str, Any]:
    if form == "trl":
        seen: Any = [{"type": "image"}]
        said: list[Any] = [[{"type": "text", "text": text}] for text in TURNS]
    else:
        seen, said = "<image>", list(TURNS)
    return {
        "messages": [
            {"role": "user", "content": f"Question: {number}?"},
            {"role": "assistant", "content": said[0]},
            {"role": "user", "content": seen},
            {"role": "assistant", "content": said[1]},
        ],
        "images": ["images/page.jpg"],
    }


def data(folder: Path, form: str = "llamafactory", count: int = 4) -> Path:
    (folder / "images").mkdir(exist_ok=True)
    (folder / "images" / "page.jpg").write_bytes(page_image("solar", (80, 100)))
    path = folder / f"sft_{form}.json"
    path.write_text(json.dumps([dialogue(form, number) for number in range(count)]))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vrag_agent.tiny.checkpoint import make_checkpoint

    return make_checkpoint("qwen2_5_vl", tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("form", ["llamafactory", "trl"])
def test_ids_are_the_processors_and_labels_are_the_models_turns(checkpoint: Path, tmp_path: Path, form: str) -> None:
    template = ChatTemplate.load(checkpoint)
    path = data(tmp_path, form)
    row = encode(template, read_dialogues(path)[0], tmp_path)
    assert len(row.ids) == len(row.labels)
    trained = [label for label in row.labels if label != IGNORE]
    assert template.tokenizer.decode(trained) == "".join(f"{text}<|im_end|>" for text in TURNS)
    assert all(label in (IGNORE, one) for one, label in zip(row.ids, row.labels, strict=True))
    # Token for token what the processor makes of the whole conversation.
    wire = [
        {**turn, "content": [{"type": "text", "text": p} if p else {"type": "image"} for p in _parts(turn["content"])]}
        for turn in dialogue("llamafactory")["messages"]
    ]
    from PIL import Image

    text = template.processor.apply_chat_template(wire, tokenize=False)
    whole = template.processor(text=[text], images=[Image.open(tmp_path / "images" / "page.jpg")])["input_ids"][0]
    assert row.ids == list(whole)[: len(row.ids)]


def _parts(content: str) -> list[str]:
    return [""] if content == "<image>" else [content]


def test_what_cannot_be_trained_on_is_left_out_by_reason(checkpoint: Path, tmp_path: Path) -> None:
    template = ChatTemplate.load(checkpoint)
    data(tmp_path)
    good, missing, null, more, order, forged = (dialogue("llamafactory") for _ in range(6))
    null["images"] = ["images/\0.jpg"]
    missing["images"] = ["images/nothing.jpg"]
    more["images"] = ["images/page.jpg"] * 2
    order["messages"] = order["messages"][1:]
    forged["messages"][1]["content"] += "<|image_pad|>"
    rows, dropped = encode_all(template, [good, missing, null, more, order, forged], tmp_path, 4096)
    assert len(rows) == 1
    assert dropped == {
        "a picture cannot be read": 2,
        "it has more pictures than places for them": 1,
        "its turns are not user, assistant, user, assistant, ...": 1,
        "a turn of the model holds a picture's token": 1,
    }
    with pytest.raises(ConfigError, match="longer than 10 tokens"):
        encode_all(template, [good], tmp_path, 10)


def test_a_damaged_row_is_one_row(checkpoint: Path, tmp_path: Path) -> None:
    template = ChatTemplate.load(checkpoint)
    data(tmp_path)
    separated = dialogue("llamafactory")
    separated["messages"][0]["content"] = "Question:\u2028?"
    good = json.dumps(separated, ensure_ascii=False).encode()
    path = tmp_path / "sft.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + good + b'\n{"messages": [\n"caf\xe9"\n[1]\n' + good + b"\n")
    rows, dropped = encode_all(template, read_dialogues(path), tmp_path, 4096)
    assert (len(rows), dropped) == (2, {"not JSON": 1, "not UTF-8": 1, "not an object": 1})
    path = tmp_path / "sft.json"
    path.write_bytes(b"\xef\xbb\xbf[" + good + b', 3, "x", null]')
    rows, dropped = encode_all(template, read_dialogues(path), tmp_path, 4096)
    assert (len(rows), dropped) == (1, {"not an object": 3})


def test_a_run_goes_on_from_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    from vrag_agent.data.sft import newest_checkpoint

    assert newest_checkpoint(tmp_path / "nothing") is None
    for name, files in {
        "checkpoint-9": {"trainer_state.json": "{}", "adapter_model.safetensors": ""},
        "checkpoint-10": {"trainer_state.json": "{}", "model-00001-of-00002.safetensors": ""},
        "checkpoint-11": {"config.json": "{}", "model.safetensors": ""},
        "checkpoint-12": {"trainer_state.json": '{"epo', "model.safetensors": ""},
        "checkpoint-13": {"trainer_state.json": "{}", "config.json": "{}"},
        "checkpoint-best": {"trainer_state.json": "{}", "model.safetensors": ""},
    }.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_there_need_be_nothing_to_resume_from(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trl

    from vrag_agent.data.sft import SftOptions, train

    asked: list[str | None] = []

    class Ended(Exception):
        """Training itself is another test's."""

    def begin(self: Any, resume_from_checkpoint: str | None) -> None:
        asked.append(resume_from_checkpoint)
        raise Ended

    monkeypatch.setattr(trl.SFTTrainer, "train", begin)
    caplog.set_level("INFO", "vrag_agent.sft")
    with pytest.raises(Ended):
        train(str(checkpoint), data(tmp_path), tmp_path / "out", SftOptions(bf16=False), resume=True)
    assert asked == [None]
    assert "nothing to resume from" in caplog.text


@pytest.mark.parametrize(
    "values",
    [
        {"lora_rank": -1}, {"lora_alpha": -1}, {"warmup": -0.5}, {"warmup": 1.0}, {"warmup": float("nan")},
        {"save_steps": -1}, {"log_steps": 0}, {"epochs": float("inf")}, {"batch": 0},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    from vrag_agent.data.sft import SftOptions

    with pytest.raises(ConfigError, match="has to"):
        SftOptions(**values)


def test_the_collator_pads_on_the_right_and_carries_the_pictures(checkpoint: Path, tmp_path: Path) -> None:
    from dataclasses import asdict

    from vrag_agent.data.sft import collator

    template = ChatTemplate.load(checkpoint)
    data(tmp_path)
    long = dialogue("llamafactory")
    long["messages"][0]["content"] = "Question: " + "why " * 30
    text_only = {"messages": dialogue("llamafactory")["messages"][:2], "images": []}
    rows, _ = encode_all(template, [long, text_only], tmp_path, 4096)
    batch = collator(template.processor)([asdict(row) for row in rows])
    assert batch["labels"].shape == batch["input_ids"].shape
    assert batch["image_grid_thw"].shape[0] == 1
    short = len(rows[1].ids)
    assert (batch["labels"][1, short:] == IGNORE).all()
    assert (batch["attention_mask"][1, short:] == 0).all()
    assert (batch["labels"] != IGNORE).sum().item() == sum(label != IGNORE for row in rows for label in row.labels)


def run(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{\n") :])
    return report


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.slow
def test_full_fine_tuning_learns_and_leaves_the_vision_tower_alone(checkpoint: Path, tmp_path: Path) -> None:
    path = data(tmp_path)
    report = run(
        "--model", checkpoint, "--data", path, "--output", tmp_path / "out", "--epochs", 12, "--accumulate", 2,
        "--learning-rate", "5e-3", "--save-steps", 1000, "--validation", 0.25,
    )  # fmt: skip
    assert report["last_loss"] < 0.6 * report["first_loss"]
    assert (report["dialogues"], report["validation_dialogues"]) == (3, 1)
    assert report["trainable_parameters"] < report["parameters"]
    before, after = weights(checkpoint), weights(tmp_path / "out" / "final")
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert not any("visual" in name for name in changed)
    ChatTemplate.load(tmp_path / "out" / "final")


@pytest.mark.slow
def test_lora_is_merged_and_a_run_goes_on(checkpoint: Path, tmp_path: Path) -> None:
    path = data(tmp_path, "trl")
    common = ("--model", checkpoint, "--data", path, "--output", tmp_path / "out", "--accumulate", 2, "--save-steps", 1)
    common += ("--lora-rank", 4, "--learning-rate", "1e-2", "--gradient-checkpointing")
    assert run(*common, "--max-steps", 2)["steps"] == 2
    report = run(*common, "--max-steps", 4, "--resume")
    assert report["steps"] == 4
    before, after = weights(checkpoint), weights(tmp_path / "out" / "final")
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all("_proj" in name and "visual" not in name for name in changed)
    assert (tmp_path / "out" / "adapter" / "adapter_config.json").is_file()


def test_wrong_input_is_a_sentence(checkpoint: Path, tmp_path: Path) -> None:
    from vrag_agent.data.sft import SftOptions, train

    with pytest.raises(ConfigError, match="cannot be read"):
        train(str(checkpoint), tmp_path / "nothing.json", tmp_path / "out", SftOptions())
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(ConfigError, match="no list of dialogues"):
        train(str(checkpoint), tmp_path / "empty.json", tmp_path / "out", SftOptions())
    with pytest.raises(ConfigError, match="batch has to be above 0"):
        SftOptions(batch=0)
