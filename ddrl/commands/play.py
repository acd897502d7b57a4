"""`ddrl play RUN --video FILE`: one greedy game as a video."""

from __future__ import annotations

from collections.abc import Sequence

from ddrl.evaluation.newest import PlayArguments, play_newest
from ddrl.options import early_options
from ddrl.reporting.texts import raw_score
from ddrl.wording import counted


def main(argv: Sequence[str]) -> int:
    """Plays and writes the video; returns the exit status."""
    arguments = early_options.read_with_plugins(PlayArguments, argv, "ddrl play")
    played = play_newest(arguments)
    steps = counted(arguments.max_agent_steps, "agent step")
    cut = "" if played.over else f"; the game was not over after {steps} (--max-agent-steps)"
    print(f"{played.video}: score {raw_score(played.score, 2)}, update {played.version:,}{cut}")
    return 0
