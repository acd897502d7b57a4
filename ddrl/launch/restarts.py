"""Whether a job whose server or chief died is started again, from its last checkpoint, and with which minutes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ddrl import rundir
from ddrl.checkpoint import list_checkpoints, version_of
from ddrl.config import TrainConfig
from ddrl.launch.outcome import in_final_evaluation
from ddrl.replay_files import newest_sound
from ddrl.reporting.metrics import MetricsWriter, read_metrics
from ddrl.reporting.phases import EVALUATING
from ddrl.wording import counted

LEAST_MINUTES = 0.02  # what is left of a budget that is used up: the job ends as it should, with a checkpoint


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
    """Decides about new starts of one run: at most `max_restarts` without a newer checkpoint in between.

    Args:
        spent_seconds: of the budget of minutes, before the first start; see `JobContext`.
    """

    def __init__(self, config: TrainConfig, path: Path, spent_seconds: float = 0.0):
        self._config, self._path = config, path
        self._in_vain = 0
        self._newest = self._version()
        self._spent_before = self._spent = spent_seconds
        self.refusal = ""
        """Why there was no new start after a loss that allows one; empty where there is nothing to say."""

    def decide(self, minutes: float, trouble: str, phase: str) -> Restart | None:
        """The new start after a job has ended, or None; `refusal` then may say why.

        Args:
            minutes: that it has trained; 0 for one that did not begin.
            trouble: what its launcher saw, or nothing.
            phase: in which it was; empty if it told of none.
        """
        self._spent += 60.0 * minutes
        lost, limit = self._lost(minutes, trouble), self._config.run.max_restarts
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
        where = "the beginning" if newest is None else f"update {newest}"
        text = (
            f"{lost}: the run starts again from {where} (restart {self._in_vain} of {limit} without a new checkpoint)"
        )
        return Restart(text, self._spent_seconds(), phase == EVALUATING and in_final_evaluation(records))

    def note(self, restart: Restart) -> None:
        """Writes the event `restarted`; no rank may be alive."""
        wall_seconds = max((line.get("wall_seconds", 0.0) for line in read_metrics(self._path)), default=0.0)
        writer = MetricsWriter(self._path)
        writer.event("restarted", restart.text, wall_seconds)
        writer.close()

    def _lost(self, minutes: float, trouble: str) -> str:
        """Who died, if that is why the job ended.

        A job that MPI ended at a death leaves no result. Neither does one that did not begin; that is a death
        where one before it did begin, and else a mistake that another start would make again.
        """
        result = rundir.read_json(self._path / rundir.RESULT)
        if result is not None:
            return str(result.get("lost", ""))
        return (trouble or "a rank died") if minutes or self._in_vain else ""

    def _version(self) -> int | None:
        """Of the newest checkpoint."""
        paths = list_checkpoints(self._path)
        return version_of(paths[-1]) if paths else None

    def _spent_seconds(self) -> float:
        return max(self._spent_before, min(self._spent, 60.0 * (self._config.run.minutes - LEAST_MINUTES)))
