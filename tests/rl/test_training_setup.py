"""Configuration, launchers and the look before the start: what is wrong is said before anything runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("omegaconf")

from omegaconf import OmegaConf

from tests.rl.training_runs import WORDS, write_data
from tests.servers import TinyRetriever, dead_url, page, serve
from vrag.errors import ConfigError
from vrag.vimrag_episode import VimragEpisode
from vrag_agent import preflight
from vrag_agent import settings as training

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = sorted(path.name for path in (ROOT / "VRAG-RL").glob("train_*.sh") if "tiny" not in path.name)


@pytest.fixture(scope="module")
def search_url() -> Iterator[str]:
    with serve(TinyRetriever([page(f"cards_{n}", words) for n, words in enumerate(WORDS, 1)]).app) as url:
        yield f"{url}/search"


# --- the section vrag


def test_an_empty_section_is_the_published_setting() -> None:
    settings = training.read({})
    assert (settings.weights().outcome, settings.weights().gate) == (0.7, True)
    assert settings.make_episode()("Which?").question == "Which?"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"epsiode": {}}, "vrag.epsiode: Extra inputs are not permitted"),
        ({"excluded_limit": 2}, "vrag.excluded_limit"),
        ({"judge": {"kind": "oracle"}}, "no judge 'oracle'"),
        ({"reward": {"preset": "paper"}}, "needs alpha"),
        ({"episode": {"options": {"max_stpes": 3}}}, "max_stpes"),
        ({"episode": {"options": {"max_steps": 0}}}, "max_steps has to be above 0"),
        ({"episode": {"factory": "nowhere:nothing"}}, "cannot be loaded"),
        ({"search": {"search_timeout": -1}}, "search_timeout"),
    ],
)
def test_a_wrong_section_is_a_sentence(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        training.read(section)


def test_the_memory_of_the_vimrag_episode_can_be_set() -> None:
    options = {"max_steps": 3, "memory": {"pixels": 4096, "top_k": 2}}
    episode = training.read({"episode": {"kind": "vimrag", "options": options}}).make_episode()("Which?")
    assert isinstance(episode, VimragEpisode)
    assert episode.options.memory.pixels == 4096


# --- the launchers


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.slow
def test_a_launcher_composes_a_configuration(name: str) -> None:
    pytest.importorskip("verl")
    done = subprocess.run(
        [str(ROOT / "VRAG-RL" / name), "--dry-run", "data.train_batch_size=64"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "PYTHONPATH": f"{ROOT}:{ROOT / 'VRAG-RL'}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    config = OmegaConf.create(done.stdout)
    assert config.data.train_batch_size == 64  # the command line wins
    assert config.algorithm.adv_estimator == "grpo"
    assert config.trainer.v1.trainer_mode == "sync"
    assert config.actor_rollout_ref.rollout.agent.agent_loop_config_path.endswith("agent_loops.yaml")
    training.read(OmegaConf.to_container(config.vrag))
    if "ggpo" in name:
        assert (config.vrag.ggpo.enable, config.vrag.reward.preset) == (True, "vimrag")
    else:
        assert config.vrag.reward.preset == "published"
        assert config.actor_rollout_ref.rollout.n == 5
        assert config.actor_rollout_ref.actor.kl_loss_coef == 0.01


# --- the look before the start


def config_of(folder: Path, **changes: Any) -> Any:
    values = {"train": folder / "train.parquet", "val": folder / "val.parquet", "model": folder, "batch": 4, "n": 4}
    values.update(changes)
    return OmegaConf.create(
        {
            "data": {
                "train_files": str(values["train"]),
                "val_files": str(values["val"]),
                "train_batch_size": values["batch"],
            },
            "actor_rollout_ref": {
                "model": {"path": str(values["model"])},
                "actor": {"ppo_mini_batch_size": 2},
                "rollout": {"n": values["n"]},
            },
        }
    )


def look(config: Any, url: str, **section: Any) -> list[str]:
    return preflight.check(config, training.read({"search": {"search_url": url, "search_retries": 0}, **section}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("setup")
    write_data(made)
    for name in ("config.json", "preprocessor_config.json"):
        (made / name).write_text("{}")
    return made


RULE = {"kind": "exact"}


def test_where_nothing_is_missing_nothing_is_said(folder: Path, search_url: str) -> None:
    assert look(config_of(folder), search_url, judge=RULE) == []


def test_everything_that_is_missing_is_said_at_once(folder: Path) -> None:
    judge = {"kind": "model", "settings": {"base_url": f"{dead_url()}/v1", "model": "judge", "retries": 0}}
    config = config_of(folder, val=folder / "none.parquet", model=folder / "nowhere", batch=3, n=1)
    said = look(config, f"{dead_url()}/search", judge=judge)
    for expected in (
        "none.parquet is not there",
        "Nothing answers",
        "The judge gave no verdict",
        "nowhere",
        "multiple of",
        "at least 2",
    ):
        assert any(expected in problem for problem in said), (expected, said)
