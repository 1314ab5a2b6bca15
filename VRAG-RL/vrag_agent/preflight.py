"""What has to be there before a training starts: ``python -m vrag_agent.preflight --train train.parquet ...``.

    the data        the columns that trainer and rewards read, a question and an answer in every row, reference pages
                    where the reward scores the retrieval (or GGPO looks for valuable nodes), enough rows for a batch
    the retriever   it answers, finds something, and has the reference pages of a sample of the data
    the judge       it gives a verdict on a trivial question
    the model       the folder is a whole checkpoint
    the settings    the sizes of batches, groups and machines fit each other; nothing is set that GGPO would not use

Every problem is one line that says what is missing and what to do. What only may be wrong is logged and does not stop.
"""

from __future__ import annotations

import argparse
import functools
import logging
import random
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrag.errors import ConfigError, MediaError, VragError
from vrag.judge import JUDGES, JudgeSettings, ModelJudge, RuleJudge, open_judge
from vrag.retriever import HttpRetriever
from vrag.rewards import Weights, weights
from vrag.settings import SearchSettings
from vrag_agent.data.table import read_table
from vrag_agent.scoring import Task, task_of

if TYPE_CHECKING:
    from vrag_agent.settings import TrainSettings

log = logging.getLogger("vrag_agent.preflight")

COLUMNS = ("data_source", "prompt", "reward_model", "extra_info")
#: The agent loops of verl_plugin/agent_loops.yaml, by the names that rows may call them.
AGENTS = ("vrag", "vimrag")
#: Reference pages that are looked up in the index, and the share of them that may be missing.
SAMPLE, MAY_BE_MISSING = 16, 0.25
#: In the path of a table: verl's loader takes these for a pattern of files, or for a file within an archive.
PATTERN = re.compile(r"[*?]|\[.*\]|::")
#: What a whole checkpoint has: one of the files of each line.
CHECKPOINT = {
    "config.json": ("config.json",),
    "processor": ("preprocessor_config.json", "processor_config.json"),
    "tokenizer": ("tokenizer.json", "vocab.json", "tokenizer.model"),
    "weights": ("model*.safetensors", "pytorch_model*.bin"),
}
#: What GGPO's own loss does not use: the setting, its values that change nothing, and what to do.
GGPO_IGNORES: dict[str, tuple[tuple[Any, ...], str]] = {
    "actor_rollout_ref.actor.entropy_coeff": ((0,), "set 0"),
    "actor_rollout_ref.actor.kl_loss_type": (("low_var_kl", "k3"), "set low_var_kl"),
    "actor_rollout_ref.actor.policy_loss.loss_mode": (("vanilla",), "set vrag.ggpo.ratio"),
    "actor_rollout_ref.actor.loss_agg_mode": (("token-mean",), "set vrag.ggpo.aggregation"),
    "algorithm.rollout_correction.rollout_is": ((None,), "set null"),
}


@dataclass(frozen=True)
class Plan:
    """What a training is going to use. ``judge`` opens the judge; ``pages`` tells whether reference pages are needed;
    ``batch`` is the number of questions of a step; ``agents`` are the names that rows may call their agent loop."""

    train: Sequence[Path]
    validation: Sequence[Path]
    search: SearchSettings
    judge: Callable[[], ModelJudge | RuleJudge]
    pages: bool = True
    batch: int = 1
    agents: Collection[str] = AGENTS


def check(config: Any, settings: TrainSettings) -> list[str]:
    """The problems of a training by its configuration (verl's, with the section ``vrag``); empty: it can start."""
    wrong = config_problems(config, settings)
    data, batch = config["data"], config["data"]["train_batch_size"]
    needed = settings.reward.function is None and settings.weights().retrieval > 0
    plan = Plan(
        _paths(data.get("train_files")),
        _paths(data.get("val_files")),
        settings.search_settings(),
        settings.open_judge,
        needed or settings.ggpo.enable,
        batch if isinstance(batch, int) else 1,
        _agents(config),
    )
    return [*problems(plan), *model_problems(str(config.actor_rollout_ref.model.path)), *wrong]


def config_problems(config: Any, settings: TrainSettings) -> list[str]:
    """What is wrong with a configuration by itself, whatever services, data and model there are."""
    return [*size_problems(config), *(ggpo_problems(config) if settings.ggpo.enable else ())]


def problems(plan: Plan) -> list[str]:
    """One line for everything that is missing."""
    found: list[str] = []
    train = _tasks(plan.train, "training", plan.pages, plan.agents, found)
    validation = _tasks(plan.validation, "validation", False, plan.agents, found)
    if 0 < len(train) < plan.batch:
        found.append(
            f"data.train_files has {len(train)} rows, fewer than data.train_batch_size ({plan.batch}): lower it or add data."
        )
    common = {task.question for task in train} & {task.question for task in validation}
    if common:
        log.warning("%d questions of the validation stand in the training data too", len(common))
    found += retriever_problems(plan.search, [*train, *validation])
    found += judge_problems(plan.judge)
    return found


def data_problems(path: Path, pages: bool, agents: Collection[str] = AGENTS) -> tuple[list[Task], list[str]]:
    """The rows of a table as rewards read them, and what is wrong with the table."""
    if not path.is_file():
        return [], [f"The data {path} is not there; make it with scripts/hf_dataset_convert.py."]
    try:
        rows = read_table(path)
    except ConfigError as error:
        return [], [str(error)]
    if not rows:
        return [], [f"The data {path} has no rows."]
    missing = [name for name in COLUMNS if name not in rows[0]]
    if missing:
        return [], [
            f"The data {path} lacks the columns {', '.join(missing)}; make it with scripts/hf_dataset_convert.py."
        ]
    tasks: list[Task] = []
    wrong: list[str] = []
    for number, row in enumerate(rows, 1):
        task = _task(row)
        if isinstance(task, str):
            wrong.append(f"row {number}: {task}")
        else:
            tasks.append(task)
    found = []
    if sign := PATTERN.search(str(path.absolute())):
        found.append(
            f"{path.absolute()}: verl does not find a table with {sign[0]} in its path; put it into a folder without."
        )
    if wrong:
        found.append(f"{path}: {len(wrong)} of {len(rows)} rows cannot be rewarded; {wrong[0]}")
    # Without the column verl takes its default agent loop.
    unknown = [row["agent_name"] for row in rows if "agent_name" in row and row["agent_name"] not in agents]
    if unknown:
        found.append(
            f"{path}: {len(unknown)} of {len(rows)} rows name an agent loop that does not exist, {unknown[0]!r}; convert the "
            f"data again with --agent-name {' or '.join(agents)}."
        )
    without = sum(not task.relevant for task in tasks)
    if pages and tasks and without == len(tasks):
        found.append(
            f"{path}: no row names a reference page (file_name, reference_page), but the reward scores the retrieval; "
            "convert data that has them, or set vrag.reward.preset=vimrag without GGPO."
        )
    elif pages and without:
        log.warning(
            "%s: %d of %d rows name no reference page; their retrieval always scores 0", path, without, len(rows)
        )
    return tasks, found


def _task(row: dict[str, Any]) -> Task | str:
    """A row as rewards read it, or why they cannot."""
    try:
        return task_of(row)
    except (VragError, TypeError, ValueError, AttributeError) as error:
        return str(error)


def retriever_problems(settings: SearchSettings, tasks: Sequence[Task]) -> list[str]:
    """Whether the search service answers and has a sample of the reference pages."""
    with HttpRetriever(settings) as retriever:
        try:
            question = tasks[0].question if tasks else "what is shown on this page"
            if not retriever.search([question[:500]], 1)[0]:
                return [
                    f"The search service at {settings.search_url} answers, but its index finds nothing: is it empty?"
                ]
            sample = _sample(task.relevant for task in tasks)
            unknown = [item for item in sample if not _known(retriever, item)]
        except VragError as error:
            return [f"The retriever cannot be used. {error}"]
    if len(unknown) > MAY_BE_MISSING * len(sample):
        return [
            f"{len(unknown)} of {len(sample)} reference pages that were looked up are not in the index at "
            f"{settings.search_url} (such as {', '.join(unknown[:3])}). Index the documents of this dataset; a page is "
            "named <file name without suffix>_<page from 1>."
        ]
    if unknown:
        log.warning("%d of %d reference pages are not in the index, such as %s", len(unknown), len(sample), unknown[0])
    return []


def judge_problems(open_it: Callable[[], ModelJudge | RuleJudge]) -> list[str]:
    """Whether the judge judges."""
    try:
        with open_it() as judge:
            if isinstance(judge, ModelJudge):
                log.info("the judge is %s", judge.probe())
            else:
                log.info("the judge is %s: a rule, not a model", judge.name)
    except VragError as error:
        return [f"The judge cannot be used. {error}"]
    return []


def model_problems(name: str) -> list[str]:
    """Whether a folder holds a whole checkpoint; a name on the hub is left to the trainer."""
    path = Path(name).expanduser()
    if not path.is_dir():
        # A name on the hub is owner/model. A path of that form begins with a folder that is there.
        hub = name.count("/") == 1 and not path.is_absolute() and not Path(path.parts[0]).is_dir()
        if hub or "://" in name:
            return []
        return [
            f"actor_rollout_ref.model.path: there is no folder {path}; give one, or a name on the hub (owner/model)."
        ]
    missing = [what for what, files in CHECKPOINT.items() if not any(any(path.glob(file)) for file in files)]
    return (
        [f"actor_rollout_ref.model.path: {path} has no {' and no '.join(missing)}; it is no whole checkpoint."]
        if missing
        else []
    )


def size_problems(config: Any) -> list[str]:
    """Whether the sizes of batches, groups and machines fit each other."""
    actor = "actor_rollout_ref.actor"
    names = ("data.train_batch_size", f"{actor}.ppo_mini_batch_size", "actor_rollout_ref.rollout.n")
    names += ("trainer.n_gpus_per_node", "trainer.nnodes")
    sizes = {name: _at(config, name) for name in names}
    found = [
        f"{name} has to be a whole number above 0, not {size!r}."
        for name, size in sizes.items()
        if isinstance(size, bool) or not isinstance(size, int) or size < 1
    ]
    if found:
        return found
    train, mini, group, gpus, nodes = sizes.values()
    if train % mini:
        found.append(f"data.train_batch_size ({train}) has to be a multiple of actor.ppo_mini_batch_size ({mini}).")
    most = config.data.get("train_max_samples", -1)
    if 0 < most < train:
        found.append(f"data.train_max_samples ({most}) has to be at least data.train_batch_size ({train}).")
    if group < 2:
        found.append(
            "actor_rollout_ref.rollout.n has to be at least 2: advantages compare the answers to one question."
        )
    if train * group % (gpus * nodes) and not _at(config, f"{actor}.use_dynamic_bsz"):
        found.append(
            f"The {train} * {group} trajectories of a step (data.train_batch_size, rollout.n) cannot be shared out equally to "
            f"{gpus} GPUs on each of {nodes} machines: change trainer.n_gpus_per_node (GPUS), trainer.nnodes (NODES) or the batch."
        )
    return found


def ggpo_problems(config: Any) -> list[str]:
    """Settings of verl's loss that would be ignored without a word, for GGPO has its own."""
    return [
        f"GGPO has its own loss: {name}={_at(config, name)} is not used; {instead} instead."
        for name, (without_effect, instead) in GGPO_IGNORES.items()
        if _at(config, name) not in without_effect
    ]


def _at(config: Any, name: str) -> Any:
    """A setting by its name with dots."""
    return functools.reduce(lambda section, key: section[key], name.split("."), config)


def _agents(config: Any) -> Collection[str]:
    """The names in the file of agent loops. Raises ConfigError."""
    from omegaconf import OmegaConf

    path = _at(config, "actor_rollout_ref.rollout.agent.agent_loop_config_path")
    try:
        return [str(one["name"]) for one in OmegaConf.load(path)]
    except Exception as error:  # what is not there, what is no YAML, and what is another one
        raise ConfigError(
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path: {path} is no list of agent loops ({error}); leave the "
            "setting out for those of this project."
        ) from error


def _known(retriever: HttpRetriever, item_id: str) -> bool:
    try:
        retriever.image(item_id)
    except MediaError:
        return False
    return True


def _sample(ids: Iterable[frozenset[str]]) -> list[str]:
    """Some ids of all, the same ones every time."""
    everything = sorted(set().union(*ids))
    return sorted(random.Random(0).sample(everything, min(SAMPLE, len(everything))))


def _tasks(paths: Sequence[Path], what: str, pages: bool, agents: Collection[str], found: list[str]) -> list[Task]:
    if not paths:
        found.append(f"No {what} data is set (data.{'train' if what == 'training' else 'val'}_files).")
    tasks: list[Task] = []
    for path in paths:
        some, wrong = data_problems(path, pages, agents)
        tasks += some
        found += wrong
    return tasks


def _paths(value: Any) -> list[Path]:
    """A path, several, or none, as configurations write them."""
    if value is None or value == "":
        return []
    several = [value] if isinstance(value, str | Path) else list(value)
    return [Path(str(one)).expanduser() for one in several]


# --- the command


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m vrag_agent.preflight", description="Check data, retriever and judge before a training."
    )
    out.add_argument("--train", type=Path, nargs="+", required=True, metavar="PARQUET")
    out.add_argument("--val", type=Path, nargs="+", required=True, metavar="PARQUET")
    out.add_argument("--search-url", help="default: VRAG_SEARCH_URL, else that of the demo's search service")
    out.add_argument(
        "--judge", choices=JUDGES, default="model", help="model: VRAG_JUDGE_BASE_URL, VRAG_JUDGE_MODEL, ..."
    )
    out.add_argument("--reward", choices=("published", "paper", "vimrag"), default="published")
    out.add_argument("--alpha", type=float, help="with --reward paper: weight of the retrieval")
    out.add_argument("--beta", type=float, help="with --reward paper: weight of the outcome")
    out.add_argument("--gamma", type=float, help="with --reward paper: weight of the pattern")
    out.add_argument("--ggpo", action="store_true", help="GGPO, which needs reference pages whatever the reward")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    try:
        chosen: Weights = weights(args.reward, args.alpha, args.beta, args.gamma)
        search = SearchSettings(search_url=args.search_url)
        found = problems(
            Plan(
                args.train,
                args.val,
                search,
                lambda: open_judge(args.judge, JudgeSettings),
                chosen.retrieval > 0 or args.ggpo,
            )
        )
    except VragError as error:
        found = [str(error)]
    if found:
        sys.stderr.write("Training cannot start:\n" + "".join(f"- {problem}\n" for problem in found))
        return 2
    sys.stdout.write("Data, retriever and judge are ready.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
