"""`ddrl play RUN --video FILE`: one greedy game as a video."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import tyro

from ddrl import checks, early_options, rundir
from ddrl.errors import UsageError
from ddrl.named_runs import run_and_checkpoint
from ddrl.wording import counted

MOST_AGENT_STEPS = 1_000_000


@dataclasses.dataclass(frozen=True)
class PlayArguments:
    """Record a video of one game with a checkpoint of a run, by the rules of its evaluations but for random actions."""

    run: tyro.conf.Positional[str]
    """Directory of the run, or the file of one of its checkpoints."""
    video: str = ""
    """File to write, .mp4 or .gif (default: play.mp4 in the run's directory)."""
    seed: int = 0
    """Seed of the game."""
    max_agent_steps: int = 3000
    """Agent steps after which the video ends, if the game has not."""
    checkpoint: str = ""
    """Checkpoint to play with: the number of its update, best (of the run's best evaluation), or a file (default: the
    newest of the run)."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The new name or path of a plugin of the run that has moved. May be given several times."""

    def __post_init__(self) -> None:
        checks.seed(self)
        checks.between(self, 1, MOST_AGENT_STEPS, "max_agent_steps")


def main(argv: Sequence[str]) -> int:
    """Plays and writes the video; returns the exit status."""
    arguments = early_options.read_with_plugins(PlayArguments, argv, "ddrl play")
    path, checkpoint = run_and_checkpoint(arguments.run, arguments.checkpoint)
    rundir.load_config(path)
    video = Path(arguments.video) if arguments.video else path / "play.mp4"
    if video.suffix not in (".mp4", ".gif"):
        raise UsageError(f"--video {video}: the name must end in .mp4 or .gif")
    from ddrl.envs.control import choose_renderer
    from ddrl.evaluation.agent import load_agent

    choose_renderer()
    agent = load_agent(path, batch_sizes=(1,), checkpoint=checkpoint)
    from ddrl.evaluation.video import record_game
    from ddrl.reporting.texts import raw_score

    over: list[bool] = []
    score = record_game(
        agent.config.environment,
        agent.policy,
        video,
        seed=arguments.seed,
        max_agent_steps=arguments.max_agent_steps,
        drawn=agent.config.evaluation.draws_actions,
        tell=over.append,
    )
    steps = counted(arguments.max_agent_steps, "agent step")
    cut = "" if over == [True] else f"; the game was not over after {steps} (--max-agent-steps)"
    print(f"{video}: score {raw_score(score, 2)}, update {agent.checkpoint.version:,}{cut}")
    return 0
