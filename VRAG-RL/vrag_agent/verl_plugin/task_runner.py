"""The Ray actor that drives a run: verl's task runner with our trainer."""

from __future__ import annotations

import logging
from pprint import pformat
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)


@ray.remote
class EpisodeTaskRunner:
    """See the module's text."""

    def run(self, config: DictConfig) -> None:
        from verl.utils.logging_utils import configure_verl_logging

        from vrag_agent.verl_plugin import assert_loaded, hf_rollout

        configure_verl_logging()
        assert_loaded()
        hf_rollout.register()
        import transfer_queue as tq
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        from vrag_agent.verl_plugin.trainer import EpisodeTrainer

        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        log.info("%s", pformat(OmegaConf.to_container(config)))
        tq.init(config.transfer_queue)
        trainer: Any = None
        done = False
        try:
            trainer = EpisodeTrainer(config)
            trainer.init()
            manager = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(manager)
            done = True
        finally:
            try:
                tracking = getattr(trainer, "logger", None)
                if tracking is not None:
                    tracking.finish(exit_code=0 if done else 1)
            finally:
                tq.close()
