"""What a person sees while a run goes on, and at its end.

`Progress` is fed with the new records of metrics.jsonl by the process that started the ranks: a live panel
on a terminal, plain lines elsewhere. Rich is imported here and nowhere deeper.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddrl.algorithms import printed_name
from ddrl.checkpoint import list_checkpoints, load
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting.metrics import read_metrics, whole, without_undone
from ddrl.reporting.plots import LEARNING_CURVE
from ddrl.reporting.time_report import time_report

PLAIN_SECONDS = 10.0
"""Seconds between lines where there is no terminal."""
STARTUP_SECONDS = 6
"""What loading TensorFlow takes about, for the first message."""
PANEL_WIDTH = 80
_SPARKS = "".join(chr(code) for code in range(0x2581, 0x2589))
_ASCII_SPARKS = "_.-=+*#@"
_LOUD_EVENTS = 3
_MILESTONES = (
    "target_reached", "worker_lost", "evaluator_lost", "evaluation_failed", "restarted", "replay_shard_lost",
    "actor_lost", "replay_not_loaded", "priorities_not_sent", "checkpoint_left_out", "settings_changed",
)  # fmt: skip


class Progress:
    """Context manager that shows how a run goes.

    Args:
        config: settings of the run.
        console: where to (default: standard output).
        clock: seconds, for tests.
        tell: is given each record, too.
    """

    def __init__(
        self,
        config: TrainConfig,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[Mapping[str, Any]], None] = lambda record: None,
    ) -> None:
        self._tell = tell
        self._console = console or plain_console()
        self._clock = clock
        self._began = clock()
        self._said = clock()
        self.state = RunState(config)
        self._panel = self._console.is_terminal and not self._console.is_dumb_terminal
        render = self._render
        self._live = Live(console=self._console, get_renderable=render, auto_refresh=False, transient=True)

    def __enter__(self) -> Progress:
        if self._panel:
            self._live.start(refresh=True)
        else:
            self._print(self.state.waiting())
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take in new records of metrics.jsonl, and show them."""
        for record in records:
            self.state.add(record)
            self._tell(record)
            if not self._panel:
                self._say(record)
        self.tick()

    def tick(self) -> None:
        """Show the time that has passed; to be called every half second or so."""
        now = self._clock()
        if self._panel:
            self._live.refresh()
        elif now - self._said >= PLAIN_SECONDS:
            self._said = now
            self._print(self.state.plain_line() if self.state.train else self.state.waiting())

    def _say(self, record: Mapping[str, Any]) -> None:
        """Evaluations and events get their line at once; the others wait for `tick`."""
        if record.get("kind") == "evaluation":
            self._print(evaluation_line(record))
        elif record.get("kind") == "event":
            self._print(event_line(record))

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _render(self) -> RenderableType:
        unicode = self._console.encoding.lower().startswith("utf")
        return panel(self.state, self._clock() - self._began, min(PANEL_WIDTH, self._console.width), unicode)


def plain_console(**options: Any) -> Console:
    """A console that prints texts as they are: names of files may look like markup.

    Args:
        options: of rich.console.Console.
    """
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, **options)


class RunState:
    """The newest records of a run and what follows from them."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.train: Mapping[str, Any] = {}
        self.evaluation: Mapping[str, Any] = {}
        self.best: Mapping[str, Any] = {}
        self.online: list[float] = []
        self.events: collections.deque[Mapping[str, Any]] = collections.deque(maxlen=_LOUD_EVENTS)
        self.lost_workers = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one record of metrics.jsonl; an unknown kind is passed over."""
        kind = record.get("kind")
        if kind == "train":
            self.train = record
            if "online_score_mean" in record:
                self.online.append(record["online_score_mean"])
        elif kind == "evaluation":
            self.evaluation = record
            if whole([record]) and (not self.best or record["mean"] > self.best["mean"]):
                self.best = record
        elif kind == "event":
            self.events.append(record)
            self.lost_workers += record["name"] == "worker_lost"

    def waiting(self) -> str:
        """What is going on before the first record."""
        ranks = self.config.ranks
        processes = f"{ranks} ranks" if ranks > 1 else "one process"
        return f"starting {processes}; TensorFlow loads in about {STARTUP_SECONDS} s ..."

    def plain_line(self) -> str:
        """Time, progress, rate and scores in one line."""
        train = self.train
        parts = [f"{duration(train['wall_seconds'])}", f"update {train['update']:,}"]
        numbers = _join(
            train,
            ("agent_steps", "{:,} agent steps"),
            ("agent_steps_per_s", "{:,.0f}/s"),
            ("online_score_mean", "score {:.1f}"),
            ("loss", "loss {:.4g}"),
            ("entropy", "entropy {:.3f}"),
            ("lag_mean", "lag {:.1f}"),
            ("epsilon", "epsilon {:.2f}"),
            ("replay_size", "replay {:,.0f}"),
            ("samples_per_insert", "samples per insert {:.2f}"),
        )
        return "  ".join([*parts, numbers])


def panel(state: RunState, elapsed: float, width: int = PANEL_WIDTH, unicode: bool = True) -> RenderableType:
    """The live panel.

    Args:
        state: of the run.
        elapsed: seconds since this part of the run started, starting up included.
        width: columns.
        unicode: the terminal has more than ASCII.
    """
    config = state.config
    exchange = config.exchange
    heading = f"{printed_name(config.title)} on {config.environment.game}: {_acting(config)}"
    if exchange.servers:
        heading += f", {_count(exchange.servers, 'parameter server')}"
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(style="dim", width=11, no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    if state.train:
        for name, text in _rows(state, width - 17, unicode):
            grid.add_row(name, Text(text))
    else:
        grid.add_row("", Text(event_line(state.events[-1]) if state.events else state.waiting()))
    content = Group(_budget(state, elapsed, width - 4), grid)
    return Panel(content, title=Text(heading), width=width, subtitle="Ctrl-C: checkpoint and end")


def summary(run_dir: str | Path, config: TrainConfig) -> RenderableType:
    """What the run learned, how fast, where its files are and how to go on."""
    run_dir = Path(run_dir)
    records = without_undone(read_metrics(run_dir))
    rows = _outcome(records) + _time(records, run_dir, config) + _files(run_dir)
    width = max(len(name) for name, _ in rows) + 2
    # Lines that do not wrap: a path that is cut in two cannot be copied.
    lines = [Text.assemble((name.ljust(width), "dim"), text, no_wrap=True, overflow="ignore") for name, text in rows]
    return Group(Text(f"{printed_name(config.title)} on {config.environment.game}", style="bold"), *lines)


def _acting(config: TrainConfig) -> str:
    """How many act, and of Ape-X how many keep what they do."""
    if not config.apex.actors:
        return _count(config.exchange.workers, "worker")
    return f"{_count(config.apex.actors, 'actor')}, {_count(config.apex.replay_shards, 'replay shard')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds as 0:07, 12:34 or 3:25:45."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float], width: int, unicode: bool = True) -> str:
    """Values as a row of at most `width` characters, each the mean of its part.

    Args:
        values: in their order.
        width: characters, at most.
        unicode: blocks; else ASCII.
    """
    sparks = _SPARKS if unicode else _ASCII_SPARKS
    count = min(width, len(values))
    edges = [len(values) * i // count for i in range(count + 1)] if count > 0 else []
    parts = [values[start:stop] for start, stop in itertools.pairwise(edges)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(sparks) - 1) / (high - low) if high > low else 0.0
    return "".join(sparks[round((mean - low) * scale)] for mean in means)


def evaluation_line(record: Mapping[str, Any]) -> str:
    """One evaluation: mean, maximum, games, and the version and time of the snapshot that played."""
    return (
        f"evaluation: mean {record['mean']:.1f}, max {record['maximum']:.0f} over {record['games']} games,"
        f" version {record['version']:,} at {duration(record['wall_seconds'])}{_cut(record)}"
    )


def _cut(record: Mapping[str, Any]) -> str:
    cut = f", {record['timed_out']} games cut off by time" if record.get("timed_out") else ""
    return cut + (f", {record['not_finite']} more without a finite score" if record.get("not_finite") else "")


def event_line(record: Mapping[str, Any]) -> str:
    """One event of the run."""
    return f"{duration(record.get('wall_seconds', 0))} {record['name'].replace('_', ' ')}: {record['text']}"


def _budget(state: RunState, elapsed: float, width: int) -> RenderableType:
    """A bar for the first budget that is set: time, agent steps, updates."""
    run = state.config.run
    if run.minutes > 0:
        done, total = elapsed, run.minutes * 60
        text = f"{duration(elapsed)} of {duration(total)}, {duration(total - elapsed)} left"
    elif run.agent_steps or run.max_updates:
        name, unit = ("agent_steps", "agent steps") if run.agent_steps else ("update", "updates")
        done, total = state.train.get(name, 0), run.agent_steps or run.max_updates
        text = f"{duration(elapsed)}, {done:,} of {total:,} {unit}"
    else:
        return Text(f"{duration(elapsed)} elapsed, no budget")
    bar = ProgressBar(total=total, completed=min(done, total), width=max(width - len(text) - 2, 5))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(bar, Text(text))
    return grid


def _rows(state: RunState, width: int, unicode: bool) -> list[tuple[str, str]]:
    train = state.train
    rows = [
        ("progress", _join(train, ("update", "{:,} updates"), ("agent_steps", "{:,} agent steps"),
                           ("episodes", "{:,} episodes"))),
        ("rates per s", _join(train, ("agent_steps_per_s", "{:,.0f} agent steps"),
                              ("frames_per_s", "{:,.0f} frames"),
                              ("datapoints_per_s", "{:,.0f} data-points"))),
        ("replay", _join(train, ("replay_size", "{:,.0f} transitions"), ("inserts_per_s", "{:,.0f} inserts/s"),
                         ("samples_per_s", "{:,.0f} samples/s"), ("samples_per_insert", "{:.2f} samples per insert"))),
        ("learning", _join(train, ("updates_per_s", "{:.2f} updates/s"), ("effective_batch", "batch {:,.0f}"),
                           ("learning_rate", "rate {:.3g}"), ("live_workers", "{:.0f} workers live"))),
        ("score", _join(train, ("online_score_mean", "mean {:.1f}"), ("online_score_max", "max {:.0f}"))
         + "  (last 100 training episodes)" if state.online else "no finished episode yet"),
        ("", sparkline(state.online, width, unicode)),
        ("evaluation", _evaluation(state)),
        ("loss", _join(train, ("loss", "{:.4g}"), ("policy_loss", "policy {:.3g}"),
                       ("value_loss", "value {:.3g}"), ("entropy", "entropy {:.3f}"),
                       ("gradient_norm", "|g| {:.3g}"))),
        ("lag", _join(train, ("lag_mean", "mean {:.1f}"), ("lag_max", "max {:.0f} updates"),
                      ("staleness_mean", "staleness {:.1f}"), ("actor_lag_mean", "actors {:.0f}"))),
        ("trouble", _trouble(state)),
    ]  # fmt: skip
    for role, split in train.get("time_split", {}).items():
        shares = sorted(split.items(), key=lambda item: -item[1])
        rows.append((_role(role), "  ".join(f"{activity} {share:.0%}" for activity, share in shares)))
    rows += [("event", event_line(event)) for event in state.events]
    return [(name, text) for name, text in rows if text]


def _evaluation(state: RunState) -> str:
    if not state.evaluation:
        return "none yet" if state.config.evaluation.evaluator else ""
    last, best = state.evaluation, state.best
    return (
        f"mean {last['mean']:.1f}  max {last['maximum']:.0f}  (version {last['version']:,}"
        f" at {duration(last['wall_seconds'])}{_cut(last)})" + (f"  best mean {best['mean']:.1f}" if best else "")
    )


def _trouble(state: RunState) -> str:
    counts = [
        (state.lost_workers, "worker", "lost"),
        (state.train.get("gradients_dropped", 0), "gradient", "dropped"),
        (state.train.get("steps_refused", 0), "step", "refused"),
        (state.train.get("evaluations_skipped", 0), "evaluation", "skipped"),
        (state.train.get("actor_restarts", 0), "actor", "restarted"),
        (state.train.get("segments_refused", 0), "segment", "refused"),
        (state.train.get("scores_not_finite", 0), "score", "not finite"),
    ]
    return "  ".join(f"{_count(count, noun)} {fate}" for count, noun, fate in counts if count)


def _outcome(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    train = [record for record in records if record["kind"] == "train"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    rows = []
    online = [record["online_score_mean"] for record in train if "online_score_mean" in record]
    score = _first_best_last(online) + " (mean of last 100 episodes)" if online else "no finished episode"
    rows.append(("training score", score))
    rows.append(("evaluation", _evaluated(evaluations)))
    if train:
        rows += [("trained", _trained(train))]
    return rows + [("event", event_line(record)) for record in records if record.get("name") in _MILESTONES]


def _evaluated(evaluations: list[Mapping[str, Any]]) -> str:
    complete = whole(evaluations)
    cut = _count(len(evaluations) - len(complete), "evaluation") + " cut off by time"
    if not complete:
        return cut if evaluations else "none"
    text = _first_best_last([record["mean"] for record in complete]) + f" (mean of {complete[-1]['games']} games)"
    text += f"; best game {max(record['maximum'] for record in evaluations):.0f}"
    return text + (f"; {cut}, not among them" if len(complete) < len(evaluations) else "")


def _trained(train: Sequence[Mapping[str, Any]]) -> str:
    """Until the first line that has all updates: the last evaluation, which goes on alone, is no training."""
    last = train[-1]
    ended = next(line for line in train if line["update"] == last["update"])
    seconds, steps = ended["wall_seconds"], last.get("agent_steps", 0)
    rate = f", {steps / seconds:,.0f} agent steps/s" if seconds > 0 else ""
    return f"{steps:,} agent steps, {last['update']:,} updates in {duration(seconds)}{rate}"


def _time(records: Sequence[Mapping[str, Any]], run_dir: Path, config: TrainConfig) -> list[tuple[str, str]]:
    try:
        parameters = load(list_checkpoints(run_dir)[-1]).parameters.size
    except (IndexError, UsageError):  # none yet, or damaged: the report says nothing about shards it cannot know
        return []
    return time_report(records, config, parameters)


def _files(run_dir: Path) -> list[tuple[str, str]]:
    checkpoints = list_checkpoints(run_dir)
    rows = [("checkpoint", str(checkpoints[-1]) if checkpoints else "none")]
    if (run_dir / LEARNING_CURVE).exists():
        rows.append(("curve", str(run_dir / LEARNING_CURVE)))
    rows += [("video", str(path)) for path in sorted([*run_dir.glob("*.mp4"), *run_dir.glob("*.gif")])]
    if checkpoints:
        rows.append(("go on with", f"ddrl train --resume {run_dir}"))
        rows.append(("look at it", f"ddrl evaluate {run_dir}"))
    return rows


def _first_best_last(values: Sequence[float]) -> str:
    return f"first {values[0]:.1f}, best {max(values):.1f}, last {values[-1]:.1f}"


def _join(record: Mapping[str, Any], *items: tuple[str, str]) -> str:
    return "  ".join(form.format(record[name]) for name, form in items if name in record)


def _role(role: str) -> str:
    return {"parameter_server": "servers", "worker": "workers"}.get(role, role)[:11]
