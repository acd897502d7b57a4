"""Figures of a run, made from its metrics without a display. Matplotlib is imported when one is drawn."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl.algorithms import printed_name
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.files import write_whole
from ddrl.reporting.atari_scores import Reference, reference_of
from ddrl.reporting.metrics import read_metrics, while_training, whole, without_undone
from ddrl.rundir import load_config
from ddrl.wording import counted

LEARNING_CURVE = "learning_curve.png"
RAW_COLOR, ONLINE_COLOR, EVALUATION_COLOR = "#56B4E9", "#0072B2", "#D55E00"
"""Light blue, blue and vermilion of the palette for the color-blind of Okabe and Ito (2008)."""
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
RAW_STYLE: Any = {
    "color": RAW_COLOR, "linestyle": "", "marker": ".", "markersize": 4, "alpha": 0.6,
    "label": "training, mean of a few seconds",
}  # fmt: skip
ONLINE_STYLE: Any = {"color": ONLINE_COLOR, "linewidth": 1.8, "label": "training, mean of the last 100 episodes"}
EVALUATION_STYLE: Any = {"color": EVALUATION_COLOR, "linewidth": 1.2, "marker": "o", "markersize": 5}
CUT_STYLE: Any = EVALUATION_STYLE | {
    "linestyle": "", "markerfacecolor": "white", "label": "evaluation that was cut off",
}  # fmt: skip
REFERENCE_STYLE: Any = {"color": "#777777", "linewidth": 1.0}
HIGHEST_HUMAN = 1.5  # times the highest score: a human score beyond that is left out, as it would flatten the curve
LEGEND_COLUMNS = 2
TITLE_LETTERS = 88  # letters that fit in a line above the figure
_STEP_UNITS = ((1e6, "millions"), (1e3, "thousands"), (1.0, ""))
_TIME_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
TIMES = ("hours", "minutes")
AXES = {"agent_steps": "agent steps", "wall_seconds": "wall time"}

Records = Sequence[Mapping[str, Any]]


def plot_learning_curve(run_dir: str | Path) -> Path:
    """Write learning_curve.png: raw score against agent steps and against wall time. Returns its path.

    Raises:
        UsageError: the run has no config.json, or the figure cannot be written.
    """
    figure, path = figure_of_run(run_dir), Path(run_dir) / LEARNING_CURVE
    try:
        data = io.BytesIO()
        figure.savefig(data, dpi=200)
        write_whole(path, data.getvalue())
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write {path}: {reason}; free space or fix permissions") from error
    return path


def figure_of_run(run_dir: str | Path) -> Any:
    """The learning curve of a run as a matplotlib Figure. Raises UsageError where there is no run."""
    config = load_config(run_dir)
    records = without_undone(read_metrics(run_dir))
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    reference = reference_of(config.environment.game)
    return learning_curve(while_training(records), evaluations, title(config), reference)


def title(config: TrainConfig) -> str:
    """Algorithm, game, workers, effective batch and, of Atari games, the protocol of a run, in two lines."""
    from ddrl.envs.game_names import atari_rom

    exchange, environment = config.exchange, config.environment
    samples = config.batch_size
    members = config.effective_batch // samples
    batch = f"{config.effective_batch:,} ({members} x {samples:,})" if members > 1 else f"{samples:,}"
    workers = counted(exchange.workers, "worker")
    protocol = f", protocol {environment.protocol}" if atari_rom(environment.game) else ""
    return (
        f"{printed_name(config.title)} on {environment.game}, {config.network.network} network\n"
        f"{workers}, effective batch {batch}{protocol}"
    )


def learning_curve(train: Records, evaluations: Records, heading: str, reference: Reference | None = None) -> Any:
    """The learning curve as a matplotlib Figure, with any number of points, even none.

    Args:
        train: `train` records of training. The x axes end with the last of all records.
        evaluations: `evaluation` records.
        heading: text above both panels.
        reference: scores of random play and people.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scored = [record for record in train if "online_score_mean" in record]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 4.4), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, name, units in ((left, "agent_steps", _STEP_UNITS), (right, "wall_seconds", _TIME_UNITS)):
            furthest = max((record[name] for record in [*train, *evaluations] if name in record), default=0.0)
            unit, word = _unit(furthest, units)
            _draw(axes, name, unit, scored, evaluations)
            if scored or evaluations:
                _draw_references(axes, reference, [*scored, *evaluations])
            axes.set_xlim(0, furthest / unit or 1.0)  # set last: a limit set before the data would freeze the axis
            axes.set_xlabel(f"{AXES[name]} ({word})" if word else AXES[name])
        left.set_ylabel("raw score per episode")
        figure.suptitle("\n".join(line for part in heading.split("\n") for line in textwrap.wrap(part, TITLE_LETTERS)))
        handles, labels = left.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=LEGEND_COLUMNS)
    return figure


def _unit(furthest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit of which the axis spans at least one (at least two of hours or minutes), and its name."""
    return next(((unit, word) for unit, word in units if furthest >= unit * (2 if word in TIMES else 1)), units[-1])


def _draw(axes: Any, name: str, unit: float, scored: Records, evaluations: Records) -> None:
    """Draws one panel. A line through one point would be invisible, so lines through few points have markers."""
    axes.margins(y=0.08)
    scored = [record for record in scored if name in record]
    few = {"marker": "."} if len(scored) < 3 else {}
    curves: list[tuple[Records, str, dict[str, Any]]] = []
    if raw := [record for record in scored if "interval_score_mean" in record]:
        curves.append((raw, "interval_score_mean", RAW_STYLE))
    if scored:
        curves.append((scored, "online_score_mean", ONLINE_STYLE | few))
    if complete := whole(evaluations):
        label = f"evaluation, mean of {games_text(complete)}"
        curves.append((complete, "mean", EVALUATION_STYLE | {"label": label}))
    if cut := [record for record in evaluations if record.get("timed_out")]:
        curves.append((cut, "mean", CUT_STYLE))
    for records, value, style in curves:
        # Markers of the last points would be cut in two where the axis ends.
        x, y = [record[name] / unit for record in records], [record[value] for record in records]
        axes.plot(x, y, clip_on=False, zorder=3, **style)
    if not curves:
        axes.set(ylim=(0, 1), xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no finished episode yet", ha="center", va="center", transform=axes.transAxes)


def games_text(evaluations: Records) -> str:
    """How many games the evaluations have, such as 50 games, or 12 to 50 games."""
    games = sorted(record["games"] for record in evaluations)
    return counted(games[0], "game") if games[0] == games[-1] else f"{games[0]} to {games[-1]} games"


def _draw_references(axes: Any, reference: Reference | None, records: Records) -> None:
    if reference is None:
        return
    axes.axhline(reference.random, linestyle=":", label=f"random play ({reference.random:g})", **REFERENCE_STYLE)
    highest = max(record.get("online_score_mean", record.get("mean", 0.0)) for record in records)
    if reference.human <= HIGHEST_HUMAN * highest:
        axes.axhline(reference.human, linestyle="--", label=f"a person ({reference.human:g})", **REFERENCE_STYLE)
