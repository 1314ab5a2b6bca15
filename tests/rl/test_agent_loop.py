"""One trajectory as verl gets it, and what becomes of it when the services around it fail. No Ray: the loop alone."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf

from tests.servers import Fault, ScriptedModel, TinyRetriever, dead_url, page, serve
from vrag.records import list_runs

with warnings.catch_warnings():  # what verl and Ray import from each other
    warnings.simplefilter("ignore")
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    from vrag_agent.verl_plugin import agent_loop
    from vrag_agent.verl_plugin.agent_loop import EpisodeAgentLoop

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

QUESTION = "What digit is on the red fox page?"
ROW = {
    "raw_prompt": [{"role": "user", "content": QUESTION}],
    "reward_model": {"ground_truth": "3"},
    "extra_info": {"index": 0, "question": QUESTION, "file_name": "cards.pdf", "reference_page": [1]},
    "uid": "group",
    "session_id": 0,
    "global_steps": 7,
}
SEARCH = "<think> find</think><search> red fox</search>"
ANSWER = "<think> read</think><answer>3</answer>"


class Server:
    """Where verl's rollout servers are: turns of a script, as token ids."""

    def __init__(self, template: Any, turns: Callable[[int], str]) -> None:
        self._template, self._turns = template, turns
        self.asked: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **asked: Any) -> TokenOutput:
        self.asked.append(asked)
        ids = self._template.encode_turn(self._turns(len(self.asked) - 1))[: asked["sampling_params"]["max_tokens"]]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason="completed",
            extra_fields={"min_global_steps": 6, "max_global_steps": 6},
        )


@pytest.fixture(scope="module")
def retriever() -> TinyRetriever:
    return TinyRetriever([page("cards_1", "red fox"), page("cards_2", "blue owl")])


@pytest.fixture(scope="module")
def search_url(retriever: TinyRetriever) -> Iterator[str]:
    with serve(retriever.app) as url:
        yield f"{url}/search"


def rolled(
    tiny: Any, url: str, turns: Callable[[int], str], row: dict[str, Any] | None = None, **section: Any
) -> tuple[list[AgentLoopOutput], Server]:
    server = Server(tiny.template, turns)
    vrag = {
        "search": {"search_url": url, "search_retries": 2},
        "judge": {"kind": "exact"},
        "episode": {"options": {"max_steps": 3, "min_pixels": 784, "max_pixels": 3136}},
        "page_cache_mb": 0,
        **section,
    }
    config = OmegaConf.create(
        {
            "vrag": vrag,
            "actor_rollout_ref": {"rollout": {"prompt_length": 3000, "response_length": 2000}},
            "data": {},
        }
    )

    async def run() -> list[AgentLoopOutput]:
        agent_loop._shared.cache_clear()  # its clients belong to the event loop of one process
        loop = EpisodeAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=server,
            tokenizer=tiny.processor.tokenizer,
            processor=tiny.processor,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
            hf_model_type=None,
        )
        try:
            return await loop.run({"temperature": 1.0, "logprobs": True}, **(row or ROW))
        finally:
            await loop._shared.retriever.close()
            loop._shared.judge.close()

    return asyncio.run(run()), server


def script(*turns: str) -> Callable[[int], str]:
    return lambda number: turns[min(number, len(turns) - 1)]


def excluded(outputs: list[AgentLoopOutput]) -> tuple[str, str]:
    [output] = outputs
    assert (sum(output.response_mask), output.reward_score) == (0, 0.0)
    return output.extra_fields["excluded"], output.extra_fields["why"]


def test_a_trajectory_is_what_was_sampled(tiny: Any, search_url: str, tmp_path: Path) -> None:
    outputs, server = rolled(tiny, search_url, script(SEARCH, ANSWER), records={"folder": str(tmp_path)})
    [output] = outputs
    sampled = [token for turn in (SEARCH, ANSWER) for token in tiny.template.encode_turn(turn)]
    kept = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert kept == sampled
    assert output.reward_score == pytest.approx(1.0)
    assert len(output.multi_modal_data["images"]) == 1
    assert output.extra_fields["reward_extra_info"]["correct"] == 1.0
    assert [mark[2:] for mark in output.extra_fields["marks"]] == [[0, 0], [1, 0]]
    assert output.extra_fields["min_global_steps"] == 6
    assert server.asked[0]["sampling_params"]["logprobs"] is True
    [line] = map(json.loads, (tmp_path / "train" / "trajectories.jsonl").read_text().splitlines())
    assert line["reward"]["total"] == pytest.approx(1.0)
    [run] = list_runs(tmp_path / "train" / "step_000007")
    assert (str(run.path), run.answer) == (str(tmp_path / "train" / line["record"]), "3")


def test_a_trajectory_without_pictures_has_no_list_of_them(tiny: Any, search_url: str) -> None:
    [output], _ = rolled(tiny, search_url, script(ANSWER))
    assert output.multi_modal_data == {}
    assert output.reward_score == 0.0  # published: no search, no reward
    assert output.extra_fields["excluded"] == ""


def test_a_retriever_that_comes_back_costs_nothing(tiny: Any, retriever: TinyRetriever, search_url: str) -> None:
    retriever.faults[:] = [Fault(503), Fault(503)]
    [output], _ = rolled(tiny, search_url, script(SEARCH, ANSWER))
    assert (retriever.faults, output.reward_score) == ([], pytest.approx(1.0))


def test_a_retriever_that_is_down_in_the_middle_excludes(tiny: Any, retriever: TinyRetriever, search_url: str) -> None:
    retriever.faults[:] = [None, None, Fault(503), Fault(503), Fault(503)]  # search, page, then nothing
    again = "<think> find</think><search> blue owl</search>"
    reason, why = excluded(rolled(tiny, search_url, script(SEARCH, again, ANSWER))[0])
    retriever.faults.clear()
    assert reason == "retriever"
    assert "503" in why


def test_a_model_that_never_answers_ends_and_is_not_excluded(tiny: Any, search_url: str) -> None:
    outputs, server = rolled(tiny, search_url, script("<think> hm</think>"))
    assert len(server.asked) == 5  # three steps, the call to answer, the question in plain text
    assert outputs[-1].reward_score == 0.0
    assert outputs[-1].extra_fields["excluded"] == ""
    assert outputs[-1].extra_fields["reward_extra_info"]["answered"] == 0.0


def test_a_rollout_server_that_fails_excludes(tiny: Any, search_url: str) -> None:
    def fails(number: int) -> str:
        raise RuntimeError("the actor died")

    reason, why = excluded(rolled(tiny, search_url, fails)[0])
    assert reason == "model"
    assert "the actor died" in why


def test_a_row_without_an_answer_excludes(tiny: Any, search_url: str) -> None:
    row = {**ROW, "reward_model": {"ground_truth": ""}, "extra_info": {"question": QUESTION}}
    assert excluded(rolled(tiny, search_url, script(ANSWER), row)[0])[0] == "data"


@pytest.mark.parametrize("fault", ["down", "slow", "garbage"])
def test_a_judge_that_gives_no_verdict_excludes(tiny: Any, search_url: str, fault: str) -> None:
    replies: dict[str, Any] = {"down": "", "slow": Fault(delay=5.0, body={}), "garbage": "Perhaps <judge>maybe</judge>"}
    settings = {"model": "judge", "retries": 0, "read_timeout": 0.5, "reply_timeout": 0.5}
    with serve(ScriptedModel(lambda _: replies[fault], models=("judge",)).app) as url:
        base = dead_url() if fault == "down" else url
        judge = {"kind": "model", "settings": {**settings, "base_url": f"{base}/v1"}}
        reason, why = excluded(rolled(tiny, search_url, script(SEARCH, ANSWER), judge=judge)[0])
    assert reason == "judge"
    assert why.startswith("The judge gave no verdict")
