"""What the chief writes into metrics.jsonl, and tells callbacks: lines of what all ranks report, and events."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddrl.checkpoint import Checkpoint
from ddrl.exchange.interface import Closed
from ddrl.init_from import SOURCE
from ddrl.job.layout import JobContext
from ddrl.reporting.callbacks import RunContext, Trouble, start_callbacks
from ddrl.reporting.collector import Collector
from ddrl.reporting.machine import source_commit
from ddrl.reporting.metrics import MetricsWriter, lines_of
from ddrl.reporting.phases import phase_ended, take_phases
from ddrl.reporting.rank_metrics import REPORT_SECONDS, RankMetrics
from ddrl.roles.time_left import TimeLeft, plan


class RunLog:
    """Written until `end`.

    Args:
        context: of the job.
        start: what this part of the run started from.
        resumed: whether `start` was loaded.
        collector: of what the ranks report.
        time_left: is told of the first update and of games that are over; the chief tells it of the rest.

    Attributes:
        metrics: the chief's own.
        began: time.monotonic() at the beginning of this part of the run.
        next_line: when the next line is due, by the same clock.
        write: appends a record, such as that of an evaluation.

    Raises:
        UsageError: a callback or logger is not known, or lacks a package.
    """

    def __init__(
        self, context: JobContext, start: Checkpoint, resumed: bool, collector: Collector, time_left: TimeLeft
    ):
        self.config, self.collector, self.time_left = context.config, collector, time_left
        self.metrics = RankMetrics("chief", 0)
        self._commit = source_commit()
        self._callbacks = start_callbacks(RunContext(self.config, context.run_dir, resumed, lines_of(context.run_dir)))
        self._writer = MetricsWriter(context.run_dir, self._callbacks.put)
        self.write = self._writer.write
        self._seconds_before = start.wall_seconds
        self._source: dict[str, Any] = start.counters.get(SOURCE, {})
        self.began = time.monotonic()
        self.next_line = 0.0

    @property
    def wall_seconds(self) -> float:
        """Wall time of the run, earlier parts included."""
        return self._seconds_before + time.monotonic() - self.began

    def event(self, name: str, text: str, **fields: Any) -> None:
        """Appends an event; see `MetricsWriter.event`."""
        self._writer.event(name, text, self.wall_seconds, **fields)

    def phase(self, version: int) -> dict[str, Any]:
        """Phase of the run and time that is left, with so many updates behind it."""
        return self.time_left.now(time.monotonic() - self.began, version, self.collector.agent_steps)

    def first_update(self, version: int) -> None:
        """Tells how long the run took to begin, by which program, whose parameters a new one took, and what is to come;
        `version` is the first one of this part."""
        phase_ended("first update")
        phases = take_phases()
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
        text = f"first update after {sum(phases.values()):.1f} s: {parts}"
        if source := self._source:
            at = f"update {source['update']:,} ({source['agent_steps']:,} agent steps)"
            text += f"; it began with the parameters of {at} in {source['file']}"
        more = {SOURCE: source} if source else {}
        self.event("started", text, seconds=phases, commit=self._commit, **more)
        self.time_left.first_update(time.monotonic() - self.began, self.collector.agent_steps)
        self.event("phase", plan(self.config), **self.phase(version))

    def step(self, closed: Closed, learning_rate: float) -> None:
        """Counts what became of a step; `learning_rate` is that of the next one."""
        metrics = self.metrics
        metrics.count("datapoints_applied", 0 if closed.refused else closed.samples)
        metrics.gauge("learning_rate", learning_rate)
        if np.isfinite(closed.norm):
            metrics.mean("average_gradient_norm", closed.norm)
        if not math.isnan(closed.staleness):
            metrics.mean("staleness", closed.staleness)
            metrics.maximum("staleness", closed.staleness)

    def refused(self, closed: Closed) -> str:
        """Counts and tells of a step that was refused; returns the names of the workers for whose gradients it was."""
        self.metrics.count("steps_refused")
        names = ", ".join(f"worker {worker}" for worker in closed.refused)
        text = f"step {closed.step} refused: the gradient of {names} is not finite"
        self.event("gradient_refused", text, workers=list(closed.refused), update=closed.version)
        return names

    def report(self, report: Mapping[str, Any]) -> None:
        """Takes the REPORT of a rank, which may tell of events."""
        self.collector.add(report)
        if "evaluation_games_over" in report["gauges"]:
            self.time_left.games_over(report["gauges"]["evaluation_games_over"])
        for event in report.get("events", ()):
            self.event(**event)

    def line(self, now: float, version: int, live_workers: int) -> None:
        """Appends a line of what was reported since the last one; `now` is time.monotonic()."""
        self.next_line = now + self.config.run.log_every_seconds
        self.metrics.gauge("live_workers", live_workers)
        self.collector.add(self.metrics.report())
        shortest = min(REPORT_SECONDS, self.config.run.log_every_seconds)
        line = self.collector.line(version, self.wall_seconds, shortest)
        self.write(line | self.phase(version))
        self._tell_of(self._callbacks.troubles())

    def end(self, result: Mapping[str, Any]) -> None:
        """Tells callbacks how the run ended, and closes the file."""
        self._tell_of(self._callbacks.close(result))
        self._writer.close()

    def _tell_of(self, troubles: Sequence[Trouble]) -> None:
        for name, text, fields in troubles:
            self.event(name, text, **fields)
