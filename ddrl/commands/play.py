"""`ddrl play RUN --video FILE`: one greedy game as a video."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import tyro

from ddrl import checks, command_line, rundir
from ddrl.errors import UsageError


@dataclasses.dataclass(frozen=True)
class PlayArguments:
    """Record one greedy game of the newest checkpoint of a run."""

    run: tyro.conf.Positional[str]
    """Directory of the run."""
    video: str = ""
    """File to write, .mp4 or .gif (default: play.mp4 in the run's directory)."""
    seed: int = 0
    """Seed of the game."""
    max_agent_steps: int = 3000
    """The video ends here, in agent steps, when the game has not."""

    def __post_init__(self) -> None:
        checks.seed(self)
        checks.at_least(self, 1, "max_agent_steps")


def main(argv: Sequence[str]) -> int:
    """Plays and writes the video; returns the exit status."""
    arguments = command_line.read(PlayArguments, argv, "ddrl play")
    path = Path(arguments.run)
    rundir.load_config(path)
    video = Path(arguments.video) if arguments.video else path / "play.mp4"
    if video.suffix not in (".mp4", ".gif"):
        raise UsageError(f"--video {video}: the name must end in .mp4 or .gif")
    from ddrl.envs.control import choose_renderer
    from ddrl.evaluation.agent import load_agent

    choose_renderer()
    agent = load_agent(path, batch_sizes=(1,))
    from ddrl.evaluation.video import record_game

    score = record_game(
        agent.config.environment, agent.policy, video, seed=arguments.seed, max_agent_steps=arguments.max_agent_steps
    )
    print(f"{video}: score {score:g}, version {agent.checkpoint.version:,}")
    return 0
