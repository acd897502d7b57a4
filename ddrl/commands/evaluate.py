"""`ddrl evaluate RUN`: games with a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ddrl import options
from ddrl.evaluation.newest import EvaluateArguments, evaluate_newest
from ddrl.reporting.progress import plain_console


def main(argv: Sequence[str]) -> int:
    """Plays, prints, and adds one line to RUN/evaluations.jsonl; returns the exit status."""
    arguments = options.read_with_plugins(EvaluateArguments, argv, "ddrl evaluate")
    evaluate_newest(arguments, lambda game, record: show(game, record, plain_console()))
    return 0


def show(game: str, record: dict, console: Console) -> None:
    """Prints an evaluation."""
    console.print(
        f"{game}, version {record['version']:,} ({record['agent_steps']:,} agent steps), "
        f"{record['games']} games, {record['seconds']:.1f} s"
    )
    console.print(
        f"score: mean {record['mean']:.2f}, maximum {record['maximum']:g}, minimum {record['minimum']:g}, "
        f"standard deviation {record['deviation']:.2f}"
    )
    if record["unfinished"]:
        console.print(f"{record['unfinished']} games were ended by a step limit; the scores they had by then count")
    if "stuck" in record:
        console.print(f"{record['stuck']} of them were stuck: they had earned no reward for 1,000 agent steps")
    if "forced_actions" in record:
        count, after = record["forced_actions"], record["protocol"]["repeat_fire_after"]
        console.print(f"the protocol sent action 1 (FIRE) {count:,} times, after {after} identical actions in a row")
    if "not_finite" in record:
        console.print(f"{record['not_finite']} games are left out because their scores are not finite")
    stamp = ", ".join(f"{name} {value}" for name, value in record["protocol"].items())
    console.print(f"protocol: {stamp}", markup=False)
    if "human_starts" in record:
        console.print(f"human starts: {record['human_starts']}")
