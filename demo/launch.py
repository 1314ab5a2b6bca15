"""The launcher behind ``run_demo.sh``: builds the index once, starts the services, waits for health, stops all of them.

./run_demo.sh                    everything offline on this machine: search, extractive reader, web page
./run_demo.sh ask "question"     the same in the terminal: prints the steps and the cited answer
./run_demo.sh search             the search service alone
./run_demo.sh vrag               the VRAG demo with a local model served by vLLM
./run_demo.sh vimrag             the VimRAG demo
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from demo.services import Service, Services, answers, free_port, python, require_free
from vrag.errors import ConfigError, VragError

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "search_engine" / "corpus" / "example" / "documents"
PUBLISHED_INDEX = ROOT / "search_engine" / "corpus" / "image_index"
#: What running leaves behind: indexes, uploads, run records, logs. Safe to delete.
STATE = Path(os.environ.get("VRAG_STATE_DIR") or ROOT / "var")

READER = "extractive-reader"
#: The reader reads by OCR and needs print that is still legible on a whole page; the published limit (0.4 MP) is made for
#: a model that was trained at it.
READER_MAX_PIXELS = 2048 * 28 * 28
PUBLISHED_MODEL = "autumncc/Qwen2.5-VL-7B-VRAG"
SERVED_NAME = "Qwen/Qwen2.5-VL-7B-Instruct"


def build_index(documents: Path, index: Path) -> Path:
    """Build or bring up to date the index of a folder; a second call with nothing new takes a moment."""
    if not documents.exists():
        raise ConfigError(
            f"There is no folder {documents}. Give --corpus an existing folder of PDFs, images and texts."
        )
    index.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(index.parent).free < 200_000_000:
        raise ConfigError(
            f"Less than 200 MB are free under {index.parent}. Make room, or set VRAG_STATE_DIR to another disk."
        )
    done = subprocess.run(python("-m", "search_engine.search_engine", "build", str(documents), str(index)), cwd=ROOT)
    if done.returncode != 0:
        raise ConfigError(f"The index of {documents} could not be built; the lines above say why.")
    return index


def corpus_index(args: argparse.Namespace) -> list[Path]:
    """The indexes to serve: one's own folder, or what the published commands built, or the example corpus."""
    if args.corpus:
        documents = Path(args.corpus).expanduser().resolve()
        return [build_index(documents, STATE / "index" / index_name(documents))]
    if args.mode != "ask" and not args.offline and (PUBLISHED_INDEX / "manifest.json").exists():
        return [PUBLISHED_INDEX]
    return [build_index(EXAMPLE, STATE / "index" / "example")]


def index_name(documents: Path) -> str:
    """A readable name for the index of a folder, different for folders of the same name."""
    import hashlib

    return f"{documents.name}-{hashlib.sha256(str(documents).encode()).hexdigest()[:8]}"


def search_service(indexes: list[Path], port: int) -> Service:
    uploads = STATE / "index" / "uploads"
    return Service(
        "search service",
        python(
            str(ROOT / "search_engine" / "search_engine_api.py"),
            "--port",
            str(port),
            "--index",
            *map(str, indexes),
            "--optional-index",
            str(uploads),
        ),
        f"http://127.0.0.1:{port}/health",
        STATE / "logs" / "search.log",
    )


def reader_service(port: int) -> Service:
    return Service(
        "extractive reader",
        python("-m", "demo.reader", "--port", str(port)),
        f"http://127.0.0.1:{port}/health",
        STATE / "logs" / "reader.log",
        env={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")},
    )


def page_service(app: str, port: int, settings: dict[str, str]) -> Service:
    return Service(
        "web page",
        python(
            "-m",
            "streamlit",
            "run",
            str(ROOT / "demo" / app),
            f"--server.port={port}",
            "--server.address=127.0.0.1",
            "--server.headless=true",
            "--browser.gatherUsageStats=false",
            "--server.maxUploadSize=200",
        ),
        f"http://127.0.0.1:{port}/_stcore/health",
        STATE / "logs" / "page.log",
        env=settings,
    )


def agent_settings(args: argparse.Namespace, base_url: str, model: str) -> dict[str, str]:
    """What the demo page and the agent read from the environment; a variable that the user has set wins."""
    settings = {
        "VRAG_BASE_URL": base_url,
        "VRAG_SEARCH_URL": f"http://127.0.0.1:{args.search_port}/search",
        "VRAG_MODEL": model,
        "VRAG_RECORD_DIR": str(STATE / "runs"),
        "VRAG_UPLOADS_DIR": str(STATE / "uploads"),
        "VRAG_UPLOADS_INDEX": str(STATE / "index" / "uploads"),
    }
    if model == READER:
        settings["VRAG_MAX_PIXELS"] = str(READER_MAX_PIXELS)
    return {name: os.environ.get(name, value) for name, value in settings.items()}


def say(text: str) -> None:
    print(text, flush=True)


def run_search(args: argparse.Namespace) -> None:
    require_free(args.search_port, "search service", "--search-port")
    indexes = corpus_index(args)
    with Services() as services:
        services.start(search_service(indexes, args.search_port))
        say(f"Search service: http://localhost:{args.search_port}/docs   (Ctrl-C stops it)")
        services.watch()


def run_offline(args: argparse.Namespace) -> None:
    require_free(args.search_port, "search service", "--search-port")
    require_free(args.model_port, "reader", "--model-port")
    require_free(args.ui_port, "web page", "--ui-port")
    indexes = corpus_index(args)
    settings = agent_settings(args, f"http://127.0.0.1:{args.model_port}/v1", READER)
    with Services() as services:
        services.start(
            search_service(indexes, args.search_port),
            reader_service(args.model_port),
            page_service("app.py", args.ui_port, settings),
        )
        say(
            "\nEverything runs on this machine. The answers come from an extractive reader: it finds and reads lines on the\n"
            "pages by OCR. It is not a language model; ./run_demo.sh vrag uses one.\n"
            f"\n  Open http://localhost:{args.ui_port}\n\nCtrl-C stops everything."
        )
        services.watch()


def run_vrag(args: argparse.Namespace) -> None:
    require_free(args.search_port, "search service", "--search-port")
    require_free(args.ui_port, "web page", "--ui-port")
    base_url = args.base_url or f"http://127.0.0.1:{args.model_port}/v1"
    model = args.model or SERVED_NAME
    ours: list[Service] = []
    if not answers(f"{base_url.rstrip('/')}/models"):
        if args.base_url:
            raise ConfigError(f"No model server answers at {args.base_url}. Start it, or correct --base-url.")
        if shutil.which("vllm") is None:
            raise ConfigError(
                f"No model server answers at {base_url}, and vLLM is not installed here.\n"
                "On a machine with a GPU (24 GB or more):\n"
                "  pip install vllm\n"
                f"  vllm serve {PUBLISHED_MODEL} --port {args.model_port} --host 127.0.0.1 \\\n"
                f"      --limit-mm-per-prompt '{{\"image\": 10}}' --served-model-name {SERVED_NAME}\n"
                "then run ./run_demo.sh vrag again. A server elsewhere: ./run_demo.sh vrag --base-url http://HOST:PORT/v1\n"
                "Without a GPU: ./run_demo.sh (the offline demo)."
            )
        ours.append(
            Service(
                "vLLM server",
                [
                    "vllm", "serve", PUBLISHED_MODEL, "--port", str(args.model_port), "--host", "127.0.0.1",
                    "--limit-mm-per-prompt", '{"image": 10}', "--served-model-name", SERVED_NAME,
                ],
                f"{base_url}/models",
                STATE / "logs" / "vllm.log",
            )
        )  # fmt: skip
    indexes = corpus_index(args)
    with Services() as services:
        services.start(
            search_service(indexes, args.search_port),
            page_service("app.py", args.ui_port, agent_settings(args, base_url, model)),
        )
        if ours:
            say(f"Starting vLLM with {PUBLISHED_MODEL}; the first start downloads it (log: {ours[0].log}) ...")
            services.start(*ours, seconds=3600)
        say(f"\n  Open http://localhost:{args.ui_port}\n\nCtrl-C stops everything that was started here.")
        services.watch()


def run_vimrag(args: argparse.Namespace) -> None:
    raise ConfigError("The VimRAG demo is not part of this version yet. ./run_demo.sh starts the VRAG demo.")


def run_ask(args: argparse.Namespace) -> None:
    from demo.terminal import ask

    if not args.question or not args.question.strip():
        raise ConfigError('Give a question: ./run_demo.sh ask "What share of ...?"')
    indexes = corpus_index(args)
    args.search_port = free_port()
    with Services() as services:
        ours = [search_service(indexes, args.search_port)]
        base_url, model = args.base_url, args.model or SERVED_NAME
        if not base_url:
            port = free_port()
            base_url, model = f"http://127.0.0.1:{port}/v1", READER
            ours.append(reader_service(port))
        services.start(*ours)
        os.environ.update(agent_settings(args, base_url, model))
        if not ask(args.question):
            raise VragError("There is no answer; the lines above say why.")


MODES = {"offline": run_offline, "search": run_search, "vrag": run_vrag, "vimrag": run_vimrag, "ask": run_ask}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="./run_demo.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("mode", nargs="?", choices=list(MODES), default="offline", help="default: offline")
    out.add_argument("question", nargs="?", help="for ask")
    out.add_argument(
        "--corpus", metavar="DIR", help="a folder of your own PDFs, images and texts instead of the example"
    )
    out.add_argument(
        "--base-url", metavar="URL", help="an OpenAI-compatible model server, e.g. http://localhost:8002/v1"
    )
    out.add_argument("--model", metavar="NAME", help="the model's name on that server")
    out.add_argument("--search-port", type=int, default=8001, metavar="PORT")
    out.add_argument("--model-port", type=int, default=8002, metavar="PORT")
    out.add_argument("--ui-port", type=int, default=8501, metavar="PORT")
    return out


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    args.offline = args.mode == "offline"
    signal.signal(signal.SIGTERM, interrupt)
    try:
        MODES[args.mode](args)
    except KeyboardInterrupt:
        say("\nStopped.")
        return 130 if args.mode == "ask" else 0
    except VragError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno == errno.ENOSPC:
            print(
                f"The disk is full ({STATE}). Make room and run this again; nothing that was built is lost.",
                file=sys.stderr,
            )
            return 1
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
