"""Whether runs learned, and whether they then forgot it: 'learning how to play well only to later abruptly forget'
(sections 2.3 and 2.4.2, figures 3 and 4). Judged by online scores."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting.metrics import ONLINE_EPISODES
from ddrl.studies.curves import SECONDS, STEPS, curve_of, learning_panel, points_of, spread_text, unit_of
from ddrl.studies.figures import Curve, Panel
from ddrl.studies.findings import sentences
from ddrl.studies.measures import CAPTIONS, ONLINE, count, final, mean, most, rate
from ddrl.studies.points import Group, Outcome, grouped
from ddrl.studies.settings import BudgetSettings, base_config, one_of
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import Columns, table
from ddrl.types import Machine
from ddrl.wording import counted

KEPT = 0.25  # share of its own gain that a run must still have at its end
LEAST_STALE_WORKERS = 4  # fewer make hardly any gradient stale
UPDATES = ("synchronous", "asynchronous")
RULES = ("constant", "linear")
UPDATES_PAPER = (
    "Adamski et al. 2018, figure 3: with asynchronous updates the online score rose, and after 50 minutes dropped to "
    "0, while the loss had a spike; with synchronous updates they never saw that"
)
RULES_PAPER = (
    "Adamski et al. 2018, section 2.4.2 and figure 4: with Adam the linear scaling rule made training unstable; models "
    "learned to play well and then scored 0 until the end; 1e-3, as on one node, was the largest stable rate"
)


@dataclasses.dataclass(frozen=True)
class CollapseSettings(BudgetSettings):
    """What points depend on that may learn and then collapse."""

    learned_score: float | None = None
    """Online score from which a run counts as having learned (None: halfway from the lowest first score of all runs
    to their best)."""


class Level(NamedTuple):
    """The online scores of one game by which its runs are judged.

    Attributes:
        start: the lowest of all runs' first scores, since some runs have learned before their first score.
        learned: the score from which a run counts as having learned; infinite if it was not given and no run rose above
            its first score.
        best: the highest score of all runs.
    """

    start: float
    learned: float
    best: float


def levels(outcomes: Sequence[Outcome], learned_score: float | None = None) -> dict[str, Level]:
    """Game -> its level, for games with scores.

    Args:
        learned_score: the score from which a run counts as having learned (None: halfway from start to best).
    """
    by_game = {}
    for group in grouped(outcomes, "game"):
        if scores := [of_run for run in group.runs if (of_run := scores_of(run))]:
            start, best = min(of_run[0] for of_run in scores), max(map(max, scores))
            rose = any(max(of_run) > of_run[0] for of_run in scores)
            half = (start + best) / 2 if rose else float("inf")
            by_game[group["game"]] = Level(start, half if learned_score is None else learned_score, best)
    return by_game


def scores_of(run: Outcome) -> list[float]:
    """The online scores of a run, oldest first, without early ones that are means of fewer games than the others."""
    records = [record for record in run.records if record["kind"] == "train" and ONLINE in record]
    return [record[ONLINE] for record in records if record.get("episodes", ONLINE_EPISODES) >= ONLINE_EPISODES]


def learned(run: Outcome, level: Level) -> bool:
    """Whether the run's score ever reached the one from which it counts as having learned."""
    return max(scores_of(run), default=-float("inf")) >= level.learned


def collapsed(run: Outcome, level: Level) -> bool:
    """Whether the run learned, and had lost more than three quarters of its gain at its end."""
    scores = scores_of(run)
    return learned(run, level) and scores[-1] < level.start + KEPT * (max(scores) - level.start)


def columns(by_game: Mapping[str, Level]) -> Columns:
    """Columns for a table of groups, each of one game: best and last score, how many runs learned, and how many of
    these collapsed."""

    def good(group: Group) -> list[bool]:
        """For each run that learned, whether it then collapsed."""
        level = by_game[group.runs[0].point.labels["game"]]
        return [collapsed(run, level) for run in group.runs if learned(run, level)]

    def known(text: Callable[[Group], str]) -> Callable[[Group], str]:
        return lambda group: text(group) if group.runs[0].point.labels["game"] in by_game else "-"

    return {
        "best online score": mean(lambda run: max(scores_of(run), default=None)), "last online score": final(ONLINE),
        "learned": known(lambda group: f"{len(good(group))} of {len(group.runs)}"),
        "then collapsed": known(lambda group: f"{sum(good(group))} of {len(good(group))}"),
    }  # fmt: skip


def finding(sides: Sequence[tuple[str, Sequence[Outcome]]], by_game: Mapping[str, Level]) -> str:
    """How many runs learned, and how many of these collapsed, in one sentence.

    Args:
        sides: (name in words, runs) of each side that is compared.
    """
    clauses = []
    for name, runs in sides:
        known = [(run, by_game[game]) for run in runs if (game := run.point.labels["game"]) in by_game]
        good = [collapsed(run, level) for run, level in known if learned(run, level)]
        then = f", and {sum(good) or 'none'} of them then collapsed" if good else ""
        clauses.append(f"{name} {len(good)} of {counted(len(runs), 'run')} learned{then}")
    return sentences(["; ".join(clauses)])


def rule_text(by_game: Mapping[str, Level]) -> str:
    """A note that says which runs count as having learned, and which as collapsed."""
    if not by_game:
        return f"no run played {ONLINE_EPISODES} games, so it is unknown whether any of them learned"
    each = "; ".join(
        f"{game}: {level.learned:.3g}, between {level.start:.3g} at the lowest start and {level.best:.3g} at best"
        for game, level in by_game.items()
    )
    return (
        f"learned: an online score that reached a level ({each}; --learned-score sets it); collapsed: at its end the "
        f"run had less than {KEPT:.0%} of what it had gained since the start"
    )


# synchronous-vs-asynchronous: figure 3 --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StalenessSettings(CollapseSettings):
    """BA3C with synchronous and with asynchronous updates, the same workers and the same budget: online score, loss and
    staleness over time (Adamski et al. 2018, figure 3). Synchronous updates average a gradient of every worker;
    asynchronous ones take each as it comes, so that there are more of them, and older."""

    modes: tuple[str, ...] = UPDATES
    """synchronous, asynchronous."""
    workers: tuple[int, ...] = ()
    """Numbers of workers (none given: one for each core, at least 4)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "modes", UPDATES)
        if 1 in self.workers:
            checks.refuse(self, "workers", "a single worker has nothing to wait for; give 2 or more")

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        config = base_config(self, "ba3c", labels["game"], machine)
        servers = {} if config.exchange.servers else {"parameter_servers": None}  # the usual number, not one worker's
        exchange = {"workers": labels["workers"], "updates": labels["mode"], **servers}
        return config.changed(exchange=exchange, run=self.run)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """Score, loss and staleness over time."""
        found = levels(outcomes, self.learned_score)

        def stale(measure: Callable[[Group], Any]) -> Callable[[Group], Any]:
            """A measure of staleness, which is 0 for synchronous gradients: they are never stale, nor measured."""
            return lambda group: measure(group) if group["mode"] == "asynchronous" else 0

        return Report(
            heading="Synchronous and asynchronous updates",
            caption=f"{CAPTIONS[ONLINE]}; loss of training batches; {spread_text(outcomes, ONLINE)}",
            finding=finding([(f"with {mode['mode']} updates", mode.runs) for mode in grouped(outcomes, "mode")], found),
            tables=[
                table("The whole budget", grouped(outcomes, "game", "workers", "mode"), {
                    "game": "game", "updates": "mode", "runs": count,
                    "workers": "workers", "agent steps": most("agent_steps"),
                    "minutes": mean(_trained_minutes), "updates/s": mean(rate("updates_per_s")),
                    "staleness (versions)": stale(mean(rate("staleness_mean"))),
                    "largest": stale(most("staleness_max", None)),
                    **columns(found),
                })
            ],
            panels=[panel for group in grouped(outcomes, "game", "workers") for panel in _staleness_panels(group)],
            notes=[rule_text(found), UPDATES_PAPER],
        )  # fmt: skip

    def axes(self, machine: Machine) -> Iterator[Labels]:
        workers = self.workers or (max(LEAST_STALE_WORKERS, machine.cores),)
        return product(game=self.games, workers=workers, seed=self.seeds, mode=self.modes)


def _trained_minutes(run: Outcome) -> float | None:
    trained = [record for record in run.records if record["kind"] == "train"]
    return trained[-1]["wall_seconds"] / 60.0 if trained else None


def _staleness_panels(group: Group) -> Iterator[Panel]:
    modes, where = grouped(group.runs, "mode"), f"{group['game']}, {counted(group['workers'], 'worker')}"
    for what, y_label, name, against in (
        ("online score", "raw score", ONLINE, SECONDS),
        ("online score", "raw score", ONLINE, STEPS),
        ("loss", "training loss", "loss", SECONDS),
        ("stale gradients", "mean staleness (versions)", "staleness_mean", SECONDS),
    ):
        panel = learning_panel(
            f"{where}: {what}", y_label, modes, name, lambda mode: mode["mode"], against,
            style=lambda mode: UPDATES.index(mode["mode"]),
        )  # fmt: skip
        if name == "staleness_mean":
            panel = panel._replace(curves=[_never_stale(modes, curve) for curve in panel.curves])
        yield panel


def _never_stale(modes: Sequence[Group], curve: Curve) -> Curve:
    """A curve of 0 for the staleness of synchronous gradients, which is not measured; others as they are."""
    mode = next((mode for mode in modes if mode["mode"] == curve.label == "synchronous"), None)
    if mode is None:
        return curve
    x = curve_of(points_of(mode.runs, ONLINE, SECONDS, unit_of(mode.runs, SECONDS)[0])).x
    return curve._replace(x=x, y=[0.0] * len(x), low=(), high=())


STALENESS = Study(
    name="synchronous-vs-asynchronous",
    about="score, loss, and staleness with either kind of updates (BA3C, figure 3)",
    defaults=StalenessSettings(agent_steps=2_000_000),
    quick_changes={"minutes": 0.2, "agent_steps": 0, "workers": (2,), "repeats": 2},
    point_name="{game}-{workers}workers-{mode}-seed{seed}",
)


# learning-rate: figure 4 ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LearningRateSettings(CollapseSettings):
    """BA3C at growing effective batches, with one learning rate for all of them and with one that grows in proportion,
    the linear scaling rule (Adamski et al. 2018, section 2.4.2, figure 4): which runs learned, and which of these then
    collapsed?"""

    rules: tuple[str, ...] = RULES
    """constant: --learning-rate, whatever the batch; linear: --learning-rate times effective batch / --base-batch."""
    batch_size: tuple[int, ...] = (128, 512, 2048)
    """Effective batches, multiples of the number of workers."""
    learning_rate: float = 1e-3
    """Learning rate at --base-batch."""
    base_batch: int = 128
    """Effective batch at which both rules are the same; its runs stand for both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "rules", RULES)
        checks.at_least(self, 1, "base_batch")

    def rule_of(self, group: Group) -> str:
        """The name of a group's rule, or 'both' at the base batch."""
        return "both" if group["batch"] == self.base_batch else group["rule"]

    def sides(self, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Sequence[Outcome]]]:
        """Yields the name and the runs of the batch at which both rules are the same, and of each rule at others."""
        if same := [run for run in outcomes if run.point.labels["batch"] == self.base_batch]:
            yield f"either rule at {self.base_batch:,}", same
        for group in grouped([run for run in outcomes if run.point.labels["batch"] != self.base_batch], "rule"):
            yield {"constant": "a constant rate", "linear": "one that grows with the batch"}[group["rule"]], group.runs

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the points batch by batch; at the base batch only those of one rule, since both are the same there."""
        for game, batch in itertools.product(self.games, self.batch_size):
            rules = self.rules if batch != self.base_batch else self.rules[:1]
            yield from product(game=[game], batch=[batch], rule=rules, seed=self.seeds)

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        config, batch = base_config(self, "ba3c", labels["game"], machine), labels["batch"]
        gradients = config.effective_batch // config.batch_size
        if batch % gradients:
            raise UsageError(f"--batch-size {batch}: must be a multiple of the gradients in an update, {gradients}")
        times = batch / self.base_batch if labels["rule"] == "linear" else 1.0
        optimizer = {"batch_size": batch // gradients, "learning_rate": self.learning_rate * times}
        return config.changed(optimizer=optimizer, run=self.run)

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A panel for each batch: the online score with either rule."""
        found, several = levels(outcomes, self.learned_score), len(self.games) > 1

        def rate_of(group: Group) -> str:
            return f"{group.config.optimizer.learning_rate:.3g}"

        return Report(
            heading="Learning rate and effective batch",
            caption=f"{CAPTIONS[ONLINE]}; {spread_text(outcomes, ONLINE)}",
            finding=finding([(f"with {name}", runs) for name, runs in self.sides(outcomes)], found),
            tables=[
                table("The whole budget", grouped(outcomes, "game", "batch", "rule"), {
                    "game": "game", "effective batch": "batch", "rule": self.rule_of, "learning rate": rate_of,
                    "runs": count, "agent steps": most("agent_steps"), **columns(found),
                })
            ],
            panels=[
                learning_panel(
                    f"{batch['game']}, " * several + f"effective batch {batch['batch']:,}", "raw online score",
                    grouped(batch.runs, "batch", "rule"), ONLINE,
                    lambda group: f"{self.rule_of(group).replace('both', 'both rules')}, {rate_of(group)}",
                    style=lambda group: RULES.index(group["rule"]),
                )
                for batch in grouped(outcomes, "game", "batch")
            ],
            columns=min(3, len(self.batch_size)),
            notes=[rule_text(found), RULES_PAPER],
        )  # fmt: skip


LEARNING_RATE = Study(
    name="learning-rate",
    about="the linear scaling rule with Adam: learned, then collapsed? (BA3C, figure 4)",
    defaults=LearningRateSettings(agent_steps=2_000_000),
    quick_changes={"minutes": 0.15, "agent_steps": 0, "batch_size": (64, 512), "base_batch": 64, "repeats": 2},
    point_name="{game}-{batch}-{rule}-seed{seed}",
)
