"""Starts the search service: ``python search_engine/search_engine_api.py`` from the project's root.

Edit the two names below, or leave them and use the options or the environment (``VRAG_SEARCH_INDEX``,
``VRAG_SEARCH_PORT``, ...; ``--help`` lists the options). Anything else that can be set is in
``search_engine/service/settings.py``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:
    # Run as a script: the script's folder comes first on the path, and a module in it has the name of the package.
    sys.path[:] = [
        str(ROOT),
        *(path for path in sys.path if os.path.realpath(path) != str(Path(__file__).resolve().parent)),
    ]

#: The embedding model that the indexes were built with.
model_path = "text_page"
#: The folders of the indexes to serve, seen from the project's root.
corpus_path = ["search_engine/corpus/image_index"]


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description="Serves the indexes of a corpus over HTTP.")
    out.add_argument("--host", help="the address to listen on (127.0.0.1); any other needs VRAG_SEARCH_API_KEY")
    out.add_argument("--port", type=int, help="(8001)")
    out.add_argument("--index", nargs="+", metavar="DIR", help=f"the indexes to serve ({' '.join(corpus_path)})")
    out.add_argument("--optional-index", nargs="+", metavar="DIR", help="served too as soon as they exist")
    out.add_argument("--model", help=f"the embedding model of the indexes ({model_path})")
    out.add_argument("--vectors", metavar="KIND", help="flat, fp16, sq8, ivf, hnsw or milvus (flat)")
    out.add_argument("--milvus-uri", metavar="URI", help="http://host:19530 or a local file.db, for --vectors milvus")
    out.add_argument("--reranker", help="a reranker's checkpoint, for searches that ask for a second look (none)")
    out.add_argument(
        "--watch-seconds", type=float, metavar="S", help="take up a changed index by itself, looking this often"
    )
    out.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return out


def main(argv: list[str] | None = None) -> int:
    options = vars(parser().parse_args(argv))
    logging.basicConfig(
        level=options.pop("log_level").upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )

    from search_engine.service.server import serve
    from search_engine.service.settings import ENV_PREFIX, ServiceSettings
    from vrag.errors import VragError

    defaults = {"model": model_path, "index": [ROOT / path for path in corpus_path]}
    for name, value in defaults.items():
        if options[name] is None and not os.environ.get(f"{ENV_PREFIX}{name.upper()}"):
            options[name] = value
    try:
        serve(ServiceSettings(**options))
    except VragError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
