"""Score against agent steps for several sizes of an algorithm: number of simulators, batch size, ..."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ddrl.algorithms import printed_name
from ddrl.errors import UsageError
from ddrl.studies.curves import CAPTIONS, ONLINE, score_curve, spread_text, steps_unit
from ddrl.studies.figures import Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import agent_steps_per_second, bootstrap, final_metric
from ddrl.studies.points import Outcome
from ddrl.studies.study import Report
from ddrl.studies.tables import Table

Sizes = Mapping[str, tuple[int, ...]]
"""Algorithm -> its sizes."""
WARM_UP_SECONDS = 10.0  # that do not count in rates; a third of shorter runs


def chosen_sizes(defaults: Sizes, words: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The default sizes, but where words such as a2c=16,64 give others.

    Raises:
        UsageError: words that say nothing.
    """
    chosen = dict(defaults)
    for word in words:
        name, _, numbers = word.partition("=")
        if name not in chosen or not all(n.isdecimal() and int(n) > 0 for n in numbers.split(",")):
            raise UsageError(f"--sizes {word}: write one of {', '.join(chosen)}, = and numbers, as in a2c=16,64")
        chosen[name] = tuple(dict.fromkeys(int(n) for n in numbers.split(",")))
    return chosen


def sized_report(outcomes: Sequence[Outcome], heading: str, score: str, what: Mapping[str, str], games: int) -> Report:
    """A panel for each algorithm and game, a curve for each size.

    Args:
        score: ONLINE or EVALUATION.
        what: algorithm -> what its sizes are of, in the plural.
        games: that there are, a column of panels each.
    """
    rows = [_row(score, what, labels, runs) for labels, runs in grouped(outcomes, "algorithm", "game", "size")]
    title = f"{'online' if score == ONLINE else 'evaluation'} score at the end of the budget"
    columns = ("algorithm", "game", "size", "", "seeds", "agent steps", "score", "agent steps/s")
    return Report(
        heading=heading,
        caption=f"{CAPTIONS[score]}; {spread_text(outcomes)}",
        tables=[Table(title, columns, rows)],
        panels=list(_panels(outcomes, score, what)),
        columns=min(games, 3) if games > 1 else 2,
    )


def last_score(run: Outcome, score: str) -> float | None:
    """At the end of a run, ONLINE or EVALUATION; None where there is none."""
    if score != ONLINE:
        return final_metric([r for r in run.records if r["kind"] == "evaluation"], policies=1)
    return next((r[ONLINE] for r in reversed(run.records) if r["kind"] == "train" and ONLINE in r), None)


def _row(score: str, what: Mapping[str, str], labels: tuple[Any, ...], runs: Sequence[Outcome]) -> list[Any]:
    algorithm, game, size = labels
    steps = max((r.get("agent_steps", 0) for run in runs for r in run.records), default=0)
    last = bootstrap([last_score(run, score) for run in runs])
    rate = bootstrap([agent_steps_per_second(run.records, warm_up(run)) for run in runs])
    return [algorithm, game, size, what[algorithm], len(runs), steps, last, rate]


def warm_up(run: Outcome) -> float:
    """Seconds at the beginning that do not count in rates."""
    return min(WARM_UP_SECONDS, max((r.get("wall_seconds", 0.0) for r in run.records), default=0.0) / 3)


def _panels(outcomes: Sequence[Outcome], score: str, what: Mapping[str, str]) -> Iterator[Panel]:
    for (algorithm, game), some in grouped(outcomes, "algorithm", "game"):
        unit, x_label = steps_unit(some)
        curves = [
            score_curve(runs, score, "agent_steps", unit, f"{size} {what[algorithm].removesuffix('s' * (size == 1))}")
            for (size,), runs in grouped(some, "size")
        ]
        yield Panel(f"{printed_name(algorithm)} on {game}", x_label, "raw score", curves)
