"""Supervised fine-tuning on converted dialogues, by TRL's SFT trainer: ``python VRAG-RL/scripts/sft.py --help``.

Trained are the model's own turns, each with its closing token; prompts, observations and pictures are context. The vision
tower and its projector are frozen unless ``--train-vision`` is given. The defaults are VRAG-RL's: 3 epochs, 32 dialogues a
step, learning rate 1e-5 with a cosine and a warm-up of a tenth, 16,384 tokens.

    OUT/checkpoint-N/      to go on from with --resume; one that a killed run left half written is passed over
    OUT/final/             the model in the Hugging Face layout, with its processor; LoRA is merged into it
    OUT/adapter/           with LoRA: the adapter alone
    OUT/sft_report.json    dialogues, what was left out and why, losses, trained parameters
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vrag.errors import ConfigError, VragError
from vrag_agent.data import show_progress
from vrag_agent.data.files import write_whole
from vrag_agent.data.sft_rows import IGNORE, Encoded, encode_all, load_picture, read_dialogues

log = logging.getLogger("vrag_agent.sft")

REPORT = "sft_report.json"
#: The linear layers of the language model; those of the vision tower carry other names or prefixes.
LORA_TARGETS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"

_CHECKPOINT = re.compile(r"checkpoint-([0-9]+)")
#: A whole model, an adapter, and what FSDP and DeepSpeed write (files, or folders of shards).
_WEIGHTS = re.compile(r"(model|adapter_model|pytorch_model|global_step).*")


@dataclass(frozen=True)
class SftOptions:
    """What a run is set to. ``batch`` is per device; a step takes ``batch * accumulate * devices`` dialogues."""

    epochs: float = 3.0
    max_steps: int = -1
    learning_rate: float = 1e-5
    warmup: float = 0.1
    batch: int = 1
    accumulate: int = 32
    cutoff: int = 16_384
    lora_rank: int = 0
    lora_alpha: int = 0
    """0: twice the rank."""
    train_vision: bool = False
    validation: float = 0.0
    """Share of the dialogues that is held out."""
    bf16: bool | None = None
    """None: where the device can."""
    gradient_checkpointing: bool = False
    save_steps: int = 0
    """0: once an epoch."""
    log_steps: int = 1
    report_to: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "batch", "accumulate", "cutoff", "log_steps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} has to be above 0, not {getattr(self, name)}.")
        for name in ("lora_rank", "lora_alpha", "save_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} has to be 0 or more, not {getattr(self, name)}.")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"The share of the steps for warm-up has to lie in [0, 1), not {self.warmup}.")
        if not 0 <= self.validation < 1:
            raise ConfigError(f"The share for validation has to lie in [0, 1), not {self.validation}.")


def train(model_path: str, data: Path, output: Path, options: SftOptions, resume: bool = False) -> dict[str, Any]:
    """Fine-tune; returns the report. Raises ConfigError for data or a checkpoint that cannot be used."""
    try:
        import torch
        import transformers
        import trl
        from datasets import Dataset
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The package {error.name} is missing; fine-tuning needs VRAG-RL/requirements_train.txt."
        ) from None
    from vrag_agent.template import ChatTemplate

    template = ChatTemplate.load(model_path)
    rows, dropped = encode_all(template, read_dialogues(data), data.parent, options.cutoff)
    held = int(len(rows) * options.validation)
    bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported() if options.bf16 is None else options.bf16
    # Weights that are trained stay in fp32 (bf16 is for the computation): a step of 1e-5 vanishes in bf16's 8 bits.
    dtype = torch.bfloat16 if bf16 and options.lora_rank else torch.float32
    model = transformers.AutoModelForImageTextToText.from_pretrained(model_path, dtype=dtype)
    if not options.train_vision:
        freeze_vision(model)
    trainer = trl.SFTTrainer(
        model=model,
        args=_arguments(trl.SFTConfig, output, options, bf16, bool(held)),
        train_dataset=Dataset.from_list([asdict(row) for row in rows[held:]]),
        eval_dataset=Dataset.from_list([asdict(row) for row in rows[:held]]) if held else None,
        data_collator=collator(template.processor),
        processing_class=template.processor,
        peft_config=_lora(options) if options.lora_rank else None,
    )
    trainable = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    log.info("%d dialogues, %s trained parameters", len(rows) - held, f"{trainable:,}")
    newest = newest_checkpoint(output) if resume else None
    if resume:
        log.info("%s", f"going on from {newest}" if newest else f"nothing to resume from in {output}: starting anew")
    result = trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    validation = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    _save(trainer, template.processor, output, bool(options.lora_rank))
    report = {
        "dialogues": len(rows) - held,
        "validation_dialogues": held,
        "dropped": dropped,
        "trained_tokens_per_epoch": sum(label != IGNORE for row in rows[held:] for label in row.labels),
        "longest": max(len(row.ids) for row in rows),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "trainable_parameters": trainable,
        "steps": result.global_step,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "validation_losses": validation,
    }
    if trainer.is_world_process_zero():
        write_whole(output / REPORT, json.dumps(report, indent=2) + "\n")
    return report


def newest_checkpoint(output: Path) -> Path | None:
    """The newest whole ``checkpoint-N`` of a run. A killed run can leave the last one without what is written last."""
    steps = {int(found[1]): path for path in output.glob("checkpoint-*") if (found := _CHECKPOINT.fullmatch(path.name))}
    return next((steps[step] for step in sorted(steps, reverse=True) if _is_whole(steps[step])), None)


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return False
    return any(_WEIGHTS.fullmatch(path.name) for path in checkpoint.iterdir())


def freeze_vision(model: Any) -> int:
    """Freeze the vision tower and its projector; returns the number of frozen parameters. Raises ConfigError."""
    frozen = 0
    for name, parameter in model.named_parameters():
        if "visual." in name:
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    if not frozen:
        raise ConfigError(f"{type(model).__name__} has no vision tower called 'visual'; use --train-vision.")
    return frozen


def collator(processor: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """Rows to a batch: ids, attention mask, labels (B x L, padded on the right), and the pictures' patches."""
    import torch

    from vrag_agent.inputs import model_inputs

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        encoded = [Encoded(row["ids"], row["labels"], row["pictures"]) for row in rows]
        pairs = [(row.ids, [load_picture(path) for path in row.pictures]) for row in encoded]
        batch: dict[str, Any] = dict(model_inputs(processor, pairs, padding="right"))
        labels = torch.full_like(batch["input_ids"], IGNORE)
        for number, row in enumerate(encoded):
            labels[number, : len(row.labels)] = torch.tensor(row.labels)
        batch["labels"] = labels
        return batch

    return collate


def _arguments(config: Any, output: Path, options: SftOptions, bf16: bool, validate: bool) -> Any:
    each_epoch = "epoch" if options.max_steps < 0 else "no"
    return config(
        output_dir=str(output),
        num_train_epochs=options.epochs,
        max_steps=options.max_steps,
        learning_rate=options.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=options.warmup,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        gradient_checkpointing=options.gradient_checkpointing,
        bf16=bf16,
        max_length=None,
        packing=False,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        save_strategy="steps" if options.save_steps else each_epoch,
        save_steps=options.save_steps or 500,
        eval_strategy="epoch" if validate else "no",
        logging_steps=options.log_steps,
        report_to=[] if options.report_to == "none" else [options.report_to],
        seed=options.seed,
        data_seed=options.seed,
        dataloader_pin_memory=bf16,
        save_total_limit=3,
    )


def _lora(options: SftOptions) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha or 2 * options.lora_rank,
        target_modules=LORA_TARGETS,
        task_type="CAUSAL_LM",
    )


def _save(trainer: Any, processor: Any, output: Path, lora: bool) -> None:
    """The finished model, by the first process alone where it is whole on each, by all where it is sharded."""
    final = output / "final"
    if not lora:
        trainer.save_model(str(final))
    else:
        trainer.save_model(str(output / "adapter"))
        if trainer.is_world_process_zero():
            trainer.accelerator.unwrap_model(trainer.model).merge_and_unload().save_pretrained(str(final))
    if trainer.is_world_process_zero():
        processor.save_pretrained(str(final))


# --- the command


def parser() -> argparse.ArgumentParser:
    default = SftOptions()
    out = argparse.ArgumentParser(
        prog="sft.py", description="Supervised fine-tuning on the output of cot_convert_sft.py."
    )
    out.add_argument("--model", required=True, help="a Qwen-VL checkpoint: a folder, or a name on the hub")
    out.add_argument("--data", type=Path, required=True, help="sft_llamafactory.json or sft_trl.json")
    out.add_argument("--output", type=Path, required=True)
    out.add_argument("--epochs", type=float, default=default.epochs)
    out.add_argument("--max-steps", type=int, default=default.max_steps, help="ends earlier than the epochs")
    out.add_argument("--learning-rate", type=float, default=default.learning_rate)
    out.add_argument("--warmup", type=float, default=default.warmup, help="share of the steps (default: %(default)s)")
    out.add_argument(
        "--batch", type=int, default=default.batch, help="dialogues at once on a device (default: %(default)s)"
    )
    out.add_argument(
        "--accumulate", type=int, default=default.accumulate, help="of them in a step (default: %(default)s)"
    )
    out.add_argument("--cutoff", type=int, default=default.cutoff, help="tokens; longer ones are left out, never cut")
    out.add_argument("--lora-rank", type=int, default=0, help="0: full fine-tuning (default)")
    out.add_argument("--lora-alpha", type=int, default=0, help="default: twice the rank")
    out.add_argument("--train-vision", action="store_true", help="also train the vision tower and its projector")
    out.add_argument("--validation", type=float, default=0.0, help="share of the dialogues that is held out")
    out.add_argument("--bf16", action=argparse.BooleanOptionalAction, help="default: where the device can")
    out.add_argument("--gradient-checkpointing", action="store_true", help="less memory, about a third more time")
    out.add_argument("--save-steps", type=int, default=0, help="default: once an epoch")
    out.add_argument("--log-steps", type=int, default=1)
    out.add_argument("--report-to", choices=("none", "tensorboard", "wandb"), default="none")
    out.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the output folder")
    out.add_argument("--seed", type=int, default=0)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    args = vars(parser().parse_args(argv))
    show_progress()
    try:
        model, data, output, resume = (args.pop(name) for name in ("model", "data", "output", "resume"))
        report = train(model, data, output, SftOptions(**args), resume)
    except (VragError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0
