"""Figures of a search: history, importance, each setting against the score, parallel coordinates. Needs no display."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddrl.reporting.plots import STYLE
from ddrl.studies.figures import COLORS, MARKERS, png
from ddrl.studies.heat import COLOR_MAP
from ddrl.tuning.space import Dimension

WIDTH = 5.0  # inches, so that it is read on a telephone, too
AXIS_WIDTH = 1.4  # inches of an axis of parallel coordinates
LEGEND_LETTERS = 58  # letters that fit in a row below a figure


class Trial(NamedTuple):
    """A trial that has a score.

    Attributes:
        values: name of a setting -> its number, for a range, or its text, for a choice.
        score: the score at its end, or the last one that it had if it was stopped early.
        pruned: whether it was stopped early.
    """

    number: int
    values: Mapping[str, Any]
    score: float
    pruned: bool


def history(trials: Sequence[Trial], label: str) -> bytes:
    """A PNG with the score of each trial, and the best so far."""
    figure, axis = _new(3.2)
    for pruned, marker, name in ((False, "o", "trial"), (True, "x", "stopped early, last score")):
        some = [trial for trial in trials if trial.pruned == pruned]
        if some:
            color = COLORS[7] if pruned else COLORS[0]
            axis.plot([t.number for t in some], [t.score for t in some], marker, color=color, markersize=5, label=name)
    whole = [trial for trial in trials if not trial.pruned]
    best = np.maximum.accumulate([trial.score for trial in whole]).tolist()
    axis.step([t.number for t in whole], best, where="post", color=COLORS[1], linewidth=1.5, label="best so far")
    axis.set(xlabel="trial", ylabel=label)
    axis.xaxis.get_major_locator().set_params(integer=True)
    _legend(figure, axis)
    return png(figure)


def importances(parts: Mapping[str, float]) -> bytes:
    """A PNG with a bar for the importance of each setting, the longest at the top."""
    figure, axis = _new(1.1 + 0.35 * len(parts))
    names = sorted(parts, key=lambda name: parts[name])
    axis.barh(names, [parts[name] for name in names], color=COLORS[0], height=0.6)
    for place, name in enumerate(names):
        axis.text(parts[name], place, f" {parts[name]:.0%}", va="center")
    axis.set(xlabel="share of the total importance", xlim=(0, 1.12 * max(parts.values()) or 1.0))
    axis.grid(False, axis="y")
    return png(figure)


def slices(trials: Sequence[Trial], space: Sequence[Dimension], label: str) -> list[bytes]:
    """A PNG for each setting: the trials by its value and score; colors show the value of the first choice."""
    by = next((dimension for dimension in space if dimension.kind == "choice"), None)
    groups = by.texts if by is not None and len(by.texts) <= len(COLORS) else ("",)
    return [_slice(trials, dimension, label, by, groups) for dimension in space]


def _slice(
    trials: Sequence[Trial], dimension: Dimension, label: str, by: Dimension | None, groups: Sequence[str]
) -> bytes:
    figure, axis = _new(3.3)
    for place, group in enumerate(groups):
        some = [trial for trial in trials if not group or by is None or trial.values[by.name] == group]
        for pruned in (False, True):
            points = [(_place(dimension, t.values[dimension.name]), t.score) for t in some if t.pruned == pruned]
            if points:
                fill = "none" if pruned else COLORS[place]
                named = f"{by.name} {group}" if group and by is not None and not pruned else None
                x, y = zip(*points)
                colors = {"facecolors": fill, "edgecolors": COLORS[place]}
                axis.scatter(x, y, s=26, marker=MARKERS[place], label=named, **colors)
    axis.set(xlabel=dimension.name, ylabel=label)
    if dimension.kind == "log":
        axis.set_xscale("log")
    if dimension.kind == "choice":
        axis.set_xticks(range(len(dimension.texts)), dimension.texts)
        axis.set_xlim(-0.5, len(dimension.texts) - 0.5)
    if groups != ("",):
        _legend(figure, axis)
    return png(figure)


def parallel(trials: Sequence[Trial], space: Sequence[Dimension], label: str) -> bytes:
    """A PNG with a line for each trial through its values on parallel axes, the last of which is its score."""
    import matplotlib

    figure, axis = _new(3.8, max(WIDTH, AXIS_WIDTH * (len(space) + 1)))
    scores = [trial.score for trial in trials]
    low, high = min(scores), max(scores)
    colors = matplotlib.colormaps[COLOR_MAP]
    for trial in sorted(trials, key=lambda trial: trial.score):
        height = (trial.score - low) / (high - low) if high > low else 0.5
        line = [*(_height(dimension, trial.values[dimension.name]) for dimension in space), height]
        style: Any = {"linestyle": ":", "linewidth": 0.9} if trial.pruned else {"linewidth": 1.4}
        axis.plot(range(len(line)), line, color=colors(height), alpha=0.85, **style)
    for place, dimension in enumerate(space):
        _scale(axis, place, [(_height(dimension, value), _text(value)) for value in _ticks(dimension)])
    _scale(axis, len(space), [(part, _text(low + part * (high - low))) for part in (0.0, 0.25, 0.5, 0.75, 1.0)])
    axis.set_xticks(range(len(space) + 1), [*(dimension.name for dimension in space), label])
    axis.set(yticks=[], ylim=(-0.05, 1.05), xlim=(-0.1, len(space) + 0.25))
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.tick_params(axis="x", length=0, pad=8)
    axis.grid(False)
    return png(figure)


def _place(dimension: Dimension, value: Any) -> Any:
    return dimension.texts.index(value) if dimension.kind == "choice" else value


def _height(dimension: Dimension, value: Any) -> float:
    """The height of a value on its axis, from 0 at the low end to 1 at the high end."""
    if dimension.kind == "choice":
        return dimension.texts.index(value) / max(1, len(dimension.texts) - 1)
    low, high = dimension.values()
    if dimension.kind == "log":
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _ticks(dimension: Dimension) -> Sequence[Any]:
    if dimension.kind == "choice":
        return dimension.texts
    low, high = dimension.values()
    if dimension.kind == "uniform":
        return [low + part * (high - low) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    powers = [
        10.0**power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    ]
    return powers[:: max(1, len(powers) // 5)] if len(powers) > 1 else [low, high]


def _scale(axis: Any, place: int, ticks: Sequence[tuple[float, str]]) -> None:
    axis.axvline(place, color="#555555", linewidth=1.0)
    for height, text in ticks:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        axis.text(place + 0.02, height, text, fontsize=8, va="center", bbox=box)


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _legend(figure: Any, axis: Any) -> None:
    """Draws the legend in as many columns as there is room for."""
    handles, labels = axis.get_legend_handles_labels()
    columns = max(1, LEGEND_LETTERS // (max(map(len, labels)) + 8))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), frameon=False)


def _new(height: float, width: float = WIDTH) -> tuple[Any, Any]:
    """A new figure and its axes; height and width in inches."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.subplots()
