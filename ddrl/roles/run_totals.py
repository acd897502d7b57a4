"""What a run has made in all its parts: agent steps, training, and the counters of its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ddrl.checkpoint import Checkpoint
from ddrl.job.layout import JobContext
from ddrl.reporting.collector import Collector
from ddrl.roles.earlier_parts import EarlierParts


class RunTotals:
    """What a run has made, this part of it and the parts before. A part may make nothing: one that only does the final
    evaluation of the part before.

    Args:
        context: the job's context.
        start: the checkpoint from which this part of the run started.
        before: the parts before this one.
        collector: joins the reports of the ranks.

    Attributes:
        trained_seconds: training that counts to the budget of minutes; 0 until training is over.
    """

    def __init__(self, context: JobContext, start: Checkpoint, before: EarlierParts, collector: Collector):
        self._context, self._start, self._before, self._collector = context, start, before, collector
        self.trained_seconds = 0.0
        self._only_evaluates = False

    def training_over(self, seconds: float, only_evaluates: bool) -> None:
        """Takes note that this part trains no more.

        Args:
            seconds: since the part began.
            only_evaluates: it has not trained, and does the final evaluation of the part before, in the same time.
        """
        self._only_evaluates = only_evaluates
        self.trained_seconds = self._context.spent_seconds + seconds
        if only_evaluates:
            longest = 60.0 * self._context.config.run.minutes or math.inf  # as in `end_of_job`, the other ranks' wait
            # A smaller budget than before may end a part that did not come to its own end.
            self.trained_seconds = min(self._before.trained_seconds or self._start.wall_seconds, longest)

    @property
    def agent_steps(self) -> int:
        """Agent steps of all parts."""
        earlier = self._before.agent_steps if self._only_evaluates else 0
        return max(earlier, self._collector.agent_steps)

    def taken_at(self, wall_seconds: float) -> float:
        """Wall time of the run's parameters that are evaluated at this one: if it only evaluates, the checkpoint's."""
        return self._start.wall_seconds if self._only_evaluates else wall_seconds

    def of_checkpoint(
        self, workers: Iterable[int], evaluations: Mapping[str, Any], result: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """The agent steps and counters of a checkpoint that has the states of these workers.

        They are complete, because each worker reports its metrics before it sends its state.

        Args:
            workers: ids of the workers.
            evaluations: the state of the evaluations.
            result: how training ended; empty until then.
        """
        metrics = self._collector.state(rank_of(worker) for worker in workers)
        counters = {
            "metrics": metrics,
            "evaluations": evaluations,
            "trained_seconds": self.trained_seconds,
            "end": dict(result),
            "acted_agent_steps": self._collector.agent_steps,  # including those that a resumed run acts again
        }
        return int(metrics["totals"].get("agent_steps", 0)), counters


def rank_of(worker: int) -> str:
    """The name under which the collector files a worker's reports."""
    return f"worker-{worker}"
