"""The launcher: what it refuses and says, what it starts, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pymupdf
import pytest

from demo import defaults, launch
from demo.services import Service, ServiceError, Services, free_port, python, run
from tests.servers import ScriptedModel, dead_url, serve
from vrag.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
#: For a machine that is busy with something else.
PATIENCE = 180


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(defaults.STATE_VARIABLE, str(tmp_path / "state"))
    for name in ("VRAG_API_KEY", "VRAG_RECORD_DIR", "VRAG_MODEL", "VRAG_BASE_URL", "VRAG_SEARCH_URL"):
        monkeypatch.delenv(name, raising=False)


def write_corpus(folder: Path) -> Path:
    """One small PDF with print that OCR reads without trouble."""
    folder.mkdir(parents=True)
    with pymupdf.open() as pdf:
        for text in ("The lighthouse of Skarv was lit in 1887.", "The lamp burns 35 litres of oil per night."):
            page = pdf.new_page(width=480, height=260)
            page.insert_text((30, 60), text, fontsize=18)
        pdf.save(folder / "skarv.pdf")
    return folder


def refused(*argv: str) -> str:
    """The sentence with which a launch ends before anything is started."""
    args = launch.parser().parse_args(argv)
    with pytest.raises(ConfigError) as error:
        launch.MODES[args.mode](args)
    return str(error.value)


@contextmanager
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def ports(*names: str) -> list[str]:
    return [part for name in names for part in (f"--{name}-port", str(free_port()))]


def launched(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo.launch", *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """The first line that holds ``words``, or all that was said until the end."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return line
    return said


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=30)
    return not alive


# What it refuses


@pytest.mark.parametrize("name", ["search", "model", "ui"])
def test_a_busy_port_is_a_sentence(name: str) -> None:
    others = ports(*{"search", "model", "ui"} - {name})
    with busy_port() as port:
        said = refused("offline", f"--{name}-port", str(port), *others)
    assert f"Port {port}" in said
    assert f"--{name}-port" in said


def test_two_services_cannot_share_a_port() -> None:
    port = str(free_port())
    assert "cannot both use" in refused("offline", "--search-port", port, "--model-port", port)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_a_port_is_a_number_from_1_to_65535(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch.parser().parse_args(["search", "--search-port", port])
    assert "--search-port" in capsys.readouterr().err


def test_a_missing_corpus_is_a_sentence(tmp_path: Path) -> None:
    said = refused("search", "--corpus", str(tmp_path / "nowhere"), *ports("search"))
    assert "no folder" in said
    assert "nowhere" in said


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LEAST_FREE_BYTES", 2**62)
    said = refused("search", "--corpus", str(write_corpus(tmp_path / "documents")), *ports("search"))
    assert "Make room" in said


def test_a_state_folder_that_cannot_be_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(defaults.STATE_VARIABLE, str(tmp_path / "file"))
    said = refused("search", "--corpus", str(write_corpus(tmp_path / "documents")), *ports("search"))
    assert defaults.STATE_VARIABLE in said


def test_without_a_model_server_and_vllm_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    arguments = ports("search", "model", "ui")
    said = refused("vrag", *arguments)
    assert "pip install vllm" in said
    assert f"vllm serve {launch.PUBLISHED_MODEL} --port {arguments[3]}" in said
    assert "--base-url" in said


def test_a_model_server_that_does_not_answer_is_a_sentence() -> None:
    url = dead_url() + "/v1"
    assert f"No model server answers at {url}" in refused("vrag", "--base-url", url, *ports("search", "ui"))
    assert f"No model server answers at {url}" in refused("ask", "why?", "--base-url", url)
    assert "--base-url" in refused("vrag", "--base-url", "localhost:8002", *ports("search", "ui"))


def test_a_model_server_that_asks_for_a_key_is_a_sentence() -> None:
    model = ScriptedModel([])

    @model.app.middleware("http")
    async def closed(request, call_next):  # type: ignore[no-untyped-def]
        from fastapi.responses import JSONResponse

        return JSONResponse({"error": {"message": "no key"}}, 401)

    with serve(model.app) as url:
        assert "VRAG_API_KEY" in refused("vrag", "--base-url", url + "/v1", *ports("search", "ui"))


def test_a_question_is_needed() -> None:
    assert "Give a question" in refused("ask")
    assert "Give a question" in refused("ask", "  ")


def test_folders_of_one_name_have_indexes_of_their_own(tmp_path: Path) -> None:
    assert launch.index_name(tmp_path / "a" / "docs") != launch.index_name(tmp_path / "b" / "docs")


# What it starts and stops

STUBBORN = """
import http.server, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
ORDERLY = STUBBORN.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nchild", "child")


def test_a_service_leaves_no_process_even_where_its_child_is_stubborn(tmp_path: Path) -> None:
    port = free_port()
    service = Service("test", python("-c", ORDERLY, str(port)), f"http://127.0.0.1:{port}/", tmp_path / "log" / "a.log")
    with Services() as services:
        services.start(service, seconds=PATIENCE)
        assert service.process is not None
        process = psutil.Process(service.process.pid)
        family = [process, *process.children(recursive=True)]
        assert len(family) == 2
    assert gone(family)


def test_a_service_that_breaks_shows_its_own_words(tmp_path: Path) -> None:
    service = Service("test", python("-c", "raise SystemExit('no such luck')"), dead_url(), tmp_path / "a.log")
    with pytest.raises(ServiceError, match="no such luck"), Services() as services:
        services.start(service, seconds=PATIENCE)


def test_a_service_that_ends_later_is_noticed(tmp_path: Path) -> None:
    port = free_port()
    service = Service(
        "test", python("-m", "http.server", str(port)), f"http://127.0.0.1:{port}/", tmp_path / "a.log", cwd=tmp_path
    )
    with Services() as services:
        services.start(service, seconds=PATIENCE)
        assert service.process is not None
        service.process.kill()
        with pytest.raises(ServiceError, match="test stopped"):
            services.watch()


def test_a_service_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    service = Service("test", python("-c", "import time; time.sleep(600)"), dead_url(), tmp_path / "a.log")
    with pytest.raises(ServiceError, match="not ready"), Services() as services:
        services.start(service, seconds=0.3)


def test_an_interrupted_command_leaves_no_process(tmp_path: Path) -> None:
    mark = tmp_path / "pids"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(mark)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(mark)!r} + '.part', {str(mark)!r})\n"
        "time.sleep(600)"
    )
    found: list[psutil.Process] = []

    def interrupt() -> None:
        while not mark.exists():
            time.sleep(0.02)
        found.extend(psutil.Process(int(pid)) for pid in mark.read_text().split())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(python("-c", script), cwd=tmp_path)
    assert len(found) == 2
    assert gone(found)


# The whole of it


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda sign: sign.name)
def test_search_serves_a_folder_until_it_is_interrupted(tmp_path: Path, sign: signal.Signals) -> None:
    port = free_port()
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "note.md").write_text("The lighthouse of Skarv was lit in 1887.\n")
    process = launched("search", "--corpus", str(documents), "--search-port", str(port))
    try:
        assert str(port) in line_with(process, "Search service:")
        answer = httpx.post(
            f"http://127.0.0.1:{port}/search", json={"queries": ["lighthouse"]}, trust_env=False, timeout=PATIENCE
        )
        assert answer.json()["results"][0]["data"][0]["document"] == "note.md"
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.send_signal(sign)
        assert process.wait(PATIENCE) == 0
        assert gone(family)
    finally:
        process.kill()
        process.communicate()


def test_ask_reads_the_answer_off_a_page_and_cites_it(tmp_path: Path) -> None:
    documents = write_corpus(tmp_path / "documents")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "demo.launch",
            "ask",
            "How many litres of oil does the lamp burn?",
            "--corpus",
            str(documents),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "search  " in done.stdout
    answer = next(line for line in done.stdout.splitlines() if line.startswith("Answer: "))
    assert "35" in answer
    assert "Source: skarv.pdf, page 2" in done.stdout
    records = list((tmp_path / "state" / "runs").glob("*.jsonl"))
    assert len(records) == 1
