"""The live panel, which shows in a terminal window what a run is doing.

Each row has a rank. If the window is too low for all rows, those that matter least are left out; the curve of the score
gets the lines that remain.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ddrl.algorithms import printed_name
from ddrl.reporting.atari_scores import reference_of
from ddrl.reporting.chart import ASCII_MARK, MARK, chart
from ddrl.reporting.metrics import ONLINE_EPISODES, evaluation_remarks
from ddrl.reporting.phases import DRAWING, EVALUATING, PHASES, STARTING
from ddrl.reporting.run_state import RunState
from ddrl.reporting.texts import duration, event_line, present, raw_score
from ddrl.wording import counted

BLUE, ORANGE = "#0072B2", "#D55E00"
"""Colors of the palette of Okabe and Ito (2008). Their contrast is 3.8 or more on black and on white alike."""
WIDE = 140  # columns inside the frame, 4 fewer than the window's, from which on the curve is beside the numbers
NUMBERS_WIDTH = 66  # columns of the numbers beside the curve
LABEL_WIDTH = 12
ROOMY = 10  # lines of a panel from which on one of them may be empty
LEAST_CURVE, MOST_CURVE = 3, 18  # lines, without the axis
HINT = "Ctrl-C: save and end"


class Row(NamedTuple):
    """Some lines of the panel.

    Attributes:
        label: left of the first of them.
        lines: whole ones, none wider than there is room.
        rank: the smaller, the longer it stays in a low window.
    """

    label: str
    lines: Sequence[str]
    rank: int


def panel(state: RunState, now: float, width: int, height: int, unicode: bool = True) -> RenderableType:
    """The live panel, at most `height` lines of `width` columns.

    Args:
        state: the state of the run.
        now: the time in seconds, by the clock of the state.
        width, height: of the window.
        unicode: the terminal has more than ASCII.
    """
    inner, free = max(width - 4, LABEL_WIDTH + 1), height - 2  # a narrower window crops lines, and ends no run
    head: list[RenderableType] = [_phases(state, inner, unicode), _bar(state, now, inner)]
    if free >= ROOMY:
        head.append(Text())
    free -= len(head)
    body = _body(state, inner, free, unicode) if state.train else _before_training(state, inner, free)
    return Panel(
        Group(*head, *body), title=Text(_title(state, width - 6)), subtitle=Text(HINT, style="dim"), width=width
    )


def _title(state: RunState, width: int) -> str:
    """Algorithm and game, and as many of the numbers of processes as there is room for."""
    config = state.config
    name = f"{printed_name(config.title)} on {config.environment.game}"
    if config.apex.actors:
        acting = [counted(config.apex.actors, "actor"), counted(config.apex.replay_shards, "replay shard")]
    else:
        acting = [counted(config.exchange.workers, "worker")]
    servers = [counted(config.exchange.servers, "parameter server")] if config.exchange.servers else []
    long = f"{name}: {', '.join([*acting, *servers])}"
    return next((text for text in (long, f"{name}: {acting[0]}") if len(text) <= width), name)


# head -----------------------------------------------------------------------------------------------------------------


def _phases(state: RunState, width: int, unicode: bool) -> Text:
    """A line with the phases, in which those that are over, the present one and those to come look different."""
    marks = ("\u2713 ", "\u25cf ", "\u25cb ") if unicode else ("", "> ", "")
    present_one = PHASES.index(state.phase)
    texts = []
    for place, name in enumerate(PHASES):
        order = (place >= present_one) + (place > present_one)
        texts.append(Text(marks[order] + name, style=Style(bold=order == 1, dim=order != 1)))
    lines = [Text(gap).join(texts) for gap in ("   ", " ")]
    return next((line for line in lines if line.cell_len <= width), texts[present_one])


def _bar(state: RunState, now: float, width: int) -> RenderableType:
    """A bar of what is done of the phase, and the longest text about it that leaves room for the bar."""
    part, texts = _part(state, now)
    text = next((each for each in texts if len(each) <= width - 12), texts[-1])
    if part is None or width - len(text) < 7:
        return Text(text, no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(
        total=part[1], completed=min(part[0], part[1]), width=width - len(text) - 2, complete_style=BLUE,
        finished_style=BLUE,
    )  # fmt: skip
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(bar, Text(text, no_wrap=True))
    return grid


def _part(state: RunState, now: float) -> tuple[tuple[float, float] | None, list[str]]:
    """(What is done of the phase, the whole of it) or None if unknown, and texts about it, the longest first."""
    left = state.time_left(now)
    ends = "" if left is None else f", ends in about {duration(left)}"
    if state.phase == STARTING:
        return None, [f"{duration(state.phase_seconds(now))} so far{ends}"]
    if state.phase == DRAWING:
        return None, [f"learning curve and video{ends}"]
    if state.phase == EVALUATING:
        games = state.evaluation_games
        if games is None:
            return None, [f"the final evaluation, {duration(state.phase_seconds(now))} so far{ends}"]
        over, of_all = games[0], counted(games[1], "game")
        return games, [f"the final evaluation, {over} of {of_all} over{ends}", f"{counted(over, 'game')}{ends}"]
    budget = state.budget(now)
    if budget is None:
        return None, [f"{duration(state.trained_seconds(now))} trained, without a budget"]
    if not ends and (training := state.training_left(now)) is not None:
        ends = f", training ends in about {duration(training)}"
    done, total, unit = budget
    share = f"{min(1.0, done / total):.0%}{ends}"
    if not unit:
        return (done, total), [f"{duration(min(done, total))} of {duration(total)}{ends}", share]
    return (done, total), [f"{done:,} of {total:,} {unit}{ends}", share]


# body -----------------------------------------------------------------------------------------------------------------


def _before_training(state: RunState, width: int, height: int) -> list[RenderableType]:
    """The lines before the first `train` record: what the command waits for, and the newest events."""
    lines = _fit([state.waiting], width)
    for event in state.events:
        lines += textwrap.wrap(event_line(event), width)
    return [Text(line) for line in lines[: max(1, height)]]


def _body(state: RunState, width: int, height: int, unicode: bool) -> list[RenderableType]:
    """The curve above the numbers, or beside them in a wide window."""
    if width < WIDE:
        reserved = max(LEAST_CURVE + 1, height // 3) if len(state.scores) > 1 else 0
        score, *others = _chosen(_rows(state, width), height, reserved)
        numbers = _lines(others)
        curve = _curve(state, width, min(height - len(score.lines) - len(numbers), MOST_CURVE + 1), unicode)
        return [*_lines([score])[:height], *curve, *numbers]
    numbers = _lines(_chosen(_rows(state, NUMBERS_WIDTH), height, 0))
    curve_width = width - NUMBERS_WIDTH - 3
    curve = _curve(state, curve_width, min(height, max(len(numbers), MOST_CURVE + 1)), unicode)
    if not curve:
        return numbers
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(width=curve_width)
    grid.add_column(width=NUMBERS_WIDTH)
    grid.add_row(Group(*curve), Group(*numbers))
    return [grid]


def _curve(state: RunState, width: int, height: int, unicode: bool) -> list[RenderableType]:
    """The curve of the score over time; empty if there are fewer than two scores, or too few lines for it."""
    if len(state.scores) < 2 or height <= LEAST_CURVE:
        return []
    rows = chart(state.scores, state.evaluations, width, height - 1, unicode, BLUE, ORANGE)
    times = [x for x, _ in (*state.scores, *state.evaluations)]
    first, last = duration(min(times)), duration(max(times))
    legend = f"{MARK if unicode else ASCII_MARK} evaluation" if state.evaluations else ""
    indent = next(i for i, character in enumerate(rows[0].plain) if character in "\u2502|") + 1
    axis = first + legend.center(max(0, width - indent - len(first) - len(last))) + last
    return [*rows, Text(" " * indent + axis[: width - indent], style="dim", no_wrap=True)]


def _chosen(rows: Sequence[Row], height: int, reserved: int) -> list[Row]:
    """The rows that fit, in their order: always the first one, and then those with the smallest ranks.

    Rows with ranks above 2 leave `reserved` lines to the curve.
    """
    kept: set[int] = set()
    used = 0
    for place in sorted(range(len(rows)), key=lambda i: rows[i].rank):
        room = height if rows[place].rank <= 2 else height - reserved
        if place == 0 or used + len(rows[place].lines) <= room:
            kept.add(place)
            used += len(rows[place].lines)
    return [row for place, row in enumerate(rows) if place in kept]


def _lines(rows: Sequence[Row]) -> list[RenderableType]:
    texts: list[RenderableType] = []
    for row in rows:
        for place, line in enumerate(row.lines):
            label = row.label if place == 0 else ""
            texts.append(Text.assemble((label.ljust(LABEL_WIDTH), "dim"), line, no_wrap=True))
    return texts


def _rows(state: RunState, width: int) -> list[Row]:
    """Rows with all that is known of the run, in the order of the panel."""
    train, room = state.train, width - LABEL_WIDTH
    speed = present(
        train, ("agent_steps_per_s", "{:,.0f} agent steps/s"), ("updates_per_s", "{:.2f} updates/s"),
        ("frames_per_s", "{:,.0f} frames/s"), ("datapoints_per_s", "{:,.0f} data-points/s"),
    )  # fmt: skip
    learning = present(
        train, ("loss", "loss {:.4g}"), ("policy_loss", "policy {:.3g}"), ("value_loss", "value {:.3g}"),
        ("entropy", "entropy {:.3f}"), ("gradient_norm", "gradient norm {:.3g}"), ("effective_batch", "batch {:,.0f}"),
        ("learning_rate", "learning rate {:.3g}"), ("epsilon", "epsilon {:.2f}"),
    )  # fmt: skip
    replay = present(
        train, ("replay_size", "{:,.0f} transitions"), ("inserts_per_s", "{:,.0f} inserts/s"),
        ("samples_per_s", "{:,.0f} samples/s"), ("samples_per_insert", "{:.2f} samples per insert"),
    )  # fmt: skip
    lag = present(
        train, ("lag_mean", "mean {:.1f}"), ("lag_max", "max {:.0f} updates"),
        ("staleness_mean", "staleness {:.1f}"), ("actor_lag_mean", "actors {:.0f}"),
    )  # fmt: skip
    if "live_workers" in train:
        lag.append(f"{counted(round(train['live_workers']), 'worker')} live")
    totals = (("agent_steps", "agent step"), ("update", "update"), ("episodes", "episode"))
    done = [counted(train[name], noun) for name, noun in totals if name in train]
    named = [
        ("score", _score(state), 1), ("evaluation", _evaluation(state), 2), ("compare", _compared(state), 6),
        ("trouble", _trouble(state), 3), ("progress", done, 5), ("speed", speed, 7), ("learning", learning, 8),
        ("replay", replay, 9), ("lag", lag, 10),
    ]  # fmt: skip
    rows = [Row(label, _fit(parts, room), rank) for label, parts, rank in named if parts]
    for role, split in train.get("time_split", {}).items():
        shares = sorted(split.items(), key=lambda item: -item[1])
        texts = [f"{activity.replace('_', ' ')} {share:.0%}" for activity, share in shares]
        rows.append(Row(_role(role), _fit(texts, room), 12))
    for age, event in enumerate(reversed(state.events)):
        label = "" if age < len(state.events) - 1 else "events"
        rows.insert(len(rows) - age, Row(label, textwrap.wrap(event_line(event), room), 4 if age == 0 else 11))
    return rows


def _fit(parts: Sequence[str], width: int) -> list[str]:
    """The parts, separated by commas, in few lines of at most `width`; only a part that is wider itself is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) < width:
            lines[-1] += f", {part}"
        else:
            if lines:
                lines[-1] += ","
            lines += textwrap.wrap(part, width)
    return lines


def _score(state: RunState) -> list[str]:
    if not state.scores:
        return ["no finished episode yet"]
    episodes = min(ONLINE_EPISODES, state.train.get("episodes", ONLINE_EPISODES))
    mean = f"{state.scores[-1][1]:.1f}, mean of the last {counted(episodes, 'training episode')}"
    highest = state.train.get("online_score_max")
    return [mean] if highest is None else [mean, f"highest {raw_score(highest)}"]


def _evaluation(state: RunState) -> list[str]:
    if not state.evaluation:
        return ["none yet"] if state.config.evaluation.evaluator else []
    last = state.evaluation
    mean = f"{last['mean']:.1f}, mean of {counted(last['games'], 'game')} at {duration(last['wall_seconds'])}"
    best = [f"best so far {state.best['mean']:.1f}"] if state.best and state.best["mean"] > last["mean"] else []
    return [mean, f"best game {raw_score(last['maximum'])}", *best, *evaluation_remarks(last)]


def _compared(state: RunState) -> list[str]:
    reference = reference_of(state.config.environment.game)
    return [f"random play {reference.random:g}", f"a person {reference.human:g}"] if reference else []


def _trouble(state: RunState) -> list[str]:
    counts = [
        (state.lost_workers, "worker", "lost"),
        (state.train.get("gradients_dropped", 0), "gradient", "dropped"),
        (state.train.get("steps_refused", 0), "step", "refused"),
        (state.train.get("evaluations_skipped", 0), "evaluation", "skipped"),
        (state.train.get("actor_restarts", 0), "actor", "restarted"),
        (state.train.get("segments_refused", 0), "segment", "refused"),
        (state.train.get("scores_not_finite", 0), "score", "not finite"),
    ]
    return [f"{counted(count, noun)} {fate}" for count, noun, fate in counts if count]


def _role(role: str) -> str:
    return {"parameter_server": "servers", "worker": "workers"}.get(role, role)[: LABEL_WIDTH - 1]
