"""Gathers the chief's checkpoints from all ranks and writes them; retries the last one if it cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ddrl import checkpoint as checkpoints
from ddrl.checkpoint import Checkpoint
from ddrl.errors import UsageError
from ddrl.job.layout import JobContext
from ddrl.kept_checkpoints import KeptCheckpoints
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.checkpoint_assembly import CheckpointAssembly, Gathering, states_of
from ddrl.rundir import config_to_dict

LAST_SAVE_SECONDS = 40.0  # time to retry the last checkpoint; the launcher waits 60 s longer than for the parts
SAVE_AGAIN_SECONDS = 2.0  # between two attempts


class Unsaved(NamedTuple):
    """The last checkpoint of a run, if it could not be written yet.

    Attributes:
        checkpoint: the checkpoint to be written.
        assembly: the parts from which it was made.
        again: time.monotonic() of the next attempt.
        until: time.monotonic() from which on no attempt follows.
    """

    checkpoint: Checkpoint
    assembly: CheckpointAssembly
    again: float
    until: float


class CheckpointSaver:
    """Saves checkpoints, one version at a time.

    Args:
        start: the checkpoint from which the run started; it gives the names of slots and the layout.
        metrics: the chief's metrics.
        event: (name, text, **fields) -> None; appends an event to the metrics.
        counted: workers -> agent steps and counters for a checkpoint that has the states of these workers.
        asynchronous: whether servers and workers count their own steps.

    Attributes:
        gathering: takes the parts as they arrive.
    """

    def __init__(
        self,
        context: JobContext,
        start: Checkpoint,
        metrics: RankMetrics,
        event: Callable[..., None],
        counted: Callable[[Iterable[int]], tuple[int, dict[str, Any]]],
        asynchronous: bool,
    ):
        self.context, self.gathering = context, Gathering()
        self._start, self._metrics, self._event = start, metrics, event
        self._counted, self._asynchronous = counted, asynchronous
        self._unsaved: Unsaved | None = None
        self._kept = KeptCheckpoints(context.run_dir)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to gather or to write."""
        return self.gathering.assembly is None and self._unsaved is None

    def begin(self, version: int, step: int, wall_seconds: float, last: bool, now: float) -> int:
        """Starts to gather the parts of a version.

        Args:
            version: version of the parameters.
            step: the first step after the checkpoint.
            wall_seconds: wall time of the run.
            last: whether the run ends with this checkpoint.
            now: time.monotonic().

        Returns:
            number of the workers' states that belong to it, see `states_of`.
        """
        deadline = now + checkpoints.gather_seconds(self.context.config)
        name = states_of(self._asynchronous, last, step, version)
        self.gathering.begin(
            CheckpointAssembly(version, step, name, wall_seconds, deadline, any_step=self._asynchronous)
        )
        return name

    def advance(self, servers: int, workers: set[int], now: float, last: bool) -> str:
        """Writes the checkpoint once it is complete.

        If it cannot be written, an event says so; the last checkpoint of a run is retried for some time.

        Args:
            servers: number of servers that send slices.
            workers: ids of the workers that are alive.
            now: time.monotonic().
            last: whether the run ends with this checkpoint.

        Returns:
            why the last checkpoint is given up, or an empty string.
        """
        assembly, incomplete = self.gathering.take(servers, workers, now)
        if assembly is not None and incomplete:
            text = f"the parameter servers' parts of update {assembly.version} are missing"
            self._event("checkpoint_failed", text)
            return text if last else ""
        if assembly is not None:
            self._save(assembly, now, last)
        return self._save_again(now)

    def _save(self, assembly: CheckpointAssembly, now: float, last: bool) -> None:
        agent_steps, counters = self._counted(assembly.states)
        saved = assembly.checkpoint(self._start, agent_steps, counters, config_to_dict(self.context.config))
        if error := self._write(saved, assembly):
            self._event("checkpoint_failed", error, update=assembly.version)
            if last:
                self._unsaved = Unsaved(saved, assembly, now + SAVE_AGAIN_SECONDS, now + LAST_SAVE_SECONDS)

    def _save_again(self, now: float) -> str:
        unsaved = self._unsaved
        if unsaved is None or now < unsaved.again:
            return ""
        error = self._write(unsaved.checkpoint, unsaved.assembly)
        if error and now < unsaved.until:
            self._unsaved = unsaved._replace(again=now + SAVE_AGAIN_SECONDS)
            return ""
        self._unsaved = None
        return error

    def _write(self, saved: Checkpoint, assembly: CheckpointAssembly) -> str:
        """Writes a checkpoint; returns why it could not be written, or an empty string."""
        with self._metrics.timer("checkpoint"):
            try:
                path = self._kept.save(saved, self.context.config.run.checkpoints_kept)
            except UsageError as error:
                return str(error)
        self._event("checkpoint", f"update {assembly.version}: {path.name}", update=assembly.version, path=str(path))
        for worker, why in assembly.unsaved.items():
            self._event(
                "state_not_saved", f"a resumed run will start worker {worker} afresh: {why}", update=assembly.version
            )
        return ""
