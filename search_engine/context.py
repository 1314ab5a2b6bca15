"""What a page stands in: the words of its document's name, its title, and the running heading. Pure functions on text.

Lexical search gives this context to every page as a second, lighter field, because a question names the report and
the chapter while the page itself shows only a table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from search_engine.documents import PageText

_TITLE_CHARACTERS = 160
_HEADING_CHARACTERS = 120


def page_contexts(document: str, pages: Sequence[PageText]) -> list[str]:
    """The context of each page of one document, in order."""
    shared = "\n".join(part for part in (_name_words(document), title(pages[0]) if pages else "") if part)
    return [f"{shared}\n{heading(page)}" for page in pages]


def _name_words(document: str) -> str:
    return re.sub(r"[_\W]+", " ", PurePath(document).stem).strip()


def title(page: PageText) -> str:
    """The tallest lines of a (first) page, in reading order."""
    return _tallest(page, _TITLE_CHARACTERS)


def heading(page: PageText) -> str:
    """The tallest lines of a page: what it announces itself as."""
    return _tallest(page, _HEADING_CHARACTERS)


def _tallest(page: PageText, characters: int) -> str:
    lines = [line for line in page.lines if any(c.isalpha() for c in line.text) and line.box.height <= line.box.width]
    chosen: set[int] = set()
    used = 0
    for index in sorted(range(len(lines)), key=lambda i: -lines[i].box.height):
        used += len(lines[index].text)
        if used > characters:
            break
        chosen.add(index)
    return "\n".join(lines[index].text for index in sorted(chosen))
