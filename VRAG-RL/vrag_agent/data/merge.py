"""A checkpoint of training -> the Hugging Face layout: ``python VRAG-RL/scripts/model_merger.py --help``.

    python VRAG-RL/scripts/model_merger.py checkpoints/vrag/global_step_100 --output vrag-7b

A checkpoint of verl holds one shard per rank below ``global_step_N/actor``. The work is verl's own merger; here the folder is
found and checked first, so that a wrong path or a shard that is missing is a sentence, and the result is checked to be a
model that can be served: configuration, weights, tokenizer and processor.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vrag.errors import ConfigError, VragError

_STEP = re.compile(r"global_step_([0-9]+)")
_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def actor_folder(checkpoint: Path) -> Path:
    """The folder with the shards: ``checkpoint`` itself, its ``actor``, or that of its newest step. Raises ConfigError."""
    if not checkpoint.is_dir():
        raise ConfigError(f"There is no checkpoint {checkpoint}.")
    steps = {int(found[1]): path for path in checkpoint.iterdir() if (found := _STEP.fullmatch(path.name))}
    newest = [steps[max(steps)] / "actor"] if steps else []
    for folder in (checkpoint, checkpoint / "actor", *newest):
        if folder.is_dir() and any(_SHARD.fullmatch(path.name) for path in folder.iterdir()):
            return folder
    raise ConfigError(
        f"{checkpoint} holds no shards (model_world_size_N_rank_K.pt), nor does an actor folder in it. "
        "Give the folder global_step_N of a run of the trainer."
    )


def check_shards(actor: Path) -> int:
    """The number of shards. Raises ConfigError where one is missing, or what describes the model is."""
    found = [match for path in actor.iterdir() if (match := _SHARD.fullmatch(path.name))]
    sizes = {int(match[1]) for match in found}
    if len(sizes) != 1:
        raise ConfigError(f"{actor} mixes shards of runs with {sorted(sizes)} ranks; they do not belong together.")
    size = sizes.pop()
    missing = sorted(set(range(size)) - {int(match[2]) for match in found})
    if missing:
        raise ConfigError(
            f"{actor} lacks the shards of the ranks {missing} of {size}. In a run on several machines, each of them "
            "wrote its own shards: copy them into one folder."
        )
    if not (actor / "huggingface" / "config.json").is_file():
        raise ConfigError(
            f"{actor / 'huggingface'} with the model's configuration is missing: the save was interrupted."
        )
    return size


def merge(checkpoint: Path, output: Path) -> Path:
    """Merge and check; returns ``output``. Raises ConfigError."""
    actor = actor_folder(checkpoint)
    size = check_shards(actor)
    if output.exists() and not output.is_dir():
        raise ConfigError(f"{output} is a file; the model becomes a folder, so choose another name.")
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty; choose another folder.")
    command = [sys.executable, "-c", _MERGE, str(actor), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        raise ConfigError(f"verl could not merge the {size} shards of {actor}: {last[0]}")
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (output / name).is_file()]
    if not list(output.glob("*.safetensors")):
        missing.append("*.safetensors")
    if not any((output / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
        missing.append("the processor's configuration")
    if missing:
        raise ConfigError(f"{output} was written, but without {', '.join(missing)}: it cannot be served as it is.")
    return output


#: In a process of its own: verl's merger sets up torch.distributed and reads its arguments from the command line.
_MERGE = """\
import runpy, sys
import vrag_agent
actor, output = sys.argv[1:]
sys.argv = ["verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", actor, "--target_dir", output]
runpy.run_module("verl.model_merger", run_name="__main__", alter_sys=True)
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="model_merger.py", description="Merge a checkpoint of the trainer into a model in the Hugging Face layout."
    )
    out.add_argument("checkpoint", type=Path, help="global_step_N, its actor folder, or the run's folder (newest step)")
    out.add_argument("--output", type=Path, required=True, help="a new or empty folder")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        sys.stdout.write(f"{merge(args.checkpoint, args.output)}\n")
    except VragError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
