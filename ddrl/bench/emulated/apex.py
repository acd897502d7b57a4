"""`ddrl bench actors` and `learner`: Ape-X with sleeping actors; the learner only draws batches, or is the real one."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, Literal

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments, some_positive
from ddrl.bench.emulated import actors as emulated
from ddrl.bench.emulated.actors import FORMAT, config_of, write_segments
from ddrl.bench.ranks import by_number, run_ranks
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine
from ddrl.rundir import config_to_dict
from ddrl.wording import counted

START_SECONDS = 5.0  # allowed for each rank to start, on few cores


@dataclasses.dataclass(frozen=True)
class ApexArguments(BenchmarkArguments):
    """Options of both."""

    step_ms: float = 7.0
    """Milliseconds that an agent step of an actor's simulators takes. (The paper's actors made 139 frames/s each: 29 ms
    for the four frames of a step.)"""
    simulators: int = 1
    """Simulators of each actor."""
    replay_shards: int = 1
    """Replay shards."""
    replay_capacity: int = 100_000
    """Transitions of all shards; 8 KB each."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "simulators", "replay_shards", "replay_capacity")
        checks.above(self, 0.0, "step_ms")


def _job(arguments: ApexArguments, config: TrainConfig, seconds: float, **options: Any) -> dict[str, Any]:
    """Runs an Ape-X job with emulated actors, and returns what its rank 0 measured.

    Args:
        arguments: the benchmark's options.
        config: the run's settings.
        seconds: the longest that the job may take once its ranks have started.
        options: further options of the ranks.

    Raises:
        UsageError: MPI is missing, there is too little memory, or a shard refused what was sent.
    """
    ranks = 1 + config.apex.actors + config.apex.replay_shards
    with tempfile.TemporaryDirectory(prefix="ddrl-") as directory:
        segments = Path(directory, "segments.npz")
        write_segments(segments)
        job = {"kind": "apex", "config": config_to_dict(config), "run_dir": directory, "segments": str(segments)}
        options = {"step_ms": arguments.step_ms} | job | options
        measured = run_ranks(ranks, "ddrl.bench.emulated.rank", options, seconds + START_SECONDS * ranks)
    if "failed" in measured:
        raise UsageError(f"with {counted(config.apex.actors, 'actor')}: {measured['failed']}")
    return measured


# actors ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ActorsArguments(ApexArguments):
    """Data generation of Ape-X over the number of actors (Horgan et al. 2018, section 4.1): real ranks, and segments of
    recorded frames, which the replay checks, unpacks and keeps while a learner draws batches. Actors sleep for the
    time that their steps take, so that many fit on a small machine."""

    actors: tuple[int, ...] = (1, 4, 16, 64)
    """Numbers of actors; the others are compared with the first."""
    batch_size: int = 512
    """Transitions drawn at once."""
    batches_per_s: float = 4.0
    """Largest number of batches per second that the learner draws (the paper's: 19)."""
    parameters: int = 332_295
    """Float32 parameters, which actors fetch every 400 frames."""
    warm_up: float = 5.0
    """Seconds that do not count, from the moment when all actors act."""
    seconds: float = 20.0
    """Time for each number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "batch_size", "parameters")
        checks.above(self, 0.0, "batches_per_s")
        checks.at_least(self, 0.0, "warm_up")
        checks.at_least(self, 3.0 * emulated.REPORT_SECONDS, "seconds", why="rates are reported once a second")
        some_positive(self, "actors")


def measure_actors(arguments: ActorsArguments) -> dict[str, Any]:
    """Measures each rate by number of actors.

    Raises:
        UsageError: MPI is missing, there is too little memory or time, or a shard refused what was sent.
    """
    measured = {number: _actor_rates(arguments, number) for number in arguments.actors}
    shares = ("shard_busy", "shard_cores", "waiting")
    values: dict[str, Any] = {
        name: by_number({n: rates[name] for n, rates in measured.items()}, 4 if name in shares else 1)
        for name in measured[arguments.actors[0]]
    }
    inserts = {number: rates["inserts_per_s"] for number, rates in measured.items()}
    if not inserts[arguments.actors[0]]:
        raise UsageError(f"--seconds {arguments.seconds:g}: too short for a segment to be inserted; give more")
    each, asleep = inserts[arguments.actors[0]] / arguments.actors[0], 1000.0 * arguments.simulators / arguments.step_ms
    values["linear"] = by_number({number: each * number for number in inserts}, 1)
    values["ratio"] = by_number({number: rate / (each * number) for number, rate in inserts.items()}, 3)
    values["asleep"] = by_number({number: asleep * number for number in inserts}, 1)
    return values | arguments.settings("actors")


def _actor_rates(arguments: ActorsArguments, actors: int) -> dict[str, float]:
    config = config_of(
        actors=actors,
        shards=arguments.replay_shards,
        simulators=arguments.simulators,
        capacity=arguments.replay_capacity,
        minimum=max(arguments.batch_size, FORMAT.length),
        batch_size=arguments.batch_size,
    )
    names = ("parameters", "batches_per_s", "warm_up", "seconds")
    learner = {name: getattr(arguments, name) for name in names}
    return _job(arguments, config, 60.0 + 3 * (arguments.warm_up + arguments.seconds), emulated_learner=learner)


actors = Benchmark(
    name="actors",
    arguments=ActorsArguments,
    measure=measure_actors,
    title="actors of {options.simulators} simulators, {options.step_ms:g} ms a step",
    notes={
        "steps_per_s": "agent steps of all actors, by their number",
        "inserts_per_s": "transitions that the shards took",
        "linear": "as many for each actor as with the first number",
        "ratio": "inserts/s over linear",
        "asleep": "what the sleeping alone allows",
        "samples_per_s": "drawn at the same time",
        "shard_busy": "share of the time, of the shard with most to do",
        "shard_cores": "processor time of that shard, waiting included",
        "waiting": "share of an actor's time in which no shard had room",
    },
)


# learner --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LearnerArguments(ApexArguments):
    """Ape-X's real learner, first alone with one batch that is there already, then in a whole job whose actors are
    emulated: they sleep, and send segments of recorded frames."""

    preset: Literal["default", "laptop"] = "laptop"
    """Network, batch, and optimizer of `ddrl train apex-dqn --preset`."""
    actors: int = 4
    """Actors."""
    simulators: int = 4
    replay_capacity: int = 20_000
    replay_minimum: int = 4_000
    """Transitions with which learning begins."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "actors", "replay_minimum")
        checks.above(self, 0.0, "alone")
        checks.at_least(self, 0, "cores", "warm_up", "unfed")
        least = self.warm_up + 5.0 * emulated.REPORT_SECONDS
        checks.at_least(self, least, "seconds", why="--warm-up and 5 reports, one a second")


def measure_learner(arguments: LearnerArguments) -> dict[str, Any]:
    """Measures the learner's rates, alone and in the job, and their ratios.

    Raises:
        UsageError: MPI is missing, or there is too little memory or time.
    """
    config = config_of(
        actors=arguments.actors,
        shards=arguments.replay_shards,
        simulators=arguments.simulators,
        capacity=arguments.replay_capacity,
        minimum=arguments.replay_minimum,
        preset=arguments.preset,
        seconds=arguments.seconds + arguments.unfed,
    )
    cores = arguments.cores or max(1, this_machine().cores - 1)
    measured = _job(
        arguments,
        config,
        120.0 + 3 * (arguments.seconds + arguments.unfed + arguments.alone),
        cores=cores,
        feed_seconds=arguments.seconds,
        learner={"alone": arguments.alone, "warm_up": arguments.warm_up},
    )
    rate, unfed = measured["updates_per_s"], measured["updates_per_s_unfed"]
    measured["ratio"] = rate / measured["updates_per_s_alone"]
    measured["ratio_to_gradients"] = rate / measured["gradients_per_s_alone"]
    measured["ratio_to_unfed"] = unfed and rate / unfed
    values = {name: round(value, 3) if isinstance(value, float) else value for name, value in measured.items()}
    return values | arguments.settings() | {"cores": cores}


learner = Benchmark(
    name="learner",
    arguments=LearnerArguments,
    measure=measure_learner,
    title="learner of {options.actors} actors",
    notes={
        "updates_per_s_alone": "targets and gradient of one batch, nothing else runs",
        "gradients_per_s_alone": "likewise, with targets from before",
        "updates_per_s": "while actors feed the replay",
        "updates_per_s_unfed": "the same learner afterward, when the actors send nothing",
        "ratio": "updates/s over targets and gradient alone",
        "ratio_to_unfed": "updates/s over those without feeding",
        "ratio_to_gradients": "updates/s over gradients alone",
        "learner_split": "shares of the learner's time",
        "cpu_cores": "cores that each rank kept busy",
    },
)
