"""`ddrl bench learner`: the updates/s of Ape-X's learner while actors feed the replay, beside its own gradient rate."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from ddrl import checks
from ddrl.bench.actors import START_SECONDS
from ddrl.bench.emulated_actors import config_of, write_segments
from ddrl.bench.output import emit
from ddrl.bench.ranks import run_ranks
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine

NOTES = {
    "updates_per_s_alone": "targets and gradient of one batch, nothing else runs",
    "gradients_per_s_alone": "likewise, with targets from before",
    "updates_per_s": "while actors feed the replay",
    "updates_per_s_unfed": "the same learner afterwards, when the actors send nothing",
    "ratio": "updates/s over targets and gradient alone",
    "ratio_to_unfed": "updates/s over those without feeding",
    "ratio_to_gradients": "updates/s over gradients alone",
    "learner_split": "shares of the learner's time",
    "cpu_cores": "cores that each rank kept busy",
}


@dataclasses.dataclass(frozen=True)
class LearnerArguments:
    """Ape-X's real learner, first alone with one batch that is there already, then in a whole job whose actors are
    emulated: they sleep, and send segments of recorded frames."""

    preset: Literal["default", "laptop"] = "laptop"
    """Network, batch and optimizer of `ddrl train apex-dqn --preset`."""
    actors: int = 4
    """Actors."""
    simulators: int = 4
    """Simulators of each actor."""
    step_ms: float = 7.0
    """Milliseconds that an agent step of an actor's simulators takes."""
    replay_shards: int = 1
    """Replay shards."""
    replay_capacity: int = 20_000
    """Transitions of all shards."""
    replay_minimum: int = 4_000
    """Transitions from which the learner begins."""
    cores: int = 0
    """Cores that the learner uses (0: all but one)."""
    alone: float = 8.0
    """Seconds of the measurement alone."""
    warm_up: float = 5.0
    """Seconds after the first update that do not count."""
    seconds: float = 30.0
    """Time of the job, from its start, while actors feed it."""
    unfed: float = 10.0
    """Seconds after that in which they send nothing and it goes on learning (0: none)."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "actors", "simulators", "replay_shards", "replay_capacity", "replay_minimum")
        checks.above(self, 0.0, "step_ms", "alone")
        checks.at_least(self, 0, "cores", "warm_up", "unfed")
        checks.at_least(self, self.warm_up + 5.0, "seconds", why="--warm-up and 5")


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit status."""
    arguments = tyro.cli(LearnerArguments, args=list(argv), prog="ddrl bench learner")
    emit(f"learner of {arguments.actors} actors", measure(arguments), arguments.json, NOTES)
    return 0


def measure(arguments: LearnerArguments) -> dict[str, Any]:
    """Rates and their ratio.

    Raises:
        UsageError: no MPI here, too little memory, or too little time.
    """
    with tempfile.TemporaryDirectory(prefix="ddrl-") as directory:
        write_segments(Path(directory, "segments"))
        config = {
            "actors": arguments.actors, "shards": arguments.replay_shards, "simulators": arguments.simulators,
            "capacity": arguments.replay_capacity, "minimum": arguments.replay_minimum, "preset": arguments.preset,
            "seconds": arguments.seconds + arguments.unfed,
        }  # fmt: skip
        config_of(**config)  # refuses here what cannot be
        options = {
            "config": config, "run_dir": directory, "segments": str(Path(directory, "segments")),
            "step_ms": arguments.step_ms, "cores": arguments.cores or max(1, this_machine().cores - 1),
            "feed_seconds": arguments.seconds, "learner": {"alone": arguments.alone, "warm_up": arguments.warm_up},
        }  # fmt: skip
        ranks = 1 + arguments.actors + arguments.replay_shards
        limit = 120.0 + START_SECONDS * ranks + 3 * (config["seconds"] + arguments.alone)
        found = run_ranks(ranks, "ddrl.bench.actor_ranks", options, limit)
    if "failed" in found:
        raise UsageError(found["failed"])
    found["ratio"] = found["updates_per_s"] / found["updates_per_s_alone"]
    found["ratio_to_gradients"] = found["updates_per_s"] / found["gradients_per_s_alone"]
    found["ratio_to_unfed"] = (unfed := found["updates_per_s_unfed"]) and found["updates_per_s"] / unfed
    settings = dataclasses.asdict(arguments) | {"cores": options["cores"]}
    del settings["json"]
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()} | settings
