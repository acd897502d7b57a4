"""The parts of an exchange: a `Server` that has parameters, the chief's `Coordinator`, and a worker's `WorkerClient`.

All of them are state machines: they take messages and return messages, and know no process, clock or MPI.
`ddrl.exchange.kind.Exchange` makes the first two, from a `Setup`, which says what they need to know of the job.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from ddrl.exchange.client import WorkerClient
from ddrl.exchange.messages import Flag, Header, Kind, Message, Payload
from ddrl.exchange.optimizers import Optimizer, UpdateRule, make_optimizer
from ddrl.exchange.parameter_groups import ParameterGroup, cut
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.statistics import Statistics
from ddrl.exchange.transport import Channel

if TYPE_CHECKING:
    from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig


@dataclasses.dataclass(frozen=True)
class Setup:
    """What the parts of an exchange need to know of the job, as one process sees it.

    Attributes:
        config: settings of the exchange.
        optimizer: settings of the update rule.
        learning_rate: version -> learning rate of the update that leads to the next version.
        run_dir: the job's run directory.
        chief: process of the chief.
        workers: process of each worker, by worker id.
        servers: process of each server, by shard index; if every worker's process hosts a server, only the process of
            the one that this process talks to.
        readers: processes that fetch published versions.
        refreshes: whether acting takes newer parameters between two gradients.
        groups: ranges of the parameters whose learning rate has a factor.
        threads: number of threads that an update may use.
        statistics: position of the running statistics at the end of the parameters; None if there are none.
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
        """The global norm to which a worker clips each of its gradients (0: off)."""
        return 0.0 if self.config.averages_gradients else self.optimizer.clip_global_norm

    @property
    def clips_averages(self) -> float:
        """The global norm to which an average of gradients is clipped (0: off)."""
        return self.optimizer.clip_global_norm if self.config.averages_gradients else 0.0

    def make_optimizer(self, start: int, stop: int) -> Optimizer:
        """The optimizer of the slice [start, stop) of the parameters.

        Raises:
            UsageError: the slice has only a part of the running statistics.
        """
        statistics = self.statistics and self.statistics.within(start, stop)
        return make_optimizer(self.optimizer, stop - start, cut(self.groups, start, stop), self.threads, statistics)

    def client(self, worker: int, size: int) -> WorkerClient:
        """The client of worker `worker`, for `size` parameters."""
        ranges = shard_ranges(size, len(self.servers))
        clip_norm, asynchronous = self.clips_gradients, self.config.asynchronous
        return WorkerClient(worker, self.servers, ranges, asynchronous, clip_norm, self.statistics)


class Due(NamedTuple):
    """What a server waits for.

    Attributes:
        what: a description, such as 'gradients of step 12'.
        peers: processes from which it has to come.
        may_compile: whether it may include a worker's first gradient, which takes longer, since it is compiled first.
    """

    what: str
    peers: tuple[int, ...]
    may_compile: bool = False


class Server(ABC):
    """Takes gradients and returns the parameters of the next step, or a slice of them.

    Attributes:
        role: name under which its metrics are filed.
        activities: kind of each message that it takes -> activity under which the time for it is counted.
        step: the step that is under way.
        version: number of updates behind its parameters.
        loaded: whether it has its parameters, which come with the LOAD.
        stopped: whether training is over, so that no update follows.
    """

    role: ClassVar[str]
    activities: ClassVar[Mapping[Kind, str]]
    step = 0
    version = 0
    loaded = False
    stopped = False

    @abstractmethod
    def channels(self, readers: Sequence[int]) -> list[Channel]:
        """The channels on which the server receives; `readers` are the processes that fetch published versions."""

    @abstractmethod
    def handle(self, peer: int, header: Header, payload: Payload) -> list[Message]:
        """Takes one message and returns the messages that answer it.

        A gradient's payload stays referenced until its step is over.

        Args:
            peer: the process that sent it.
            header: header of the message.
            payload: <float32>[...], or None.
        """

    def worker_lost(self, worker: int) -> list[Message]:
        """Takes note that a worker is dead; returns messages to the other processes."""
        return []

    def advance(self, now: float) -> list[Message]:
        """Does work that no message asks for, at the time `now` in seconds; returns the messages that this gives."""
        return []

    def due(self) -> bool:
        """Whether its role must poll often, because a message may come at any moment that others want answered."""
        return False

    def waits(self) -> Due | None:
        """What the server waits for while training goes on; None if it waits for nothing."""
        return None

    def counts(self) -> dict[str, int]:
        """Counters for the metrics: name -> total so far."""
        return {}

    def close(self) -> None:
        """Frees resources of the host, such as shared memory."""
        return


@dataclasses.dataclass(frozen=True)
class Closed:
    """What became of a step.

    Attributes:
        step: the step that was closed.
        version: number of updates applied so far, this one included.
        members: ids of the workers whose gradients were averaged.
        samples: number of data-points in these gradients.
        refused: ids of the workers whose gradients were not finite, or of all members if only their average was not; if
            there are any, the step was skipped.
        norm: norm of the averaged gradient before clipping (NaN if it was not computed).
        flags: flags of the COMMIT.
        staleness: number of versions that the gradient was behind (NaN for synchronous steps).
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
    """The chief's part: it says when a step is over, and tells servers when to publish, save and stop.

    Args:
        servers: processes that report to the coordinator and take its orders.
        workers: ids of the workers that train.
        learning_rate: version -> learning rate of the update that leads to the next version.
        holders: processes that hold the parameters, one slice each, in this order; by default the servers.
        step: the first step of this part of the run.
        version: number of updates before that step.

    Attributes:
        live: ids of the workers that still train.
        refused_steps: number of steps that were skipped because a gradient was not finite.
        stopped: whether training is over, so that no step follows.
    """

    asynchronous: ClassVar[bool] = False
    """Whether each gradient is applied when it arrives, so that updates have no boundary that all processes share."""

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
        """The channels on which the chief receives, for a vector of `size` values and `slots` optimizer slots."""
        ranges = zip(self.holders, shard_ranges(size, len(self.holders)), strict=True)
        reports = [Channel(process, Kind.READY) for process in self.servers]
        return reports + [Channel(process, Kind.SNAPSHOT, (1 + slots) * (b - a)) for process, (a, b) in ranges]

    def begin(self, parameters: np.ndarray, slots: Sequence[np.ndarray], count: int) -> list[Message]:
        """Returns the first messages, which carry the state to start from.

        Args:
            parameters: <float32>[size].
            slots: the optimizer's slots, each <float32>[size].
            count: number of updates that the optimizer has made.
        """
        rate = self.learning_rate(self.version)
        header = Header(Kind.LOAD, step=self.step, version=self.version, count=count, value=rate)
        ranges = zip(self.holders, shard_ranges(parameters.size, len(self.holders)), strict=True)
        rows = (parameters, *slots)
        return [Message(process, header, np.concatenate([row[a:b] for row in rows])) for process, (a, b) in ranges]

    @property
    @abstractmethod
    def next_version(self) -> int:
        """The version with which flags that are requested now take effect."""

    @property
    def takes_requests(self) -> bool:
        """Whether flags that are requested now take effect with the update that is under way."""
        return True

    @property
    def wants_command(self) -> bool:
        """Whether the chief should call `command` now."""
        return False

    def missing(self) -> list[int]:
        """Processes that have not reported for the current step."""
        return []

    def request(self, flags: Flag) -> None:
        """Adds flags (PUBLISH, CHECKPOINT, STOP) to those that take effect with the step under way.

        With WITH_UPDATE, they wait for a step that is not refused, unless a STOP is requested without WITH_UPDATE.
        """
        if flags & Flag.STOP and not flags & Flag.WITH_UPDATE:
            self._flags &= ~Flag.WITH_UPDATE
        self._flags |= flags

    def _take_flags(self) -> Flag:
        """The requested flags, which are no longer requested then."""
        flags, self._flags = self._flags & ~Flag.WITH_UPDATE, Flag.NONE
        self.stopped = self.stopped or bool(flags & Flag.STOP)
        return flags

    def worker_lost(self, worker: int) -> list[Message]:
        """Removes a dead worker from those that train; returns messages to the servers."""
        self.live.discard(worker)
        return []

    @abstractmethod
    def handle(self, header: Header, now: float) -> list[Closed]:
        """Takes a server's report at the time `now` in seconds; returns the steps that it closed."""

    def poll(self, now: float) -> tuple[list[Message], Closed | None]:
        """Closes or opens the step if its rule allows it; returns the messages for that, and the step if it closed."""
        return [], None

    @abstractmethod
    def command(self) -> tuple[list[Message], Closed | None]:
        """Has the requested flags carried out now, between two updates."""


def everything(parameters: np.ndarray, optimizer: UpdateRule) -> np.ndarray:
    """The payload of a SNAPSHOT or a LOAD: the parameters and then the slots, <float32>[(1 + slots) * size]."""
    return np.concatenate([parameters, *optimizer.slots.values()])


def load(payload: np.ndarray, header: Header, optimizer: UpdateRule) -> np.ndarray:
    """Takes a LOAD: sets the optimizer's state, and returns a copy of the parameters.

    Args:
        payload: <float32>[(1 + slots) * size], as `everything` makes it.
        header: header of the LOAD; its `count` is the number of updates that the optimizer has made.
        optimizer: takes the slots and the count; its slots have `size` values.
    """
    parts = payload.reshape(1 + len(optimizer.slots), -1)
    for slot, values in zip(optimizer.slots.values(), parts[1:], strict=True):
        slot[:] = values
    optimizer.count = header.count
    return parts[0].copy()
