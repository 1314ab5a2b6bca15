"""Micro-batching: the same answers as one by one, nothing waits when idle, nobody pays for another's error."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_engine.service.batching import Batcher, Overloaded, Stopped


class Gate:
    """A blocking function whose runs can be held back and looked at afterwards."""

    def __init__(self, held: bool = False) -> None:
        self.runs: list[tuple[object, list[str]]] = []
        self.threads: set[int] = set()
        self.running = threading.Event()
        self.go = threading.Event()
        if not held:
            self.go.set()

    def __call__(self, key: object, inputs: list[str]) -> list[str]:
        self.runs.append((key, list(inputs)))
        self.threads.add(threading.get_ident())
        self.running.set()
        assert self.go.wait(30)
        if "bad" in inputs:
            raise ValueError("bad input")
        return [f"{key}:{text}" for text in inputs]

    async def started(self) -> None:
        assert await asyncio.to_thread(self.running.wait, 30)


def test_an_idle_worker_runs_a_call_at_once_and_in_another_thread():
    gate = Gate()

    async def main():
        async with Batcher(gate) as batcher:
            for text in "abc":
                assert await batcher.submit("k", [text]) == [f"k:{text}"]

    asyncio.run(main())
    assert gate.runs == [("k", ["a"]), ("k", ["b"]), ("k", ["c"])]
    assert threading.get_ident() not in gate.threads
    assert len(gate.threads) == 1


def test_what_arrives_during_a_run_forms_the_next_batch():
    gate = Gate(held=True)
    sizes: list[int] = []

    async def main():
        async with Batcher(gate, observe=sizes.append) as batcher:
            first = asyncio.create_task(batcher.submit("k", ["first"]))
            await gate.started()
            rest = [asyncio.create_task(batcher.submit("k", [f"q{i}", f"r{i}"])) for i in range(10)]
            await asyncio.sleep(0)
            assert batcher.depth == 20
            gate.go.set()
            assert await first == ["k:first"]
            assert await asyncio.gather(*rest) == [[f"k:q{i}", f"k:r{i}"] for i in range(10)]
            assert batcher.depth == 0

    asyncio.run(main())
    assert len(gate.runs) == 2
    assert sizes == [1, 20]


def test_equal_inputs_of_a_batch_are_run_once_and_keys_are_never_mixed():
    gate = Gate(held=True)

    async def main():
        async with Batcher(gate) as batcher:
            tasks = [asyncio.create_task(batcher.submit("a", ["x"]))]
            await gate.started()
            tasks += [asyncio.create_task(batcher.submit(key, ["same", "same"])) for key in ("a", "b", "a", "b")]
            await asyncio.sleep(0)
            gate.go.set()
            return await asyncio.gather(*tasks)

    answers = asyncio.run(main())
    assert answers[1:] == [["a:same"] * 2, ["b:same"] * 2, ["a:same"] * 2, ["b:same"] * 2]
    assert gate.runs[1:] == [("a", ["same"]), ("b", ["same"])]


def test_a_batch_never_exceeds_its_limit_and_keys_take_turns():
    gate = Gate(held=True)

    async def main():
        async with Batcher(gate, max_batch=4) as batcher:
            tasks = [asyncio.create_task(batcher.submit("a", ["x"]))]
            await gate.started()
            tasks.append(asyncio.create_task(batcher.submit("a", [str(i) for i in range(10)])))
            tasks.append(asyncio.create_task(batcher.submit("b", ["late"])))
            await asyncio.sleep(0)
            gate.go.set()
            return await asyncio.gather(*tasks)

    answers = asyncio.run(main())
    assert answers[1] == [f"a:{i}" for i in range(10)]
    assert [(key, len(inputs)) for key, inputs in gate.runs] == [("a", 1), ("a", 4), ("b", 1), ("a", 4), ("a", 2)]


def test_only_the_caller_of_a_bad_input_sees_its_error():
    gate = Gate(held=True)

    async def main():
        async with Batcher(gate) as batcher:
            first = asyncio.create_task(batcher.submit("k", ["x"]))
            await gate.started()
            tasks = [asyncio.create_task(batcher.submit("k", [text])) for text in ("good", "bad", "fine")]
            await asyncio.sleep(0)
            gate.go.set()
            await first
            return await asyncio.gather(*tasks, return_exceptions=True)

    good, bad, fine = asyncio.run(main())
    assert (good, fine) == (["k:good"], ["k:fine"])
    assert isinstance(bad, ValueError)


def test_outputs_of_the_wrong_number_are_an_error_and_not_a_shift():
    async def main():
        async with Batcher(lambda key, inputs: ["only one"] * (len(inputs) + 1)) as batcher:
            with pytest.raises(RuntimeError, match="1 inputs gave 2 outputs"):
                await batcher.submit("k", ["a"])

    asyncio.run(main())


def test_a_full_queue_refuses_and_says_when_to_come_back():
    gate = Gate(held=True)

    async def main():
        async with Batcher(gate, max_waiting=3) as batcher:
            running = asyncio.create_task(batcher.submit("k", ["running"]))
            await gate.started()
            waiting = asyncio.create_task(batcher.submit("k", ["a", "b"]))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded) as refused:
                await batcher.submit("k", ["c", "d"])
            assert refused.value.retry_after >= 1
            gate.go.set()
            assert await waiting == ["k:a", "k:b"]
            assert await batcher.submit("k", ["c", "d"]) == ["k:c", "k:d"]
            await running

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_queue():
    gate = Gate(held=True)

    async def main():
        async with Batcher(gate) as batcher:
            running = asyncio.create_task(batcher.submit("k", ["running"]))
            await gate.started()
            gone = asyncio.create_task(batcher.submit("k", ["gone", "gone too"]))
            stays = asyncio.create_task(batcher.submit("k", ["stays"]))
            other = asyncio.create_task(batcher.submit("other", ["alone"]))
            await asyncio.sleep(0)
            gone.cancel()
            other.cancel()
            await asyncio.gather(gone, other, return_exceptions=True)
            assert batcher.depth == 1
            gate.go.set()
            assert await stays == ["k:stays"]
            await running

    asyncio.run(main())
    assert [inputs for _, inputs in gate.runs] == [["running"], ["stays"]]


def test_callers_that_come_back_share_a_batch_again():
    """Eight callers in a closed loop are run together each time, not split into the first to return and the rest."""

    class Slow(Gate):
        def __call__(self, key: object, inputs: list[str]) -> list[str]:
            out = super().__call__(key, inputs)
            threading.Event().wait(0.1 if len(inputs) > 1 else 0)
            return out

    gate = Slow(held=True)

    async def caller(batcher: Batcher[str, str, str], number: int) -> None:
        for turn in range(5):
            assert await batcher.submit("k", [f"{number}.{turn}"]) == [f"k:{number}.{turn}"]
            await asyncio.sleep(0.001 * (number % 2))

    async def main():
        # A pause longer than any hold-up of the machine: what ends it is that all are back, not the time.
        async with Batcher(gate, max_pause=30) as batcher:
            first = asyncio.create_task(batcher.submit("k", ["first"]))
            await gate.started()
            callers = [asyncio.create_task(caller(batcher, number)) for number in range(8)]
            await asyncio.sleep(0)
            gate.go.set()
            await first
            await asyncio.gather(*callers)

    asyncio.run(main())
    assert [len(inputs) for _, inputs in gate.runs] == [1, 8, 8, 8, 8, 8]


def test_stopping_ends_every_call():
    gate = Gate(held=True)

    async def main():
        batcher = Batcher(gate)
        async with batcher:
            running = asyncio.create_task(batcher.submit("k", ["running"]))
            await gate.started()
            waiting = asyncio.create_task(batcher.submit("k", ["waiting"]))
            await asyncio.sleep(0)
        gate.go.set()
        assert [type(e) for e in await asyncio.gather(running, waiting, return_exceptions=True)] == [Stopped, Stopped]
        with pytest.raises(Stopped):
            await batcher.submit("k", ["late"])

    asyncio.run(main())


@settings(max_examples=30, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from(["x", "y", "z", "bad"]), max_size=5)), max_size=20
    ),
    max_batch=st.integers(1, 7),
)
def test_every_call_gets_what_it_would_have_got_alone(calls, max_batch):
    def run(key: str, inputs: list[str]) -> list[str]:
        if "bad" in inputs:
            raise ValueError(key)
        return [key + text for text in inputs]

    async def main():
        async with Batcher(run, max_batch=max_batch, max_pause=0.001) as batcher:
            return await asyncio.gather(*(batcher.submit(*call) for call in calls), return_exceptions=True)

    for (key, inputs), answer in zip(calls, asyncio.run(main()), strict=True):
        if "bad" in inputs:
            assert isinstance(answer, ValueError)
        else:
            assert answer == [key + text for text in inputs]
