"""The commands whose ranks sleep: `ddrl bench exchange`, scaling, stragglers, actors and learner."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.bench.ranks import json_line, run_ranks
from ddrl.errors import UsageError
from ddrl.placement.resources import this_machine
from ddrl.programs import python_command

RANK = "ddrl.bench.emulated.rank"
TIMEOUT_SECONDS = 300.0
START_SECONDS = 5.0  # allowed for each rank to start, on few cores


def by_number(rates: Mapping[int, float], digits: int) -> dict[str, float]:
    """Rates by number of ranks, as JSON has them."""
    return {str(number): round(rate, digits) for number, rate in rates.items()}


def some_positive(arguments: Any, *names: str) -> None:
    """Fields must be lists of one or more numbers above 0."""
    for name in names:
        if not getattr(arguments, name) or min(getattr(arguments, name)) <= 0:
            checks.refuse(arguments, name, "give one or more numbers above 0")


# exchange -------------------------------------------------------------------------------------------------------------

BARE = {"": "bare_fresh", "_spinning": "bare_fresh_spinning", "_constant": "bare_constant"}
"""Suffix of what is told -> blocks of the bare loops."""


@dataclasses.dataclass(frozen=True)
class ExchangeArguments(BenchmarkArguments):
    """Time the synchronous exchange with workers that compute nothing; Adam on the servers is included."""

    workers: int = 4
    """Workers; worker 0 is the chief too."""
    parameter_servers: int = 2
    """Parameter servers."""
    parameters: int = 332_295
    """Float32 parameters (332,295: the BA3C paper's network; 1,693,362: the Nature network at 18 actions)."""
    steps: int = 50
    """Synchronous steps in a block."""
    rounds: int = 12
    """Rounds; each has one block of ours and of every bare loop, so that they are compared in pairs."""
    grpc: bool = True
    """Measure TensorFlow's gRPC accumulators too. Its servers listen on every interface while it lasts."""
    grpc_steps: int = 60
    """Steps of TensorFlow's gRPC path."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "workers", "parameter_servers", "steps", "rounds", "grpc_steps")
        if self.parameters < self.parameter_servers:
            why = f"fewer than the {self.parameter_servers} servers; give each one at least one"
            checks.refuse(self, "parameters", why)


def measure_exchange(arguments: ExchangeArguments) -> dict[str, Any]:
    """All blocks of all rounds, as medians in milliseconds and medians of ratios within a round."""
    ranks = arguments.workers + arguments.parameter_servers
    options = {"kind": "exchange", "servers": arguments.parameter_servers, **arguments.settings()}
    blocks = run_ranks(ranks, RANK, options, TIMEOUT_SECONDS)
    medians = {name: 1000 * statistics.median(block) for name, block in blocks.items()}
    values = {"ms_per_step": medians["ours"], "allreduce_ms": medians["allreduce"]}
    values |= {f"bare_mpi{suffix}_ms": medians[name] for suffix, name in BARE.items()}
    for suffix, name in BARE.items():
        ratios = [ours / bare for ours, bare in zip(blocks["ours"], blocks[name], strict=True)]
        values[f"ratio_to_bare_mpi{suffix}"] = statistics.median(ratios)
    if arguments.grpc:
        values["tensorflow_grpc_ms"] = _grpc(arguments)
        values["ratio_to_tensorflow_grpc"] = values["tensorflow_grpc_ms"] / values["ms_per_step"]
    return values | arguments.settings("grpc", "grpc_steps")


def _grpc(arguments: ExchangeArguments) -> float:
    options = {
        "workers": arguments.workers, "servers": arguments.parameter_servers, "parameters": arguments.parameters,
        "steps": arguments.grpc_steps,
    }  # fmt: skip
    command = [*python_command("ddrl.bench.emulated.tensorflow_grpc"), json.dumps(options)]
    return json_line(command, dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3"}, TIMEOUT_SECONDS)["ms_per_step"]


exchange = Benchmark(
    name="exchange",
    arguments=ExchangeArguments,
    measure=measure_exchange,
    title=lambda arguments: (
        f"one synchronous step: {arguments.workers} workers, {arguments.parameter_servers} servers, "
        f"{arguments.parameters:,} parameters"
    ),
    notes={
        "ms_per_step": "ours: gradients in, quorum, average, Adam, parameters out",
        "allreduce_ms": "the workers among themselves, without servers: average, Adam on each of them",
        "bare_mpi_ms": "as many bytes, written anew each step, our waiter, nothing computed",
        "bare_mpi_spinning_ms": "the same with blocking MPI calls, which spin",
        "bare_mpi_constant_ms": "the same bytes again and again, so that they stay in the cache",
        "tensorflow_grpc_ms": "TensorFlow's runtime: conditional accumulators and token queues",
        **{f"ratio_to_bare_mpi{suffix}": "median of the pairs' ratios" for suffix in BARE},
    },
)


# scaling and stragglers: blocks of steps with sleeping workers --------------------------------------------------------

FEWEST_STEPS = 5


def _blocks(arguments: Any, workers: int, timeout_seconds: float, **options: Any) -> list[dict[str, Any]]:
    """What the blocks came to, each so many (seconds of a gradient, steps)."""
    defaults = {"quorum": 0, "deadline_seconds": 0.0, "spread": 0.0, "slow_workers": 0, "slow_factor": 1.0}
    servers = arguments.parameter_servers
    job = {"kind": "blocks", "workers": workers, "servers": servers, "parameters": arguments.parameters}
    return run_ranks(workers + servers, RANK, defaults | job | options, timeout_seconds)


@dataclasses.dataclass(frozen=True)
class ScalingArguments(BenchmarkArguments):
    """Weak scaling of the exchange: every worker's gradient takes as long as before, and there are more of them.

    Workers sleep for the time of a gradient, so that many fit on a small machine. What is printed is updates/s,
    and its ratio to that of the first number of workers.
    """

    workers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Numbers of workers; the others are compared with the first."""
    parameter_servers: int = 4
    """Parameter servers."""
    parameters: int = 332_295
    """Float32 parameters."""
    step_ms: tuple[float, ...] = (500.0, 200.0, 100.0, 50.0, 20.0)
    """Milliseconds that a gradient takes."""
    seconds: float = 6.0
    """Time for each number, at the rate that the gradients alone would allow."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "parameter_servers")
        checks.above(self, 0.0, "seconds")
        some_positive(self, "workers", "step_ms")


def measure_scaling(arguments: ScalingArguments) -> dict[str, Any]:
    """For each time of a gradient: updates/s and efficiency, by number of workers."""
    rates = {workers: _updates_per_s(arguments, workers) for workers in arguments.workers}
    values: dict[str, Any] = {}
    for index, step_ms in enumerate(arguments.step_ms):
        by_workers = {workers: rates[workers][index] for workers in arguments.workers}
        first = by_workers[arguments.workers[0]]
        values[f"updates_per_s_at_{step_ms:g}_ms"] = by_number(by_workers, 3)
        values[f"efficiency_at_{step_ms:g}_ms"] = by_number({n: rate / first for n, rate in by_workers.items()}, 3)
    return values | arguments.settings("workers", "step_ms", "seconds")


def _updates_per_s(arguments: ScalingArguments, workers: int) -> list[float]:
    """For each time of a gradient."""
    blocks = [
        (step_ms / 1000, max(FEWEST_STEPS, round(1000 * arguments.seconds / step_ms))) for step_ms in arguments.step_ms
    ]
    limit = (
        60.0 + 3.0 * (workers + arguments.parameter_servers) + 20.0 * sum(seconds * steps for seconds, steps in blocks)
    )
    return [block["steps"] / block["seconds"] for block in _blocks(arguments, workers, limit, blocks=blocks)]


scaling = Benchmark(
    name="scaling",
    arguments=ScalingArguments,
    measure=measure_scaling,
    title=lambda arguments: (
        f"updates/s, {arguments.parameter_servers} servers, {arguments.parameters:,} parameters; efficiency relative "
        f"to {arguments.workers[0]}"
    ),
)


@dataclasses.dataclass(frozen=True)
class StragglerArguments(BenchmarkArguments):
    """Compare what closes a synchronous step when workers are not equally fast. Workers sleep instead of computing.

    For each policy: updates/s, gradients/s that were averaged (what the learner gets out of the workers), and the
    share of all computed gradients that came too late and were dropped.
    """

    workers: int = 8
    """Workers."""
    parameter_servers: int = 2
    """Parameter servers."""
    parameters: int = 332_295
    """Float32 parameters."""
    step_ms: float = 100.0
    """Milliseconds that a gradient takes, in the median."""
    spread: float = 0.1
    """Standard deviation of the logarithm of that time, on every worker."""
    slow_workers: int = 1
    """Workers that are slower than the others all the time."""
    slow_factor: float = 3.0
    """How much slower."""
    steps: int = 60
    """Steps for each policy."""

    def __post_init__(self) -> None:
        checks.at_least(self, 2, "workers")
        checks.at_least(self, 1, "parameter_servers", "steps")
        checks.at_least(self, 0, "spread", "slow_workers")
        checks.above(self, 0.0, "step_ms", "slow_factor")
        if self.slow_workers >= self.workers:
            checks.refuse(self, "slow_workers", f"at most {self.workers - 1} of the {self.workers} workers")

    def policies(self) -> dict[str, tuple[int, float]]:
        """Name -> (quorum, deadline in seconds): all, all but the slow ones, three quarters, and a deadline."""
        workers, deadline_ms = self.workers, self.step_ms / 2
        fast, most = max(1, workers - max(1, self.slow_workers)), max(1, round(0.75 * workers))
        return {
            "wait for all": (0, 0.0),
            f"quorum {fast}": (fast, 0.0),
            f"quorum {most}": (most, 0.0),
            f"deadline {deadline_ms:g} ms after the first": (0, deadline_ms / 1000),
        }


def measure_stragglers(arguments: StragglerArguments) -> dict[str, Any]:
    """Policy -> updates/s, gradients/s, share dropped."""
    values = {}
    for name, (quorum, deadline_seconds) in arguments.policies().items():
        (block,) = _blocks(
            arguments,
            arguments.workers,
            TIMEOUT_SECONDS,
            blocks=[(arguments.step_ms / 1000, arguments.steps)],
            quorum=quorum,
            deadline_seconds=deadline_seconds,
            **{name: getattr(arguments, name) for name in ("spread", "slow_workers", "slow_factor")},
        )
        values[name] = {
            "updates_per_s": round(block["steps"] / block["seconds"], 3),
            "gradients_per_s": round(block["averaged"] / block["seconds"], 2),
            "share_dropped": round(1.0 - block["averaged"] / block["computed"], 3),
        }
    return values


stragglers = Benchmark(
    name="stragglers",
    arguments=StragglerArguments,
    measure=measure_stragglers,
    title=lambda arguments: (
        f"{arguments.workers} workers, {arguments.slow_workers} of them {arguments.slow_factor:g} times slower, "
        f"gradient {arguments.step_ms:g} ms"
    ),
)


# actors and learner: an Ape-X whose actors sleep ----------------------------------------------------------------------


def _apex_job(arguments: Any, config: Mapping[str, Any], seconds: float, **options: Any) -> dict[str, Any]:
    """What rank 0 of an Ape-X with emulated actors measured.

    Args:
        config: of `config_of`.
        seconds: that the job may take once its ranks have started.

    Raises:
        UsageError: settings that cannot be, no MPI here, too little memory, or a shard refused what was sent.
    """
    from ddrl.bench.emulated.actors import config_of, write_segments

    config_of(**config)  # refuses here what cannot be
    ranks = 1 + config["actors"] + config["shards"]
    with tempfile.TemporaryDirectory(prefix="ddrl-") as directory:
        segments = Path(directory, "segments")
        write_segments(segments)
        paths = {"kind": "apex", "config": config, "run_dir": directory, "segments": str(segments)}
        options |= {"step_ms": arguments.step_ms}
        measured = run_ranks(ranks, RANK, paths | options, seconds + START_SECONDS * ranks)
    if "failed" in measured:
        raise UsageError(f"with {config['actors']} actors: {measured['failed']}")
    return measured


@dataclasses.dataclass(frozen=True)
class ActorsArguments(BenchmarkArguments):
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

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "simulators", "replay_shards", "batch_size", "parameters")
        checks.above(self, 0.0, "step_ms", "batches_per_s")
        checks.at_least(self, 0.0, "warm_up")
        checks.at_least(self, 3.0, "seconds", why="rates are reported once a second")
        some_positive(self, "actors")


def measure_actors(arguments: ActorsArguments) -> dict[str, Any]:
    """Each rate by number of actors.

    Raises:
        UsageError: no MPI here, too little memory, or a shard refused what was sent.
    """
    measured = {number: _actor_rates(arguments, number) for number in arguments.actors}
    shares = ("shard_busy", "shard_cores", "waiting")
    names: Sequence[str] = list(measured[arguments.actors[0]])
    values: dict[str, Any] = {
        name: by_number({n: rates[name] for n, rates in measured.items()}, 4 if name in shares else 1) for name in names
    }
    inserts = {number: rates["inserts_per_s"] for number, rates in measured.items()}
    each, asleep = inserts[arguments.actors[0]] / arguments.actors[0], 1000.0 * arguments.simulators / arguments.step_ms
    values["linear"] = by_number({number: each * number for number in inserts}, 1)
    values["ratio"] = by_number({number: rate / (each * number) for number, rate in inserts.items()}, 3)
    values["asleep"] = by_number({number: asleep * number for number in inserts}, 1)
    return values | arguments.settings("actors")


def _actor_rates(arguments: ActorsArguments, actors: int) -> dict[str, float]:
    from ddrl.bench.emulated.actors import FORMAT

    config = {
        "actors": actors, "shards": arguments.replay_shards, "simulators": arguments.simulators,
        "batch_size": arguments.batch_size, "capacity": arguments.replay_capacity,
        "minimum": max(arguments.batch_size, FORMAT.length),
    }  # fmt: skip
    names = ("parameters", "batches_per_s", "warm_up", "seconds")
    learner = {name: getattr(arguments, name) for name in names}
    limit = 60.0 + 3 * (arguments.warm_up + arguments.seconds)
    return _apex_job(arguments, config, limit, emulated_learner=learner)


actors = Benchmark(
    name="actors",
    arguments=ActorsArguments,
    measure=measure_actors,
    title=lambda arguments: f"actors of {arguments.simulators} simulators, {arguments.step_ms:g} ms a step",
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


@dataclasses.dataclass(frozen=True)
class LearnerArguments(BenchmarkArguments):
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

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "actors", "simulators", "replay_shards", "replay_capacity", "replay_minimum")
        checks.above(self, 0.0, "step_ms", "alone")
        checks.at_least(self, 0, "cores", "warm_up", "unfed")
        checks.at_least(self, self.warm_up + 5.0, "seconds", why="--warm-up and 5")


def measure_learner(arguments: LearnerArguments) -> dict[str, Any]:
    """Rates and their ratios.

    Raises:
        UsageError: no MPI here, too little memory, or too little time.
    """
    config = {
        "actors": arguments.actors, "shards": arguments.replay_shards, "simulators": arguments.simulators,
        "capacity": arguments.replay_capacity, "minimum": arguments.replay_minimum, "preset": arguments.preset,
        "seconds": arguments.seconds + arguments.unfed,
    }  # fmt: skip
    cores = arguments.cores or max(1, this_machine().cores - 1)
    measured = _apex_job(
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
    title=lambda arguments: f"learner of {arguments.actors} actors",
    notes={
        "updates_per_s_alone": "targets and gradient of one batch, nothing else runs",
        "gradients_per_s_alone": "likewise, with targets from before",
        "updates_per_s": "while actors feed the replay",
        "updates_per_s_unfed": "the same learner afterwards, when the actors send nothing",
        "ratio": "updates/s over targets and gradient alone",
        "ratio_to_unfed": "updates/s over those without feeding",
        "ratio_to_gradients": "updates/s over gradients alone",
        "learner_split": "shares of the learner's time",
        "cpu_cores": "cores that each rank kept busy",
    },
)
