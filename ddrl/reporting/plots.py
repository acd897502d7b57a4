"""Figures of a run, made from its metrics without a display. Matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl.algorithms import printed_name
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting.metrics import read_metrics, whole, without_undone
from ddrl.rundir import load_config

LEARNING_CURVE = "learning_curve.png"
ONLINE_COLOUR, MEAN_COLOUR, MAX_COLOUR = "#56B4E9", "#0072B2", "#D55E00"
"""Blue, dark blue and vermilion of the palette for the colour-blind of Okabe and Ito (2008)."""
STYLE: Any = {  # matplotlib's own type of it is of its newest version
    "font.size": 10,
    "axes.labelsize": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
MEAN_STYLE: Any = {"color": MEAN_COLOUR, "linewidth": 1.8, "marker": "o", "markersize": 4}
BEST_STYLE: Any = {
    "color": MAX_COLOUR, "linewidth": 1.2, "linestyle": "--", "marker": "^", "markersize": 3.5,
    "label": "evaluation, best game",
}  # fmt: skip
CUT_STYLE: Any = MEAN_STYLE | {"linestyle": "", "markerfacecolor": "white", "label": "evaluation cut off by time"}
_TIME_UNITS = ((3600.0 * 2, 3600.0, "hours"), (60.0 * 2, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def plot_learning_curve(run_dir: str | Path) -> Path:
    """Write learning_curve.png: raw score against agent steps and against wall time. Returns its path.

    Raises:
        UsageError: the run has no config.json, or the figure cannot be written.
    """
    figure, path = figure_of_run(run_dir), Path(run_dir) / LEARNING_CURVE
    try:
        figure.savefig(path, dpi=200)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write {path}: {reason}; free space or mend permissions") from error
    return path


def figure_of_run(run_dir: str | Path) -> Any:
    """The learning curve of a run as a matplotlib Figure. Raises UsageError where there is no run."""
    config = load_config(run_dir)
    records = without_undone(read_metrics(run_dir))
    online = [record for record in records if record["kind"] == "train" and "online_score_mean" in record]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    return learning_curve(online, evaluations, title(config))


def title(config: TrainConfig) -> str:
    """Algorithm, game, workers, effective batch and, of Atari games, the protocol of a run, in two lines."""
    from ddrl.envs.game_names import atari_rom

    exchange, environment = config.exchange, config.environment
    samples = config.batch_size
    members = config.effective_batch // samples
    batch = f"{config.effective_batch:,} ({members} x {samples:,})" if members > 1 else f"{samples:,}"
    workers = f"{exchange.workers} worker{'s' if exchange.workers != 1 else ''}"
    protocol = f", protocol {environment.protocol}" if atari_rom(environment.game) else ""
    return (
        f"{printed_name(config.title)} on {environment.game}, {config.network.network} network\n"
        f"{workers}, effective batch {batch}{protocol}"
    )


def learning_curve(online: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], heading: str) -> Any:
    """The figure itself, of any number of points (none included).

    Args:
        online: train records that have an online score.
        evaluations: evaluation records.
        heading: above both panels.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    longest = max((record["wall_seconds"] for record in [*online, *evaluations]), default=0.0)
    _, seconds, unit = next(row for row in _TIME_UNITS if longest >= row[0])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 4.0), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, sharey=True)
        _draw(left, "agent_steps", 1e6, online, evaluations)
        _draw(right, "wall_seconds", seconds, online, evaluations)
        left.set(xlabel="agent steps (millions)", ylabel="raw score per episode")
        right.set(xlabel=f"wall time ({unit})")
        figure.suptitle(heading, fontsize=12)
        handles, labels = left.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    return figure


def _draw(
    axes: Any, name: str, unit: float, online: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> None:
    """One panel. Lines of one point would be invisible, so they get a marker."""
    axes.margins(y=0.08)
    online = [record for record in online if name in record]
    curves: list[tuple[Sequence[Mapping[str, Any]], str, dict[str, Any]]] = []
    if online:
        style = {"color": ONLINE_COLOUR, "linewidth": 1.2, "marker": "." if len(online) < 3 else None}
        curves = [(online, "online_score_mean", style | {"label": "training, mean of last 100 episodes"})]
    if evaluations:
        mean, best = MEAN_STYLE | {"label": f"evaluation, mean of {evaluations[-1]['games']} games"}, BEST_STYLE
        curves += [(whole(evaluations), "mean", mean), (evaluations, "maximum", best)]
        if cut := [record for record in evaluations if record.get("timed_out")]:
            curves.append((cut, "mean", CUT_STYLE))
    for records, value, style in curves:
        axes.plot([record[name] / unit for record in records], [record[value] for record in records], **style)
    if not online and not evaluations:
        axes.set(ylim=(0, 1), xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no finished episode yet", ha="center", va="center", transform=axes.transAxes)
    # Set last: a limit set before the data would freeze the axis.
    furthest = max((record[name] / unit for record in [*online, *evaluations]), default=0.0)
    axes.set_xlim(0, furthest * 1.04 or 1.0)
