"""``python -m vrag.report``: write recorded runs as one HTML file or as Markdown with its pictures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vrag.errors import VragError
from vrag.records import Record, read_record
from vrag.report import save_html, save_markdown
from vrag.report.pictures import Pages
from vrag.retriever import HttpRetriever
from vrag.settings import SearchSettings, is_loopback


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vrag.report",
        description="Write recorded runs as a document. The pictures come from the search service, which has to run.",
        epilog="Without the service, or where a page is gone, a sentence stands in the picture's place.",
    )
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="the record of a run (.jsonl)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one HTML file that needs nothing else")
    parser.add_argument(
        "--markdown", type=Path, metavar="DIR", help="write report.md and its pictures into this folder"
    )
    parser.add_argument(
        "--search-url", metavar="URL", help="the search endpoint; default: the record's own, if it is on this machine"
    )
    parser.add_argument("--no-pictures", action="store_true", help="load no pictures at all")
    parser.add_argument("--title", default="")
    given = parser.parse_args(argv)
    if given.html is None and given.markdown is None:
        parser.error("choose where to write to: --html FILE or --markdown DIR (or both)")
    try:
        records = [read_record(path) for path in given.records]
        if given.no_pictures:
            return _save(records, None, given)
        with HttpRetriever(_search_settings(records, given.search_url)) as retriever:
            return _save(records, retriever, given)
    except VragError as error:
        print(error, file=sys.stderr)
        return 1


def _save(records: list[Record], pages: Pages | None, given: argparse.Namespace) -> int:
    if given.html is not None:
        print(save_html(records, pages, given.html, given.title))
    if given.markdown is not None:
        print(save_markdown(records, pages, given.markdown, given.title))
    return 0


def _search_settings(records: list[Record], url: str | None) -> SearchSettings:
    """The service that is named; else the one that the first record names, if it is on this machine.

    A record may come from somebody else, and the key of the search service must not travel where they choose.
    """
    if url is None:
        recorded = str(records[0].header.settings.get("search_url") or "")
        url = recorded if recorded and is_loopback(recorded) else None
    return SearchSettings() if url is None else SearchSettings(search_url=url)


if __name__ == "__main__":
    sys.exit(main())
