"""The plug-in on verl: loaded in every process that imports verl, through the entry point group ``verl.plugins``.

verl logs a plug-in that fails to load at DEBUG, which nobody reads, and goes on without it. So loading does as little as
can be (the version is looked at, a CPU platform is set where one is asked for), and the parts that matter assert in their
own process that it happened: :func:`assert_loaded` in the task runner and in every training worker.

| file | what hooks in where |
|---|---|
| `cpu_platform.py` | a "cpu" device for the tests (environment ``VRAG_DEVICE=cpu``) |
| `hf_rollout.py` | a rollout server on ``transformers`` that batches requests: the test backend |
| `agent_loop.py` | one trajectory: an episode of vrag on the token driver, scored |
| `replay.py` | the sampler: leaves out what could not be scored, and counts it |
| `trainer.py` | PPOTrainerSync with GGPO's masks and loss |
| `workers.py` | the training worker: asserts, and mends what is broken in verl 0.9.1 (`patches.py`) |
| `task_runner.py` | the Ray actor that drives a run |
"""

from __future__ import annotations

import os
from importlib import metadata

VERL_VERSION = "0.9.1"
_loaded = False


def check_version() -> None:
    """Raise RuntimeError for a verl that this plug-in was not written for."""
    found = metadata.version("verl")
    if found != VERL_VERSION:
        raise RuntimeError(
            f"vrag-rl plugs into verl {VERL_VERSION} and found verl {found}. The parts that it hooks into change from "
            f"version to version: install the pinned one (pip install verl=={VERL_VERSION})."
        )


def assert_loaded() -> None:
    """Raise RuntimeError where verl runs without this plug-in in the current process."""
    check_version()
    if not _loaded:
        raise RuntimeError(
            "verl runs in this process without its plug-in 'vrag'. Is vrag-rl installed in the environment of every "
            "node (pip install -e VRAG-RL), and is VERL_USE_EXTERNAL_PLUGINS unset, auto or a list with 'vrag'?"
        )


def _load() -> None:
    global _loaded
    check_version()
    if os.environ.get("VRAG_DEVICE") == "cpu":
        from vrag_agent.verl_plugin import cpu_platform

        cpu_platform.install()
    _loaded = True


_load()
