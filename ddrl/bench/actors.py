"""`ddrl bench actors`: inserts/s over the number of Ape-X's actors, which sleep instead of acting."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from ddrl import checks
from ddrl.bench.emulated_actors import FORMAT, config_of, write_segments
from ddrl.bench.output import emit
from ddrl.bench.ranks import run_ranks
from ddrl.errors import UsageError

START_SECONDS = 5.0  # allowed for each rank to start, on few cores
NOTES = {
    "steps_per_s": "agent steps of all actors, by their number",
    "inserts_per_s": "transitions that the shards took",
    "linear": "as many for each actor as with the first number",
    "ratio": "inserts/s over linear",
    "asleep": "what the sleeping alone allows",
    "samples_per_s": "drawn at the same time",
    "shard_busy": "share of the time, of the shard with most to do",
    "shard_cores": "processor time of that shard, waiting included",
    "waiting": "share of an actor's time in which no shard had room",
}


@dataclasses.dataclass(frozen=True)
class ActorsArguments:
    """Data generation of Ape-X over the number of actors (Horgan et al. 2018, section 4.1): real ranks, and segments of
    recorded frames, which the replay checks, unpacks and keeps while a learner draws batches. Actors sleep for the
    time that their steps take, so that many fit on a small machine; about 60 MB each."""

    actors: tuple[int, ...] = (1, 4, 16, 64)
    """Numbers of actors; the others are compared with the first."""
    step_ms: float = 7.0
    """Milliseconds that an agent step of an actor's simulators takes. (The paper's actors made 139 frames/s each: 29 ms
    for the four frames of a step.)"""
    simulators: int = 1
    """Simulators of each actor."""
    replay_shards: int = 1
    """Replay shards."""
    replay_capacity: int = 100_000
    """Transitions of all shards; 8 KB each."""
    batch_size: int = 512
    """Transitions drawn at once."""
    batches_per_s: float = 4.0
    """Batches that the learner draws, at most (the paper's: 19)."""
    parameters: int = 332_295
    """Float32 parameters, which actors fetch every 400 frames."""
    warm_up: float = 5.0
    """Seconds that do not count, from the moment that all actors act."""
    seconds: float = 20.0
    """Time for each number."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "simulators", "replay_shards", "batch_size", "parameters")
        checks.above(self, 0.0, "step_ms", "batches_per_s")
        checks.at_least(self, 0.0, "warm_up")
        checks.at_least(self, 3.0, "seconds", why="rates are reported once a second")
        if not self.actors or min(self.actors) < 1:
            checks.refuse(self, "actors", "give one or more numbers above 0")


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit status."""
    arguments = tyro.cli(ActorsArguments, args=list(argv), prog="ddrl bench actors")
    title = f"actors of {arguments.simulators} simulators, {arguments.step_ms:g} ms a step"
    emit(title, measure(arguments), arguments.json, NOTES)
    return 0


def measure(arguments: ActorsArguments) -> dict[str, Any]:
    """Each rate by number of actors.

    Raises:
        UsageError: no MPI here, too little memory, or a shard refused what was sent.
    """
    with tempfile.TemporaryDirectory(prefix="ddrl-") as directory:
        write_segments(Path(directory, "segments"))
        found = {str(number): _rates(arguments, number, directory) for number in arguments.actors}
    values = {
        name: {
            number: round(rates[name], 4 if name in ("shard_busy", "shard_cores", "waiting") else 1)
            for number, rates in found.items()
        }
        for name in next(iter(found.values()))
    }
    inserts = {number: found[str(number)]["inserts_per_s"] for number in arguments.actors}
    each = inserts[arguments.actors[0]] / arguments.actors[0]
    values["linear"] = {str(number): round(each * number, 1) for number in inserts}
    values["ratio"] = {str(number): round(rate / (each * number), 3) for number, rate in inserts.items()}
    asleep = 1000.0 * arguments.simulators / arguments.step_ms
    values["asleep"] = {str(number): round(asleep * number, 1) for number in inserts}
    settings = dataclasses.asdict(arguments)
    del settings["json"], settings["actors"]
    return values | settings


def _rates(arguments: ActorsArguments, actors: int, directory: str) -> dict[str, float]:
    sizes = (actors, arguments.replay_shards, arguments.simulators, arguments.batch_size, arguments.replay_capacity)
    names = ("actors", "shards", "simulators", "batch_size", "capacity")
    config = dict(zip(names, sizes)) | {"minimum": max(arguments.batch_size, FORMAT.length)}
    config_of(**config)  # refuses here what cannot be
    options = {
        "config": config, "run_dir": directory, "segments": str(Path(directory, "segments")),
        "step_ms": arguments.step_ms,
        "emulated_learner": {"parameters": arguments.parameters, "batches_per_s": arguments.batches_per_s,
                             "warm_up": arguments.warm_up, "seconds": arguments.seconds},
    }  # fmt: skip
    ranks = 1 + actors + arguments.replay_shards
    limit = 60.0 + START_SECONDS * ranks + 3 * (arguments.warm_up + arguments.seconds)
    found = run_ranks(ranks, "ddrl.bench.actor_ranks", options, limit)
    if "failed" in found:
        raise UsageError(f"with {actors} actors: {found['failed']}")
    return found
