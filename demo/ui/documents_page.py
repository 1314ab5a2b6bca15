"""The page where a person adds documents of their own: upload, index with progress, ask."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import httpx
import streamlit as st

from vrag.settings import Settings

TYPES = ["pdf", "png", "jpg", "jpeg", "webp", "tif", "tiff", "bmp", "gif", "txt", "md"]


def folders() -> tuple[Path, Path] | None:
    """Where uploads and their index live; None when the page was started without the launcher."""
    uploads, index = os.environ.get("VRAG_UPLOADS_DIR"), os.environ.get("VRAG_UPLOADS_INDEX")
    return (Path(uploads), Path(index)) if uploads and index else None


def safe_name(name: str) -> str:
    """A file name that is only a name: no folders, no control characters, not hidden, at most 150 characters."""
    name = unicodedata.normalize("NFC", name).replace("\\", "/").rsplit("/", 1)[-1]
    stem, dot, suffix = name.rpartition(".")
    stem = re.sub(r"[\x00-\x1f<>:\"|?*]+", "_", stem if dot else suffix).strip(" .") or "document"
    return f"{stem[:150]}.{suffix}" if dot else stem[:150]


def save(uploads: Path, name: str, data: bytes) -> None:
    """Store one upload so that a half-written file is never seen by the index."""
    uploads.mkdir(parents=True, exist_ok=True)
    target = uploads / safe_name(name)
    half = target.with_name(f".{target.name}.part")
    half.write_bytes(data)
    half.replace(target)


def build(uploads: Path, index: Path) -> dict[str, Any]:
    """Bring the index of the uploads up to date, drawing its progress; returns the builder's report."""
    command = [
        sys.executable,
        "-m",
        "search_engine.search_engine",
        "build",
        str(uploads),
        str(index),
        "--progress",
        "json",
    ]
    bar = st.progress(0.0, "Reading the documents ...")
    report: dict[str, Any] = {}
    noise: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                noise.append(line.rstrip())
                continue
            if "done" in message:
                total = max(1, int(message["total"]))
                share = min(1.0, int(message["done"]) / total)
                bar.progress(share, f"{message['done']} of {message['total']} files, {message.get('items', 0)} pages")
            elif "report" in message:
                report = message["report"]
    bar.empty()
    if process.returncode != 0:
        raise RuntimeError("\n".join(noise[-5:]) or f"the index builder ended with status {process.returncode}")
    return report


def reload_service(settings: Settings) -> None:
    """Let the running search service take the new index in; raises :class:`httpx.HTTPError` when it cannot."""
    key = settings.search_api_key.get_secret_value()
    url = settings.search_url.removesuffix("/search") + "/admin/reload"
    httpx.post(url, timeout=120, trust_env=False, headers={"Authorization": f"Bearer {key}"}).raise_for_status()


def page(settings: Settings) -> None:
    st.title("My documents")
    where = folders()
    if where is None:
        st.info(
            "Start the demo with ./run_demo.sh to add documents here, or build an index and start the search service with it."
        )
        return
    uploads, index = where
    st.caption(
        "PDFs, images and texts that you add here are indexed on this machine and searched together with the rest."
    )
    files = st.file_uploader("Add files", TYPES, accept_multiple_files=True, key="uploads")
    if st.button("Add to the index", type="primary", icon=":material/upload:", disabled=not files):
        add(files, uploads, index, settings)
    listed = sorted(path for path in uploads.glob("*") if path.is_file() and not path.name.startswith("."))
    if not listed:
        st.caption("Nothing has been added yet.")
        return
    st.subheader("In the index")
    for path in listed:
        name, size, button = st.columns([6, 1, 1], vertical_alignment="center")
        name.text(path.name)
        size.caption(f"{path.stat().st_size / 1e6:.1f} MB")
        if button.button("Remove", key=f"remove-{path.name}"):
            path.unlink(missing_ok=True)
            update(uploads, index, settings)
            st.rerun()


def add(files: list[Any], uploads: Path, index: Path, settings: Settings) -> None:
    for file in files:
        save(uploads, file.name, file.getvalue())
    update(uploads, index, settings)


def update(uploads: Path, index: Path, settings: Settings) -> None:
    """Build and reload, and say in words how it went."""
    started = time.time()
    try:
        report = build(uploads, index)
        reload_service(settings)
    except (OSError, RuntimeError, httpx.HTTPError) as error:
        st.error(f"The documents were stored but could not be indexed: {error}")
        return
    for problem in report.get("problems", []):
        st.warning(f"{problem.get('file', '')}: {problem.get('reason', '')}")
    st.success(
        f"{report.get('items', 0)} pages are in the index now ({time.time() - started:.0f} s). Ask about them on the first page."
    )
