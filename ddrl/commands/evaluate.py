"""`ddrl evaluate RUN`: games with a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ddrl.evaluation.newest import EvaluateArguments, evaluate_newest
from ddrl.options import early_options
from ddrl.reporting.progress import plain_console
from ddrl.reporting.texts import present, raw_score
from ddrl.wording import counted

DIGITS = 2  # after the point of a score


def main(argv: Sequence[str]) -> int:
    """Plays the games, prints the scores, and adds one line to RUN/evaluations.jsonl; returns the exit status."""
    arguments = early_options.read_with_plugins(EvaluateArguments, argv, "ddrl evaluate")
    evaluate_newest(arguments, lambda game, record: show(game, record, plain_console()))
    return 0


def show(game: str, record: dict, console: Console) -> None:
    """Prints an evaluation."""
    console.print(
        f"{game}, update {record['version']:,} ({counted(record['agent_steps'], 'agent step')}), "
        f"{counted(record['games'], 'game')}, {record['seconds']:.1f} s"
    )
    maximum, minimum = (raw_score(record[name], DIGITS) for name in ("maximum", "minimum"))
    spread = present(record, ("deviation", f"standard deviation {{:.{DIGITS}f}}"))  # one game has none
    scores = [f"mean {record['mean']:.{DIGITS}f}", f"maximum {maximum}", f"minimum {minimum}", *spread]
    console.print(f"score: {', '.join(scores)}")
    if record["unfinished"]:
        unfinished = counted(record["unfinished"], "game")
        console.print(f"ended by a step limit: {unfinished}, whose scores until then count")
    if "stuck" in record:
        console.print(f"stuck: {record['stuck']} of them, without a reward for 1,000 agent steps")
    if "forced_actions" in record:
        times, after = counted(record["forced_actions"], "time"), record["protocol"]["repeat_fire_after"]
        console.print(f"the protocol sent action 1 (FIRE) {times}, after {after} identical actions in a row")
    if "not_finite" in record:
        console.print(f"left out: {counted(record['not_finite'], 'game')} without a finite score")
    stamp = ", ".join(f"{name} {value}" for name, value in record["protocol"].items())
    console.print(f"protocol: {stamp}", markup=False)
    if "human_starts" in record:
        console.print(f"human starts: {record['human_starts']}")
