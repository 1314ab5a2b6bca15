"""Foreign text on the page: what a model, a document or a file name says is shown letter by letter, never interpreted.

Two places, two rules. Body text goes through ``st.html`` with :func:`literal`, where escaping is complete. Labels of
widgets and captions of pictures are Markdown whatever one does; :func:`plain` takes every mark its meaning.
"""

from __future__ import annotations

import html
import re
import string

#: More of one text than anybody reads; a hostile reply may be a megabyte long.
MAX_CHARS = 8000
_MARKS = re.compile(f"([{re.escape(string.punctuation)}])")
#: Joins without a gap and shows nothing. Emoji codes, icons, arrows and dashes are looked for after Markdown has been
#: read, so a backslash does not stop them.
_JOINER = "\u2060"
_LATE = re.compile(r":(?=[\w+/-]+:)|(?<=[-<])(?=[->])")
#: What may not reach a page as it is: controls, and marks that turn the direction of the text after them.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_TAGS = re.compile(r"(?:</?(?:think|search|bbox|answer|tool_call)>?\s*)+|<[a-z_/]*$")


def clean(text: str, limit: int = MAX_CHARS) -> str:
    """Without what is not seen, and not longer than anybody reads."""
    text = _UNSEEN.sub("", text.encode("utf-8", "replace").decode("utf-8"))
    return text if len(text) <= limit else text[:limit].rstrip() + " ..."


def literal(text: str, limit: int = MAX_CHARS) -> str:
    """As HTML that shows ``text`` and nothing else."""
    return html.escape(clean(text, limit))


def plain(text: str, limit: int = 300) -> str:
    """As Markdown (of Streamlit's kind) that shows ``text`` and nothing else, on one line."""
    text = " ".join(clean(text, limit).split())
    return _MARKS.sub(r"\\\1", _LATE.sub(lambda found: found.group() + _JOINER, text))


def untagged(text: str) -> str:
    """A reply that is still being written, without the tags of the wire."""
    return _TAGS.sub("\n", text).strip()


def row(icon: str, body: str, kind: str = "") -> str:
    """A line of a run: an icon (a name of Material Symbols) and ``body``, which is HTML already."""
    return (
        f'<div class="v-row {kind}"><span class="v-icon" translate="no" aria-hidden="true">{icon}</span>'
        f'<div class="v-body">{body}</div></div>'
    )
