"""The page where a person adds documents of their own: upload, index with progress, ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import streamlit as st

from demo import defaults
from demo.ui import health
from demo.ui.library import TYPES, Contents, Job, Library, LibraryError
from demo.ui.text import literal, plain, row
from vrag.settings import NO_KEY, SearchSettings, is_loopback

EVERY = 0.5


@st.cache_resource(show_spinner=False)
def library(documents: str, index: str) -> Library:
    """One for all sessions, so that two browser tabs never write one index at the same time."""
    return Library(Path(documents), Path(index))


def reloading(settings: SearchSettings) -> Callable[[], None]:
    """What lets the running search service take a new index up; it raises LibraryError where that fails."""
    base = settings.search_url.removesuffix("/search")
    key = settings.search_api_key.get_secret_value()

    def reload() -> None:
        headers = {"Authorization": f"Bearer {key}"} if key not in ("", NO_KEY) else {}
        try:
            answer = httpx.post(f"{base}/admin/reload", timeout=120, headers=headers, trust_env=not is_loopback(base))
            body = answer.json()
        except httpx.HTTPError as error:
            raise LibraryError(
                f"The documents are indexed, but the search service at {base} does not answer. Start it with "
                "./run_demo.sh, and it will find them."
            ) from error
        except ValueError:
            body = {}
        if not answer.is_success:
            raise LibraryError(str(body.get("detail") or f"The search service answered with {answer.status_code}."))
        if defaults.uploads_index().name not in (body.get("index") or {}).get("corpora", ()):
            raise LibraryError(
                f"The documents are indexed, but the search service at {base} does not serve that index. Start it with "
                f"--optional-index {defaults.uploads_index()}, as ./run_demo.sh does."
            )

    return reload


def page(settings: SearchSettings) -> None:
    st.title("My documents", anchor=False)
    st.caption("What you add here stays on this machine, is indexed, and is searched together with the rest.")
    mine = library(str(defaults.uploads()), str(defaults.uploads_index()))
    job = mine.job
    with st.form("add", clear_on_submit=True, border=False):
        files = st.file_uploader("PDFs, images and texts", list(TYPES), accept_multiple_files=True)
        if st.form_submit_button("Add", type="primary", icon=":material/upload:", disabled=job is not None):
            add(files or [], mine, settings)
            st.rerun()
    for note in st.session_state.get("library-notes", ()):
        st.info(plain(note))
    if job is not None:
        watch(job)
    else:
        outcome(st.session_state.get("library-job"))
    listing(mine, settings, busy=job is not None)


def add(files: list[Any], mine: Library, settings: SearchSettings) -> None:
    """Store the files, then begin to index them."""
    if not files:
        st.session_state["library-notes"], st.session_state["library-job"] = ["Choose files first."], None
        return
    notes = []
    try:
        for file in files:
            notes.append(mine.save(file.name, file.getvalue()))  # noqa: PERF401 (what came before an error is kept)
    except LibraryError as error:
        notes.append(str(error))
    begin(lambda: mine.update(reloading(settings)), [note for note in notes if note])


def begin(start: Callable[[], Job], notes: list[str] | None = None) -> None:
    """Start a job and remember it for this session."""
    notes = notes or []
    st.session_state["library-job"] = None
    try:
        st.session_state["library-job"] = start()
    except LibraryError as error:
        notes.append(str(error))
    st.session_state["library-notes"] = notes


def watch(job: Job) -> None:
    @st.fragment(run_every=EVERY)
    def progress() -> None:
        if job.over:
            health.forget()
            st.rerun()
        share = job.done / job.total if job.total else 0.0
        words = f"Reading: {job.done} of {job.total} pages" if job.total else "Working on the index ..."
        st.progress(min(1.0, share), words)

    progress()


def outcome(job: Job | None) -> None:
    """How the job of this session went."""
    if job is None:
        return
    if job.error:
        st.error(plain(job.error, 1000), icon=":material/error:")
    else:
        st.success(plain(job.result), icon=":material/check_circle:")


def listing(mine: Library, settings: SearchSettings, busy: bool) -> None:
    names = mine.names()
    if not names:
        st.caption("Nothing has been added yet.")
        return
    try:
        contents = Contents() if busy else mine.contents()
    except LibraryError as error:
        st.error(f"The index of your documents cannot be used. {plain(str(error), 600)}", icon=":material/error:")
        if st.button("Build it anew", icon=":material/refresh:"):
            begin(lambda: mine.rebuild(reloading(settings)))
            st.rerun()
        return
    st.subheader(f"{len(names)} document{'' if len(names) == 1 else 's'}", anchor=False)
    for number, name in enumerate(names):
        with st.container(
            horizontal=True, vertical_alignment="center", border=True, key=f"document-{number}", gap="small"
        ):
            st.html(describe(name, mine.size(name), contents, busy), width="stretch")
            if st.button("Remove", key=f"remove-{name}", icon=":material/delete:", disabled=busy, type="tertiary"):
                begin(lambda name=name: mine.remove(name, reloading(settings)))  # type: ignore[misc]
                st.rerun()
    if not busy and any(name not in contents.pages for name in names) and st.button("Index what is missing"):
        begin(lambda: mine.update(reloading(settings)))
        st.rerun()


def describe(name: str, size: int, contents: Contents, busy: bool) -> str:
    """A line of the list: the name, how much of it is in the index, and what is wrong with the rest."""
    pages = contents.pages.get(name)
    facts = [f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{max(1, round(size / 1000))} kB" if size else "empty"]
    if pages:
        facts.insert(0, f"{pages} page{'' if pages == 1 else 's'}")
    elif not busy:
        facts.insert(0, "not in the index")
    problems = "".join(
        f'<div class="v-problem">{literal(why, 400)}</div>' for why in contents.problems.get(name, ())[:5]
    )
    icon = "warning" if problems else "description"
    return row(icon, f'<b>{literal(name)}</b> <span class="v-faint">{" · ".join(facts)}</span>{problems}')
