"""A heat map as a panel: every cell bears its number, so that colors only help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

COLOR_MAP = "cividis"  # its lightness grows evenly: the same in black and white, and for the color-blind
LETTERS = 51.0  # letters of size 8 that fit into a row of cells
LINES = 16.0  # lines of size 8 that fit into a column of cells


class HeatMap(NamedTuple):
    """The cells of a heat map, in rows from top to bottom.

    Attributes:
        columns, rows: their labels.
        values: [row][column], None for a cell without a number, which is hatched.
        texts: [row][column], the text in each cell; lines are separated by a newline.
        label: label of the color bar.
        low_is_good: small numbers are light.
    """

    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]
    texts: Sequence[Sequence[str]]
    label: str
    low_is_good: bool = False


def draw_heat(axes: Any, heat: HeatMap) -> None:
    """Draws the heat map on axes that already have their labels and title."""
    import numpy as np

    values = np.ma.masked_invalid(np.array(heat.values, float))  # None becomes nan
    low, high = (values.min(), values.max()) if values.count() else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    axes.grid(False)
    axes.patch.set(facecolor="#f4f4f4", edgecolor="#bbbbbb", hatch="////")  # which cells without a number show
    axes.set_xticks(range(len(heat.columns)), heat.columns)
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    axes.tick_params(length=0)
    color_map = f"{COLOR_MAP}_r" if heat.low_is_good else COLOR_MAP
    image = axes.imshow(values, cmap=color_map, vmin=low, vmax=high, aspect="auto")
    if values.count():
        bar = axes.figure.colorbar(image, ax=axes, pad=0.03)
        bar.set_label(heat.label)
        bar.outline.set_visible(False)
    size = _font_size(heat)
    for (y, x), value in np.ndenumerate(values.filled(np.nan)):
        dark = value > (low + high) / 2 if heat.low_is_good else value < (low + high) / 2
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if np.isnan(value) else None
        color = "white" if dark else "black"
        axes.text(x, y, heat.texts[y][x], ha="center", va="center", fontsize=size, bbox=box, color=color)


def _font_size(heat: HeatMap) -> float:
    texts = [text.split("\n") for row in heat.texts for text in row]
    longest, most = max(len(line) for lines in texts for line in lines), max(map(len, texts))
    return 8.0 * min(1.0, LETTERS / (len(heat.columns) * (longest + 2)), LINES / (len(heat.rows) * most))
