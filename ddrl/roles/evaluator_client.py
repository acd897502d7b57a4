"""The chief's side of evaluation: it has versions evaluated, takes the results, and waits for the last one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ddrl.exchange.transport import Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, json_blob
from ddrl.reporting.metrics import EVALUATED, complete, evaluation_record
from ddrl.roles.evaluations import REACHED, Evaluations, unfinished_text

LAST_RESULT_SECONDS = 60.0  # time for the final evaluation to start and to report, beyond that of its games
ENDED_RESULT_SECONDS = 5.0  # time for it to report when it was asked to end


class EvaluatorClient:
    """Has the evaluator play, one evaluation at a time. Without an evaluator, it does nothing.

    Args:
        evaluations: decides when an evaluation is due, and how long it may take.
        event: (name, text, **fields) -> None; appends an event to the metrics.
        write: appends the record of an evaluation to the metrics.
        now: time.monotonic(), as is every `now` of the methods.

    Attributes:
        rank: rank of the evaluator; None if there is none, or it has died.
    """

    def __init__(
        self,
        context: JobContext,
        transport: Transport,
        evaluations: Evaluations,
        event: Callable[..., None],
        write: Callable[[dict[str, Any]], None],
        now: float,
    ):
        self.rank = context.layout.evaluator
        self._run, self._layout, self._transport = context.config.run, context.layout, transport
        self._target = context.config.evaluation.target_score
        self._evaluations, self._event, self._write = evaluations, event, write
        self._final: dict[str, Any] = {}  # settings of the final evaluation; empty until it is asked for
        self._whole = False  # whether all games of the final evaluation are over
        self._deadline = math.inf  # of the final evaluation's result
        self._heard = now

    def play(self, at: Mapping[str, Any], planned: float) -> None:
        """Has a version evaluated during training.

        Args:
            at: version, agent steps and wall seconds of the newest parameters, by name.
            planned: wall time of the whole run in seconds, or 0 if it is not known.
        """
        self._ask(at, self._evaluations.during_training(at["wall_seconds"], planned))

    def play_last(self, at: Mapping[str, Any], trained_seconds: float) -> None:
        """Starts the final evaluation, unless the run is to have none."""
        how = self._evaluations.at_the_end(trained_seconds)
        if self.rank is not None and how["limit_seconds"]:
            self._final = how
            self._ask(at, how)

    def await_last(self, now: float) -> float:
        """Notes that the run now waits for the final evaluation only.

        Returns:
            the seconds that its games may take; 0 if there is no final evaluation.
        """
        limit = float(self._final.get("limit_seconds", 0.0))
        self._deadline = now + limit + LAST_RESULT_SECONDS
        return limit

    def is_over(self, now: float, ended: bool) -> bool:
        """Whether the final evaluation is over, or the run does not wait for it any longer.

        Args:
            now: time.monotonic().
            ended: whether it has to stop, and to keep only the games that are over.
        """
        if not self._final or self._evaluations.idle or self.rank is None:
            return True
        if ended and "ended" not in self._final:
            self._final["ended"] = True
            self._transport.send([json_blob(self.rank, Topic.EVALUATE, {"end": True})])
            self._deadline = min(self._deadline, now + ENDED_RESULT_SECONDS)
        if now < self._deadline and not self._silent(now):
            return False
        name = self._layout.name(self.rank)
        self._event("evaluation_failed", f"{name} did not report the final evaluation in time; the run ends without it")
        self._evaluations.lost()
        return True

    def lacks_final(self, trained_seconds: float) -> bool:
        """Whether a run that was asked to end lacks its final evaluation, or games of it, for that reason.

        An evaluation whose time was up lacks nothing.
        """
        wanted = self.rank is not None and self._evaluations.at_the_end(trained_seconds)["limit_seconds"] > 0.0
        return wanted and not self._whole and (not self._final or "ended" in self._final)

    def heard(self, now: float) -> None:
        """Notes that the evaluator has sent something."""
        self._heard = now

    def take(self, content: Mapping[str, Any]) -> str:
        """Takes a result; returns a text if it is the first to reach the target score, else an empty string."""
        record, target, evaluations = self._record(content), self._target, self._evaluations
        if record is None or target is None or evaluations.reached:
            return ""
        if not (content["mean"] >= target and complete([record])):
            return ""
        evaluations.reach(content["wall_seconds"])
        text = f"{content['mean']:.1f} >= {target:g} after {content['wall_seconds']:.0f} s"
        self._event(REACHED, text, seconds=content["wall_seconds"], update=content["version"], target=target)
        return text

    def _record(self, content: Mapping[str, Any]) -> dict[str, Any] | None:
        """Writes the record of a result, and returns it; None if there are no scores."""
        if not self._evaluations.finish(content):
            return None  # the result is of an older version, whose games were ended
        if "failed" in content:
            self._event("evaluation_failed", content["failed"], update=content["version"])
            return None
        if not content["games"]:
            self._event("evaluation_unfinished", unfinished_text({**content, **self._final}), update=content["version"])
            return None
        known = {name: content[name] for name in EVALUATED if name in content}
        record = evaluation_record(protocol=content["stamp"], **known)
        self._whole = bool(self._final and complete([record]))
        self._write(record)
        return record

    def lost(self) -> None:
        """Notes that the evaluator has died or failed, so that nothing is evaluated any more."""
        self.rank = None
        self._evaluations.lost()

    def _ask(self, at: Mapping[str, Any], how: Mapping[str, Any]) -> None:
        if self.rank is not None:
            self._evaluations.start(at["version"])
            self._transport.send([json_blob(self.rank, Topic.EVALUATE, {**at, **how})])

    def _silent(self, now: float) -> bool:
        """Whether the evaluator has not reported for so long that it must hang; its games alone could take hours."""
        run = self._run
        patience = max(run.stall_seconds, run.start_seconds, 3.0 * run.log_every_seconds)
        return run.stall_seconds > 0 and now - self._heard >= patience
