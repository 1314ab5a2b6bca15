"""Train an agent: ``python -m vrag_agent.train [--config-name grpo] [--dry-run] [--no-preflight] key=value ...``

The configuration is verl's own plus the section ``vrag`` (see vrag_agent/settings.py); ``--config-name`` takes one of
vrag_agent/config. ``--dry-run`` prints all of it, resolved, and starts nothing. Before a start the services and the data are
looked at (vrag_agent/preflight.py). Ctrl-C ends the run at once; the latest checkpoint stays, and the same command goes on
from it (trainer.resume_mode=auto).

Exit status: 0 done, 1 the run failed, 2 something is wrong with the configuration or a service, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from vrag.errors import ConfigError, VragError
from vrag_agent import preflight
from vrag_agent import settings as training
from vrag_agent.causes import first_cause

log = logging.getLogger("vrag_agent.train")

_OURS = {"--dry-run", "--no-preflight"}
#: Where files are. A "~" that no shell has replaced, in quotes say, is a folder of that name to verl.
_PATHS = (
    "data.train_files",
    "data.val_files",
    "actor_rollout_ref.model.path",
    "trainer.default_local_dir",
    "vrag.records.folder",
    "vrag.episode.prompts",
    "vrag.judge.settings.cache",
)


def main() -> None:
    """The command line."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    flags = _OURS & set(sys.argv[1:])
    sys.argv[1:] = _options_first([argument for argument in sys.argv[1:] if argument not in _OURS])

    @hydra.main(config_path="config", config_name="grpo", version_base=None)
    def composed(config: DictConfig) -> None:
        sys.exit(_run(config, flags))

    try:
        composed()
    except KeyboardInterrupt:  # while the configuration is put together, for which verl is imported
        sys.stderr.write("Interrupted before the run was started.\n")
        sys.exit(130)


def _options_first(arguments: list[str]) -> list[str]:
    """Hydra understands its options only where they do not stand between the settings; people write them anywhere."""
    options: list[str] = []
    rest = list(arguments)
    for name in ("--config-name", "-cn"):
        while name in rest and rest.index(name) + 1 < len(rest):
            at = rest.index(name)
            options += rest[at : at + 2]
            del rest[at : at + 2]
    return options + [one for one in rest if one.startswith("-")] + [one for one in rest if not one.startswith("-")]


def _run(config: DictConfig, flags: set[str]) -> int:
    try:
        complete(config)
        settings = training.read(OmegaConf.to_container(config.vrag, resolve=True))  # type: ignore[arg-type]
        look = settings.preflight and not flags & _OURS
        problems = (preflight.check if look else preflight.config_problems)(config, settings)
        if problems:
            sys.stderr.write("The run was not started:\n" + "".join(f"- {problem}\n" for problem in problems))
            return 2
        if "--dry-run" in flags:
            sys.stdout.write(OmegaConf.to_yaml(config, resolve=True))
            return 0
        return _train(config)
    except VragError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(
            f"Interrupted. What was saved stays in {config.trainer.default_local_dir}; the same command goes on from there.\n"
        )
        return 130


def complete(config: DictConfig) -> None:
    """Fill in what follows from the rest: paths of this package, the user's home."""
    agent = config.actor_rollout_ref.rollout.agent
    with open_dict(config):
        if agent.agent_loop_config_path is None:
            agent.agent_loop_config_path = str(Path(__file__).parent / "verl_plugin" / "agent_loops.yaml")
    for name in _PATHS:
        value = OmegaConf.select(config, name)
        if isinstance(value, str):
            OmegaConf.update(config, name, os.path.expanduser(value))
        elif isinstance(value, ListConfig):
            OmegaConf.update(config, name, [os.path.expanduser(str(one)) for one in value])


def _train(config: DictConfig) -> int:
    if config.trainer.device == "cpu":
        # Ray's processes inherit both: our platform, and the engines that verl registers for CUDA alone.
        os.environ["VRAG_DEVICE"] = "cpu"
        os.environ["VERL_ENGINE_DEVICE"] = "cuda"
    _keep_logs(Path(config.trainer.default_local_dir))
    # Ray starts its workers at nice 15: beside any other load a rollout would starve.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from vrag_agent.verl_plugin import assert_loaded, cpu_platform
    from vrag_agent.verl_plugin.task_runner import EpisodeTaskRunner

    assert_loaded()
    if config.trainer.device == "cpu":
        cpu_platform.install()  # Hydra has imported verl to find its configuration, before the device was known
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
    except (AssertionError, TypeError, ValueError, HydraException) as error:
        # Hydra says of an error in verl's classes mainly which arguments they were given.
        raise ConfigError(f"verl refuses the configuration: {error.__cause__ or error}") from error
    try:
        run_ppo(config, task_runner_class=EpisodeTaskRunner)
    except ray.exceptions.RayTaskError as error:
        log.error("%s", error)
        sys.stderr.write(f"The run failed: {first_cause(error)}\n")
        return 1
    finally:
        if ray.is_initialized():
            ray.shutdown()
    return 0


def _keep_logs(folder: Path) -> None:
    """Logs stand beside the checkpoints, one file per start: verl's would overwrite that of the run it goes on from."""
    folder = folder.expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("metrics*.jsonl"))) + 1
    os.environ.setdefault("VERL_FILE_LOGGER_PATH", str(folder / f"metrics_{number:02d}.jsonl"))
    os.environ.setdefault("TENSORBOARD_DIR", str(folder / "tensorboard"))


if __name__ == "__main__":
    main()
