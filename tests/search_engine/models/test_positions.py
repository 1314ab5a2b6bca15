from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from search_engine.models.positions import Run, flat, multimodal


def test_text_counts_up_in_all_three() -> None:
    assert multimodal(5, []).tolist() == [[0, 1, 2, 3, 4]] * 3
    assert flat(3).tolist() == [[0, 1, 2]] * 3


def test_a_picture_spans_its_grid_and_text_goes_on_behind_its_longest_side() -> None:
    positions = multimodal(9, [Run(2, 1, 2, 3)])
    assert positions.T.tolist() == [
        [0, 0, 0], [1, 1, 1],
        [2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4],
        [5, 5, 5],
    ]  # fmt: skip


def test_the_time_of_a_clip_is_cut_to_whole_positions_in_single_precision() -> None:
    positions = multimodal(4, [Run(0, 4, 1, 1, seconds=0.7499999999999999, rate=2.0)])
    assert positions[0].tolist() == [0, 1, 3, 4]
    assert positions[1].tolist() == [0, 0, 0, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.floats(0.01, 9)),
        max_size=4,
    ),
    st.integers(0, 9),
)
def test_every_text_token_comes_after_all_that_stands_before_it(
    layout: list[tuple[int, int, int, int, float]], tail: int
) -> None:
    runs, cursor = [], 0
    visual = set()
    for gap, time, rows, columns, seconds in layout:
        run = Run(cursor + gap, time, rows, columns, seconds, 2.0)
        runs.append(run)
        cursor = run.start + run.length
        visual.update(range(run.start, cursor))
    positions = multimodal(cursor + tail, runs)
    assert positions.shape == (3, cursor + tail)
    highest = -1
    for index in range(cursor + tail):
        if index not in visual:
            assert len(set(positions[:, index])) == 1
            assert positions[0, index] == highest + 1
        highest = max(highest, int(positions[:, : index + 1].max()))
    for run in runs:
        places = positions[:, run.start : run.start + run.length]
        assert np.ptp(places[1]) == run.rows - 1
        assert np.ptp(places[2]) == run.columns - 1
