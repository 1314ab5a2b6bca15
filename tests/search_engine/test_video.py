from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from search_engine.video import frame_at, probe, read_frames, sample_at_rate, sample_indexes, thumbnail
from tests.search_engine.models.conftest import write_clip
from vrag.errors import MediaError

av = pytest.importorskip("av")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "grey clip.mp4", 30)


@pytest.fixture(scope="module")
def truth(clip: Path) -> list[np.ndarray]:
    with av.open(str(clip)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_what_a_clip_is(clip: Path) -> None:
    info = probe(clip)
    assert (info.frames, info.fps, info.width, info.height) == (30, 10.0, 64, 48)
    assert info.duration == 3.0
    assert [info.index_at(t) for t in (-1, 0, 0.1, 0.15, 2.95, 99)] == [0, 0, 1, 1, 29, 29]
    assert info.time_of(5) == 0.5
    with pytest.raises(MediaError):
        info.index_at(float("nan"))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 29), min_size=1, max_size=6))
def test_frames_are_exact_wherever_the_keyframes_lie(clip: Path, truth: list[np.ndarray], indexes: list[int]) -> None:
    got = dict(read_frames(clip, indexes))
    assert list(got) == sorted(set(indexes))
    for index, frame in got.items():
        assert np.array_equal(frame, truth[index])


def test_a_file_without_timestamps_is_counted(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "old.avi", 12)
    with av.open(str(path)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    got = dict(read_frames(path, [0, 5, 11]))
    assert all(np.array_equal(got[index], expected[index]) for index in (0, 5, 11))


def test_a_frame_out_of_range_and_files_that_are_no_clips(clip: Path, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="no frame 30"):
        list(read_frames(clip, [30]))
    assert list(read_frames(clip, [])) == []
    (tmp_path / "x.mp4").write_text("not a clip")
    (tmp_path / "cut.mp4").write_bytes(clip.read_bytes()[:500])
    for name in ("x.mp4", "cut.mp4", "gone.mp4"):
        with pytest.raises(MediaError, match=name.replace(".", r"\.")):
            probe(tmp_path / name)


def test_a_file_that_changed_is_looked_at_again(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "c.mp4", 5)
    assert probe(path).frames == 5
    write_clip(path, 9)
    assert probe(path).frames == 9


def test_thumbnails_and_pictures_at_a_time(clip: Path, truth: list[np.ndarray]) -> None:
    assert np.array_equal(np.asarray(frame_at(clip, 1.2)), truth[12])
    small = Image.open(io.BytesIO(thumbnail(clip, 2.0, side=32)))
    assert (small.format, max(small.size)) == ("JPEG", 32)


def test_sampling_is_even_and_bounded(clip: Path) -> None:
    assert sample_indexes(10, 4) == [0, 3, 6, 9]
    assert sample_indexes(1, 4) == [0]
    assert sample_at_rate(probe(clip)) == [0, 14, 29]
    assert len(sample_at_rate(probe(clip), per_second=100, at_most=8)) == 8
