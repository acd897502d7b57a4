"""The roles, threads and GPUs that the settings and the topology give to each rank."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

from cluster.roles import Assignment, Sizes, place
from cluster.topology import Seat
from ddrl.config import FromDataPoints, TrainConfig
from ddrl.errors import UsageError


class Threads(NamedTuple):
    """Threads of a rank that computes.

    Attributes:
        intra_op: of one TensorFlow operation.
        inter_op: TensorFlow operations at once.
        simulator: emulator threads per group.
    """

    intra_op: int
    inter_op: int
    simulator: int


def sizes_of(config: TrainConfig) -> Sizes:
    """How many ranks of each role the settings need.

    Raises:
        ValueError: they make no job.
    """
    exchange, apex = config.exchange, config.apex
    return Sizes(
        exchange.workers,
        exchange.servers,
        exchange.chief == "dedicated",
        config.evaluation.evaluator,
        apex.actors,
        apex.replay_shards if apex.actors else 0,
    )


def place_ranks(config: TrainConfig, seats: Sequence[Seat]) -> tuple[Assignment, ...]:
    """One Assignment per rank.

    Raises:
        UsageError: the job has another number of ranks than the settings need, or wishes contradict them.
    """
    exchange = config.exchange
    try:
        assignments = place(seats, sizes_of(config))
    except ValueError as error:
        raise UsageError(str(error)) from error
    hosts = sorted({assignment.host for assignment in assignments if assignment.role == "worker"})
    if exchange.kind.one_host and len(hosts) > 1:
        raise UsageError(
            f"--exchange {exchange.exchange} is memory that the workers share, and they are on {', '.join(hosts)}: "
            "start all of them on one host, or use --exchange parameter_server --updates asynchronous"
        )
    return assignments


def threads_for(config: TrainConfig, cores: int) -> Threads:
    """How a rank uses its cores.

    With one core everything has one thread, and a policy query waits for a gradient, which others wait for.
    With more, acting and learning go on at once and have half of the cores each; learning costs about as much
    as acting. The synchronized schedule keeps TensorFlow at one thread whatever the node, since its results are
    promised to the bit; there, emulators have all cores, because nothing else runs meanwhile. Learning from rollouts
    has all cores, in two operations at once: 256 samples of the Nature network take 26 ms on two cores, 42 on one, and
    29 as two halves in two threads.
    """
    sampling = config.sampling
    if not isinstance(config.algorithm.learns_from, FromDataPoints):
        return Threads(cores, min(cores, 2), _simulator_threads(config, cores))
    if sampling.schedule == "synchronized":
        return Threads(1, 1, _simulator_threads(config, cores))
    learning = max(1, cores // 2)
    return Threads(learning, 1 if cores == 1 else 2, _simulator_threads(config, cores - learning))


def _simulator_threads(config: TrainConfig, cores: int) -> int:
    sampling, groups = config.sampling, groups_of(config)
    return max(sampling.simulator_threads, min(cores // groups, sampling.simulators // groups))


def groups_of(config: TrainConfig) -> int:
    """Groups of simulators that a worker has: data-points of the synchronized schedule come from one of all."""
    one = isinstance(config.algorithm.learns_from, FromDataPoints) and config.sampling.schedule == "synchronized"
    return 1 if one else config.sampling.groups


def with_threads(config: TrainConfig, threads: Threads) -> TrainConfig:
    """The settings of one rank, with its emulator threads."""
    sampling = dataclasses.replace(config.sampling, simulator_threads=threads.simulator)
    return dataclasses.replace(config, sampling=sampling)


def expose_gpu(gpu: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Lets this process see one GPU, or none; call it before TensorFlow is imported."""
    environ["CUDA_VISIBLE_DEVICES"] = gpu or "-1"
