"""Curves of characters: heights, marks and means at known places."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.reporting.chart import chart, column_means


def plain(*args, **options):
    return [row.plain for row in chart(*args, **options)]


def test_a_line_rises_from_the_lowest_block_to_the_highest():
    ramp = [(float(i), float(i)) for i in range(16)]
    rows = plain(ramp, [], 16 + 6, 2)
    assert rows == [
        "15.0 \u2502" + " " * 8 + "".join(chr(0x2581 + i) for i in range(8)),
        " 0.0 \u2502" + "".join(chr(0x2581 + i) for i in range(8)) + "\u2588" * 8,
    ]


def test_ascii_alone_where_there_is_no_more():
    rows = plain([(0.0, -1.0), (1.0, 1.0)], [(1.0, 1.0)], 12, 3, unicode=False)
    assert all(row.isascii() for row in rows) and rows[0].startswith(" 1.0 |") and rows[0].endswith("o")


@pytest.mark.parametrize("value", [0.0, -7.0])
def test_equal_values_are_the_lowest_block(value):
    rows = plain([(0.0, value), (9.0, value)], [], 20, 3)
    assert rows[-1].count("\u2581") == 20 - 2 - len(f"{value:.1f}") and not rows[1].split("\u2502")[1].strip()


def test_marks_stand_where_their_values_are():
    rows = plain([(0.0, 0.0), (10.0, 10.0)], [(5.0, 10.0), (10.0, 0.0)], 11 + 6, 5)
    assert rows[0].index("\u25c6") == 6 + 5 and rows[-1].index("\u25c6") == 6 + 10


def test_means_of_parts_and_lines_between_points_where_a_part_has_none():
    points = [(0.0, 0.0), (0.5, 2.0), (4.0, 8.0)]
    assert column_means(points, 0.0, 4.0, 4) == pytest.approx([1.0, np.interp(1.5, [0.5, 4], [2, 8]), 5.4285714, 8.0])
    assert column_means([(3.0, 5.0)], 3.0, 3.0, 2) == pytest.approx([5.0, 5.0])
