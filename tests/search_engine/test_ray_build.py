"""Building over Ray: the index of a serial build, byte for byte, whatever happens to the workers. Needs ray (and torch)."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from search_engine.documents import discover
from search_engine.ingest import IngestOptions
from search_engine.models.base import Document, Query
from search_engine.models.registry import load_model
from search_engine.search_engine import SearchEngine
from tests.search_engine.test_kill import files
from vrag.errors import ConfigError, ModelError

ray = pytest.importorskip("ray")

from search_engine.ray_build import EmbeddingWorker, RayEmbedder  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PLAIN = IngestOptions(ocr=False)
# Ray itself leaves sockets and files to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_worker_niceness", "0")
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setenv("PYTHONPATH", str(ROOT))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()
    patch.undo()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray") / "docs"
    folder.mkdir()
    words = ["wind", "turbine", "energy", "report", "coast", "storm", "price", "grid", "风力", "发电", "报告"]
    random = np.random.default_rng(3)
    for number in range(60):
        (folder / f"t{number:02d}.txt").write_text(" ".join(random.choice(words, 80)) + f" {number}", "utf-8")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.search_engine.models.conftest import noise

    folder = tmp_path_factory.mktemp("ray") / "pictures"
    folder.mkdir()
    for number in range(24):
        noise(64 + 32 * (number % 5), 96 + 64 * (number % 3), number).save(folder / f"p{number:02d}.png")
    (folder / "torn.png").write_bytes((folder / "p00.png").read_bytes()[:200])
    (folder / "words.txt").write_text("a passage between the pictures", "utf-8")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if importlib.util.find_spec("torchvision") and not torch.cuda.is_available():
        pytest.skip("beside a torch for the CPU, torchvision keeps transformers from being used in the workers")
    from tests.search_engine.models import tiny

    torch.set_num_threads(1)
    return tiny.write_checkpoint(tmp_path_factory.mktemp("ray") / "tiny-qwen3", tiny.qwen3_config())


def built(model: str | RayEmbedder, documents: Path, index: Path, **options: object) -> dict[str, bytes]:
    # The corpus lies outside, and the index at equal depth, so that all its files are comparable.
    engine = SearchEngine(model)
    engine.build_index(documents, index, bs=4, save_interval=8, ingest=PLAIN, workers=1, name="same", **options)
    return files(index)


def after_commits(index: Path, count: int, act: object, stop: threading.Event) -> threading.Thread:
    """Act once, as soon as the build has committed so much."""

    def watch() -> None:
        while not stop.is_set():
            if len(list((index / "segments").glob("*/vectors.npy"))) >= count:
                act()  # type: ignore[operator]
                return
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_two_workers_build_what_one_process_builds(texts: Path, tmp_path: Path) -> None:
    serial = built("text_page", texts, tmp_path / "serial")
    workers = RayEmbedder("text_page", workers=2, cpus=0.5)
    try:
        assert len(set(workers.processes)) == 2
        assert built(workers, texts, tmp_path / "spread") == serial
        assert sum(name.endswith("vectors.npy") for name in serial) > 5
        # Resumed, nothing is to be done.
        assert built(workers, texts, tmp_path / "spread") == serial
        plain = load_model("text_page")
        query = [Query("wind energy")]
        assert (workers.embed_queries(query) == plain.embed_queries(query)).all()
        assert workers.embed_documents([]).vectors.shape == (0, plain.dimension)
        assert not workers.reads_script("风力发电")
    finally:
        workers.close()
    with pytest.raises(ModelError, match="closed"):
        workers.embed_queries(query)


def test_a_torch_model_on_two_workers_with_one_killed(pictures: Path, checkpoint: Path, tmp_path: Path) -> None:
    serial = built(str(checkpoint), pictures, tmp_path / "serial")
    workers = RayEmbedder(str(checkpoint), workers=2, cpus=1, devices="cpu", dtype="float32")
    try:
        before = workers.processes
        assert built(workers, pictures, tmp_path / "spread") == serial
        stop = threading.Event()
        # A real SIGKILL of one actor's process, between two commits.
        watching = after_commits(tmp_path / "killed", 1, lambda: os.kill(before[0], signal.SIGKILL), stop)
        killed = built(workers, pictures, tmp_path / "killed")
        stop.set()
        watching.join()
        # Whether or not the last batches still needed it, the next call meets the dead worker and replaces it.
        again = [workers.embed_documents([Document(str(n), text="x")]).vectors for n in range(4)]
        assert all((one == again[0]).all() for one in again)
        assert killed == serial
        assert before[0] not in workers.processes
        assert before[1] in workers.processes
    finally:
        workers.close()


class Fragile(EmbeddingWorker):
    """A worker that one document kills, every time."""

    def documents(self, documents):  # type: ignore[no-untyped-def]
        if any("poison" in (document.text or "") for document in documents):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().documents(documents)


def test_a_batch_that_kills_every_worker_ends_with_its_name(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search_engine.ray_build.EmbeddingWorker", Fragile)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    folder = tmp_path / "docs"
    folder.mkdir()
    for source in discover(texts)[0][:20]:
        (folder / source.path.name).write_bytes(source.path.read_bytes())
    (folder / "t15.txt").write_text("poison", "utf-8")
    workers = RayEmbedder("text_page", workers=1, cpus=0.5, attempts=2)
    try:
        with pytest.raises(ModelError, match=r"the batch from t12 on ended its worker 2 times"):
            built(workers, folder, tmp_path / "index")
        # What was committed before is kept, and without the document the build goes on from there.
        committed = [name for name in files(tmp_path / "index") if name.endswith("vectors.npy")]
        assert committed
        (folder / "t15.txt").write_text("harmless", "utf-8")
        assert built(workers, folder, tmp_path / "index") == built("text_page", folder, tmp_path / "serial")
    finally:
        workers.close()
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_what_cannot_work_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no directory"):
        RayEmbedder(str(tmp_path / "nothing"), workers=1, cpus=0.5)
    with pytest.raises(ConfigError, match="at least 1"):
        RayEmbedder("text_page", workers=0)
    with pytest.raises(ConfigError, match="did not start within 1 s"):
        RayEmbedder("text_page", workers=1, cpus=64, start_seconds=1.0)


def test_the_command_line_builds_over_a_cluster_of_its_own(texts: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "search_engine.search_engine", "build", str(texts), str(tmp_path / "index")]
    command += ["--ray", "--ray-workers", "1", "--ray-address", "local", "--batch-size", "4", "--save-interval", "8"]
    command += ["--workers", "1", "--progress", "none", "--name", "same"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "index") == built("text_page", texts, tmp_path / "serial")
