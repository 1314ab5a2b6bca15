"""The extractive reader behind its real server, driven by the real OpenAI client and by whole episodes."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from demo.reader import MODEL, create_app
from demo.reading.sight import Sight
from demo.vimrag_agent import VimRAG
from demo.vrag_agent import VRAG
from tests.drawn import chart_page, chinese_page, report_page, table_page
from tests.servers import Entry, TinyRetriever, page, page_image, serve
from vrag import prompts
from vrag.actions import Answer, Crop, Search, parse_tags
from vrag.events import Answered, Thought, ViewShown
from vrag.geometry import Box
from vrag.memory_graph import MemoryGraph
from vrag.tool_calls import tool_schemas

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(create_app(Sight())) as base:
        yield base


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VRAG_")]:
        monkeypatch.delenv(name)


def first(question: str) -> dict[str, Any]:
    return {"role": "user", "content": prompts.fill(prompts.load("vrag"), question=question)}


def picture(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + base64.b64encode(data).decode()}}


def entry(item_id: str, words: str, data: bytes, size: tuple[int, int]) -> Entry:
    made = page(item_id, words, size)
    made.image = data
    return made


def ask(url: str, question: str, *entries: Entry, **options: Any) -> tuple[Answered, list[Any]]:
    """A whole run of the agent against the reader and a retriever that has ``entries``."""
    with serve(TinyRetriever(entries).app) as search:
        agent = VRAG(base_url=f"{url}/v1", search_url=f"{search}/search", **options)
        events = list(agent.stream(question))
    assert isinstance(events[-1], Answered), events[-1]
    return events[-1], events


def crop_of(events: list[Any]) -> Box:
    return next(event.view.box for event in events if isinstance(event, ViewShown) and event.source == "crop")


# The protocol


def test_models_and_health(client: openai.OpenAI, url: str) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert httpx.get(f"{url}/health").json() == {"status": "ok", "model": MODEL}


def test_first_turn_searches(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=[first("How many ships are registered?")])
    assert reply.choices[0].finish_reason == "stop"
    thought, action = parse_tags(reply.choices[0].message.content or "")
    assert thought
    assert action == Search("How many ships are registered?")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 0


def test_streaming_gives_the_same_text_and_the_usage(client: openai.OpenAI) -> None:
    messages = [first("多少艘船登记在册？")]
    whole = client.chat.completions.create(model=MODEL, messages=messages)
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    plain = list(client.chat.completions.create(model=MODEL, messages=messages, stream=True))
    assert all(chunk.usage is None for chunk in plain)


def test_max_tokens_and_stop(client: openai.OpenAI) -> None:
    messages = [first("How many ships are registered?")]
    cut = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3).choices[0]
    assert cut.finish_reason == "length"
    assert (cut.message.content or "").startswith("<think>"[:3])
    stopped = client.chat.completions.create(model=MODEL, messages=messages, stop=["</search>"]).choices[0]
    assert stopped.finish_reason == "stop"
    assert not (stopped.message.content or "").endswith("</search>")
    assert isinstance(parse_tags(stopped.message.content or "")[1], Search)


def test_another_model_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=MODEL):
        client.chat.completions.create(model="Qwen/Qwen2.5-VL-7B-Instruct", messages=[first("Why?")])


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[]", 400, "JSON object"),
        (b'{"messages": []}', 400, "at least one"),
        (b'{"messages": [{"role": "wizard", "content": "x"}]}', 400, "role"),
        (b'{"messages": [{"role": ["user"], "content": "x"}]}', 400, "role"),
        (b'{"messages": [{"role": "user", "content": 7}]}', 400, "content"),
        (b'{"messages": [{"role": "user", "content": [{"type": "audio"}]}]}', 400, "part of type"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 2}', 400, "n has to be 1"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}', 400, "above 0"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stop": 1}', 400, "stop"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stream_options": 1}', 400, "stream_options"),
        (b'{"messages": [{"role": "user", "content": "x"}], "tools": [1]}', 400, "tools"),
        (b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "function"}}', 400, "tool_choice"),
        (b'{"messages": [{"role": "assistant", "tool_calls": "x"}]}', 400, "tool_calls"),
    ],
)
def test_bad_requests_get_a_sentence(url: str, body: bytes, status: int, says: str) -> None:
    reply = httpx.post(f"{url}/v1/chat/completions", content=body)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("http://127.0.0.1:1/page.jpg", "none is fetched"),
        ("file:///etc/hosts", "none is fetched"),
        ("data:text/html;base64,AAAA", "none is fetched"),
        ("data:image/jpeg;base64,@@@", "not valid base64"),
        ("data:image/jpeg;base64," + base64.b64encode(b"no picture at all").decode(), "not a readable image"),
        ("data:image/jpeg;base64," + base64.b64encode(page_image("x")[:2000]).decode(), "damaged"),
    ],
)
def test_unusable_pictures_get_a_sentence(client: openai.OpenAI, link: str, says: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": link}}]
    with pytest.raises(openai.BadRequestError, match=says):
        client.chat.completions.create(model=MODEL, messages=[first("Why?"), {"role": "user", "content": content}])


def test_decompression_bomb_is_refused(client: openai.OpenAI) -> None:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "PNG")
    with pytest.raises(openai.BadRequestError, match="pixels"):
        client.chat.completions.create(
            model=MODEL, messages=[first("Why?"), {"role": "user", "content": [picture(buffer.getvalue())]}]
        )


def test_unknown_paths_speak_the_protocol(url: str) -> None:
    reply = httpx.post(f"{url}/v1/completions", json={})
    assert reply.status_code == 404
    assert "/v1/chat/completions" in reply.json()["error"]["message"]


def test_api_key_is_asked_for() -> None:
    with serve(create_app(Sight(), api_key="secret", warm=False)) as base:
        assert httpx.get(f"{base}/health").status_code == 200
        wrong = openai.OpenAI(base_url=f"{base}/v1", api_key="wrong", max_retries=0)
        with wrong as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with openai.OpenAI(base_url=f"{base}/v1", api_key="secret", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == [MODEL]


def test_a_client_that_hangs_up_harms_nobody(client: openai.OpenAI, url: str) -> None:
    body = {"model": MODEL, "messages": [first("How many ships?")], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        next(reply.iter_bytes())
    assert client.chat.completions.create(model=MODEL, messages=[first("How many ships?")]).choices


# Reading


def test_label_and_value_are_read_and_the_crop_covers_them(url: str) -> None:
    drawn = report_page()
    answer, events = ask(url, "How many ships are registered?", entry("report_1", "ships", drawn.jpeg(), drawn.size))
    assert answer.text == "418"
    assert answer.reason == "answer"
    crop = crop_of(events)
    assert crop.covers(drawn.boxes["Ships registered: 418"], 0.95)
    assert crop.area < 0.3 * drawn.size[0] * drawn.size[1]
    assert answer.citations[0].item.id == "report_1"
    assert answer.citations[0].box == crop


def test_table_cell_by_row_and_column(url: str) -> None:
    drawn = table_page()
    page = entry("ferries_1", "ferry passengers", drawn.jpeg(), drawn.size)
    answer, events = ask(url, "How many passengers did the island ferry have in 2022?", page)
    assert answer.text == "1,318"
    assert crop_of(events).covers(drawn.boxes["1,318"], 0.95)
    answer, _ = ask(url, "Which ferry line had the most passengers in 2023?", page)
    assert "North ferry" in answer.text


def test_bar_by_the_colour_of_its_legend(url: str) -> None:
    drawn = chart_page()
    page = entry("survey_1", "visitors harbour", drawn.jpeg(), drawn.size)
    answer, events = ask(url, "What share of school classes come by bus?", page)
    assert answer.text == "71%"
    assert crop_of(events).covers(drawn.boxes["71%"], 0.95)
    assert ask(url, "What share of tour groups come on foot?", page)[0].text == "31%"


def test_sentence_gives_the_date_and_the_amount(url: str) -> None:
    drawn = report_page()
    page = entry("report_1", "breakwater", drawn.jpeg(), drawn.size)
    assert "14 March 2021" in ask(url, "When was the new breakwater completed?", page)[0].text
    assert "86 million euros" in ask(url, "How much did the breakwater cost, in euros?", page)[0].text


def test_small_print_is_looked_at_closely(url: str) -> None:
    drawn = report_page()
    page = entry("report_1", "silt", drawn.jpeg(), drawn.size)
    answer, events = ask(url, "How many tonnes of silt did the dredging remove?", page)
    assert "1,250" in answer.text
    assert crop_of(events).covers(drawn.boxes["Dredging removed 1,250 tonnes of silt from the northern basin."], 0.95)


def test_chinese(url: str) -> None:
    data = chinese_page(["港口年度报告", "登记船舶数量：418艘", "新防波堤于2021年3月建成，耗资8600万欧元。"])
    page = entry("年报_1", "港口", data, (1000, 1400))
    assert "418" in ask(url, "港口登记的船舶有多少艘？", page)[0].text
    answer, _ = ask(url, "新防波堤是哪一年建成的？", page)
    assert "2021" in answer.text


def test_nothing_there_is_said_honestly_after_other_words_were_tried(url: str) -> None:
    drawn = table_page()
    pages = [entry(f"ferries_{n}", "ferry passengers", drawn.jpeg(), drawn.size) for n in (1, 2)]
    answer, events = ask(url, "Which enzyme breaks down cellulose in termites?", *pages)
    assert answer.text == "I found no answer to this in the pages that I read."
    queries = [event.query for event in events if event.type == "search"]
    assert len(queries) == len(set(queries)) > 1
    answer, _ = ask(url, "白蚁体内哪种酶分解纤维素？", *pages)
    assert answer.text == "在读到的页面中没有找到答案。"


def test_the_better_of_two_pages_answers(url: str) -> None:
    other, drawn = table_page(), report_page()
    pages = [
        entry("a_1", "harbour master name", other.jpeg(), other.size),
        entry("b_1", "harbour", drawn.jpeg(), drawn.size),
    ]
    answer, events = ask(url, "Who is the harbour master?", *pages)
    assert "Ingrid Solberg" in answer.text
    assert [event.view.item.id for event in events if isinstance(event, ViewShown)][:2] == ["a_1", "b_1"]
    assert answer.citations[0].item.id == "b_1"


def test_answer_now_and_plain_text_are_obeyed(client: openai.OpenAI) -> None:
    shown = {"role": "user", "content": [picture(report_page().jpeg())]}
    start = [first("How many ships are registered?"), {"role": "assistant", "content": "<search>ships</search>"}, shown]
    now = {"role": "user", "content": prompts.load("vrag_answer_now")}
    reply = client.chat.completions.create(model=MODEL, messages=[*start, now]).choices[0].message.content or ""
    assert parse_tags(reply)[1] == Answer("418")
    plain = {
        "role": "user",
        "content": prompts.fill(prompts.load("vrag_fallback"), question="How many ships are registered?"),
    }
    said = {"role": "assistant", "content": "I cannot say."}
    reply = client.chat.completions.create(model=MODEL, messages=[*start, said, plain]).choices[0].message.content
    assert reply == "418"


def test_a_picture_asked_about_without_tags_is_read(client: openai.OpenAI) -> None:
    content = [picture(report_page().jpeg()), {"type": "text", "text": "How many ships are registered?"}]
    reply = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}])
    assert reply.choices[0].message.content == "418"


def test_the_crop_is_in_pixels_of_the_picture_as_shown(client: openai.OpenAI) -> None:
    drawn = report_page()
    messages = [
        first("How many ships are registered?"),
        {"role": "assistant", "content": "<search>ships</search>"},
        {"role": "user", "content": [picture(drawn.jpeg())]},
    ]
    reply = client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content or ""
    action = parse_tags(reply)[1]
    assert isinstance(action, Crop)
    assert action.box.covers(drawn.boxes["Ships registered: 418"], 0.95)
    assert action.box.height < 150


# The tool grammar


def graph_run(url: str, question: str, *entries: Entry, **options: Any) -> list[Any]:
    with serve(TinyRetriever(entries).app) as search:
        agent = VimRAG(base_url=f"{url}/v1", search_url=f"{search}/search", **options)
        return list(agent.stream(question))


@pytest.mark.parametrize("options", [{}, {"native_tools": True}, {"history": "linear"}, {"streaming": False}])
def test_a_memory_graph_is_grown_and_answered_from(url: str, options: dict[str, Any]) -> None:
    drawn, other = report_page(), table_page()
    pages = [
        entry("ferries_1", "ferry ships", other.jpeg(), other.size),
        entry("report_1", "harbour ships", drawn.jpeg(), drawn.size),
    ]
    events = graph_run(url, "How many ships are registered?", *pages, **options)
    assert isinstance(events[-1], Answered), events[-1]
    assert events[-1].text == "418"
    assert events[-1].reason == "answer"
    assert [citation.item.id for citation in events[-1].citations] == ["report_1"]
    assert [event.type for event in events if event.type in ("search", "memory", "note")] == ["search", "memory"]
    assert [event.text for event in events if isinstance(event, Thought)]
    kept = next(event for event in events if event.type == "memory")
    assert "“418”" in kept.summary


def test_a_graph_with_nothing_to_be_found_ends_honestly(url: str) -> None:
    drawn = table_page()
    page = entry("ferries_1", "ferry passengers enzyme", drawn.jpeg(), drawn.size)
    events = graph_run(url, "Which enzyme breaks down cellulose in termites?", page)
    assert events[-1].text == "I found no answer to this in the pages that I read."
    assert events[-1].citations == ()
    nodes = events[-2].graph["nodes"] if events[-2].type == "graph" else []
    assert len({node["id"] for node in nodes}) == len(nodes) > 1


def test_native_calls_stream_in_pieces(client: openai.OpenAI) -> None:
    graph = MemoryGraph("How many ships are registered?")
    text = prompts.fill(prompts.load("vimrag_question"), question=graph.question, graph=graph.linearise())
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "tools": list(tool_schemas()),
    }
    whole = client.chat.completions.create(**request).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    call = whole.message.tool_calls[0].function
    arguments, reasoning = "", ""
    for chunk in client.chat.completions.create(**request, stream=True):
        delta = chunk.choices[0].delta
        reasoning += getattr(delta, "reasoning_content", None) or ""
        arguments += "".join(part.function.arguments or "" for part in delta.tool_calls or ())
    assert json.loads(arguments) == json.loads(call.arguments)
    assert json.loads(arguments)["query"] == graph.question
    assert reasoning == whole.message.reasoning_content
    cut = client.chat.completions.create(**request, max_tokens=4).choices[0]
    assert cut.finish_reason == "length"
    plain = client.chat.completions.create(**request, tool_choice="none").choices[0]
    assert plain.message.content
    assert not plain.message.tool_calls


# The process


def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(ROOT / "demo" / "reader.py"), "--port", str(port), "--no-warm"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    assert httpx.get(f"http://127.0.0.1:{port}/health").json()["model"] == MODEL
                    break
                except httpx.TransportError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        assert b"Traceback" not in (process.stderr.read() if process.stderr else b"")


def test_other_addresses_need_a_key() -> None:
    command = [sys.executable, "-m", "demo.reader", "--host", "0.0.0.0", "--port", "0"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VRAG_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "VRAG_READER_API_KEY" in done.stderr


def test_the_disk_cache_outlives_the_process(tmp_path: Path) -> None:
    data = report_page().jpeg()
    sheet = Sight(tmp_path).read(data)
    kept = [json.loads(file.read_text()) for file in tmp_path.rglob("*.json")]
    assert any("Ships registered: 418" in row[0] for file in kept for row in file["lines"])
    assert [line.text for line in Sight(tmp_path).read(data).lines] == [line.text for line in sheet.lines]


def test_the_memory_is_bounded() -> None:
    sight = Sight(capacity=2)
    blank = [page_image(".", (40 + n, 40)) for n in range(4)]
    for data in blank:
        sight.read(data)
    assert len(sight._sheets) == 2
