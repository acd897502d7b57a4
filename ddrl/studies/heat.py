"""A heat map as a panel: every cell bears its number, so that colours only help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

COLOURS = "cividis"  # its lightness grows evenly: the same in black and white, and for the colour-blind
HATCH = "////"
DARK = 0.5  # lightness below which text is white
LETTERS = 51.0  # of size 8 that fit into a row of cells
LINES = 16.0  # of size 8 that fit into a column of cells


class HeatMap(NamedTuple):
    """Cells in rows, from top to bottom.

    Attributes:
        columns, rows: their labels.
        values: [row][column], None for a cell without a number, which is hatched.
        texts: [row][column] of the cells; lines are separated by a newline.
        label: of the colours.
        low_is_good: small numbers are light.
    """

    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]
    texts: Sequence[Sequence[str]]
    label: str
    low_is_good: bool = False


def draw_heat(axes: Any, heat: HeatMap) -> None:
    """Draws it; the axes' labels and title are there already."""
    import matplotlib
    import numpy as np

    values = np.array([[np.nan if value is None else value for value in row] for row in heat.values], float)
    colours = matplotlib.colormaps[f"{COLOURS}_r" if heat.low_is_good else COLOURS]
    axes.grid(False)
    axes.set_xticks(range(len(heat.columns)), heat.columns)
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    axes.tick_params(length=0)
    low, high = _limits(values)
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=low, vmax=high, aspect="auto")
    if np.isfinite(values).any():
        bar = axes.figure.colorbar(image, ax=axes, pad=0.03)
        bar.set_label(heat.label)
        bar.outline.set_visible(False)
    size = _font_size(heat)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            missing = not np.isfinite(value)
            if missing:
                axes.add_patch(_hatched(x, y))
            dark = not missing and _lightness(colours((value - low) / (high - low))) < DARK
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if missing else None
            axes.text(
                x,
                y,
                heat.texts[y][x],
                ha="center",
                va="center",
                fontsize=size,
                bbox=box,
                color="white" if dark else "black",
            )


def _limits(values: Any) -> tuple[float, float]:
    """Of the colours: those of the numbers, or a width of 1 around equal ones."""
    import numpy as np

    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _font_size(heat: HeatMap) -> float:
    texts = [text.split("\n") for row in heat.texts for text in row]
    longest, most = max(len(line) for lines in texts for line in lines), max(map(len, texts))
    return 8.0 * min(1.0, LETTERS / (len(heat.columns) * (longest + 2)), LINES / (len(heat.rows) * most))


def _hatched(x: int, y: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="#f4f4f4", edgecolor="#bbbbbb", hatch=HATCH, linewidth=0.0)


def _lightness(colour: Sequence[float]) -> float:
    red, green, blue = colour[:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue
