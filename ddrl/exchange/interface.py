"""The parts of an exchange: a `Server` where parameters are, a `Coordinator` at the chief, a worker's `WorkerClient`.

All of them are state machines: messages in, messages out; no process, clock or MPI. `ddrl.exchange.kind.Exchange` makes
the first two, and `Setup` is what they are told of the job.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ddrl.exchange.client import WorkerClient
from ddrl.exchange.messages import Flag, Header, Kind, Message, Payload
from ddrl.exchange.optimizers import Optimizer, UpdateRule, make_optimizer
from ddrl.exchange.parameter_groups import ParameterGroup, cut
from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.statistics import Statistics
from ddrl.exchange.transport import Channel


@dataclasses.dataclass(frozen=True)
class Setup:
    """What the parts of an exchange are told of the job, as one process sees it.

    Attributes:
        config: settings of the exchange.
        optimizer: settings of the update rule.
        learning_rate: version -> learning rate of the update that leads to the next one.
        run_dir: of the job.
        chief: process of the chief.
        workers: process of each worker, by worker id.
        servers: process of each server; where every worker's process hosts one, the one that this process turns to.
        readers: processes that fetch published versions.
        refreshes: acting takes newer parameters between two gradients.
        groups: ranges of the parameters whose learning rate has a factor.
        threads: that an update may have.
        statistics: at the end of the parameters, or None.
    """

    config: ExchangeConfig
    optimizer: OptimizerConfig
    learning_rate: Callable[[int], float]
    run_dir: Path
    chief: int
    workers: Mapping[int, int]
    servers: tuple[int, ...]
    readers: tuple[int, ...] = ()
    refreshes: bool = False
    groups: tuple[ParameterGroup, ...] = ()
    threads: int = 1
    statistics: Statistics | None = None

    @property
    def clips_gradients(self) -> float:
        """Norm that a worker clips each of its gradients to (0: off)."""
        return 0.0 if self.config.averages_gradients else self.optimizer.clip_global_norm

    @property
    def clips_averages(self) -> float:
        """Norm that an average of gradients is clipped to (0: off)."""
        return self.optimizer.clip_global_norm if self.config.averages_gradients else 0.0

    def make_optimizer(self, start: int, stop: int) -> Optimizer:
        """The optimizer of the slice [start, stop) of the parameters.

        Raises:
            UsageError: it has a part of the statistics.
        """
        statistics = self.statistics and self.statistics.within(start, stop)
        return make_optimizer(self.optimizer, stop - start, cut(self.groups, start, stop), self.threads, statistics)

    def client(self, worker: int, size: int) -> WorkerClient:
        """A worker's part, for `size` parameters."""
        ranges = shard_ranges(size, len(self.servers))
        clip_norm, asynchronous = self.clips_gradients, self.config.asynchronous
        return WorkerClient(worker, self.servers, ranges, asynchronous, clip_norm, self.statistics)


class Due(NamedTuple):
    """What a server waits for.

    Attributes:
        what: such as 'gradients of step 12'.
        peers: processes that it is to come from.
        may_compile: the first gradient of a worker may be among it, which takes its time.
    """

    what: str
    peers: tuple[int, ...]
    may_compile: bool = False


class Server(ABC):
    """Takes gradients, and gives the parameters of the next step: all of them, or a slice.

    Attributes:
        role: what its metrics are filed under.
        activities: the kinds of messages that it takes, and what the time for them is counted as.
        step: the one that is under way.
        version: updates behind its parameters.
        loaded: whether it has parameters.
        stopped: whether the last update was made.
    """

    role: ClassVar[str]
    activities: ClassVar[Mapping[Kind, str]]
    step = 0
    version = 0
    loaded = False
    stopped = False

    @abstractmethod
    def channels(self, readers: Sequence[int]) -> list[Channel]:
        """The receives to keep posted; `readers` fetch published versions."""

    @abstractmethod
    def handle(self, peer: int, header: Header, payload: Payload) -> list[Message]:
        """Takes one message and returns the messages that answer it.

        A gradient's payload stays referenced until its step is over.

        Args:
            peer: the process that sent it.
            header: of the message.
            payload: <float32>[...], or None.
        """

    def worker_lost(self, worker: int) -> list[Message]:
        """A worker is dead; returns what the others are told."""
        return []

    def advance(self, now: float) -> list[Message]:
        """What it does by itself at the time `now`, in seconds, and says then."""
        return []

    def due(self) -> bool:
        """Whether others wait for its answer to what may come next."""
        return False

    def waits(self) -> Due | None:
        """What is due to it while training goes on, or None."""
        return None

    def counts(self) -> dict[str, int]:
        """Name of a metric -> how often it happened so far."""
        return {}

    def gauges(self) -> dict[str, float]:
        """Name of a metric -> its value now."""
        return {}

    def close(self) -> None:
        """Frees what it has of the host."""
        return


@dataclasses.dataclass(frozen=True)
class Closed:
    """What became of a step.

    Attributes:
        step: the slot that was closed.
        version: updates applied so far, this one included.
        members: worker ids whose gradients were averaged.
        samples: data-points behind them.
        refused: worker ids whose gradient was not finite, or all members where their average alone was not; not empty
            means that the step was skipped.
        norm: norm of the averaged gradient before clipping (NaN where it was not computed).
        flags: of the COMMIT.
        staleness: versions that the gradient was behind (NaN where steps are synchronous).
    """

    step: int
    version: int
    members: tuple[int, ...]
    samples: int
    refused: tuple[int, ...]
    norm: float
    flags: Flag
    staleness: float = float("nan")


class Coordinator(ABC):
    """The chief's part: it says when a step is over, and has servers publish, save and stop.

    Args:
        servers: processes that report to it, and take its orders.
        workers: ids of the workers that train.
        learning_rate: version -> learning rate of the update that leads to the next one.
        holders: processes that hold the parameters, a slice each in this order; by default the servers.
        step: the first one of this part of the run.
        version: updates before it.

    Attributes:
        live: ids of the workers that train still.
        refused_steps: steps skipped for a gradient that was not finite.
        stopped: whether the last step is closed.
    """

    asynchronous: ClassVar[bool] = False
    """Updates have no boundary that all processes share."""

    def __init__(
        self,
        servers: Sequence[int],
        workers: Iterable[int],
        learning_rate: Callable[[int], float],
        *,
        holders: Sequence[int] | None = None,
        step: int = 0,
        version: int = 0,
    ):
        self.servers, self.live, self.learning_rate = tuple(servers), set(workers), learning_rate
        self.holders = self.servers if holders is None else tuple(holders)
        self.step, self.version = step, version
        self.refused_steps = 0
        self.stopped = False
        self._flags = Flag.NONE

    def channels(self, size: int, slots: int) -> list[Channel]:
        """The receives to keep posted, for a vector of `size` values and so many optimizer slots."""
        ranges = zip(self.holders, shard_ranges(size, len(self.holders)), strict=True)
        reports = [Channel(process, Kind.READY) for process in self.servers]
        return reports + [Channel(process, Kind.SNAPSHOT, (1 + slots) * (b - a)) for process, (a, b) in ranges]

    def begin(self, parameters: np.ndarray, slots: Sequence[np.ndarray], count: int) -> list[Message]:
        """The first messages: the state to start from.

        Args:
            parameters: <float32>[size].
            slots: of the optimizer, each <float32>[size].
            count: updates that the optimizer has made.
        """
        rate = self.learning_rate(self.version)
        header = Header(Kind.LOAD, step=self.step, version=self.version, count=count, value=rate)
        ranges = zip(self.holders, shard_ranges(parameters.size, len(self.holders)), strict=True)
        rows = (parameters, *slots)
        return [Message(process, header, np.concatenate([row[a:b] for row in rows])) for process, (a, b) in ranges]

    @property
    @abstractmethod
    def next_version(self) -> int:
        """The version that flags requested now go with."""

    @property
    def takes_requests(self) -> bool:
        """Whether flags that are asked for now go with the update that is under way."""
        return True

    @property
    def wants_command(self) -> bool:
        """Whether `command` is to be called now."""
        return False

    def missing(self) -> list[int]:
        """Processes that have not reported for the current step."""
        return []

    def request(self, flags: Flag) -> None:
        """Adds flags (PUBLISH, CHECKPOINT, STOP) to those that go with the step under way.

        With WITH_UPDATE they wait for a step that is not refused, until a STOP is asked for without it.
        """
        if flags & Flag.STOP and not flags & Flag.WITH_UPDATE:
            self._flags &= ~Flag.WITH_UPDATE
        self._flags |= flags

    def worker_lost(self, worker: int) -> list[Message]:
        """Takes a dead worker out of those that train."""
        self.live.discard(worker)
        return []

    @abstractmethod
    def handle(self, header: Header, now: float) -> list[Closed]:
        """Takes a report at the time `now`, in seconds; returns what it closed."""

    def poll(self, now: float) -> tuple[list[Message], Closed | None]:
        """Closes or opens the step if its rule allows it; returns what is to be sent for that."""
        return [], None

    @abstractmethod
    def command(self) -> tuple[list[Message], Closed | None]:
        """Has the requested flags carried out now, between two updates."""


def everything(parameters: np.ndarray, optimizer: UpdateRule) -> np.ndarray:
    """What a SNAPSHOT and a LOAD carry: <float32>[(1 + slots) * size], parameters first."""
    return np.concatenate([parameters, *optimizer.slots.values()])


def load(payload: np.ndarray, header: Header, optimizer: UpdateRule) -> np.ndarray:
    """Takes a LOAD: sets the optimizer's state, and returns the parameters in an array of their own.

    Args:
        payload: <float32>[(1 + slots) * size], as `everything` makes it.
        header: whose `count` is the optimizer's.
        optimizer: with slots of that size.
    """
    parts = payload.reshape(1 + len(optimizer.slots), -1)
    for slot, values in zip(optimizer.slots.values(), parts[1:], strict=True):
        slot[:] = values
    optimizer.count = header.count
    return parts[0].copy()
