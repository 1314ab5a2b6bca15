"""What a run needs, looked at before it starts: everything that is missing, as sentences, at once and not one per start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vrag.errors import VragError
from vrag.judge import ModelJudge
from vrag.retriever import HttpRetriever
from vrag_agent.scoring import task_of
from vrag_agent.settings import TrainSettings

log = logging.getLogger(__name__)

#: Of rows that lack something, how many are named.
_NAMED = 3


def check(config: Any, settings: TrainSettings) -> list[str]:
    """All problems that are found; empty when the run may start. ``config`` is the whole training configuration."""
    return [
        *_retriever(settings),
        *_judge(settings),
        *_data(config, settings),
        *_model(config),
        *_sizes(config),
    ]


def _retriever(settings: TrainSettings) -> Iterator[str]:
    search = settings.search_settings()
    try:
        with HttpRetriever(search) as retriever:
            hits = retriever.search(["a page"], 1)[0]
            if not hits:
                yield f"The retriever at {search.search_url} found nothing at all; is its index empty?"
            elif hits[0].item.kind == "image":
                retriever.image(hits[0].item.id)
    except VragError as error:
        yield f"Retriever: {error}"


def _judge(settings: TrainSettings) -> Iterator[str]:
    try:
        with settings.open_judge() as judge:
            if isinstance(judge, ModelJudge):
                log.info("the judge is %s", judge.probe())
    except VragError as error:
        yield f"Judge: {error}"


def _data(config: Any, settings: TrainSettings) -> Iterator[str]:
    """Rows need a question and an answer; where the reward counts retrieval or GGPO masks, reference pages too."""
    pages = (settings.weights().retrieval > 0 and settings.reward.function is None) or settings.ggpo.enable
    needed_by = "GGPO's masks" if settings.ggpo.enable else "the retrieval reward"
    for key in ("train_files", "val_files"):
        for path in _paths(config.data[key]):
            if not path.exists():
                yield f"data.{key}: there is no file {path}."
                continue
            try:
                rows = _rows(path)
            except Exception as error:  # whatever a foreign file makes the reader say
                yield f"data.{key}: {path} cannot be read as Parquet ({type(error).__name__}: {error})."
                continue
            if not rows:
                yield f"data.{key}: {path} has no rows."
            bad, without = [], []
            for number, row in enumerate(rows, 1):
                try:
                    task = task_of(row)
                except VragError as error:
                    bad.append((number, str(error)))
                    continue
                if not task.relevant:
                    without.append(number)
            for number, said in bad[:_NAMED]:
                yield f"data.{key}: {path}, row {number}: {said}"
            if len(bad) > _NAMED:
                yield f"data.{key}: {path} has {len(bad) - _NAMED} more rows like these."
            if pages and len(without) == len(rows) and rows:
                yield (
                    f"data.{key}: no row of {path} names reference pages (file_name and reference_page), which "
                    f"{needed_by} need. Convert the data with scripts/hf_dataset_convert.py, or choose another reward."
                )
            elif pages and without:
                log.warning("%s: %d of %d rows name no reference page", path, len(without), len(rows))


def _model(config: Any) -> Iterator[str]:
    path = Path(str(config.actor_rollout_ref.model.path)).expanduser()
    if path.is_dir():
        for name in ("config.json", "preprocessor_config.json"):
            if not (path / name).exists() and not (name != "config.json" and (path / "processor_config.json").exists()):
                yield f"actor_rollout_ref.model.path: {path} has no {name}; it is no complete checkpoint."
    elif path.is_absolute() or str(path).startswith("."):
        yield f"actor_rollout_ref.model.path: there is no folder {path}."


def _sizes(config: Any) -> Iterator[str]:
    train, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if train % mini:
        yield f"data.train_batch_size ({train}) has to be a multiple of actor.ppo_mini_batch_size ({mini})."
    if config.actor_rollout_ref.rollout.n < 2:
        yield "actor_rollout_ref.rollout.n has to be at least 2: advantages compare the trajectories of one question."


def _paths(value: Any) -> list[Path]:
    return [Path(str(one)).expanduser() for one in ([value] if isinstance(value, str) else list(value))]


def _rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    return list(parquet.read_table(path).to_pylist())
