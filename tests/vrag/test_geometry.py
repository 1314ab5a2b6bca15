"""Sizes under a pixel budget, and the map between what is displayed and the page."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrag.geometry import MAX_PIXELS, MIN_PIXELS, Box, fit_area, to_displayed, to_page, whole

sides = st.integers(1, 40_000)
budgets = st.tuples(st.integers(1, 2_000_000), st.integers(1, 2_000_000)).map(sorted)
coordinates = st.floats(-5_000, 5_000)


@settings(deadline=None)
@given(sides, sides, budgets)
def test_an_area_never_exceeds_its_budget_and_no_side_is_lost(width: int, height: int, budget: list[int]) -> None:
    out = fit_area((width, height), *budget)
    assert out[0] >= 1
    assert out[1] >= 1
    assert out[0] * out[1] <= budget[1]


@settings(deadline=None)
@given(st.integers(50, 5_000), st.integers(50, 5_000))
def test_the_published_limits_keep_the_aspect_and_fill_the_budget(width: int, height: int) -> None:
    out_width, out_height = fit_area((width, height), MIN_PIXELS, MAX_PIXELS)
    # Both sides come from one scale and lose less than a pixel to truncation.
    scale = out_width / width
    assert abs(out_height - height * scale) <= max(1, height / width) + 1e-9
    area = width * height
    if MIN_PIXELS <= area <= MAX_PIXELS:
        assert (out_width, out_height) == (width, height)
    else:
        limit = MAX_PIXELS if area > MAX_PIXELS else MIN_PIXELS
        assert (out_width + 1) * (out_height + 1) >= int(limit * (1 - 1e-9))


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1700, 2200), (556, 720)), ((50, 60), (408, 490)), ((600, 500), (600, 500)), ((2000, 1000), (896, 448))],
)
def test_sizes_worked_out_by_hand(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert fit_area(size, MIN_PIXELS, MAX_PIXELS) == expected


@pytest.mark.parametrize("size", [(0, 5), (5, -1), (math.nan, 5), (math.inf, 5)])
def test_a_size_that_is_none_is_refused(size: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        fit_area(size, 1, 100)


@settings(deadline=None)
@given(
    st.builds(Box, coordinates, coordinates, coordinates, coordinates),
    st.tuples(st.integers(1, 2_000), st.integers(1, 2_000)),
    st.tuples(coordinates, coordinates, st.floats(1, 5_000), st.floats(1, 5_000)),
)
def test_the_way_to_the_page_and_back_is_the_identity(
    box: Box, size: tuple[int, int], view: tuple[float, float, float, float]
) -> None:
    on_page = Box(view[0], view[1], view[0] + view[2], view[1] + view[3])
    there_and_back = to_displayed(to_page(box, size, on_page), size, on_page)
    assert there_and_back.as_list() == pytest.approx(box.as_list(), abs=1e-4, rel=1e-6)


def test_the_whole_picture_is_the_whole_view() -> None:
    view = Box(100, 50, 500, 250)
    assert to_page(whole((800, 400)), (800, 400), view) == view
    assert to_page(Box(200, 100, 400, 300), (800, 400), view) == Box(200, 100, 300, 200)


@settings(deadline=None)
@given(st.builds(Box, coordinates, coordinates, coordinates, coordinates))
def test_a_clamped_box_lies_inside(box: Box) -> None:
    bounds = Box(-10, 0, 300, 200)
    inside = box.clamped(bounds)
    assert bounds.x1 <= inside.x1 <= bounds.x2
    assert bounds.x1 <= inside.x2 <= bounds.x2
    assert bounds.y1 <= inside.y1 <= bounds.y2
    assert bounds.y1 <= inside.y2 <= bounds.y2


def test_padding_intersection_and_cover() -> None:
    box = Box(10, 20, 30, 60)
    assert box.padded(5) == Box(5, 15, 35, 65)
    assert box.area == 800
    assert Box(30, 60, 10, 20).area == 0
    assert box.intersection(Box(20, 0, 100, 40)) == 200
    assert box.intersection(Box(31, 0, 100, 40)) == 0
    assert box.padded(1).covers(box)
    assert not box.covers(box.padded(1))
    assert not box.covers(Box(15, 25, 15, 25))
