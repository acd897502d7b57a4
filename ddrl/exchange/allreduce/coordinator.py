"""The chief's part of an all-reduce: it opens steps, and hears from its own replica what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddrl.exchange.interface import Closed, Coordinator
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.sharding import from_bitmap


class LockstepCoordinator(Coordinator):
    """All live workers are in every step, so there are no members to pick.

    The chief's replica keeps its gradient back until the step is opened; what was asked for by then happens with that
    step's update, on all replicas.

    Args:
        replica: process of the chief's replica, which is its own.
        workers: ids of the workers that train.
        learning_rate: version -> learning rate of the update that leads to the next one.
        step: the first one.
        version: updates before it.
        updates_per_step: versions from one step to the next.
    """

    def __init__(
        self,
        replica: int,
        workers: Iterable[int],
        learning_rate: Callable[[int], float],
        *,
        step: int = 0,
        version: int = 0,
        updates_per_step: int = 1,
    ):
        super().__init__((replica,), workers, learning_rate, step=step, version=version)
        self.updates_per_step = updates_per_step
        self._sent = Flag.NONE
        self._opened = step - 1

    @property
    def next_version(self) -> int:
        return self.version + self.updates_per_step

    @property
    def takes_requests(self) -> bool:
        return self._opened < self.step

    def handle(self, header: Header, now: float) -> list[Closed]:
        """Takes a READY: the replicas have completed a step, or carried a command out."""
        refused = from_bitmap(header.refused)
        members = from_bitmap(header.members)
        if not header.flags & Flag.COMMAND:
            self.step, self.version = header.step + 1, header.version
            self.refused_steps += bool(refused)
            sent, self._sent = self._sent, Flag.NONE
            if refused and sent & Flag.WITH_UPDATE:  # for the next step; with a STOP that waits no longer for any step
                self._flags |= sent & ~Flag.WITH_UPDATE if self._flags & Flag.STOP else sent
        self.stopped = self.stopped or bool(header.flags & Flag.STOP)
        return [Closed(header.step, header.version, members, header.count, refused, header.value, header.flags)]

    def poll(self, now: float) -> tuple[list[Message], Closed | None]:
        """Opens the step with what was asked for, once."""
        if self.stopped or not self.takes_requests:
            return [], None
        self._opened = self.step
        self._sent, self._flags = self._flags, Flag.NONE
        return [Message(self.servers[0], Header(Kind.COMMIT, step=self.step, flags=self._sent))], None

    def command(self) -> tuple[list[Message], Closed | None]:
        """Has the requested flags carried out between two steps; a READY says when that is done."""
        flags = (self._flags | self._sent) & ~Flag.WITH_UPDATE
        self._flags = self._sent = Flag.NONE
        if not flags or self.stopped:
            return [], None
        return [Message(self.servers[0], Header(Kind.COMMIT, step=self.step, flags=flags | Flag.COMMAND))], None
