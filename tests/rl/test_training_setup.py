"""Configuration, launchers and the look before the start: what is wrong is said before anything runs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
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
from vrag_agent import preflight, train
from vrag_agent import settings as training

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = sorted(path.name for path in (ROOT / "VRAG-RL").glob("train_*.sh") if "tiny" not in path.name)
LOOPS = ROOT / "VRAG-RL" / "vrag_agent" / "verl_plugin" / "agent_loops.yaml"
#: Names that a folder may have, and that mean something to Hydra or to a shell.
NAMES = (
    "données/训练",
    "My Docs (1)",
    "run=1",
    "it's",
    "a#b",
    "qwen[1]",
    "{x}",
    "a,b:c",
    "back\\slash",
    "a\\'b",
    "end\\",
)


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
        ({"episode": {"prompts": "/nonexist"}}, "no folder of prompts /nonexist"),
        ({"reward": {"function": "my_pkg.nope:x"}}, "'my_pkg.nope:x' cannot be loaded"),
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


def launch(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("verl")
    here = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "PYTHONPATH": f"{ROOT}:{ROOT / 'VRAG-RL'}"}
    return subprocess.run(
        [str(ROOT / "VRAG-RL" / name), *arguments],
        env={**here, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def surroundings(**variables: str) -> dict[str, Any]:
    """The settings that every launcher takes from the environment, as Hydra understands them."""
    pytest.importorskip("hydra")
    from hydra.core.override_parser.overrides_parser import OverridesParser

    needed = {"PATH": "/usr/bin:/bin", "NAME": "run", "MODEL": "m", "GPUS": "8"}
    script = '. scripts/lib/launcher.sh; printf "%s\\0" "${surroundings[@]}"'
    done = subprocess.run(
        ["bash", "-euc", script], cwd=ROOT, env={**needed, **variables}, capture_output=True, text=True, check=True
    )
    parsed = OverridesParser.create().parse_overrides(done.stdout.split("\0")[:-1])
    return {one.key_or_group: one.value() for one in parsed}


@pytest.mark.parametrize("name", NAMES)
def test_a_path_may_have_any_character(name: str) -> None:
    path = f"/tmp/{name}"
    found = surroundings(TRAIN=f"{path}/a.parquet", VAL=path, MODEL=path, OUT=path, NAME=name)
    assert found["data.train_files"] == f"{path}/a.parquet"
    assert found["data.val_files"] == found["actor_rollout_ref.model.path"] == path
    assert found["trainer.default_local_dir"] == path
    assert found["vrag.records.folder"] == f"{path}/records"
    assert found["trainer.experiment_name"] == name


def test_a_name_that_looks_like_a_number_stays_a_name() -> None:
    found = surroundings(JUDGE_MODEL="4", GPUS="4")
    assert found["vrag.judge.settings.model"] == "4"
    assert found["trainer.n_gpus_per_node"] == 4


def test_the_variables_of_the_library_name_the_services_too() -> None:
    own = {"VRAG_SEARCH_URL": "http://a/search", "VRAG_JUDGE_BASE_URL": "http://b/v1", "VRAG_JUDGE_MODEL": "c"}
    keys = ("vrag.search.search_url", "vrag.judge.settings.base_url", "vrag.judge.settings.model")
    assert [surroundings(**own)[key] for key in keys] == list(own.values())
    given = {"SEARCH_URL": "http://d/search", "JUDGE_URL": "http://e/v1", "JUDGE_MODEL": "f"}
    assert [surroundings(**own, **given)[key] for key in keys] == list(given.values())
    assert [surroundings()[key] for key in keys] == ["http://127.0.0.1:8001/search", "http://127.0.0.1:8002/v1", ""]


def test_the_data_is_looked_for_where_the_converter_writes_it() -> None:
    found = surroundings()
    assert found["data.train_files"] == "data/overall_train.parquet"
    assert found["data.val_files"] == "data/overall_test.parquet"


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.slow
def test_a_launcher_composes_a_configuration(name: str) -> None:
    folder = "/tmp/it's (1)/训练=[x]#"
    done = launch(
        name, "--dry-run", "data.train_batch_size=64", TRAIN=folder, MODEL=folder, OUT="~/runs", JUDGE_MODEL="4"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    config = OmegaConf.create(done.stdout)
    assert config.data.train_files == config.actor_rollout_ref.model.path == folder
    assert config.trainer.default_local_dir == str(Path("~/runs").expanduser())
    assert config.vrag.judge.settings.model == "4"
    assert config.trainer.experiment_name == name.removeprefix("train_").removesuffix(".sh")
    assert not config.vrag.skip_silent_groups
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        ((), {"GPUS": "7"}, "cannot be shared out equally"),
        (("--no-preflight",), {"GPUS": "abc"}, "not 'abc'"),
        # One that only verl knows of.
        (
            ("--no-preflight", "+backend=cpu", "actor_rollout_ref.actor.ppo_micro_batch_size=2"),
            {},
            "verl refuses the configuration: [actor] You have set both",
        ),
    ],
)
def test_a_launcher_refuses_a_wrong_setting_without_a_traceback(
    arguments: tuple[str, ...], variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = launch("train_grpo_qwen2_5_vl_7b.sh", *arguments, OUT=str(tmp_path), **variables)
    assert done.returncode == 2, done.stderr[-2000:]
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_that_no_shell_has_put_in_is_the_users(folder: Path) -> None:
    config = config_of(folder, data__train_files=["~/a.parquet", "b.parquet"], trainer__default_local_dir="~/runs")
    train.complete(config)
    assert list(config.data.train_files) == [str(Path("~/a.parquet").expanduser()), "b.parquet"]
    assert config.trainer.default_local_dir == str(Path("~/runs").expanduser())


# --- the look before the start


def config_of(folder: Path, **changes: Any) -> Any:
    """What is read of a configuration; ``changes`` replace settings (a double underscore is a dot)."""
    config = OmegaConf.create(
        {
            "vrag": {},
            "data": {
                "train_files": str(folder / "train.parquet"),
                "val_files": str(folder / "val.parquet"),
                "train_batch_size": 4,
            },
            "actor_rollout_ref": {
                "model": {"path": str(folder)},
                "actor": {
                    "ppo_mini_batch_size": 2,
                    "use_dynamic_bsz": False,
                    "entropy_coeff": 0,
                    "kl_loss_type": "low_var_kl",
                    "loss_agg_mode": "token-mean",
                    "policy_loss": {"loss_mode": "vanilla"},
                },
                "rollout": {"n": 4, "agent": {"agent_loop_config_path": str(LOOPS)}},
            },
            "algorithm": {"rollout_correction": {"rollout_is": None}},
            "trainer": {"n_gpus_per_node": 1, "nnodes": 1, "default_local_dir": str(folder / "out")},
        }
    )
    for name, value in changes.items():
        OmegaConf.update(config, name.replace("__", "."), str(value) if isinstance(value, Path) else value)
    return config


def look(config: Any, url: str, **section: Any) -> list[str]:
    return preflight.check(config, training.read({"search": {"search_url": url, "search_retries": 0}, **section}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("setup")
    write_data(made)
    for name in ("config.json", "preprocessor_config.json", "tokenizer.json", "model.safetensors"):
        (made / name).write_text("{}")
    return made


RULE = {"kind": "exact"}


def test_where_nothing_is_missing_nothing_is_said(folder: Path, search_url: str) -> None:
    assert look(config_of(folder), search_url, judge=RULE) == []


def test_everything_that_is_missing_is_said_at_once(folder: Path) -> None:
    judge = {"kind": "model", "settings": {"base_url": f"{dead_url()}/v1", "model": "judge", "retries": 0}}
    config = config_of(
        folder,
        data__val_files=folder / "none.parquet",
        data__train_batch_size=3,
        actor_rollout_ref__model__path=folder / "nowhere",
        actor_rollout_ref__rollout__n=1,
    )
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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trainer__n_gpus_per_node": 7}, r"4 \* 4 trajectories of a step .* equally to 7 GPUs on each of 1 machines"),
        ({"trainer__n_gpus_per_node": "abc"}, "trainer.n_gpus_per_node has to be a whole number above 0, not 'abc'"),
        ({"actor_rollout_ref__actor__ppo_mini_batch_size": 0}, "ppo_mini_batch_size has to be a whole .* not 0"),
        (
            {"data__train_batch_size": 32},
            r"data.train_files has 16 rows, fewer than data.train_batch_size \(32\): lower",
        ),
        ({"data__train_max_samples": 2}, r"data.train_max_samples \(2\) has to be at least"),
        (
            {"actor_rollout_ref__rollout__agent__agent_loop_config_path": "/none.yaml"},
            "agent_loop_config_path: /none.yaml is no list of agent loops",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_sentences(change: dict[str, Any], said: str, folder: Path, search_url: str) -> None:
    with pytest.raises(ConfigError, match=said):
        raise ConfigError("".join(look(config_of(folder, **change), search_url, judge=RULE)))


IGNORED = {
    "actor_rollout_ref__actor__entropy_coeff": (0.01, "set 0 instead"),
    "actor_rollout_ref__actor__kl_loss_type": ("kl", "set low_var_kl instead"),
    "actor_rollout_ref__actor__policy_loss__loss_mode": ("gspo", "set vrag.ggpo.ratio instead"),
    "actor_rollout_ref__actor__loss_agg_mode": ("seq-mean-token-mean", "set vrag.ggpo.aggregation instead"),
    "algorithm__rollout_correction__rollout_is": ("token", "set null instead"),
}


@pytest.mark.parametrize("name", IGNORED)
def test_ggpo_refuses_what_its_loss_does_not_use(name: str, folder: Path) -> None:
    value, instead = IGNORED[name]
    config = config_of(folder, **{name: value})
    said = f"GGPO has its own loss: {name.replace('__', '.')}={value} is not used; {instead}."
    assert preflight.config_problems(config, training.read({"ggpo": {"enable": True}})) == [said]
    assert preflight.config_problems(config, training.read({})) == []


def test_the_agent_loops_have_their_names() -> None:
    assert tuple(one["name"] for one in OmegaConf.load(LOOPS)) == preflight.AGENTS


def test_an_interrupt_while_services_are_looked_at_is_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    me = threading.main_thread().ident
    assert me is not None

    async def interrupting(scope: Any, receive: Any, send: Any) -> None:
        signal.pthread_kill(me, signal.SIGINT)
        await asyncio.sleep(30)

    with serve(interrupting) as url:
        config = config_of(folder, vrag={"search": {"search_url": f"{url}/search"}, "judge": RULE})
        assert train._run(config, set()) == 130
    assert "Interrupted" in (said := capsys.readouterr().err)
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
