"""The launcher behind ``run_demo.sh``: builds the index once, starts the services, waits for health, stops all of them.

./run_demo.sh                    everything offline on this machine: search, extractive reader, both agents' web page
./run_demo.sh ask "question"     the same in the terminal: prints the steps and the cited answer
./run_demo.sh search             the search service alone
./run_demo.sh vrag               the VRAG demo with a local model served by vLLM
./run_demo.sh vimrag             the VimRAG demo: DashScope with DASHSCOPE_API_KEY, any server with --base-url, else the reader
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import os
import shutil
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from demo import defaults
from demo.defaults import READER, ROOT
from demo.services import INTERRUPTS, Service, Services, free_port, python, require_free, run, status
from vrag.errors import ConfigError, VragError
from vrag.settings import client_url

EXAMPLE = ROOT / "search_engine" / "corpus" / "example" / "documents"
PUBLISHED_INDEX = ROOT / "search_engine" / "corpus" / "image_index"
LEAST_FREE_BYTES = 200_000_000
PUBLISHED_MODEL = "autumncc/Qwen2.5-VL-7B-VRAG"
SERVED_NAME = "Qwen/Qwen2.5-VL-7B-Instruct"


def build_index(documents: Path, index: Path) -> Path:
    """Build or bring up to date the index of a folder; a second call with nothing new takes a moment."""
    if not documents.exists():
        raise ConfigError(
            f"There is no folder {documents}. Give --corpus an existing folder of PDFs, images and texts."
        )
    try:
        index.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{index.parent} cannot be written to ({error.strerror}). Set {defaults.STATE_VARIABLE} to a folder that can."
        ) from error
    if shutil.disk_usage(index.parent).free < LEAST_FREE_BYTES:
        raise ConfigError(
            f"Less than {LEAST_FREE_BYTES // 1_000_000} MB are free under {index.parent}. Make room, or set "
            f"{defaults.STATE_VARIABLE} to a folder on another disk."
        )
    if run(python("-m", "search_engine.search_engine", "build", str(documents), str(index)), cwd=ROOT) != 0:
        raise ConfigError(
            f"The index of {documents} could not be built; the lines above say why.\n"
            f"If another version of this project has made it, delete {index} and start again."
        )
    return index


def corpus_index(args: argparse.Namespace) -> list[Path]:
    """The indexes to serve: one's own folder, or what the published commands built, or the example corpus."""
    if args.corpus:
        documents = Path(args.corpus).expanduser().resolve()
        return [build_index(documents, defaults.state() / "index" / index_name(documents))]
    if args.mode in ("search", "vrag", "vimrag") and (PUBLISHED_INDEX / "manifest.json").exists():
        return [PUBLISHED_INDEX]
    return [build_index(EXAMPLE, defaults.state() / "index" / "example")]


def index_name(documents: Path) -> str:
    """A readable name for the index of a folder, different for folders of the same name."""
    return f"{documents.name}-{hashlib.sha256(str(documents).encode()).hexdigest()[:8]}"


def search_service(indexes: list[Path], port: int) -> Service:
    return Service(
        "search service",
        python(
            str(ROOT / "search_engine" / "search_engine_api.py"),
            "--port",
            str(port),
            "--index",
            *map(str, indexes),
            "--optional-index",
            str(defaults.uploads_index()),
        ),
        f"http://127.0.0.1:{port}/health",
        defaults.state() / "logs" / "search.log",
    )


def reader_service(port: int) -> Service:
    return Service(
        "extractive reader",
        python("-m", "demo.reader", "--port", str(port)),
        f"http://127.0.0.1:{port}/health",
        defaults.state() / "logs" / "reader.log",
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
        ),
        f"http://127.0.0.1:{port}/_stcore/health",
        defaults.state() / "logs" / "page.log",
        env=settings,
        cwd=ROOT,  # the look of the page is set in .streamlit there
    )


def agent_settings(args: argparse.Namespace, base_url: str, model: str) -> dict[str, str]:
    """What the page and the agent read from the environment: the services of this launch, and where runs are kept."""
    return {
        "VRAG_BASE_URL": base_url,
        "VRAG_SEARCH_URL": f"http://127.0.0.1:{args.search_port}/search",
        "VRAG_MODEL": model,
        "VRAG_RECORD_DIR": os.environ.get("VRAG_RECORD_DIR") or str(defaults.runs()),
        defaults.STATE_VARIABLE: str(defaults.state()),
    }


def say(text: str) -> None:
    print(text, flush=True)


def run_search(args: argparse.Namespace) -> None:
    require_ports(args, "search")
    indexes = corpus_index(args)
    with Services() as services:
        services.start(search_service(indexes, args.search_port))
        say(f"Search service: http://localhost:{args.search_port}/docs   (Ctrl-C stops it)")
        services.watch()


def run_offline(args: argparse.Namespace) -> None:
    require_ports(args, "search", "model", "ui")
    settings = agent_settings(args, f"http://127.0.0.1:{args.model_port}/v1", READER)
    with Services() as services:
        others = [reader_service(args.model_port), page_service("both_app.py", args.ui_port, settings)]
        services.launch(*others)  # they come up while the index is built
        services.start(search_service(corpus_index(args), args.search_port))
        services.wait(*others)
        say(
            "\nEverything runs on this machine. The answers of both agents, VRAG and VimRAG, come from an extractive reader: it\n"
            "finds and reads lines on the pages by OCR. It is not a language model; ./run_demo.sh vrag and vimrag use one.\n"
            f"\n  Open http://localhost:{args.ui_port}\n\nCtrl-C stops everything."
        )
        services.watch()


def run_vrag(args: argparse.Namespace) -> None:
    require_ports(args, "search", "ui")
    base_url = model_server(args.base_url or f"http://127.0.0.1:{args.model_port}/v1")
    vllm = None if model_answers(base_url) else vllm_service(args, base_url)
    model = args.model or (SERVED_NAME if vllm else "")
    with Services() as services:
        services.start(
            search_service(corpus_index(args), args.search_port),
            page_service("app.py", args.ui_port, agent_settings(args, base_url, model)),
        )
        if vllm:
            say(f"Starting vLLM with {PUBLISHED_MODEL}; the first start downloads it (log: {vllm.log}) ...")
            services.start(vllm, seconds=3600)
        say(f"\n  Open http://localhost:{args.ui_port}\n\nCtrl-C stops everything that was started here.")
        services.watch()


def model_server(url: str) -> str:
    try:
        return client_url(url)
    except ValueError as error:
        raise ConfigError(f"--base-url {error}.") from error


def model_answers(base_url: str, key: str = "") -> bool:
    """Whether an OpenAI-compatible server answers there. Raises ConfigError where it wants another key."""
    answer = status(f"{base_url}/models", key or os.environ.get("VRAG_API_KEY", ""))
    if answer in (401, 403):
        raise ConfigError(
            f"The model server at {base_url} asks for an API key. Set VRAG_API_KEY to it, then start again."
        )
    return answer is not None


def vllm_service(args: argparse.Namespace, base_url: str) -> Service:
    """A vLLM server with the published checkpoint. Raises ConfigError with what to do where there is no vLLM."""
    if args.base_url:
        raise ConfigError(f"No model server answers at {base_url}. Start it, or correct --base-url.")
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
    return Service(
        "vLLM server",
        [
            "vllm", "serve", PUBLISHED_MODEL, "--port", str(args.model_port), "--host", "127.0.0.1",
            "--limit-mm-per-prompt", '{"image": 10}', "--served-model-name", SERVED_NAME,
        ],
        f"{base_url}/models",
        defaults.state() / "logs" / "vllm.log",
    )  # fmt: skip


def require_ports(args: argparse.Namespace, *names: str) -> None:
    """Fail with a sentence unless the ports are free and different."""
    services = {"search": "search service", "model": "reader", "ui": "web page"}
    taken: dict[int, str] = {}
    for name in names:
        port = getattr(args, f"{name}_port")
        if port in taken:
            raise ConfigError(f"The {services[name]} and the {taken[port]} cannot both use port {port}.")
        taken[port] = services[name]
        require_free(port, services[name], f"--{name}-port")


def run_vimrag(args: argparse.Namespace) -> None:
    base_url, model, words = vimrag_model(args)
    reader = model == READER and not args.base_url
    require_ports(args, "search", "ui", *(["model"] if reader else []))
    others = [reader_service(args.model_port)] if reader else []
    others.append(page_service("vimrag_app.py", args.ui_port, agent_settings(args, base_url, model)))
    with Services() as services:
        services.launch(*others)  # they come up while the index is built
        services.start(search_service(corpus_index(args), args.search_port))
        services.wait(*others)
        say(f"\n{words}\n\n  Open http://localhost:{args.ui_port}\n\nCtrl-C stops everything that was started here.")
        services.watch()


def vimrag_model(args: argparse.Namespace) -> tuple[str, str, str]:
    """Endpoint and name of the model that VimRAG asks, and a sentence that says which one it is. Raises ConfigError."""
    if args.base_url:
        base_url = model_server(args.base_url)
        ours = (urlsplit(base_url).hostname or "").endswith(".aliyuncs.com")
        if not model_answers(base_url, api_key() if ours else ""):  # the key for DashScope is nobody else's
            raise ConfigError(f"No model server answers at {base_url}. Start it, or correct --base-url.")
        return base_url, args.model or "", f"The model server at {base_url} answers the questions."
    if api_key():
        model = args.model or defaults.DASHSCOPE_MODEL
        words = f"{model} of DashScope answers the questions; every question costs what its tokens cost."
        return defaults.DASHSCOPE_URL, model, words
    words = (
        "There is no key in DASHSCOPE_API_KEY and no --base-url, so the answers come from the extractive reader: it finds\n"
        "and reads lines on the pages by OCR. It is not a language model, and its plans are simple."
    )
    return f"http://127.0.0.1:{args.model_port}/v1", READER, words


def api_key() -> str:
    """The key for DashScope, where the environment has one."""
    return os.environ.get("DASHSCOPE_API_KEY", "").strip() or os.environ.get("VRAG_API_KEY", "").strip()


def run_ask(args: argparse.Namespace) -> None:
    from demo.terminal import ask

    if not args.question or not args.question.strip():
        raise ConfigError('Give a question: ./run_demo.sh ask "What share of ...?"')
    args.search_port = free_port()
    with Services() as services:
        if args.base_url:
            base_url, model, others = model_server(args.base_url), args.model or "", []
            if not model_answers(base_url):
                raise ConfigError(f"No model server answers at {base_url}. Start it, or correct --base-url.")
        else:
            port = free_port()
            base_url, model, others = f"http://127.0.0.1:{port}/v1", READER, [reader_service(port)]
        services.launch(*others)
        services.start(search_service(corpus_index(args), args.search_port))
        services.wait(*others)
        os.environ.update(agent_settings(args, base_url, model))
        if model == READER:
            os.environ.setdefault("VRAG_MAX_PIXELS", str(defaults.READER_MAX_PIXELS))
        if not ask(args.question):
            raise VragError("There is no answer; the lines above say why.")


MODES = {"offline": run_offline, "search": run_search, "vrag": run_vrag, "vimrag": run_vimrag, "ask": run_ask}


def port(text: str) -> int:
    """A port number of the command line."""
    value = int(text)
    if not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 1 to 65535")
    return value


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
    out.add_argument("--search-port", type=port, default=8001, metavar="PORT")
    out.add_argument("--model-port", type=port, default=8002, metavar="PORT")
    out.add_argument("--ui-port", type=port, default=8501, metavar="PORT")
    return out


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    for sign in INTERRUPTS:
        signal.signal(sign, interrupt)
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
                f"The disk is full ({defaults.state()}). Make room and run this again; nothing that was built is lost.",
                file=sys.stderr,
            )
            return 1
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
