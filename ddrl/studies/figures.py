"""Figures of studies: panels of curves, readable in black and white and for the color-blind. Needs no display."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.errors import UsageError
from ddrl.files import write_whole
from ddrl.reporting.plots import STYLE
from ddrl.studies.heat import HeatMap, draw_heat

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""The palette for the color-blind of Okabe and Ito (2008), its yellow made darker."""
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<")
FEW_OCTAVES = 2.5  # a logarithmic axis over fewer has too few ticks at powers of 2 alone
MARK_LINES = ((0, (1, 2)), (0, (6, 2, 1, 2)))
LINES = ("-", "--", "-.", ":")
MARKED = 20  # a curve with up to so many points has a marker at each
PANEL = (4.3, 3.3)  # width and height in inches
PICTURE_WIDTH = 4.7  # inches, of a panel by itself
LEGEND_LETTERS = 70  # letters that fit in a row below a panel; the line and the gaps of a label take 10
CAPTION_LETTERS = 15.5  # letters of the caption that fit into an inch
_STYLE: Any = STYLE | {
    "pdf.fonttype": 42,
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "legend.fontsize": 8,
}


class Curve(NamedTuple):
    """One curve of a panel.

    Attributes:
        x, y: coordinates of its points, equally many.
        low, high: bounds of the band around y; empty without a band.
        each: (x, y) of the single values of which y is the mean, if they are few.
        style: number of its color, marker and dashes (None: its place in the panel).
        points: draw only hollow markers, without a line between them.
        reference: draw it thin and dashed, as something that the others are compared with: in gray, or with the color
            and the hollow marker of `style`.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: int | None = None
    reference: bool = False
    points: bool = False
    each: Sequence[tuple[float, float]] = ()


def through(pairs: Sequence[tuple[float, float]], label: str, **more: Any) -> Curve:
    """A curve through (x, y) pairs; `more` are its other attributes."""
    return Curve(label, [x for x, _ in pairs], [y for _, y in pairs], **more)


class Mark(NamedTuple):
    """A vertical line where something changes, and a label that says what."""

    x: float
    label: str


class Panel(NamedTuple):
    """One pair of axes.

    Attributes:
        marks: vertical lines.
        heat: a heat map, which is drawn instead of curves.
        log_x, log_y: the axis has a base-2 scale; ticks of the x axis are the values that occur.
        zero: the y axis begins at 0.
        wide_y: the y axis is linear up to 100 and logarithmic beyond, for percents of any size.
        y_range: the ends of the y axis, for panels that are to be compared (None: those of its curves).
    """

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    zero: bool = False
    wide_y: bool = False
    y_range: tuple[float, float] | None = None
    marks: Sequence[Mark] = ()
    heat: HeatMap | None = None


def on_one_scale(panels: Sequence[Panel]) -> list[Panel]:
    """The panels with the same range of y, which holds all of their curves, and a margin of a twentieth."""
    curves = [curve for panel in panels for curve in panel.curves]
    values = [y for curve in curves for y in (*curve.y, *curve.low, *curve.high, *(y for _, y in curve.each))]
    if len(panels) < 2 or not values:
        return list(panels)
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.5
    return [panel._replace(y_range=(low - margin, high + margin)) for panel in panels]


def draw(panels: Sequence[Panel], heading: str, caption: str, columns: int, least_width: float = 5.5) -> Any:
    """The figure of all panels, `columns` in a row; `least_width` in inches."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(_STYLE):
        width = max(least_width, PANEL[0] * columns)
        lines = textwrap.wrap(caption, int(CAPTION_LETTERS * width))
        height = 0.55 * bool(heading) + 0.15 * len(lines) + PANEL[1] * rows
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=0.1)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for place, panel in zip(axes, panels):
            _draw(place, panel)
        for unused in axes[len(panels) :]:
            unused.set_axis_off()
        if heading:
            figure.suptitle(heading, fontsize=12)
        if lines:
            figure.supxlabel("\n".join(lines), fontsize=8)
    return figure


def pictures(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Each panel as a `png` of its own with a `description`, for a page with as many in a row as there is room for."""
    return [
        {
            "png": png(draw([panel], "", "", 1, PICTURE_WIDTH)),
            "description": f"{panel.title}: {panel.y_label} against {panel.x_label}",
        }
        for panel in panels
    ]


def png(figure: Any) -> bytes:
    """A figure as a PNG of 200 dpi."""
    data = io.BytesIO()
    figure.savefig(data, dpi=200, format="png")
    return data.getvalue()


def save(figure: Any, directory: Path) -> tuple[Path, Path]:
    """Writes figure.png (200 dpi) and figure.pdf.

    Raises:
        UsageError: they cannot be written.
    """
    import matplotlib

    paths = directory / "figure.png", directory / "figure.pdf"
    pdf = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        pixels = png(figure)
        figure.savefig(pdf, metadata={"CreationDate": None}, format="pdf")
    try:
        for path, data in zip(paths, (pixels, pdf.getvalue())):
            write_whole(path, data)
    except OSError as error:
        raise UsageError(f"cannot write figures in {directory}: {error.strerror or error}; free space") from error
    return paths


def _draw(axes: Any, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.heat is not None:
        draw_heat(axes, panel.heat)
        return
    drawn = 0
    labels: set[str] = set()
    for curve in panel.curves:
        if curve.reference:
            _draw_reference(axes, curve)
        elif curve.x:
            # Several curves with the same label have one entry in the legend.
            shown = curve._replace(label="_nolegend_") if curve.label in labels else curve
            _draw_curve(axes, shown, drawn if curve.style is None else curve.style)
            drawn += 1
            labels.add(curve.label)
    if not any(curve.x for curve in panel.curves):
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "nothing measured", ha="center", va="center", transform=axes.transAxes)
        return
    _scale(axes, panel)
    for mark, dashes in zip(panel.marks, MARK_LINES):
        axes.axvline(mark.x, color="#555555", linewidth=1.0, linestyle=dashes, label=mark.label)
    labeled = {curve.label for curve in panel.curves if curve.label and curve.x}
    labeled |= {mark.label for mark in panel.marks}
    if labeled:
        longest = max(map(len, labeled))
        columns = min(len(labeled), max(1, LEGEND_LETTERS // (longest + 10)))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, handlelength=2.8)


def _draw_reference(axes: Any, curve: Curve) -> None:
    marked: dict[str, Any] = {}
    if curve.style is not None:
        marked = {"color": COLORS[curve.style % len(COLORS)], "marker": MARKERS[curve.style % len(MARKERS)]}
        marked |= {"markerfacecolor": "white", "markersize": 4.5}
    line = {"color": "#777777", "linewidth": 1.0, "linestyle": (0, (5, 3))}
    axes.plot(curve.x, curve.y, label=curve.label, **(line | marked))


def _draw_curve(axes: Any, curve: Curve, style: int) -> None:
    color, marker = COLORS[style % len(COLORS)], MARKERS[style % len(MARKERS)]
    every = max(1, len(curve.x) // 8) if len(curve.x) > MARKED else 1
    line = "none" if curve.points else LINES[style % len(LINES)]
    axes.plot(
        curve.x, curve.y, color=color, linewidth=1.5, linestyle=line, marker=marker, markersize=4.5,
        markevery=(style % every, every), markerfacecolor="white" if curve.points else color, label=curve.label,
    )  # fmt: skip
    if curve.each:
        x, y = zip(*curve.each)
        axes.plot(x, y, color=color, linestyle="none", marker=marker, markersize=3, markerfacecolor="white")
    if curve.low and len(curve.x) > MARKED:
        axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0)
    elif curve.low:
        around = [[y - low, high - y] for y, low, high in zip(curve.y, curve.low, curve.high)]
        axes.errorbar(curve.x, curve.y, list(zip(*around)), color=color, fmt="none", capsize=3, linewidth=1.0)


def _octaves(panel: Panel) -> float:
    """How many octaves the y values of a panel span."""
    values = [y for curve in panel.curves for y in (*curve.y, *curve.low, *curve.high) if y > 0]
    return math.log2(max(values) / min(values)) if values else 0.0


def _scale(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}")
    if panel.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sorted({x for curve in panel.curves for x in curve.x})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(plain)
    elif all(isinstance(x, int) for curve in panel.curves for x in curve.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.log_y or panel.wide_y:
        scale = {"value": "log", "base": 2} if panel.log_y else {"value": "symlog", "linthresh": 100}
        axes.set_yscale(**scale)
        if panel.log_y and _octaves(panel) < FEW_OCTAVES:
            axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.25, 1.5, 1.75), numticks=20))
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_locator(NullLocator())
        return
    if panel.zero:
        drawn = [(*curve.y, *curve.high, *(y for _, y in curve.each)) for curve in panel.curves]
        axes.set_ylim(0, 1.08 * max(y for values in drawn for y in values) or 1.0)
    if panel.y_range:
        axes.set_ylim(*panel.y_range)
    axes.yaxis.set_major_formatter(plain)
