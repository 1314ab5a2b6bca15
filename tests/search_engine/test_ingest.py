"""The pool of workers with real files, real crashes and real limits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from search_engine.documents import FileResult, SourceFile, discover
from search_engine.files import clear_partial, safe_name, write_atomic
from search_engine.ingest import IngestOptions, Ingestor, Progress
from search_engine.reading import passages
from tests import hostile
from tests.small_disk import mounted
from vrag.errors import VragError

NO_OCR = IngestOptions(ocr=False, page_seconds=60)


def ingest(folder: Path, out: Path, options: IngestOptions = NO_OCR, workers: int = 2) -> dict[str, FileResult]:
    sources, _ = discover(folder)
    results = list(Ingestor(out / "pages", out / "cache", options).run(sources, workers))
    assert [result.source for result in results] == sources
    return {result.source.key: result for result in results}


def ids(result: FileResult) -> list[str]:
    return [extracted.item.id for extracted in result.extracted]


def ingest_workers() -> list[psutil.Process]:
    """The workers of this process: others of its children (a tracker, a browser) belong to other tests."""
    return [process for process in psutil.Process().children() if "ingest_worker" in command_of(process)]


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


@contextmanager
def watching(what: object) -> Iterator[None]:
    """Run ``what`` again and again in a thread meanwhile."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            what()  # type: ignore[operator]

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def readers_of(path: Path) -> list[psutil.Process]:
    """The workers that have ``path`` open."""
    return [process for process in ingest_workers() if str(path) in open_files(process)]


def open_files(process: psutil.Process) -> list[str]:
    try:
        return [file.path for file in process.open_files()]
    except psutil.Error:  # it has just ended
        return []


def test_every_kind_of_file_gives_items_that_match_their_media(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    hostile.pdf(folder / "two.pdf", ["First page", "Second page"])
    hostile.image_of(folder / "plain.png", "Plain")
    hostile.image_of(folder / "press.jpg", "Press", mode="CMYK")
    hostile.image_of(folder / "palette.gif", "Palette", mode="P")
    Image.new("I;16", (70, 50), 40_000).save(folder / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    hostile.image_of(folder / "turned.jpg", "Turned", (300, 100), exif=exif)
    (folder / "notes.md").write_text("# Title\n\nSome text.", encoding="utf-8")
    (folder / "wide.txt").write_bytes("宽字符".encode("utf-16"))
    (folder / "old.txt").write_bytes("旧编码".encode("gb18030"))
    (folder / "data.json").write_text('{"b": ["\\u6570"]}', encoding="utf-8")
    results = ingest(folder, tmp_path / "out")
    assert {key: result.problems for key, result in results.items() if result.problems} == {}
    assert ids(results["two.pdf"]) == ["two_1", "two_2"]
    assert [extracted.text.text for extracted in results["two.pdf"].extracted] == ["First page", "Second page"]
    assert [extracted.item.page for extracted in results["two.pdf"].extracted] == [1, 2]
    for result in results.values():
        for extracted in result.extracted:
            if extracted.media is not None:
                with Image.open(extracted.media) as image:
                    assert image.size == (extracted.item.width, extracted.item.height)
                    assert image.format in ("JPEG", "PNG")
    media = {key: result.extracted[0].media for key, result in results.items()}
    assert media["plain.png"] == folder / "plain.png"
    copies = {key for key, path in media.items() if path and path.is_relative_to(tmp_path / "out")}
    assert copies == {"two.pdf", "press.jpg", "palette.gif", "deep.png", "turned.jpg"}
    assert results["turned.jpg"].extracted[0].item.width == 100
    contents = {key: results[key].extracted[0].item.content for key in ("notes.md", "wide.txt", "old.txt", "data.json")}
    assert contents == {
        "notes.md": "# Title\n\nSome text.",
        "wide.txt": "宽字符",
        "old.txt": "旧编码",
        "data.json": '{\n "b": [\n  "数"\n ]\n}',
    }


def test_bad_files_are_listed_with_their_reasons_and_shift_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    good = hostile.pdf(folder / "a_good.pdf", ["one", "two", "three"]).read_bytes()
    hostile.bomb_png(folder / "bomb.png")
    hostile.encrypted_pdf(folder / "locked.pdf")
    hostile.empty_pdf(folder / "pageless.pdf")
    hostile.half_broken_pdf(folder / "half.pdf")
    (folder / "cut.pdf").write_bytes(good[: len(good) * 3 // 4])
    for name in ("nothing.pdf", "nothing.png", "nothing.txt", "void.mp4"):
        (folder / name).write_bytes(b"")
    (folder / "really_a.png").write_bytes(good)
    (folder / "binary.txt").write_bytes(bytes(range(256)))
    (folder / "broken.json").write_text("{", encoding="utf-8")
    (folder / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    hostile.image_of(folder / "cut.png", "cut").write_bytes((folder / "cut.png").read_bytes()[:300])
    hostile.image_of(folder / "z_good.png", "good")
    results = ingest(folder, tmp_path / "out")
    reasons = {
        "bomb.png": "pixels allowed",
        "locked.pdf": "encrypted",
        "pageless.pdf": "no pages",
        "nothing.pdf": "0 bytes",
        "nothing.png": "0 bytes",
        "nothing.txt": "0 bytes",
        "void.mp4": "0 bytes",
        "really_a.png": "not a readable image",
        "binary.txt": "not a text file",
        "broken.json": "not valid JSON",
        "deep.json": "not valid JSON",
        "cut.png": "damaged",
    }
    for key, reason in reasons.items():
        assert ids(results[key]) == [], key
        assert reason in " ".join(results[key].problems), key
    assert ids(results["half.pdf"]) == ["half_1", "half_3"]
    assert results["half.pdf"].problems[0].startswith("page 2: ")
    assert len(results["half.pdf"].problems) == 1
    assert "damaged" in results["cut.pdf"].problems[0]
    assert (ids(results["a_good.pdf"]), ids(results["z_good.png"])) == (
        ["a_good_1", "a_good_2", "a_good_3"],
        ["z_good"],
    )


def test_randomly_damaged_files_are_read_or_refused_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    originals = [
        hostile.pdf(tmp_path / "a.pdf", ["one", "two"]),
        hostile.scanned_pdf(tmp_path / "b.pdf", "scan"),
        hostile.image_of(tmp_path / "c.png", "picture"),
        hostile.image_of(tmp_path / "d.jpg", "picture"),
        hostile.image_of(tmp_path / "e.tiff", "picture", (200, 80)),
    ]
    random = Random(7)
    for number in range(40):
        original = random.choice(originals)
        data = bytearray(original.read_bytes())
        for _ in range(random.randint(1, 30)):
            data[random.randrange(len(data))] = random.randrange(256)
        (folder / f"{number:02}{original.suffix}").write_bytes(data)
    for result in ingest(folder, tmp_path / "out").values():
        assert result.extracted or result.problems
        assert all(extracted.media is not None and extracted.media.exists() for extracted in result.extracted)


def test_a_scan_is_read_by_ocr_once_ever(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    hostile.scanned_pdf(folder / "scan.pdf", "Invoice 4711", hidden="lnvo1ce A7ll garbled")
    out = tmp_path / "out"
    first = ingest(folder, out, IngestOptions())["scan.pdf"].extracted[0].text
    assert (first.source, first.text.replace(" ", "")) == ("ocr", "Invoice4711")
    (cached,) = (out / "cache").glob("*/*.json")
    cached.write_text(cached.read_text(encoding="utf-8").replace("4711", "4712"), encoding="utf-8")
    # What stands in the cache now is what the second run says: it did not read the page again.
    second = ingest(folder, out, IngestOptions())["scan.pdf"].extracted[0].text
    assert second.text.replace(" ", "") == "Invoice4712"


def test_the_pages_of_one_pdf_are_spread_over_the_workers_and_come_back_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    hostile.pdf(folder / "long.pdf", [f"This is page {number}" for number in range(1, 42)])
    seen: list[Progress] = []
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, len(ingest_workers()))

    sources, _ = discover(folder)
    with watching(look):
        run = Ingestor(tmp_path / "pages", tmp_path / "cache", IngestOptions(ocr=False, pages_per_task=4))
        (result,) = run.run(sources, 2, seen.append)
    assert [extracted.text.text for extracted in result.extracted] == [f"This is page {n}" for n in range(1, 42)]
    assert [extracted.item.page for extracted in result.extracted] == list(range(1, 42))
    assert seen[-1] == Progress(files_done=1, files_total=1, pages_done=41, pages_total=41)
    assert [progress.pages_done for progress in seen] == sorted(progress.pages_done for progress in seen)
    assert most == 2
    assert ingest_workers() == []


def test_a_page_that_takes_too_long_is_lost_alone(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    hostile.endless_pdf(folder / "endless.pdf", good_pages_before=1, good_pages_behind=2)
    hostile.image_of(folder / "z.png", "after")
    results = ingest(folder, tmp_path / "out", IngestOptions(ocr=False, page_seconds=3), workers=1)
    assert ids(results["endless.pdf"]) == ["endless_1", "endless_3", "endless_4"]
    assert results["endless.pdf"].problems == ("page 2: it took more than the 3 seconds allowed",)
    assert ids(results["z.png"]) == ["z"]
    assert ingest_workers() == []


def test_a_worker_that_is_killed_twice_at_one_page_costs_that_page(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    endless = hostile.endless_pdf(folder / "endless.pdf", good_pages_before=1, good_pages_behind=1)
    hostile.pdf(folder / "other.pdf", ["fine"] * 3)
    done = tmp_path / "out" / "pages" / "endless" / "endless_1.jpg"
    first: dict[int, float] = {}
    killed: set[int] = set()

    def kill() -> None:
        for process in readers_of(endless):
            # With page 1 behind it, and busy for longer than any of the good pages takes: it is at page 2.
            busy = process.cpu_times().user
            if done.exists() and busy - first.setdefault(process.pid, busy) > 0.5:
                killed.add(process.pid)
                process.send_signal(signal.SIGKILL)

    with watching(kill):
        results = ingest(folder, tmp_path / "out", workers=1)
    assert len(killed) == 2
    assert ids(results["endless.pdf"]) == ["endless_1", "endless_3"]
    assert "page 2: " in results["endless.pdf"].problems[0]
    assert "SIGKILL" in results["endless.pdf"].problems[0]
    assert ids(results["other.pdf"]) == ["other_1", "other_2", "other_3"]


def test_a_worker_killed_by_chance_costs_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = hostile.pdf(folder / "long.pdf", [f"This is page {number}" for number in range(1, 60)], size=(1600, 1200))
    killed: list[int] = []

    def kill_one() -> None:
        if not killed:
            for process in readers_of(path)[:1]:
                killed.append(process.pid)
                process.send_signal(signal.SIGKILL)

    with watching(kill_one):
        results = ingest(folder, tmp_path / "out")
    assert len(killed) == 1
    assert ids(results["long.pdf"]) == [f"long_{number}" for number in range(1, 60)]
    assert results["long.pdf"].problems == ()


def test_a_file_that_needs_too_much_memory_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    hostile.bomb_png(folder / "big.png", side=9_000)  # within the limit on pixels, and 243 MB in RGB
    hostile.image_of(folder / "small.png", "small")
    options = IngestOptions(ocr=False, memory_bytes=500 * 2**20)
    results = ingest(folder, tmp_path / "out", options, workers=1)
    assert ids(results["big.png"]) == []
    assert "memory" in results["big.png"].problems[0]
    assert ids(results["small.png"]) == ["small"]


def test_ctrl_c_in_a_script_without_a_main_guard_stops_at_once_and_a_second_run_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    hostile.pdf(folder / "a.pdf", ["one"])
    hostile.endless_pdf(folder / "b.pdf")
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from pathlib import Path
            from search_engine.documents import discover
            from search_engine.ingest import Ingestor, IngestOptions

            folder, out, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
            ingestor = Ingestor(out / "pages", out / "cache", IngestOptions(ocr=False, page_seconds=seconds))
            for result in ingestor.run(discover(folder)[0], 2):
                print(result.source.key, len(result.extracted), flush=True)
            """
        ),
        encoding="utf-8",
    )

    def command(seconds: int) -> list[str]:
        return [sys.executable, str(script), str(folder), str(tmp_path / "out"), str(seconds)]

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command(600), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "a.pdf 1\n"
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    again = subprocess.run(command(2), capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert again.stdout == "a.pdf 1\nb.pdf 0\n"
    assert list((tmp_path / "out").rglob(".partial/*")) == []


def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    hostile.pdf(tmp_path / "a.pdf", ["one"])
    code = (
        "from pathlib import Path; import sys, time\n"
        "from search_engine.documents import discover\n"
        "from search_engine.ingest import Ingestor, IngestOptions\n"
        "root = Path(sys.argv[1])\n"
        "run = Ingestor(root / 'p', root / 'c', IngestOptions(ocr=False)).run(discover(root / 'a.pdf')[0] * 2)\n"
        "next(run); print('ready', flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert psutil.wait_procs(workers, timeout=20)[1] == []


def test_closing_the_iterator_stops_the_workers(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    hostile.pdf(folder / "a.pdf", ["one"])
    hostile.endless_pdf(folder / "b.pdf")
    run = Ingestor(tmp_path / "p", tmp_path / "c", NO_OCR).run(discover(folder)[0], 2)
    assert next(iter(run)).source.key == "a.pdf"
    run.close()  # type: ignore[attr-defined]
    assert ingest_workers() == []


def test_no_more_results_are_held_than_the_window_allows(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}.txt").write_text(f"text {number}", encoding="utf-8")
    seen: list[Progress] = []
    count = 0
    for result in Ingestor(tmp_path / "p", tmp_path / "c", NO_OCR).run(discover(folder)[0], 1, seen.append):
        assert result.extracted[0].item.content == f"text {count}"
        count += 1
        time.sleep(0.02)
    assert count == 30
    # One worker, four files ahead, and the one just handed out.
    assert max(progress.pages_done - progress.files_done for progress in seen) <= 5


def test_a_full_disk_stops_the_run_with_a_sentence(tmp_path: Path) -> None:
    path = hostile.pdf(tmp_path / "a.pdf", ["x"] * 3, size=(2000, 1500))
    with mounted(tmp_path / "full", "16k"):
        run = Ingestor(tmp_path / "full" / "pages", tmp_path / "cache", NO_OCR).run(discover(path)[0])
        with pytest.raises(VragError, match=r"No space left on device.*goes on from here"):
            list(run)


def test_workers_that_cannot_start_are_an_error_and_not_an_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(VragError, match=r"do not start: .* status 1"):
        list(Ingestor(tmp_path / "p", tmp_path / "c").run(discover(tmp_path / "a.txt")[0]))


def test_names_are_safe_and_stay_different() -> None:
    assert safe_name("报告_2024 (final)") == "报告_2024 (final)"
    names = [
        "../../etc/passwd",
        "a/b",
        "a\\b",
        "a:b",
        "",
        ".",
        "..",
        "x" * 300,
        "x" * 301,
        "nul\0",
        "a\ud800",
        "CON ",
        "e\u0301",
    ]
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    for name in safe:
        assert name
        assert not name.startswith(".")
        assert len(name.encode()) <= 120
        assert "/" not in name


@given(st.text())
def test_any_name_is_one_component_of_a_path(name: str) -> None:
    safe = safe_name(name)
    assert Path("root") / safe == Path("root", safe)
    assert len(Path("root", safe).parts) == 2
    assert safe.encode()


def test_partial_files_of_dead_processes_are_cleared_and_those_of_live_ones_kept(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a" / "b.txt", b"whole", tmp_path)
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"whole"
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        dead = process.pid
    for name in (f"{dead}.0", f"{os.getpid()}.0", "stray"):
        (tmp_path / ".partial" / name).write_bytes(b"")
    clear_partial(tmp_path)
    assert [path.name for path in (tmp_path / ".partial").iterdir()] == [f"{os.getpid()}.0"]


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="ab c.。!\n#\r", max_size=400), st.integers(2, 60))
def test_passages_keep_every_character_within_the_limit(text: str, longest: int) -> None:
    found = passages(text, longest)
    assert all(0 < len(passage) <= longest for passage in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_long_texts_are_cut_at_headings_and_paragraphs(tmp_path: Path) -> None:
    sections = [f"# Section {n}\n\n" + "Words in a sentence. " * 40 for n in range(4)]
    assert [passage[:11] for passage in passages("\n\n".join(sections), 1000)] == [f"# Section {n}" for n in range(4)]
    (tmp_path / "long.md").write_text("\n\n".join(sections), encoding="utf-8")
    options = IngestOptions(ocr=False, passage_characters=1000)
    result = ingest(tmp_path, tmp_path / "out", options)["long.md"]
    assert ids(result) == [f"long:{n}" for n in range(1, 5)]
    assert result.extracted[2].item.metadata["passage"] == 3


def test_listed_rows_keep_their_uid_and_metadata(tmp_path: Path) -> None:
    hostile.pdf(tmp_path / "report.pdf", ["one", "two"])
    (tmp_path / "list.jsonl").write_text(
        '{"uid": "../r:1", "file_path": "report.pdf", "year": 2024}\n{"uid": "p", "content": "Passage."}\n',
        encoding="utf-8",
    )
    sources, _ = discover(tmp_path / "list.jsonl")
    report, passage = Ingestor(tmp_path / "pages", tmp_path / "cache", NO_OCR).run(sources, 1)
    assert ids(report) == ["../r:1_1", "../r:1_2"]
    assert report.extracted[0].item.metadata["year"] == 2024
    media = report.extracted[0].media
    assert media is not None
    assert media.resolve().is_relative_to((tmp_path / "pages").resolve())
    assert (passage.extracted[0].item.id, passage.extracted[0].item.content) == ("p", "Passage.")


def test_a_source_that_vanishes_is_a_problem_of_its_own(tmp_path: Path) -> None:
    gone = SourceFile(tmp_path / "gone.pdf", "pdf", id="gone", key="gone.pdf")
    here = SourceFile(hostile.pdf(tmp_path / "here.pdf", ["x"]), "pdf", id="here", key="here.pdf")
    lost, found = Ingestor(tmp_path / "pages", tmp_path / "cache", NO_OCR).run([gone, here], 1)
    assert lost.problems == ("No such file or directory",)
    assert ids(found) == ["here_1"]
