"""Games with a checkpoint of a run: the record of them, `ddrl evaluate` and `Run.evaluate`, and the video of one, `ddrl
play` and `Run.play`."""

from __future__ import annotations

import dataclasses
import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import tyro

from ddrl import checks, programs, rundir
from ddrl.files import append_regular, tail
from ddrl.named_runs import run_and_checkpoint
from ddrl.placement.resources import this_machine
from ddrl.types import Continuous, Discrete

if TYPE_CHECKING:
    from ddrl.checkpoint import Checkpoint
    from ddrl.config import TrainConfig
    from ddrl.envs.starts import Starts
    from ddrl.evaluation.games import EvaluationResult

HUMAN_STARTS = "not measured: they need games played by people, which are not public (--starts FILE, if you have some)"
WITHOUT_NOISE = "continuous actions are evaluated without noise; leave it out"
MOST_GAMES = 1_000_000
MOST_AGENT_STEPS = 1_000_000


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Play games with a checkpoint of a run, with the actions that the run's own evaluations have unless --actions or
    --epsilon say otherwise, and print the raw scores."""

    run: tyro.conf.Positional[str]
    """Directory of the run, or the file of one of its checkpoints."""
    games: int = 50
    """Games to play."""
    seed: int = 0
    """Seed of the games."""
    epsilon: float | None = None
    """Probability of a random action instead of a greedy one (None: --eval-epsilon of the run)."""
    actions: Literal["greedy", "drawn"] | None = None
    """The greedy actions, or actions drawn from the policy (None: --eval-actions of the run, greedy with --epsilon)."""
    starts: str = ""
    """Begin each Atari game with one of the recorded human starts in this .npz, drawn at random."""
    checkpoint: str = ""
    """Checkpoint to play with: the number of its update, best (of the run's best evaluation), or a file (default: the
    newest of the run)."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The new name or path of a plugin of the run that has moved. May be given several times."""

    def __post_init__(self) -> None:
        checks.between(self, 1, MOST_GAMES, "games")
        checks.seed(self)
        if self.actions not in (None, "greedy", "drawn"):  # from Python; any other would be played as greedy
            checks.refuse(self, "actions", "must be one of greedy, drawn")
        if self.epsilon is not None:
            checks.between(self, 0.0, 1.0, "epsilon")
        if self.epsilon and self.actions == "drawn":
            checks.refuse(self, "epsilon", "drawn actions are random by themselves; leave it out")


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


class Played(NamedTuple):
    """A game that was recorded.

    Attributes:
        video: the file.
        score: the raw score.
        version: the update of the checkpoint.
        over: whether the game was over when the video ended.
    """

    video: Path
    score: float
    version: int
    over: bool


def evaluate_newest(
    arguments: EvaluateArguments, show: Callable[[str, dict[str, Any]], None] = lambda game, record: None
) -> dict[str, Any]:
    """Plays, adds one line to RUN/evaluations.jsonl, and returns what it says.

    A line that cannot be added, as in a run of somebody else, costs no more than a warning on standard error.

    Args:
        arguments: which run, and how.
        show: (game, record), called where the line cannot be added, too.

    Raises:
        UsageError: no run, no checkpoint that fits, or starts that do not.
    """
    path, checkpoint = run_and_checkpoint(arguments.run, arguments.checkpoint)
    config = rundir.load_config(path)  # a wrong directory is said at once, not after TensorFlow has loaded
    _check_actions(arguments, config)
    starts = _starts(arguments.starts, config)
    from ddrl.envs.game_names import atari_rom
    from ddrl.evaluation.agent import load_agent
    from ddrl.evaluation.games import evaluate

    sizes = sorted({1, min(8, arguments.games), min(64, arguments.games)})
    agent = load_agent(path, batch_sizes=sizes, checkpoint=checkpoint)
    if arguments.epsilon and isinstance(agent.action_space, Continuous):  # PPO has them in some games
        checks.refuse(arguments, "epsilon", WITHOUT_NOISE)
    file = path / rundir.EVALUATIONS
    can_be_added = _added(file, b"")  # said before the games, which may take hours
    began = time.monotonic()
    environment, settings = agent.config.environment, agent.config.evaluation
    epsilon = settings.eval_epsilon if arguments.epsilon is None else arguments.epsilon
    actions = arguments.actions or (settings.eval_actions if arguments.epsilon is None else "greedy")
    result = evaluate(
        environment,
        agent.policy,
        arguments.games,
        arguments.seed,
        epsilon=epsilon,
        drawn=actions == "drawn",
        ahead=this_machine().cores,
        starts=starts,
    )
    seconds = time.monotonic() - began
    record = _record(arguments, agent.checkpoint, result, seconds, atari_rom(environment.game) is not None)
    if can_be_added:
        _added(file, (json.dumps(record) + "\n").encode())
    show(environment.game, record)
    return record


def play_newest(arguments: PlayArguments) -> Played:
    """Plays one game and writes its video, in place of an earlier one only when it is complete.

    Raises:
        UsageError: no run, no checkpoint that fits, a game that draws no pictures, or a file that cannot be a video.
    """
    path, checkpoint = run_and_checkpoint(arguments.run, arguments.checkpoint)
    rundir.load_config(path)  # a wrong directory is said at once, not after TensorFlow has loaded
    video = Path(arguments.video) if arguments.video else path / "play.mp4"
    from ddrl.evaluation.video import check_output, record_game

    check_output(video)  # now, too
    from ddrl.envs.control import choose_renderer
    from ddrl.evaluation.agent import load_agent

    choose_renderer()
    agent = load_agent(path, batch_sizes=(1,), checkpoint=checkpoint)
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
    return Played(video, score, agent.checkpoint.version, over == [True])


def _check_actions(arguments: EvaluateArguments, config: TrainConfig) -> None:
    """Refuses actions that the run's algorithm cannot take."""
    if arguments.epsilon and Discrete not in config.algorithm.takes:
        checks.refuse(arguments, "epsilon", WITHOUT_NOISE)
    if arguments.actions == "drawn" and config.has_replay:
        why = f"{config.algorithm.name} has no policy that evaluations could draw from; leave it out"
        checks.refuse(arguments, "actions", why)


def _added(file: Path, line: bytes) -> bool:
    """Whether a line was added to the evaluations of a run; if not, a warning says why. An empty line only tries it.

    Half a line, as a full disk leaves, is ended first: together, neither could be read.
    """
    try:
        with programs.naming(file), io.BufferedWriter(append_regular(file)) as lines:
            whole = tail(file, 1) in (b"", b"\n")
            lines.write(line if whole or not line else b"\n" + line)
    except OSError as error:
        why = f"{programs.reason(error)}; the evaluation is not added to the run"
        print(f"warning: {why}", file=sys.stderr, flush=True)
        return False
    return True


def _starts(file: str, config: TrainConfig) -> Starts | None:
    """The recorded human starts in a file. Raises UsageError where the environment cannot begin with them."""
    if not file:
        return None
    from ddrl.envs import make_environment
    from ddrl.envs.starts import load_starts

    starts = load_starts(Path(file))
    make_environment(config.environment, 1, training=False, starts=starts).close()
    return starts


def _record(
    arguments: EvaluateArguments, checkpoint: Checkpoint, result: EvaluationResult, seconds: float, atari: bool
) -> dict[str, Any]:
    """The line of an evaluation."""
    record = {
        "version": checkpoint.version,
        "agent_steps": checkpoint.agent_steps,
        "games": arguments.games,
        "seed": arguments.seed,
        "mean": result.mean,
        "maximum": result.maximum,
        "minimum": min(result.scores),
        "unfinished": result.unfinished,
        "seconds": round(seconds, 3),
        "scores": list(result.scores),
        "protocol": result.stamp,
    }
    if len(result.scores) > 1:
        record["deviation"] = statistics.stdev(result.scores)
    rare = {name: getattr(result, name) for name in ("not_finite", "stuck", "forced_actions")}
    record |= {name: number for name, number in rare.items() if number}
    return record if arguments.starts or not atari else record | {"human_starts": HUMAN_STARTS}
