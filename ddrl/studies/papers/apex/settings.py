"""What the studies of Ape-X have in common: settings, and the tables and panels of their reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import SECONDS, learning_panel, over, spread_text
from ddrl.studies.figures import Panel
from ddrl.studies.findings import extremes, name_among, reached, sentences
from ddrl.studies.measures import count, final, mean, most, rate, scores_caption, steps_to, updates_to
from ddrl.studies.points import Group, Outcome
from ddrl.studies.settings import ScoredSettings, TargetSettings, base_config
from ddrl.studies.statistics import Interval
from ddrl.studies.study import Report
from ddrl.studies.tables import Columns, table
from ddrl.types import Machine

STOPPED = (
    "runs end with the first evaluation that reaches the target, which is partly luck where evaluations vary much; in "
    "the curves, they keep their last score"
)


@dataclasses.dataclass(frozen=True)
class ApexSettings(TargetSettings, ScoredSettings):
    """What all points of a study of Ape-X have."""

    simulators: int = 0
    """Simulators of each actor (0: the preset's)."""
    step_time_ms: float = 0.0
    """Shortest time of a simulator's step, in milliseconds: actors with slow simulators need little of a small
    machine's cores, so that their number matters (0: off)."""
    eval_every_updates: int = 1000
    """Updates between evaluations, by an evaluator that inserts nothing."""
    eval_epsilon: float = 0.00164
    """Probability of a random action in evaluations (Horgan et al. 2018, figure 7: that of an actor which inserts
    nothing)."""
    stop_at_target: bool = False
    """End a run when an evaluation reaches --target-score."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_at_target and (self.target_score is None or self.score != "evaluation"):
            checks.refuse(self, "stop_at_target", "evaluations have no target; give --target-score")

    @property
    def report_seconds(self) -> float:
        """Seconds between measurements of a run, few enough to time the learner's updates to the second."""
        return 1.0

    def base(self, game: str, machine: Machine) -> TrainConfig:
        """`ddrl train apex-dqn` with the study's budget and evaluations.

        Raises:
            UsageError: --train-options cannot be read, or are refused.
        """
        config = base_config(self, "apex-dqn", game, machine)
        if not config.apex.actors:
            raise UsageError("--train-options: a study of Ape-X needs actors; leave --actors out, which the study sets")
        evaluation = self.evaluated(self.stop_at_target) | {
            "eval_every_updates": self.eval_every_updates,
            "eval_epsilon": self.eval_epsilon,
            "eval_time_share": 1.0,  # it plays beside the learner
        }
        return config.changed(
            sampling={"simulators": self.simulators or config.sampling.simulators},
            environment={"step_time_mean_ms": self.step_time_ms} if self.step_time_ms else {},
            run=self.run,
            evaluation=evaluation,
        )

    def reported(
        self, heading: str, outcomes: Sequence[Outcome], tables: Mapping[str, tuple[Sequence[Group], Columns]],
        panels: Sequence[Panel], columns: int, notes: Sequence[str],
    ) -> Report:  # fmt: skip
        """A report whose tables have a row with the results of each group of repeats.

        Args:
            tables: title -> the groups of the table, and the columns that identify them.
        """
        groups = next(iter(tables.values()))[0]
        if self.stop_at_target:  # there is no final score
            assert self.target_score is not None
            finding = extremes(groups, self._minutes, f"time to {self.target_score:g} in minutes")
            late = [
                (name_among(group, groups), times) for group in groups if (times := self.times(group)) and times.missed
            ]
            finding += f" {sentences([reached(late, self.target_score)])}" if late else ""
        else:
            finding = extremes(groups, final(self.score_name), f"final {self.score} score")
        slowed = f"; simulators take {self.step_time_ms:g} ms a step" if self.step_time_ms else ""
        spread = spread_text(outcomes, self.score_name)
        return Report(
            heading=heading,
            caption=f"{scores_caption(self.score_name, self.eval_epsilon)}{slowed}; {spread}",
            finding=finding,
            tables=[table(title, groups, {**labels, **self._columns()}) for title, (groups, labels) in tables.items()],
            panels=panels,
            columns=columns,
            notes=[*notes, *([STOPPED] if self.stop_at_target else [])],
        )

    def _columns(self) -> Columns:
        """The columns with a group's results. Runs that end at the target have no final score."""
        ended: Columns = {
            "agent steps": most("agent_steps"), "updates": most("update"), "final score": final(self.score_name),
        }  # fmt: skip
        timed: Columns = {}
        if (target := self.target_score) is not None:
            timed = {
                f"time to {target:g}": lambda group: (times := self.times(group)) and times.text(),
                "agent steps to it": lambda group: steps_to(group.runs, self.score_name, target),
                "updates to it": lambda group: updates_to(group.runs, self.score_name, target),
            }
        return {
            "seeds": count, **({} if self.stop_at_target else ended), **timed,
            "agent steps/s": mean(rate()), "inserts/s": mean(rate("inserts_per_s")),
            "updates/s": mean(rate("updates_per_s")),
        }  # fmt: skip

    def curves(
        self, title: str, groups: Sequence[Group], label: Callable[[Group], str], against: str = SECONDS
    ) -> Panel:
        """A panel with the scores of each group during training."""
        y_label = f"{self.score} score"
        return learning_panel(title, y_label, groups, self.score_name, label, against, hold=self.stop_at_target)

    def end_panels(
        self, game: str, what: str, lines: Mapping[str, Sequence[Group]], x: str, log_x: bool
    ) -> Iterator[Panel]:
        """Panels over a varied quantity: of final scores, unless runs ended at the target, and of the times to it.

        The times are those of groups in which every run reached the target.

        Args:
            what: name of the varied quantity.
            lines: name of a curve -> its groups, in the order of their values.
            x: the groups' label that holds the value.
        """
        if not self.stop_at_target:
            scores = [over(groups, x, final(self.score_name), label) for label, groups in lines.items()]
            yield Panel(f"{game}: at the end", what, f"{self.score} score", scores, log_x=log_x)
        times = [over(groups, x, self._minutes, label) for label, groups in lines.items()]
        if any(curve.x for curve in times):
            label = f"minutes to {self.target_score:g}"
            yield Panel(f"{game}: time to the score", what, label, times, log_x=log_x, zero=True)

    def _minutes(self, group: Group) -> Interval | None:
        """Mean minutes to the target; None if a run missed it, or if there is none."""
        times = self.times(group)
        mean = times and times.mean()
        return mean and mean.map(lambda seconds: seconds / 60.0)
