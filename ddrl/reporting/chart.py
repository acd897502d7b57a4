"""Draws a curve with characters: the area under it is made of blocks, which every terminal's font has.

Plotext draws such charts, too. It takes 130 ms to import, which is more than the rest of the panel, and its versions 5
and 6 have different calls; the few lines here are all of it that the panel needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.text import Text

BLOCKS = " " + "".join(chr(code) for code in range(0x2581, 0x2589))
ASCII_BLOCKS = " .:#"
MARK, ASCII_MARK = "\u25c6", "o"

Points = Sequence[tuple[float, float]]


def chart(
    points: Points,
    marks: Points,
    width: int,
    height: int,
    unicode: bool = True,
    area_style: str = "",
    mark_style: str = "",
) -> list[Text]:
    """Rows of a chart, the highest first, with the highest and the lowest value at its left.

    Args:
        points: (x, y) by ascending x, at least one.
        marks: (x, y) of single values, which are shown as they are.
        width, height: in characters, the values at the left included.
        unicode: the terminal has more than ASCII.
        area_style, mark_style: styles of Rich.
    """
    values = [y for _, y in (*points, *marks)]
    low, high = min(values), max(values)
    labels = {0: f"{high:,.1f}", height - 1: f"{low:,.1f}"}
    left = max(map(len, labels.values()))
    columns = max(1, width - left - 2)
    first, last = (function(x for x, _ in (*points, *marks)) for function in (min, max))
    scale = 1.0 / (high - low) if high > low else 0.0
    blocks = BLOCKS if unicode else ASCII_BLOCKS
    means = column_means(points, first, last, columns)
    # The lowest value has a block, too, or it would look as if nothing were there.
    levels = np.rint(1 + (means - low) * scale * (height * (len(blocks) - 1) - 1)).astype(int)
    step = ((last - first) or 1.0) / (columns - 1 or 1)
    places = {(round((y - low) * scale * (height - 1)), round((x - first) / step)) for x, y in marks}
    rows = []
    for from_below in reversed(range(height)):
        filled = np.clip(levels - from_below * (len(blocks) - 1), 0, len(blocks) - 1)
        line = Text(labels.get(height - 1 - from_below, "").rjust(left), style="dim", no_wrap=True)
        line.append(" \u2502" if unicode else " |")
        marked = [column for column in range(columns) if (from_below, column) in places]
        cells = [blocks[level] for level in filled]
        for column in marked:
            cells[column] = MARK if unicode else ASCII_MARK
        line.append("".join(cells), style=area_style)
        for column in marked:
            line.stylize(mark_style, left + 2 + column, left + 3 + column)
        rows.append(line)
    return rows


def column_means(points: Points, first: float, last: float, columns: int) -> np.ndarray:
    """Mean y <float>[columns] of the points in equal parts of the x axis; a part without points is interpolated.

    Args:
        points: (x, y) by ascending x, at least one.
        first, last: ends of the axis.
        columns: number of parts.
    """
    x, y = np.array(points, float).T
    width = (last - first) or 1.0
    places = np.clip(((x - first) / width * columns).astype(int), 0, columns - 1)
    counts, sums = np.bincount(places, minlength=columns), np.bincount(places, y, columns)
    between = np.interp(first + (np.arange(columns) + 0.5) * width / columns, x, y)
    return np.where(counts > 0, sums / np.maximum(counts, 1), between)
