from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from search_engine.models.resizing import MAX_ASPECT, Area, open_image, rgb_at, smart_resize
from vrag.errors import MediaError


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6000), st.integers(1, 6000), st.sampled_from([28, 32]))
def test_sides_are_multiples_and_the_area_is_within_the_limits(width: int, height: int, factor: int) -> None:
    area = Area(4 * factor**2, 1800 * factor**2)
    if max(width, height) > MAX_ASPECT * min(width, height):
        with pytest.raises(MediaError, match="narrow"):
            smart_resize(width, height, factor, area)
        return
    new_width, new_height = smart_resize(width, height, factor, area)
    assert new_width % factor == new_height % factor == 0
    assert min(new_width, new_height) >= factor
    assert area.least <= new_width * new_height <= area.most


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1024, 768), (1024, 768)), ((5334, 3000), (1792, 992)), ((1, 1), (64, 64)), ((333, 517), (320, 512))],
)
def test_known_sizes(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert smart_resize(*size, 32, Area(4 * 1024, 1800 * 1024)) == expected


def test_transparency_goes_onto_white_and_other_modes_are_converted(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert rgb_at(clear, []).getpixel((0, 0)) == (255, 255, 255)
    for mode in ("L", "P", "1", "CMYK", "LA", "I;16"):
        assert rgb_at(Image.new(mode, (4, 4)), [(8, 8)]).mode == "RGB"


def test_pictures_that_are_none_say_so(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.raises(MediaError, match=r"broken\.png"):
        open_image(tmp_path / "broken.png")
    with pytest.raises(MediaError, match=r"gone\.png"):
        open_image(tmp_path / "gone.png")
    buffer = io.BytesIO()
    Image.effect_noise((200, 200), 50).save(buffer, "PNG")
    with pytest.raises(MediaError, match="decoded"):
        rgb_at(buffer.getvalue()[:3000], [(64, 64)])


def test_limits_have_to_be_in_order() -> None:
    with pytest.raises(ValueError, match="in order"):
        Area(10, 5)
