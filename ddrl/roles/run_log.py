"""The records that the chief writes to metrics.jsonl and passes to callbacks: reports of all ranks, and events."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddrl import plugin_modules
from ddrl.checkpoint import Checkpoint
from ddrl.exchange.interface import Closed
from ddrl.init_from import SOURCE
from ddrl.job.layout import JobContext
from ddrl.reporting.callbacks import RunContext, Trouble
from ddrl.reporting.collector import Collector
from ddrl.reporting.loggers import start_callbacks
from ddrl.reporting.machine import of_process
from ddrl.reporting.metrics import MetricsWriter, lines_of, read_metrics
from ddrl.reporting.phases import phase_ended, take_phases
from ddrl.reporting.rank_metrics import REPORT_SECONDS, RankMetrics
from ddrl.roles.time_left import TimeLeft, plan
from ddrl.rundir import GOES_ON

OUTLIVED = ("worker_lost", "evaluator_lost", "actor_lost", "replay_shard_lost", "actor_restarted")
"""Events of processes that the run does without. What these said last is not why it may end later."""
STDERR = 2  # log.txt, also in a job, where sys.stderr is not


def changed_plugins(run_dir: Path, plugins: Mapping[str, str]) -> list[str]:
    """The plugins whose files have other contents than at the last start of the run that reached an update.

    Args:
        plugins: plugin -> SHA-256 of its file now.
    """
    starts = [record for record in read_metrics(run_dir) if record.get("name") == "started"] if plugins else []
    recorded = starts[-1].get("plugins", {}) if starts else {}
    before = {plugin_modules.module_of(plugin): content for plugin, content in recorded.items()}
    return [name for name, content in plugins.items() if before.get(plugin_modules.module_of(name), content) != content]


class RunLog:
    """Writes the records of this part of the run, until `end`.

    Args:
        context: the job's context.
        start: the checkpoint from which this part of the run started.
        resumed: whether the run had begun before; `start` is its newest checkpoint, if there was one.
        collector: joins the reports of the ranks.
        time_left: is told here of the first update and of games that are over; the chief tells it the rest.

    Attributes:
        metrics: the chief's own metrics.
        began: time.monotonic() at the beginning of this part of the run.
        next_line: time.monotonic() at which the next line is due.
        write: function that appends a record, such as that of an evaluation.

    Raises:
        UsageError: a callback or logger is not known, or needs a package that is missing.
    """

    def __init__(
        self, context: JobContext, start: Checkpoint, resumed: bool, collector: Collector, time_left: TimeLeft
    ):
        self.config, self.collector, self.time_left = context.config, collector, time_left
        self.metrics = RankMetrics("chief", 0)
        self._machine = of_process()
        self._plugins = plugin_modules.contents(self.config.run.plugins)
        self._changed = changed_plugins(context.run_dir, self._plugins) if resumed else []
        self._callbacks = start_callbacks(RunContext(self.config, context.run_dir, resumed, lines_of(context.run_dir)))
        self._writer = MetricsWriter(context.run_dir, self._callbacks.put)
        self.write = self._writer.write
        self._seconds_before, self._spent_seconds = start.wall_seconds, context.spent_seconds
        self._source: dict[str, Any] = start.counters.get(SOURCE, {})
        self.began = time.monotonic()
        self.next_line = 0.0

    @property
    def wall_seconds(self) -> float:
        """Wall time of the run, earlier parts included."""
        return self._seconds_before + time.monotonic() - self.began

    def event(self, name: str, text: str, **fields: Any) -> None:
        """Appends an event; see `MetricsWriter.event`. Those in OUTLIVED become lines of log.txt, too."""
        self._writer.event(name, text, self.wall_seconds, **fields)
        if name in OUTLIVED:
            with contextlib.suppress(OSError):  # no run ends for a line that is only read if it fails
                os.write(STDERR, f"{GOES_ON}{text}\n".encode())

    def phase(self, version: int) -> dict[str, Any]:
        """The phase of the run and the time that is left, at this version; see `TimeLeft.now`."""
        return self.time_left.now(time.monotonic() - self.began, version, self.collector.agent_steps)

    def first_update(self, version: int) -> None:
        """Appends events about the start and about what is to come, at the first update.

        They say how long the start took, on which machine and with which versions of programs and plugins the chief
        runs, and from which checkpoint a new run took its parameters, if it did.

        Args:
            version: the chief's version at that time.
        """
        phase_ended("first update")
        phases = take_phases()
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
        text = f"first update after {sum(phases.values()):.1f} s: {parts}"
        if source := self._source:
            at = f"update {source['update']:,} ({source['agent_steps']:,} agent steps)"
            text += f"; it began with the parameters of {at} in {source['file']}"
        more = {SOURCE: source} if source else {}
        if self._plugins:
            more["plugins"] = self._plugins
        self.event("started", text, seconds=phases, machine=self._machine, **more)
        if self._changed:
            names = ", ".join(self._changed)
            text = f"{names}: changed since the last start; the run goes on with what is there now"
            self.event("plugin_changed", text)
        self.time_left.first_update(time.monotonic() - self.began, self.collector.agent_steps)
        self.event("phase", plan(self.config, self._spent_seconds), **self.phase(version))

    def step(self, closed: Closed, learning_rate: float) -> None:
        """Adds a closed step to the metrics; `learning_rate` is that of the next step."""
        metrics = self.metrics
        metrics.count("datapoints_applied", 0 if closed.refused else closed.samples)
        metrics.gauge("learning_rate", learning_rate)
        if np.isfinite(closed.norm):
            metrics.mean("average_gradient_norm", closed.norm)
        if not math.isnan(closed.staleness):
            metrics.mean("staleness", closed.staleness)
            metrics.maximum("staleness", closed.staleness)

    def refused(self, closed: Closed) -> str:
        """Counts a refused step and appends an event; returns the names of the workers whose gradients caused it."""
        self.metrics.count("steps_refused")
        names = ", ".join(f"worker {worker}" for worker in closed.refused)
        text = f"step {closed.step} refused: the gradient of {names} is not finite"
        self.event("gradient_refused", text, workers=list(closed.refused), update=closed.version)
        return names

    def report(self, report: Mapping[str, Any]) -> None:
        """Takes the REPORT of a rank, which may contain events."""
        self.collector.add(report)
        if "evaluation_games_over" in report["gauges"]:
            self.time_left.games_over(report["gauges"]["evaluation_games_over"])
        for event in report.get("events", ()):
            self.event(**event)

    def line(self, now: float, version: int, live_workers: int) -> None:
        """Appends a record of all reports since the last such record; `now` is time.monotonic()."""
        self.next_line = now + self.config.run.log_every_seconds
        self.metrics.gauge("live_workers", live_workers)
        self.collector.add(self.metrics.report())
        shortest = min(REPORT_SECONDS, self.config.run.log_every_seconds)
        line = self.collector.line(version, self.wall_seconds, shortest)
        self.write(line | self.phase(version))
        self._tell_of(self._callbacks.troubles())

    def end(self, result: Mapping[str, Any]) -> None:
        """Passes the run's result to the callbacks, and closes the file."""
        self._tell_of(self._callbacks.close(result))
        self._writer.close()

    def _tell_of(self, troubles: Sequence[Trouble]) -> None:
        for name, text, fields in troubles:
            self.event(name, text, **fields)
