"""Whether a job whose server or chief died is started again, from its last checkpoint, and with which minutes.

Minutes count as agent steps and updates do: what lies behind the checkpoint is spent, and what was trained after it is
lost, and trained again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddrl import rundir
from ddrl.checkpoint import list_checkpoints, version_of
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.launch.outcome import in_final_evaluation
from ddrl.replay_files import newest_sound
from ddrl.reporting.metrics import MetricsWriter, is_resumed, minutes_began, read_metrics
from ddrl.reporting.phases import EVALUATING
from ddrl.wording import counted


class Restart(NamedTuple):
    """A new start.

    Attributes:
        text: why, and from where.
        spent_seconds: see `JobContext`.
        evaluates_only: whether the dead start was in its final evaluation.
    """

    text: str
    spent_seconds: float
    evaluates_only: bool


def seconds_trained(path: Path, config: TrainConfig) -> float:
    """Seconds of training behind the checkpoint from which a run resumes; 0 without a checkpoint.

    Of its replays, which may have gigabytes, only the sizes are compared.

    Raises:
        UsageError: there are checkpoints, and none is sound.
    """
    return newest_sound(path, config, read=False).wall_seconds if list_checkpoints(path) else 0.0


def spent_before(resume: Path | None, config: TrainConfig, minutes_of_run: bool) -> float:
    """Seconds of the budget of minutes that are spent before the first start of a command; see `JobContext`.

    Args:
        resume, config, minutes_of_run: as in `wanted.Wanted`.

    Raises:
        UsageError: as `seconds_trained`.
    """
    if resume is None or not minutes_of_run or not config.run.minutes:
        return 0.0
    return seconds_trained(resume, config)


class Restarts:
    """Decides about new starts of one run: at most `max_restarts` without a newer checkpoint in between."""

    def __init__(self, config: TrainConfig, path: Path):
        self._config, self._path = config, path
        self._in_vain = 0
        self._newest = self._version()
        self.refusal = ""
        """Why there was no new start after a loss that allows one; empty where there is nothing to say."""

    def decide(self, begun: bool, trouble: str, phase: str) -> Restart | None:
        """The new start after a job has ended, or None; `refusal` then may say why.

        Args:
            begun: whether it has written a record.
            trouble: what its launcher saw, or nothing.
            phase: in which it was; empty if it told of none.
        """
        lost, limit = self._lost(begun, trouble), self._config.run.max_restarts
        if not lost or self._config.exchange.on_server_loss == "stop":
            return None
        newest = self._version()
        records = read_metrics(self._path)
        trained = max((line.get("update", 0) for line in records), default=0)
        self._in_vain = 1 if newest != self._newest else self._in_vain + 1
        self._newest = newest
        if newest is None and trained:
            self.refusal = f"{lost} before the first checkpoint, and the run lost {counted(trained, 'update')}"
            return None
        if self._in_vain > limit:
            self.refusal = f"{lost}, and --max-restarts {limit} allows no more restarts without a new checkpoint"
            return None
        try:
            spent_seconds = self._spent_seconds(records)
        except UsageError as error:
            self.refusal = f"{lost}, and {error}"
            return None
        where = "the beginning" if newest is None else f"update {newest}"
        text = (
            f"{lost}: the run starts again from {where} (restart {self._in_vain} of {limit} without a new checkpoint)"
        )
        return Restart(text, spent_seconds, phase == EVALUATING and in_final_evaluation(records))

    def note(self, restart: Restart) -> None:
        """Writes the event `restarted`; no rank may be alive."""
        wall_seconds = max((line.get("wall_seconds", 0.0) for line in read_metrics(self._path)), default=0.0)
        writer = MetricsWriter(self._path)
        writer.event("restarted", restart.text, wall_seconds)
        writer.close()

    def _lost(self, begun: bool, trouble: str) -> str:
        """Who died, if that is why the job ended.

        A job that MPI ended at a death leaves no result. Neither does one that did not begin; that is a death
        where one before it did begin, and else a mistake that another start would make again.
        """
        result = rundir.read_json(self._path / rundir.RESULT)
        if result is not None:
            return str(result.get("lost", ""))
        return (trouble or "a rank died") if begun or self._in_vain else ""

    def _spent_seconds(self, records: Sequence[Mapping[str, Any]]) -> float:
        """Seconds of the budget of minutes behind the checkpoint of the next start.

        Raises:
            UsageError: as `seconds_trained`.
        """
        resumed: Mapping[str, Any] = next(filter(is_resumed, reversed(records)), {})
        return max(0.0, seconds_trained(self._path, self._config) - minutes_began(resumed))

    def _version(self) -> int | None:
        """Of the newest checkpoint."""
        paths = list_checkpoints(self._path)
        return version_of(paths[-1]) if paths else None
