"""From the settings to an engine: which indexes exist, what to do when none does, and when they have changed."""

from __future__ import annotations

from pathlib import Path

from search_engine.index_source import is_index, state_files
from search_engine.service.settings import ServiceSettings
from search_engine.service.slot import Engine
from search_engine.settings import RetrievalSettings
from vrag.errors import ConfigError


def existing(settings: ServiceSettings) -> list[Path]:
    """The indexes to load. Raises :class:`ConfigError`, saying how to build it, when a required one is missing."""
    for path in settings.index:
        if not is_index(path):
            raise ConfigError(how_to_build(path))
    found = [*settings.index, *(path for path in settings.optional_index if is_index(path))]
    if not found:
        raise ConfigError(how_to_build(*settings.optional_index[:1]))
    return found


def how_to_build(path: Path | None = None) -> str:
    """What to type when there is no index at ``path``."""
    index = path or Path("search_engine/corpus/image_index")
    source = index.with_name(index.name.removesuffix("_index")) if index.name.endswith("_index") else Path("DOCUMENTS")
    head = f"There is no index at {path}." if path else "No index is named; give one with --index."
    return (
        f"{head} Put images, PDFs or texts into {source} and build it with\n"
        f"  python -m search_engine.search_engine build {source} {index}\n"
        "or serve the example corpus, which is indexed on the way, with\n"
        "  ./run_demo.sh search"
    )


def index_marks(settings: ServiceSettings) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes whenever one of the indexes is committed anew: its manifest is replaced as a whole."""
    folders = (*settings.index, *settings.optional_index)
    return tuple(_mark(file) for folder in folders for file in state_files(folder))


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def open_indexes(settings: ServiceSettings, serving: Engine | None) -> Engine:
    """A search engine over the indexes as they are now; it shares the models of the one being served."""
    from search_engine.search_engine import SearchEngine

    paths = existing(settings)
    given = {name: getattr(settings, name) for name in ("vectors", "milvus_uri")}
    retrieval = RetrievalSettings(**{name: value for name, value in given.items() if value is not None})
    if isinstance(serving, SearchEngine):
        engine = SearchEngine(serving.embedder, settings=retrieval, reranker=serving.reranker)
    else:
        engine = SearchEngine(settings.model, settings=retrieval, reranker=settings.reranker or None)
    engine.load_index(paths)
    return engine
