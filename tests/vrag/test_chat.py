"""The chat client against a real server on loopback: what it sends, what it takes, and what it says when things go wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers import Fault, Say, Scripted, ScriptedModel, dead_url, page_image, pictures, serve
from vrag.chat import AsyncChatModel, ChatModel, Piece, extra_body, wire_messages
from vrag.episode import Generate, Generation
from vrag.errors import ModelError
from vrag.items import Item
from vrag.messages import Message, message, well_formed
from vrag.pages import View, open_page, view_of
from vrag.settings import ChatSettings

ASK = Generate((message("user", "Question: what?"),))


def picture() -> View:
    item = Item(id="report_1", kind="image", document="report.pdf", page=1)
    return view_of(open_page(page_image("solar power"), item))


@contextmanager
def talking(*script: Scripted, **settings: Any) -> Iterator[tuple[ChatModel, ScriptedModel]]:
    """A client and the scripted server that it is connected to."""
    server = ScriptedModel(script)
    with serve(server.app) as url:
        options = {"base_url": f"{url}/v1", "model": "scripted", "retries": 0, **settings}
        with ChatModel(ChatSettings(**options)) as chat:
            yield chat, server


def both(settings: ChatSettings, request: Generate = ASK) -> tuple[list[Any], list[Any]]:
    """What the blocking and the async client give for one request each; an error is given as its text."""

    async def awaited() -> list[Any]:
        out: list[Any] = []
        async with AsyncChatModel(settings) as chat:
            try:
                async for part in chat.stream(request):
                    out.append(part)  # noqa: PERF401 - what came before an error counts too
            except ModelError as error:
                out.append(str(error))
        return out

    blocking: list[Any] = []
    with ChatModel(settings) as chat:
        try:
            blocking.extend(chat.stream(request))
        except ModelError as error:
            blocking.append(str(error))
    return blocking, asyncio.run(awaited())


def timeless(parts: list[Any]) -> list[Any]:
    return [(part.text, part.reasoning, part.tool_calls) if isinstance(part, Generation) else part for part in parts]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("reasoning_field", ["reasoning_content", "reasoning"])
def test_a_reply_with_reasoning_and_usage(streaming: bool, reasoning_field: str) -> None:
    said = Say("<answer>42</answer>", reasoning="Let me see.", reasoning_field=reasoning_field, usage=(321, 12))
    with talking(said, streaming=streaming) as (chat, server):
        parts = list(chat.stream(ASK))
    *pieces, reply = parts
    assert isinstance(reply, Generation)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("<answer>42</answer>", "Let me see.", "stop")
    assert (reply.prompt_tokens, reply.completion_tokens) == (321, 12)
    assert reply.seconds > 0
    assert all(isinstance(piece, Piece) for piece in pieces)
    assert "".join(piece.text for piece in pieces if piece.channel == "content") == reply.text
    assert "".join(piece.text for piece in pieces if piece.channel == "reasoning") == reply.reasoning
    assert len(pieces) == (5 if streaming else 2)
    assert bool(server.requests[0].get("stream")) is streaming


def test_the_request_on_the_wire() -> None:
    view = picture()
    turns = (
        message("system", "Be brief."),
        message("user", "Question: what?"),
        message("assistant", "<search>solar</search>"),
        message("user", view, "Answer now."),
    )
    options = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "max_tokens": 55, "api_key": "sk-of-the-test"}
    with talking("fine", **options) as (chat, server):
        chat.generate(Generate(turns, tools=({"type": "function", "function": {"name": "search"}},)))
    body = server.requests[0]
    assert [turn["role"] for turn in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][2]["content"] == "<search>solar</search>"
    assert [part["type"] for part in body["messages"][3]["content"]] == ["image_url", "text"]
    assert pictures(body) == [view.size]
    assert (body["temperature"], body["top_p"], body["seed"], body["max_tokens"]) == (0.7, 0.9, 3, 55)
    assert body["stream_options"] == {"include_usage": True}
    assert body["tools"][0]["function"]["name"] == "search"
    assert server.headers[0]["authorization"] == "Bearer sk-of-the-test"


def test_tool_turns_keep_their_ids_and_send_pictures_in_a_user_turn() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    wire = wire_messages(
        [
            Message("assistant", ("",), tool_calls=(call,)),
            Message("user", ("found: ", picture()), tool_call_id="call_1"),
        ]
    )
    assert wire[0]["tool_calls"] == [call]
    assert wire[1] == {"role": "tool", "tool_call_id": "call_1", "content": "found: "}
    assert (wire[2]["role"], wire[2]["content"][0]["type"]) == ("user", "image_url")


@pytest.mark.parametrize("streaming", [True, False])
def test_native_tool_calls_are_put_together(streaming: bool) -> None:
    calls = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"query": name * 9})},
        }
        for n, name in enumerate(["search", "memorise"])
    ]
    with talking(Say(tool_calls=calls, finish="tool_calls"), streaming=streaming) as (chat, _):
        reply = chat.generate(ASK)
    assert list(reply.tool_calls) == calls
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("url", "switch", "expected"),
    [
        ("https://dashscope.aliyuncs.com/compatible-mode/v1", "auto", {"enable_thinking": False}),
        ("https://w1.ap-southeast-1.maas.aliyuncs.com/v1", "auto", {"enable_thinking": False}),
        ("http://127.0.0.1:8002/v1", "auto", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("https://aliyuncs.com.example.org/v1", "auto", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("http://127.0.0.1:8002/v1", "dashscope", {"enable_thinking": False}),
        ("https://dashscope.aliyuncs.com/v1", "template", {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_the_thinking_switch_fits_the_endpoint(url: str, switch: Any, expected: dict[str, Any]) -> None:
    assert extra_body(ChatSettings(base_url=url, thinking=False, thinking_switch=switch)) == expected
    assert extra_body(ChatSettings(base_url=url, thinking_switch=switch)) == {}


def test_further_fields_travel_beside_the_thinking_switch() -> None:
    extra = {"top_k": 20, "chat_template_kwargs": {"style": "short"}}
    with talking("fine", thinking=True, extra_body=extra) as (chat, server):
        chat.generate(ASK)
    assert server.requests[0]["top_k"] == 20
    assert server.requests[0]["chat_template_kwargs"] == {"style": "short", "enable_thinking": True}


def test_a_megabyte_is_cut_off_not_a_crash() -> None:
    with talking(Say("x" * 2**20, piece=2**16), max_reply_chars=70_000) as (chat, _):
        reply = chat.generate(ASK)
    assert (len(reply.text), reply.finish_reason) == (70_000, "length")
    with talking(Say("x" * 2**20), max_reply_chars=70_000, streaming=False) as (chat, _):
        assert len(chat.generate(ASK).text) == 70_000


def test_without_a_model_name_the_one_that_is_served_is_used() -> None:
    with talking("a", "b", model="") as (chat, server):
        assert chat.generate(ASK).text == "a"
        assert chat.generate(ASK).text == "b"
    assert [body["model"] for body in server.requests] == ["scripted", "scripted"]
    server = ScriptedModel([], models=["big", "small"])
    with (
        serve(server.app) as url,
        ChatModel(ChatSettings(base_url=f"{url}/v1")) as chat,
        pytest.raises(ModelError, match=r"serves 2 models \(big, small\).*VRAG_MODEL"),
    ):
        chat.generate(ASK)


def test_a_rate_limit_is_waited_for() -> None:
    busy = Fault(429, {"error": {"message": "slow down"}}, {"retry-after": "0"})
    with talking(busy, "fine", retries=1) as (chat, server):
        assert chat.generate(ASK).text == "fine"
    assert len(server.requests) == 2


FAULTS: dict[str, tuple[Fault, str]] = {
    "rate limit": (Fault(429, {"error": {"message": "slow down"}}), r"429: slow down\. .*0 retries"),
    "server": (Fault(500, {"error": {"message": "CUDA error"}}), r"500: CUDA error\. .*its log"),
    "key": (Fault(401, {"error": {"message": "Bad key sk-of-the-test"}}), r"401: Bad key \*\*\*\. .*VRAG_API_KEY"),
    "context": (
        Fault(400, {"object": "error", "message": "This model's maximum context length is 8192 tokens"}),
        r"400: This model's maximum context length is 8192 tokens\. .*max_pixels.*--max-model-len",
    ),
    "images": (
        Fault(400, {"error": {"message": "At most 1 image(s) may be provided in one prompt."}}),
        r"At most 1 image.*--limit-mm-per-prompt",
    ),
    "detail": (Fault(422, {"detail": "wrong field"}), r"422: wrong field\."),
    "no model": (
        Fault(404, {"error": {"message": "The model `x` does not exist."}}),
        r"404: The model `x` does not exist\. It serves: scripted\. Set model",
    ),
    "garbage": (Fault(200, "no json {"), r"no chat completion"),
    "error in the stream": (
        Fault(pieces=["<think>hm"], sse=['{"error": {"message": "worker died", "code": 500}}']),
        r"reported an error: worker died\.",
    ),
    "garbage in the stream": (Fault(pieces=["<think>hm"], sse=["{]"]), r"no chat completion"),
    "cut": (Fault(pieces=["<think>hm"]), r"connection to the model .* broke .*see its log"),
    "no end": (Fault(pieces=["<think>hm"], sse=["[DONE]"]), r"broke off before its end"),
    "slow": (Fault(200, {}, delay=30), r"did not answer within 0\.3 s.*read_timeout"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_become_sentences_the_same_in_both_clients(name: str) -> None:
    fault, expected = FAULTS[name]
    server = ScriptedModel(lambda _: fault)
    with serve(server.app) as url:
        settings = ChatSettings(
            base_url=f"{url}/v1",
            model="x",
            retries=0,
            read_timeout=0.3 if fault.delay else 20,
            api_key="sk-of-the-test",
        )
        blocking, awaited = both(settings)
    assert blocking == awaited
    import re

    assert re.search(expected, blocking[-1]), blocking[-1]
    assert f"{url}/v1" in blocking[-1]
    assert blocking[:-1] == [Piece("content", piece) for piece in fault.pieces]


@pytest.mark.parametrize(
    "body", ["no json {", "[]", "{}", '{"choices": []}', '{"choices": [{"message": null}]}', '"text"', "null"]
)
def test_what_is_no_completion_is_refused(body: str) -> None:
    with talking(Fault(200, body), streaming=False) as (chat, _), pytest.raises(ModelError, match="no chat completion"):
        chat.generate(ASK)


def test_an_error_payload_with_status_200_is_told() -> None:
    refused = Fault(200, {"error": {"message": "quota exceeded"}})
    with talking(refused, streaming=False) as (chat, _), pytest.raises(ModelError, match="quota exceeded"):
        chat.generate(ASK)


def test_nobody_answers() -> None:
    settings = ChatSettings(base_url=f"{dead_url()}/v1", model="x", retries=0)
    blocking, awaited = both(settings)
    assert blocking == awaited
    assert "Nothing answers at" in blocking[0]
    assert "./run_demo.sh" in blocking[0]


def test_the_environment_s_proxy_does_not_stand_before_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", dead_url())
    monkeypatch.setenv("ALL_PROXY", dead_url())
    with talking("fine") as (chat, _):
        assert chat.generate(ASK).text == "fine"


def test_both_clients_give_the_same() -> None:
    server = ScriptedModel(lambda _: Say("<search>风电</search>", reasoning="想一想", piece=3))
    with serve(server.app) as url:
        blocking, awaited = both(ChatSettings(base_url=f"{url}/v1"))
    assert timeless(blocking) == timeless(awaited)
    assert blocking[-1].text == "<search>风电</search>"


def test_closing_the_stream_stops_the_server() -> None:
    with talking(Say("x" * 100_000, piece=1), max_reply_chars=10**6) as (chat, server):
        stream = chat.stream(ASK)
        next(stream)
        assert server.open == 1
        stream.close()
        for _ in range(500):
            if server.open == 0:
                break
            asyncio.run(asyncio.sleep(0.01))
        assert server.open == 0


def test_a_reply_that_never_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        talking(Say("x" * 20, piece=1), reply_timeout=1e-9) as (chat, _),
        pytest.raises(ModelError, match="reply_timeout"),
    ):
        chat.generate(ASK)


def test_a_server_that_only_keeps_the_connection_alive_is_given_up() -> None:
    with serve(ScriptedModel(lambda _: Fault(pings=True)).app) as url:
        options = ChatSettings(base_url=f"{url}/v1", model="scripted", retries=0, reply_timeout=0.3)
        started = time.monotonic()
        [blocking], [awaited] = both(options)
        assert "reply_timeout" in blocking
        assert blocking == awaited
        assert time.monotonic() - started < 8  # of the ten seconds that either would wait


def test_lone_surrogates_cannot_pass() -> None:
    raw = json.dumps({"choices": [{"index": 0, "delta": {"content": "a\ud800b😀"}, "finish_reason": "stop"}]})
    assert "\\ud800" in raw
    with talking(Fault(sse=[raw, "[DONE]"])) as (chat, _):
        assert chat.generate(ASK).text == "a�b😀"


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_well_formed_text_can_always_be_encoded(text: str) -> None:
    out = well_formed(text)
    out.encode("utf-8")
    assert well_formed(out) == out
