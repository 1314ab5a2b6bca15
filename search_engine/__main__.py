"""``python -m search_engine``: the command line of the retriever."""

from __future__ import annotations

from search_engine.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
