"""The training worker: verl's own, with the plug-in asserted and verl mended in its process."""

from __future__ import annotations

import os
from typing import Any

from verl.workers.engine_workers import ActorRolloutRefWorker

from vrag_agent.verl_plugin import assert_loaded, hf_rollout, patches


class EpisodeWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """See the module's text."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        assert_loaded()
        freeze = bool(config.actor.get("freeze_vision_tower", False))
        patches.apply(cpu=os.environ.get("VRAG_DEVICE") == "cpu", freeze_vision=freeze)
        hf_rollout.register()
        super().__init__(config, *args, **kwargs)
