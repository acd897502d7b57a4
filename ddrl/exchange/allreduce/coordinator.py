"""The chief's part of an all-reduce: it opens steps, and hears from its own replica what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.parameter_server.coordinator import Closed
from ddrl.exchange.sharding import from_bitmap


class LockstepCoordinator:
    """Has the interface of `Coordinator`. All live workers are in every step, so there are no members to pick.

    The chief's replica keeps its gradient back until the step is opened; what was asked for by then happens with that
    step's update, on all replicas.

    Args:
        replica: process of the chief's replica, which is its own.
        workers: ids of the workers that train.
        learning_rate: version -> learning rate of the update that leads to the next one.
    """

    asynchronous = False

    def __init__(
        self,
        replica: int,
        workers: Iterable[int],
        learning_rate: Callable[[int], float],
        *,
        step: int = 0,
        version: int = 0,
    ):
        self.shards, self.live, self.learning_rate = (replica,), set(workers), learning_rate
        self.step, self.version = step, version
        self.refused_steps = 0
        self.stopped = False
        self._flags = self._sent = Flag.NONE
        self._opened = step - 1

    @property
    def takes_requests(self) -> bool:
        """Whether flags that are asked for now go with the update that is under way."""
        return self._opened < self.step

    @property
    def has_requests(self) -> bool:
        """Whether flags wait for the next step."""
        return bool(self._flags)

    def missing(self) -> list[int]:
        """Nobody: the replica says itself whom it waits for."""
        return []

    def publish(self) -> None:
        """Has the next version published."""
        self.request(Flag.PUBLISH)

    def request(self, flags: Flag) -> None:
        """Adds flags (PUBLISH, CHECKPOINT, STOP) to the next step that is opened."""
        self._flags |= flags

    def worker_lost(self, worker: int) -> list[Message]:
        """Takes a dead worker out of those that train; its replica is the replicas' affair."""
        self.live.discard(worker)
        return []

    def expect(self) -> list[Message]:
        """Nothing to tell before the first step."""
        return []

    def handle(self, header: Header, now: float) -> list[Closed]:
        """Takes a HAVE: the replicas have completed a step, or carried a command out."""
        refused = from_bitmap(header.refused)
        members = from_bitmap(header.members)
        if not header.flags & Flag.COMMAND:
            self.step, self.version = header.step + 1, header.version
            self.refused_steps += bool(refused)
        self.stopped = self.stopped or bool(header.flags & Flag.STOP)
        return [Closed(header.step, header.version, members, header.count, refused, header.value, header.flags)]

    def poll(self, now: float) -> tuple[list[Message], Closed | None]:
        """Opens the step with what was asked for, once."""
        if self.stopped or not self.takes_requests:
            return [], None
        self._opened = self.step
        self._sent, self._flags = self._flags, Flag.NONE
        return [Message(*self.shards, Header(Kind.COMMIT, step=self.step, flags=self._sent))], None

    def rate_is_old(self) -> bool:
        """Never: every replica computes the rate of a version by itself."""
        return False

    def close_empty(self) -> tuple[list[Message], Closed | None]:
        """Has the requested flags carried out between two steps; a HAVE says when that is done."""
        flags = self._flags | self._sent
        self._flags = self._sent = Flag.NONE
        if not flags or self.stopped:
            return [], None
        return [Message(*self.shards, Header(Kind.COMMIT, step=self.step, flags=flags | Flag.COMMAND))], None
