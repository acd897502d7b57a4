"""`ddrl study variants`: sets of options, also of several algorithms, chosen by the user, compared by their scores."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ddrl import checks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies import across_games
from ddrl.studies.curves import SECONDS, STEPS, learning_panel, spread_text
from ddrl.studies.figures import Panel
from ddrl.studies.findings import compared, paired, reached, sentences
from ddrl.studies.measures import (
    caption_of,
    count,
    final,
    given_seconds,
    largest,
    last_score,
    mean,
    rate,
    reached_after,
    steps_until,
)
from ddrl.studies.points import Group, Outcome, grouped, parted
from ddrl.studies.settings import ScoredSettings, TargetSettings, base_config, refusals_of
from ddrl.studies.statistics import Interval, Values, bootstrap, bootstrap_paired_ratio
from ddrl.studies.study import Labels, Report, Study
from ddrl.studies.tables import Columns, table
from ddrl.types import Machine

UNCHANGED = "as the preset has it"


@dataclasses.dataclass(frozen=True)
class VariantsSettings(TargetSettings, ScoredSettings):
    """Several sets of options of one algorithm, or several algorithms, each with the same seeds: what do they change?
    The first variant is what the others are compared with."""

    algorithm: str = "ba3c"
    """Algorithm of `ddrl train` of the variants that name none."""
    variants: tuple[str, ...] = (f"{UNCHANGED}:", "half the rate:--learning-rate 3.5e-4")
    """NAME:OPTIONS, a word each: options of `ddrl train` that a variant has beside --train-options, such as
    "large:--batch-size 256". They may begin with an algorithm, as in "clipped:ppo --clip-range 0.1". A variant without
    options is the preset itself."""
    verdict: Literal["agent-steps", "minutes"] = "agent-steps"
    """Where all runs reached --target-score, variants are compared by the agent steps or by the minutes that they took,
    otherwise by their final scores."""
    stop_at_target: bool = False
    """End a run when an evaluation reaches --target-score."""
    cores: int = 0
    """Cores that a run may use (0: all)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for variant in self.variants:
            name, colon, _ = variant.partition(":")
            if not colon or not name.strip():
                raise UsageError(f'--variants {variant}: write NAME:OPTIONS, as in "large:--batch-size 256"')
        names = list(self.options)
        if len(names) < len(self.variants) or len(names) < 2:
            raise UsageError(f"--variants {' '.join(names)}: give two or more, each with a name of its own")
        if self.stop_at_target and (self.target_score is None or self.score != "evaluation"):
            checks.refuse(self, "stop_at_target", "there is no target of evaluations; give --target-score")

    @property
    def options(self) -> dict[str, str]:
        """Name -> what each variant has behind the colon: options, with or without an algorithm before them."""
        parts = [variant.partition(":") for variant in self.variants]
        return {name.strip(): words.strip() for name, _, words in parts}

    def trained(self, variant: str) -> tuple[str, str]:
        """The algorithm of a variant, and its options."""
        words = self.options[variant]
        first, *rest = words.split(maxsplit=1) or [""]
        return (first, "".join(rest)) if first and not first.startswith("-") else (self.algorithm, words)

    def axes(self, machine: Machine) -> Iterator[Labels]:
        """Yields the points seed by seed, so that a study that is stopped after a seed has runs of all variants."""
        for seed in self.seeds:
            for game in self.games:
                for name in self.options:
                    yield {"game": game, "variant": name, "seed": seed}

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        name = labels["variant"]
        algorithm, options = self.trained(name)
        words = f"{self.train_options} {options}".strip()
        with refusals_of(f"variant {name}"):
            config = base_config(dataclasses.replace(self, train_options=words), algorithm, labels["game"], machine)
        return config.changed(run=self.run, evaluation=self.evaluated(self.stop_at_target))

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """A table for each game, curves against agent steps and time, and each variant beside the first."""
        groups = grouped(outcomes, "game", "variant")
        columns: Columns = {
            "variant": "variant", "options": lambda group: self.options[group["variant"]] or "-", "runs": count,
            **self.timed, "minutes": mean(lambda run: given_seconds(run) / 60.0),
            "agent steps": mean(largest("agent_steps")), "updates": mean(largest("update")),
            "agent steps/s": mean(rate()),
            f"final {self.score} score": final(self.score_name),
        }  # fmt: skip
        tables, panels, notes = [], [], []
        for those in parted(groups, "game"):
            game = those[0]["game"]
            tables.append(table(game, those, columns))
            panels += list(self._panels(game, those))
            where = f"{game}: " if len(self.games) > 1 else ""
            notes += [f"{where}{text}" for text in self._compared(those)]
        systems = [(group["variant"], group) for group in grouped(outcomes, "variant")]
        whole = [] if self.stop_at_target else systems  # runs that end at the target have no final score to compare
        together = across_games.together(whole, last_score(self.score_name))
        *others, algorithm = dict.fromkeys(self.trained(name)[0] for name in self.options)
        return Report(
            heading=f"{', '.join(others)} and {algorithm}" if others else f"{algorithm} with other options",
            caption=f"{caption_of(self.score_name, outcomes)}; {spread_text(outcomes, self.score_name)}",
            finding=sentences(notes),
            tables=[*tables, *together.tables],
            panels=[*panels, *together.panels],
            notes=together.notes,
            careful=together.careful,
        )

    def _panels(self, game: str, groups: Sequence[Group]) -> Iterator[Panel]:
        for against in (STEPS, SECONDS):
            yield learning_panel(
                game, f"raw {self.score} score", groups, self.score_name, lambda group: group["variant"], against,
                hold=self.stop_at_target,
            )  # fmt: skip

    def _compared(self, groups: Sequence[Group]) -> Iterator[str]:
        """Yields clauses that compare each variant with the first.

        They compare what the target took if all runs reached it, else final scores. Runs that end at the target have no
        final scores to compare, so if some missed it, the clause says how many reached it.
        """
        score, what, pairs = final(self.score_name), "final score", {}
        values: dict[str, Interval | None] = {group["variant"]: score(group) for group in groups}
        if self.target_score is not None:
            taken = {group["variant"]: self._taken(group) for group in groups}
            if all(len(taken[group["variant"]]) == len(group.runs) for group in groups):
                unit = "number of agent steps" if self.verdict == "agent-steps" else "time in minutes"
                what, pairs = f"{unit} to {self.target_score:g}", self._paired(taken)
                values = {name: bootstrap([*of.values()]) for name, of in taken.items()}
            elif self.stop_at_target:
                yield reached([(f'"{group["variant"]}"', self.times(group)) for group in groups], self.target_score)
                return
        first = next(iter(self.options))
        for name in values:
            if name != first and first in values:
                yield compared(f'"{name}"', values[name], f'"{first}"', values[first], what)
                if name in pairs:
                    yield pairs[name]

    def _paired(self, taken: Mapping[str, Mapping[int, float]]) -> dict[str, str]:
        """Variant -> a clause that compares it seed by seed with the first, for variants with the same seeds as that.

        Args:
            taken: variant -> what its runs took; see `_taken`.
        """
        first, what = next(iter(self.options)), self.verdict.replace("-", " ")
        base = taken.get(first, {})
        return {
            name: paired(f'"{name}"', f'"{first}"', bootstrap_paired_ratio([*of.values()], [*base.values()]), what)
            for name, of in taken.items()
            if name != first and list(of) == list(base) and all((*of.values(), *base.values()))
        }

    def _taken(self, group: Group) -> dict[int, float]:
        """Seed -> agent steps or minutes to the target (see `verdict`), for the runs of a variant that reached it."""
        assert self.target_score is not None
        if self.verdict == "agent-steps":
            taken: Values = steps_until(group.runs, self.score_name, self.target_score)
        else:
            seconds = [reached_after(run, self.score_name, self.target_score) for run in group.runs]
            taken = [None if value is None else value / 60.0 for value in seconds]
        return {run.point.config.run.seed: float(value) for run, value in zip(group.runs, taken) if value is not None}


def point_name(settings: VariantsSettings, labels: Labels) -> str:
    """The name of a point; other characters than letters, digits and _.+- in its variant become hyphens."""
    variant = re.sub(r"[^\w.+-]+", "-", labels["variant"])
    return f"{labels['game']}-{variant}-seed{labels['seed']}"


VARIANTS = Study(
    name="variants",
    about="algorithms and sets of options of your own choice, compared by their scores",
    defaults=VariantsSettings(minutes=10.0),
    quick_changes={"minutes": 0.2, "repeats": 2, "eval_games": 10, "train_options": "--eval-every-updates 100"},
    point_name=point_name,
    cores=lambda settings, labels: settings.cores,
)
