"""The roles, threads and GPUs that the settings and the topology give to each rank."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

from cluster.roles import Assignment, Sizes, place
from cluster.topology import Seat
from ddrl.config import FromDataPoints, TrainConfig
from ddrl.errors import UsageError


class Threads(NamedTuple):
    """The threads of a rank that computes.

    Attributes:
        intra_op: threads of one TensorFlow operation.
        inter_op: TensorFlow operations that run at once.
        simulator: emulator threads per group of simulators.
    """

    intra_op: int
    inter_op: int
    simulator: int


def sizes_of(config: TrainConfig) -> Sizes:
    """The number of ranks of each role that the settings need.

    Raises:
        ValueError: these numbers do not make a job.
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
    """The assignment of each rank.

    Args:
        config: settings of the run.
        seats: where each rank is, by rank.

    Raises:
        UsageError: the job has another number of ranks than the settings need, roles that ranks ask for (DDRL_ROLE)
            contradict the settings, or workers that share memory are on several hosts.
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
    """The threads with which a rank uses its cores.

    With one core, everything has one thread, and a policy query waits for a gradient, since other ranks wait for
    gradients. With more, acting and learning run at once and have half of the cores each, because learning costs about
    as much as acting. The synchronized schedule keeps TensorFlow at one thread on any node, since its results are
    promised bit for bit; its emulators have all cores, because nothing else runs meanwhile. Learning from rollouts has
    all cores, with two operations at once: a gradient of 256 samples of the Nature network takes 26 ms on two cores,
    42 ms on one, and 29 ms as two halves in two threads.
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
    """The number of groups of a worker's simulators; the synchronized schedule of data-points has them all in one."""
    one = isinstance(config.algorithm.learns_from, FromDataPoints) and config.sampling.schedule == "synchronized"
    return 1 if one else config.sampling.groups


def with_threads(config: TrainConfig, threads: Threads) -> TrainConfig:
    """The settings with the emulator threads of one rank."""
    return config.changed(sampling={"simulator_threads": threads.simulator})


def expose_gpu(gpu: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Lets this process see one GPU, or none; to be called before TensorFlow is imported."""
    environ["CUDA_VISIBLE_DEVICES"] = gpu or "-1"
