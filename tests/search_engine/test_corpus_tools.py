"""The tools that prepare a corpus, run as a user runs them: ``pdf2images.py`` and ``splitVideo.sh``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymupdf
import pytest
from PIL import Image

from search_engine.ingest import IngestOptions
from search_engine.page_images import render_pdfs
from search_engine.search_engine import SearchEngine
from tests.search_engine.models.conftest import write_clip
from vrag.errors import ConfigError

CORPUS = Path(__file__).resolve().parents[2] / "search_engine" / "corpus"
PLAIN = IngestOptions(ocr=False)
#: Renders fast.
COARSE = IngestOptions(dpi=40, min_pixels=1, max_pixels=1_000_000)
TEXTS = ("Solar power in Andalusia", "Wind turbines off Denmark", "Battery storage costs")


def write_pdf(path: Path, texts: tuple[str, ...] = TEXTS, password: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pymupdf.open() as pdf:
        for text in texts:
            page = pdf.new_page(width=400, height=300)
            page.insert_text((30, 60), text, fontsize=18)
            page.insert_text((30, 120), "and more of it below", fontsize=11)
        locked = {"encryption": pymupdf.PDF_ENCRYPT_AES_256, "user_pw": password} if password else {}
        pdf.save(path, **locked)
    return path


def pdf2images(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CORPUS / "pdf2images.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def names(folder: Path) -> list[str]:
    """The visible files of a folder, deep."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if not any(part.startswith(".") for part in path.parts))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


# ---- pdf2images


def test_pdfs_become_page_images_and_bad_ones_are_listed(tmp_path: Path) -> None:
    write_pdf(tmp_path / "pdf" / "report.pdf")
    write_pdf(tmp_path / "pdf" / "deep" / "année 'q' 讲.PDF", TEXTS[:1])
    write_pdf(tmp_path / "pdf" / "-locked.pdf", TEXTS[:1], password="secret")
    (tmp_path / "pdf" / "torn.pdf").write_bytes((tmp_path / "pdf" / "report.pdf").read_bytes()[:300])
    (tmp_path / "pdf" / "empty.pdf").touch()
    (tmp_path / "pdf" / "note.txt").write_text("no PDF")
    done = pdf2images("-i", "pdf", "-o", "image", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 1
    assert names(tmp_path / "image") == ["année 'q' 讲_1.jpg", "report_1.jpg", "report_2.jpg", "report_3.jpg"]
    with Image.open(tmp_path / "image" / "report_1.jpg") as image:
        assert (image.format, image.mode) == ("JPEG", "RGB")
        assert image.width * image.height == pytest.approx(1_500_000, rel=0.01)
    for listed in (
        "-locked.pdf: it is encrypted",
        "torn.pdf: ",
        "empty.pdf: the file is empty",
        "note.txt: it is no PDF",
    ):
        assert listed in done.stderr
    assert "4 pages of 5 PDFs rendered" in done.stdout


def test_options_and_statuses_of_pdf2images(tmp_path: Path) -> None:
    pdf = write_pdf(tmp_path / "one file.pdf", TEXTS[:1])
    done = pdf2images(
        "-i", pdf, "-o", tmp_path / "out", "--dpi", "72", "--quality", "40", "--progress", "none", cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    with Image.open(tmp_path / "out" / "one file_1.jpg") as image:
        assert image.size == (400, 300)
    (tmp_path / "nothing").mkdir()
    for arguments, said in (
        (("-i", "nothing", "-o", "out"), "no PDF in nothing"),
        (("-i", "elsewhere", "-o", "out"), "no file or folder elsewhere"),
        (("--dpi", "0"), "--dpi"),
        (("-i", ".", "-o", "."), "both"),
    ):
        done = pdf2images(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_an_index_of_page_images_has_the_text_of_the_pdfs_without_ocr(tmp_path: Path) -> None:
    write_pdf(tmp_path / "pdf" / "report.pdf")
    render_pdfs(tmp_path / "pdf", tmp_path / "image", workers=1)
    direct, images = SearchEngine(), SearchEngine()
    direct.build_index(tmp_path / "pdf", tmp_path / "a", ingest=PLAIN, workers=1)
    assert not images.build_index(tmp_path / "image", tmp_path / "b", ingest=PLAIN, workers=1).problems
    (hits,) = images.retrieve(["wind turbines"], top_k=1)
    item = hits[0].item
    assert (item.id, item.document, item.page) == ("report_2", "report.pdf", 2)
    assert item == direct.item("report_2").model_copy(update={"metadata": {"source": "report_2.jpg"}})
    assert images.lines("report_2") == direct.lines("report_2")
    assert images.documents == {"report.pdf": 3}
    assert images.remove("report.pdf") == 3
    # The text belongs to this very picture; another one under its name has none of it.
    Image.new("RGB", (50, 40), "red").save(tmp_path / "image" / "report_2.jpg")
    images.build_index(tmp_path / "image", tmp_path / "b", ingest=PLAIN, workers=1)
    assert images.lines("report_2") == ()
    assert images.item("report_2").document == "report_2.jpg"
    # A record that came later is taken up although the picture is the same.
    render_pdfs(tmp_path / "pdf", tmp_path / "image", workers=1)
    images.build_index(tmp_path / "image", tmp_path / "b", ingest=PLAIN, workers=1)
    assert images.lines("report_2") == direct.lines("report_2")
    (tmp_path / "image" / ".pages" / "report" / "1.json").write_text('{"page": "x"}')
    assert not images.build_index(tmp_path / "image", tmp_path / "b", ingest=PLAIN, workers=1).problems
    assert images.lines("report_1") == ()


def test_only_what_is_missing_or_has_changed_is_rendered(tmp_path: Path) -> None:
    pdf, out = write_pdf(tmp_path / "pdf" / "r.pdf"), tmp_path / "image"

    def again(options: IngestOptions = COARSE, **more: bool) -> tuple[int, int]:
        done = render_pdfs(tmp_path / "pdf", out, options, workers=1, **more)
        assert done.problems == ()
        return done.rendered, done.kept

    assert again() == (3, 0)
    before = {name: (out / name).read_bytes() for name in names(out)}
    assert again() == (0, 3)
    (out / "r_1.jpg").unlink()
    (out / "r_2.jpg").write_bytes(before["r_2.jpg"][:100])
    assert again() == (2, 1)
    assert {name: (out / name).read_bytes() for name in names(out)} == before
    assert again(IngestOptions(dpi=30, min_pixels=1)) == (3, 0)
    write_pdf(pdf, ("Another text altogether", "A second page"))
    assert again(IngestOptions(dpi=30, min_pixels=1)) == (2, 0)
    assert names(out) == ["r_1.jpg", "r_2.jpg"]
    assert again(IngestOptions(dpi=30, min_pixels=1), overwrite=True) == (2, 0)


def test_equal_names_and_foreign_pictures(tmp_path: Path) -> None:
    out = tmp_path / "image"
    write_pdf(tmp_path / "pdf" / "b" / "r.pdf", TEXTS[:1])
    assert render_pdfs(tmp_path / "pdf", out, COARSE, workers=1).rendered == 1
    first = (out / "r_1.jpg").read_bytes()
    write_pdf(tmp_path / "pdf" / "a" / "r.pdf", TEXTS[1:2])  # sorts before it, and still comes second
    write_pdf(tmp_path / "other" / "b" / "r.pdf", TEXTS[2:])
    assert render_pdfs(tmp_path / "pdf", out, COARSE, workers=1).kept == 1
    assert render_pdfs(tmp_path / "other", out, COARSE, workers=1).rendered == 1
    assert names(out) == ["r_1.jpg", "r~2_1.jpg", "r~3_1.jpg"]
    assert (out / "r_1.jpg").read_bytes() == first

    long = write_pdf(tmp_path / "long" / f"{'讲' * 80}.pdf", TEXTS[:1])
    (done,) = names_of(render_pdfs(long, tmp_path / "out", COARSE, workers=1), tmp_path / "out")
    assert done.startswith("讲" * 60)
    assert done.endswith("_1.jpg")

    write_pdf(tmp_path / "mine" / "photo.pdf", TEXTS[:2])
    Image.new("RGB", (10, 10), "blue").save(out / "photo_2.jpg")
    mine = (out / "photo_2.jpg").read_bytes()
    kept = render_pdfs(tmp_path / "mine", out, COARSE, workers=1)
    assert kept.rendered == 1
    assert "page 2" in kept.problems[0]
    assert "was not made by this tool" in kept.problems[0]
    assert (out / "photo_2.jpg").read_bytes() == mine
    assert render_pdfs(tmp_path / "mine", out, COARSE, workers=1, overwrite=True).rendered == 2


def names_of(done: object, folder: Path) -> list[str]:
    assert getattr(done, "problems", None) == ()
    return names(folder)


def test_two_runs_do_not_write_the_same_folder(tmp_path: Path) -> None:
    write_pdf(tmp_path / "pdf" / "r.pdf", TEXTS[:1])

    def meanwhile(*_: object) -> None:
        with pytest.raises(ConfigError, match="another run"):
            render_pdfs(tmp_path / "pdf", tmp_path / "image", COARSE, workers=1)

    assert render_pdfs(tmp_path / "pdf", tmp_path / "image", COARSE, workers=1, on_file=meanwhile).rendered == 1


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_leaves_whole_pages_and_the_next_one_goes_on(tmp_path: Path, sign: signal.Signals) -> None:
    write_pdf(tmp_path / "pdf" / "long.pdf", tuple(f"Page number {n}" for n in range(1, 41)))
    out = tmp_path / "image"
    options = ["-i", tmp_path / "pdf", "-o", out, "--workers", "1", "--progress", "none"]
    command = [sys.executable, str(CORPUS / "pdf2images.py"), *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: len(list(out.glob("long_*.jpg"))) >= 3 or process.poll() is not None)
    process.send_signal(sign)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if sign == signal.SIGINT else -signal.SIGKILL), said
    assert "Traceback" not in said
    for image in out.glob("long_*.jpg"):
        with Image.open(image) as picture:
            picture.load()
    done = pdf2images(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rendered, kept = (int(done.stdout.split()[at]) for at in (0, done.stdout.split().index("were") - 1))
    assert rendered + kept == 40
    assert kept >= 3
    assert names(out) == sorted(f"long_{n}.jpg" for n in range(1, 41))
    assert not list((out / ".partial").iterdir())


# ---- splitVideo

needs_ffmpeg = pytest.mark.skipif(
    not (shutil.which("ffmpeg") and shutil.which("ffprobe") and shutil.which("bash")),
    reason="bash, ffmpeg and ffprobe are needed to cut videos",
)


def split_video(*arguments: object, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(CORPUS / "splitVideo.sh"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False, **options)  # type: ignore[call-overload, no-any-return]


def greys(clip: Path) -> list[int]:
    """How bright each frame is; a frame of ``write_clip`` tells its number so."""
    av = pytest.importorskip("av")
    with av.open(str(clip)) as container:
        return [round(float(frame.to_ndarray(format="gray").mean())) for frame in container.decode(video=0)]


@needs_ffmpeg
def test_clips_are_cut_at_the_frame_and_short_tails_are_left_out(tmp_path: Path) -> None:
    videos, out = tmp_path / "my videos", tmp_path / "out"
    videos.mkdir()
    source = write_clip(videos / "talk one.mp4", 34, gop=12)  # 3.4 seconds; keyframes are not where the cuts are
    write_clip(videos / "whole.mp4", 5)  # half a second: short, but no tail
    write_clip(videos / "tail.mkv", 30)
    (videos / "talk one.srt").write_text(
        "1\n00:00:00,200 --> 00:00:00,800\nFirst words\n\n2\n00:00:01,900 --> 00:00:02,300\nAcross the cut\n", "utf-8"
    )
    done = split_video("-i", videos, "-o", out, "-d", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    clips = [f"talk one_{n:03d}.mp4" for n in range(3)]
    assert names(out) == sorted(
        [
            *clips,
            *(f"talk one_{n:03d}.srt" for n in range(3)),
            *(f"tail_{n:03d}.mp4" for n in range(3)),
            "whole_000.mp4",
        ]
    )
    expected = greys(source)
    for number, clip in enumerate(clips):
        got = greys(out / clip)
        assert np.allclose(got, expected[10 * number : 10 * number + 10], atol=4), clip
    assert len(greys(out / "whole_000.mp4")) == 5
    assert "00:00:00,900 --> 00:00:01,000\nAcross the cut" in (out / "talk one_001.srt").read_text("utf-8")
    assert "00:00:00,000 --> 00:00:00,300\nAcross the cut" in (out / "talk one_002.srt").read_text("utf-8")

    stamps = {name: (out / name).stat().st_mtime_ns for name in names(out)}
    (out / clips[1]).unlink()
    done = split_video("-i", videos, "-o", out, "-d", "1", cwd=tmp_path)
    assert done.stdout.startswith("1 clips made of 3 videos")
    assert {name for name in names(out) if (out / name).stat().st_mtime_ns != stamps[name]} == {
        clips[1],
        "talk one_001.srt",
    }
    done = split_video("-i", videos / "talk one.mp4", "-o", out, "-d", "3", cwd=tmp_path)
    assert [name for name in names(out) if name.startswith("talk") and name.endswith(".mp4")] == [clips[0]]
    assert len(greys(out / clips[0])) == 30


@needs_ffmpeg
def test_hostile_names_and_broken_videos(tmp_path: Path) -> None:
    videos = tmp_path / "in"
    hostile = ["-i.mp4", "q\"uo'te $(touch x) `y` %d.MOV", "deep/er/讲座 é.mkv", "line\nbreak.mp4", "a*b[c]?.mp4"]
    for name in hostile:
        (videos / name).parent.mkdir(parents=True, exist_ok=True)
        write_clip(tmp_path / f"made{Path(name).suffix.lower()}", 12).rename(videos / name)
    write_clip(videos / "twin.mp4", 12)
    write_clip(videos / "twin.mkv", 12)
    write_clip(videos / ".hidden.mp4", 12)
    (videos / "broken.mp4").write_bytes((videos / "twin.mp4").read_bytes()[:400])
    (videos / "empty.webm").touch()
    (videos / "note.txt").write_text("no video")
    done = split_video("-i", "in", "-o", "in/out", cwd=tmp_path)
    assert done.returncode == 1
    expected = [str(Path(name).with_suffix("")) + "_000.mp4" for name in hostile]
    assert names(videos / "out") == sorted([*expected, "twin_000.mp4", "twin.mp4_000.mp4"])
    assert "Not cut, or not wholly (2)" in done.stderr
    for listed in ("broken.mp4: it cannot be read", "empty.webm: it cannot be read"):
        assert listed in done.stderr
    assert not (tmp_path / "x").exists()
    again = split_video("-i", "in", "-o", "in/out", cwd=tmp_path)
    assert again.stdout.startswith("0 clips made of 9 videos")


@needs_ffmpeg
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_cut_leaves_whole_clips_and_the_next_one_goes_on(tmp_path: Path, sign: signal.Signals) -> None:
    (tmp_path / "in").mkdir()
    write_clip(tmp_path / "in" / "long.mp4", 80)
    command = ["bash", str(CORPUS / "splitVideo.sh"), "-i", "in", "-o", "out", "-d", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: (tmp_path / "out" / "long_001.mp4").exists() or process.poll() is not None)
    if sign == signal.SIGKILL:
        os.killpg(process.pid, sign)
    else:
        process.send_signal(sign)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if sign == signal.SIGTERM else -signal.SIGKILL), said
    whole = names(tmp_path / "out")
    assert 2 <= len(whole) < 8
    assert all(len(greys(tmp_path / "out" / name)) == 10 for name in whole)
    done = split_video("-i", "in", "-o", "out", "-d", "1", cwd=tmp_path)
    assert done.stdout.startswith(f"{8 - len(whole)} clips made of 1 videos")
    assert names(tmp_path / "out") == [f"long_{n:03d}.mp4" for n in range(8)]
    assert not list((tmp_path / "out" / ".splitVideo" / "partial").iterdir())


@needs_ffmpeg
def test_options_and_statuses_of_split_video(tmp_path: Path) -> None:
    helped = split_video("-h", cwd=tmp_path)
    assert helped.returncode == 0
    assert "talk_000.mp4" in helped.stdout
    (tmp_path / "in").mkdir()
    for arguments, said in (
        ((), "-i DIR"),
        (("-i",), "-i needs a value"),
        (("-i", "in", "-x"), "no option -x"),
        (("-i", "in", "more"), "more"),
        (("-i", "gone"), "no file or folder gone"),
        (("-i", "in", "-o", "out", "-d", "0.5"), "at least 1 second"),
        (("-i", "in", "-o", "out", "-d", "1e3"), "-d is a number"),
        (("-i", "in", "-o", "out", "-q", "99"), "-q is a number"),
        (("-i", "in", "-o", "in"), "the same"),
        (("-i", "in", "-o", "out"), "no video in in"),
    ):
        done = split_video(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert said in done.stderr
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    done = split_video("-i", "in", "-o", "out", cwd=tmp_path, env={"PATH": str(tools)})
    assert done.returncode == 2
    assert "ffmpeg is not installed" in done.stderr
