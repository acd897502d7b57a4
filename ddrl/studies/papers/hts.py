"""The study of HTS-RL: Liu et al. 2020, High-Throughput Synchronous Deep RL, section 5."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddrl import checks, rundir
from ddrl.config import TrainConfig
from ddrl.studies.curves import SECONDS, STEPS, interval_curve, learning_panel, over, spread_text
from ddrl.studies.figures import Panel
from ddrl.studies.findings import extremes
from ddrl.studies.measures import (
    EVALUATION,
    Measure,
    caption_of,
    count,
    evaluations,
    final,
    final_metric,
    final_time_metric,
    given_seconds,
    mean,
    rate,
    ratio,
    required_time,
)
from ddrl.studies.points import Group, Outcome, grouped, having
from ddrl.studies.settings import BudgetSettings, base_config, budget, check_warm_up, one_of
from ddrl.studies.statistics import Interval, bootstrap
from ddrl.studies.study import Labels, Report, Study, product
from ddrl.studies.tables import Columns, Table, table
from ddrl.types import Machine

ALGORITHMS = ("a2c", "ppo")
EVALUATION_GAMES = 10  # in the evaluation of a policy; ten policies make the paper's 100 episodes
NOTES = {
    "speed-up": "Liu et al. 2020, figure 4: about 1.5 at a small variance of step times, more than 5 at a large one; "
    "16 CPU cores and 4 GPUs",
    "alpha": "Liu et al. 2020, table 5, football: 445, 1,070, 1,345, 1,349, 1,360 and 1,377 steps/s at alpha 4, 16, "
    "64, 128, 256 and 512",
    "predictors": "Liu et al. 2020, table 4, football: 1,229, 1,362, 1,393 and 1,388 steps/s with 1, 4, 8 and 16 "
    "actors, and equal scores",
    "scores": "Liu et al. 2020, tables 1 and 2, intervals over seeds as there; '-': some seed never reached it",
}
PARTS = tuple(NOTES)
SPEED, SCORES = PARTS[:3], PARTS[3:]
READ_BY: dict[tuple[str, ...], tuple[str, ...]] = {
    ("simulators", "groups", "predictors", "predict_batch", "step_time_ms", "variations"): SPEED,
    ("seconds", "warm_up_seconds"): SPEED,
    ("least_alpha",): ("speed-up", "predictors"),
    ("alphas",): ("alpha",),
    ("predictor_counts",): ("predictors",),
    ("minutes", "agent_steps", "impala", "eval_every_updates", "time_limit_minutes", "required_scores"): SCORES,
}
"""Options, and the parts that alone read them."""


@dataclasses.dataclass(frozen=True)
class HtsSettings(BudgetSettings):
    """HTS-A2C and HTS-PPO beside synchronous A2C and PPO (Liu et al. 2020). speed-up: ratio of agent steps/s over the
    variance of step times (figure 4); alpha: agent steps/s over the steps between two synchronizations (table 5);
    predictors: agent steps/s and equal parameters for any number of predictor threads (table 4); scores: evaluation
    scores at the end, at a time limit, and the time to reach a score (tables 1 and 2), with --repeats 5. The part
    scores has the simulators, groups, predictors, and step times of the preset or of --train-options; the other parts
    play the first game alone."""

    parts: tuple[str, ...] = PARTS
    """speed-up, alpha, predictors, scores."""
    algorithms: tuple[str, ...] = ALGORITHMS
    """a2c, ppo."""
    impala: bool = False
    """Measure the scores of IMPALA, too."""
    simulators: int = 16
    """Simulators. The synchronous algorithms step all of them together."""
    groups: int = 4
    """Groups of simulators in HTS-RL, each of which steps without waiting for the others (0: one simulator each, as in
    the paper; on few cores, that many threads get in each other's way)."""
    predictors: int = 4
    """Predictor threads of HTS-RL (0: every group queries the policy itself)."""
    predict_batch: int = 0
    """Largest number of observations per query of HTS-RL's predictors, to which smaller queries are padded (0:
    simulators / predictors, at least a group)."""
    step_time_ms: float = 5.0
    """Mean of the shortest time of a step, in milliseconds (not in the part scores). 0, with --variations 0: as long as
    the environment itself takes."""
    variations: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    """Standard deviations of the step time over its mean, for the part speed-up; the other parts use the one nearest to
    1."""
    least_alpha: int = 20
    """Fewest steps between two synchronizations of HTS-RL, rounded up to whole unrolls (not in the parts alpha and
    scores)."""
    alphas: tuple[int, ...] = (4, 16, 64, 128, 256, 512)
    """Steps between two synchronizations, for the part alpha."""
    predictor_counts: tuple[int, ...] = (1, 4, 8, 16)
    """Predictor threads, for the part predictors."""
    seconds: float = 60.0
    """Time of each run that measures speed, warm-up included."""
    warm_up_seconds: float = 15.0
    """Time at the beginning of those runs that does not count. Runs that measure scores take --agent-steps or
    --minutes."""
    eval_every_updates: int = 1000
    """Updates between evaluations of 10 games; the metrics look back on the last ten of them."""
    time_limit_minutes: float = 0.0
    """Time of the final time metric (0: when the fastest method has ended, as in the paper)."""
    required_scores: tuple[float, ...] = (0.4, 0.8)
    """Scores for which the required time is measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "parts", PARTS)
        one_of(self, "algorithms", ALGORITHMS)
        checks.at_least(self, 1, "simulators", "least_alpha", "eval_every_updates")
        if min(self.variations) < 0:
            checks.refuse(self, "variations", "each must be at least 0")
        if not self.step_time_ms and any(self.variations):
            checks.refuse(self, "step_time_ms", "there are no step times to vary; use more than 0, or --variations 0")
        check_warm_up(self)

    @property
    def variation(self) -> float:
        """The variation of step times in the parts alpha and predictors: the one nearest to 1."""
        return min(self.variations, key=lambda value: abs(value - 1.0))

    @property
    def methods(self) -> list[str]:
        """Names of the algorithms that the part scores compares."""
        pairs = [name for algorithm in self.algorithms for name in (algorithm, f"hts-{algorithm}")]
        return pairs + ["impala"] * self.impala

    @property
    def speed(self) -> Measure:
        """Agent steps/s after the warm-up."""
        return rate(warm_up_seconds=self.warm_up_seconds)

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the points part by part. The parts about speed play only the first game.

        Raises:
            UsageError: an option is given that none of the parts reads.
        """
        self._check_read()
        varied: dict[str, dict[str, Sequence[Any]]] = {
            "speed-up": {"variation": self.variations, "method": ("synchronous", "hts")},
            "alpha": {"alpha": self.alphas},
            "predictors": {"predictors": self.predictor_counts},
        }
        for part in self.parts:
            if part == "scores":
                yield from product(part=[part], game=self.games, method=self.methods, seed=self.seeds)
                continue
            game = self.games[:1]
            yield from product(part=[part], algorithm=self.algorithms, game=game, seed=self.seeds, **varied[part])

    def _check_read(self) -> None:
        """Raises UsageError for an option that none of the parts reads, unless it is as it is by default."""
        usual = (HTS.defaults, HTS.quick)
        for names, parts in READ_BY.items():
            for name in names:
                given = all(getattr(self, name) != getattr(settings, name) for settings in usual)
                if given and not set(parts) & set(self.parts):
                    checks.refuse(self, name, f"only --parts {' '.join(parts)} uses it; leave it out")
        if len(self.games) > 1 and "scores" not in self.parts:
            checks.refuse(self, "games", "only --parts scores plays more than the first; give one")

    def point_name(self, labels: Labels) -> str:
        if labels["part"] == "scores":
            return f"scores-{labels['game']}-{labels['method']}-seed{labels['seed']}"
        texts = [str(value) for name, value in labels.items() if name not in ("game", "seed")]
        return f"{'-'.join(texts)}-seed{labels['seed']}"

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        part, method = labels["part"], labels.get("method", "hts")
        if part == "scores":
            evaluation = {"eval_games": EVALUATION_GAMES, "eval_every_updates": self.eval_every_updates}
            config = base_config(self, method, labels["game"], machine)
            return config.changed(evaluation={"evaluator": True} | evaluation, run=self.run)
        # The synchronous algorithm has one group of all simulators, as its usual implementations have.
        config = base_config(self, labels["algorithm"], labels["game"], machine).changed(
            sampling={"simulators": self.simulators, "groups": 1},
            environment={
                "step_time_mean_ms": self.step_time_ms, "step_time_cv": labels.get("variation", self.variation)
            },
            run=budget(self.seconds / 60.0) | {"log_every_seconds": 1.0},
        )  # fmt: skip
        if method == "hts":
            config = self.double_buffered(config, labels.get("alpha", 0))
        if part == "predictors":
            config = config.changed(sampling={"predictors": labels["predictors"]}, run={"deterministic": True})
        return config

    def double_buffered(self, config: TrainConfig, alpha: int = 0) -> TrainConfig:
        """The settings of HTS-RL from those of its synchronous algorithm: with groups and predictors, and with as much
        data in each update if whole minibatches allow it.

        Args:
            alpha: steps between two synchronizations (0: --least-alpha, in whole unrolls of the algorithm).
        """
        learns_from: Any = config.algorithm.learns_from
        unroll, simulators = learns_from.unroll_length, config.sampling.simulators
        if alpha:
            unroll = max(length for length in range(1, min(unroll, alpha) + 1) if alpha % length == 0)
        alpha = alpha or unroll * math.ceil(self.least_alpha / unroll)
        batch = config.optimizer.batch_size or unroll * simulators
        groups = self.groups or simulators
        # The part predictors must not change it: with queries padded to another size, parameters could differ in bits.
        together = max(simulators // groups, simulators // self.predictors) if self.predictors else 0
        return config.changed(
            algorithm={"unroll_length": unroll},
            optimizer={"batch_size": math.gcd(batch, alpha * simulators)},
            sampling={
                "schedule": "double-buffered",
                "rollout_length": alpha,
                "groups": groups,
                "predictors": self.predictors,
                "predict_batch": self.predict_batch or together,
            },
        )

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A table and a panel or more for each part that has finished points."""
        measured = [part for part in self.parts if having(outcomes, part=part)]
        report_of = dict(zip(PARTS, (self._speed_up, self._alpha, self._predictors, self._scores)))
        parts = [report_of[part](having(outcomes, part=part)) for part in measured]
        scored = having(outcomes, part="scores")
        scores = f"{caption_of(EVALUATION, scored)}; " if scored else ""
        return Report(
            heading="HTS-RL and its synchronous algorithms",
            caption=f"{scores}speed: agent steps/s after {self.warm_up_seconds:g} s; {spread_text(outcomes)}",
            finding=self._finding(having(outcomes, part=measured[0])),
            tables=[of_part for of_part, _ in parts],
            panels=[panel for _, panels in parts for panel in panels],
            notes=[NOTES[part] for part in measured],
        )

    def _finding(self, outcomes: Sequence[Outcome]) -> str:
        """The finding of the first part that was measured."""
        groups = grouped(outcomes, *outcomes[0].point.labels)
        if groups[0]["part"] == "scores":
            return extremes(groups, final(EVALUATION), "mean score of the last evaluation")
        return extremes(groups, mean(self.speed), "rate in agent steps/s")

    def _speed_up(self, outcomes: Sequence[Outcome]) -> PartReport:
        """Reports the part speed-up: figure 4, left, whose x axis is the variance of a step's time."""

        def variance(group: Group) -> float:
            return (group["variation"] * self.step_time_ms) ** 2

        def speed_up(group: Group) -> Interval | None:
            return ratio(self.speed, *(having(group.runs, method=method) for method in ("hts", "synchronous")))

        lines = _lines(outcomes, "variation")
        steps = f"steps of {self.step_time_ms:g} ms on average"
        steps = steps if self.step_time_ms else "steps as long as the environment takes"
        speeds = table(f"Speed-up over the synchronous algorithm, {steps}", itertools.chain(*lines.values()), {
            "algorithm": "algorithm", "deviation / mean": "variation", "variance, ms^2": variance,
            "synchronous, agent steps/s": mean(self.speed, method="synchronous"),
            "HTS, agent steps/s": mean(self.speed, method="hts"),
            "speed-up": speed_up,
        })  # fmt: skip
        curves = [
            interval_curve([(variance(group), speed_up(group)) for group in line], f"HTS-{name} / {name}")
            for name, line in lines.items()
        ]
        return speeds, [Panel("Speed-up", "variance of the step time (ms²)", "HTS-RL / synchronous", curves, zero=True)]

    def _rates(self, outcomes: Sequence[Outcome], label: str, title: str, x_label: str, columns: Columns) -> PartReport:
        """A table and a panel of agent steps/s over a label; `columns` are further columns of the table."""
        lines, speed = _lines(outcomes, label), mean(self.speed)
        rates = table(title, itertools.chain(*lines.values()), {
            "algorithm": "algorithm", label: label, "agent steps/s": speed, **columns
        })  # fmt: skip
        curves = [over(groups, label, speed, f"HTS-{name}") for name, groups in lines.items()]
        return rates, [Panel(title, x_label, "agent steps/s", curves, log_x=True, zero=True)]

    def _alpha(self, outcomes: Sequence[Outcome]) -> PartReport:
        """Reports the part alpha: table 5."""
        unroll: Columns = {"unroll": lambda group: group.config.algorithm.learns_from.unroll_length}
        interval = "steps between synchronizations (alpha)"
        return self._rates(outcomes, "alpha", "Synchronization interval", interval, unroll)

    def _predictors(self, outcomes: Sequence[Outcome]) -> PartReport:
        """Reports the part predictors: table 4, and whether runs of one seed had equal parameters in all versions that
        all of them have."""
        common = {group["algorithm"]: compared(group.runs) for group in grouped(outcomes, "algorithm")}
        columns: Columns = {
            "versions compared": lambda group: common[group["algorithm"]][0],
            "parameters": lambda group: common[group["algorithm"]][1],
        }
        return self._rates(outcomes, "predictors", "Predictor threads", "predictor threads", columns)

    def _scores(self, outcomes: Sequence[Outcome]) -> PartReport:
        """Reports the part scores: tables 1 and 2, and figure 5."""
        games = grouped(outcomes, "game")
        limits = {game["game"]: 60.0 * self.time_limit_minutes or fastest_end(game.runs) for game in games}
        groups = [group for game in games for group in grouped(game.runs, "game", "method")]
        scores = table("Evaluation scores", groups, {
            "game": "game", "method": "method", "seeds": count,
            "policies": lambda group: min(len(evaluations(run)) for run in group.runs),
            "final metric": mean(lambda run: final_metric(evaluations(run))),
            "limit, minutes": lambda group: limits[group["game"]] / 60.0,
            "final time metric": lambda group: mean(
                lambda run: final_time_metric(evaluations(run), limits[group["game"]])
            )(group),
            **{f"minutes to {score:g}": _minutes_to(score) for score in self.required_scores},
        })  # fmt: skip
        panels = [
            learning_panel(
                game["game"], "evaluation score", grouped(game.runs, "method"), EVALUATION,
                lambda method: method["method"].upper(), against,
            )
            for game in games
            for against in (STEPS, SECONDS)
        ]  # fmt: skip
        return scores, panels


PartReport = tuple[Table, Sequence[Panel]]


def _lines(outcomes: Sequence[Outcome], label: str) -> dict[str, list[Group]]:
    """Name of an algorithm -> its runs, grouped by a label."""
    lines = grouped(outcomes, "algorithm")
    return {line["algorithm"].upper(): grouped(line.runs, "algorithm", label) for line in lines}


def compared(outcomes: Sequence[Outcome]) -> tuple[int, str]:
    """Compares the parameters of runs of equal seeds, version by version.

    Returns:
        The number of versions that were compared, and a text: that they are equal, which is the first that differs, or
        that none was compared.
    """
    total = 0
    for seed in {outcome.point.config.run.seed for outcome in outcomes}:
        runs = [_hashes(outcome) for outcome in outcomes if outcome.point.config.run.seed == seed]
        versions = sorted(set.intersection(*map(set, runs)))
        different = [version for version in versions if len({run[version] for run in runs}) > 1]
        if different:
            return total + len(versions), f"differ from version {different[0]} on"
        total += len(versions) if len(runs) > 1 else 0
    return total, "equal" if total else "not compared"


def _hashes(outcome: Outcome) -> dict[int, str]:
    try:
        lines = (outcome.path / rundir.HASHES).read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {int(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


def _minutes_to(score: float) -> Callable[[Group], Interval | None]:
    """The measure of a group that is its mean required time in minutes; None if a seed never reached the score."""

    def measure(group: Group) -> Interval | None:
        times = [required_time(evaluations(run), score) for run in group.runs]
        return None if None in times else bootstrap([seconds and seconds / 60.0 for seconds in times])

    return measure


def fastest_end(outcomes: Sequence[Outcome]) -> float:
    """Seconds of wall time until all seeds of the fastest method had ended."""
    return min(max(map(given_seconds, group.runs)) for group in grouped(outcomes, "method"))


HTS = Study(
    name="hts",
    about="HTS-RL beside its own synchronous A2C and PPO (Liu et al. 2020, figure 4, tables 1, 2, 4, 5)",
    defaults=HtsSettings(agent_steps=2_000_000),
    quick_changes={
        "algorithms": ("a2c",), "simulators": 8, "predictors": 2, "step_time_ms": 2.0, "variations": (0.0, 1.0),
        "alphas": (8, 32), "predictor_counts": (1, 4), "least_alpha": 20, "seconds": 6.0, "warm_up_seconds": 2.0,
        "minutes": 0.15, "agent_steps": 0, "eval_every_updates": 30,
    },
    point_name=HtsSettings.point_name,
)  # fmt: skip
