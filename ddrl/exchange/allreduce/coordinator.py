"""The chief's part of an all-reduce: it opens steps, and its own replica reports what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddrl.exchange.interface import Closed, Coordinator
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.sharding import from_bitmap


class LockstepCoordinator(Coordinator):
    """Coordinates steps of which all live workers are members, so that it has no members to choose.

    The chief's replica does not send its gradient before the coordinator opens the step. Flags that were requested by
    then take effect with that step's update, on all replicas.

    Args:
        replica: process of the chief's replica, which is the chief's own process.
        workers: ids of the workers that train.
        learning_rate: version -> learning rate of the update that leads to the next version.
        step: the first step.
        version: number of updates before that step.
        updates_per_step: number of versions from one step to the next.
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
        """Takes a READY, which says that the replicas have completed a step or carried out a command."""
        refused = from_bitmap(header.refused)
        members = from_bitmap(header.members)
        if not header.flags & Flag.COMMAND:
            self.step, self.version = header.step + 1, header.version
            self.refused_steps += bool(refused)
            sent, self._sent = self._sent, Flag.NONE
            if refused and sent & Flag.WITH_UPDATE:
                # The flags go with the next step. If a STOP has been requested meanwhile, they wait for no update.
                self._flags |= sent & ~Flag.WITH_UPDATE if self._flags & Flag.STOP else sent
        self.stopped = self.stopped or bool(header.flags & Flag.STOP)
        return [Closed(header.step, header.version, members, header.count, refused, header.value, header.flags)]

    def poll(self, now: float) -> tuple[list[Message], Closed | None]:
        """Opens the step, once, with the flags that were requested."""
        if self.stopped or not self.takes_requests:
            return [], None
        self._opened = self.step
        self._sent, self._flags = self._flags, Flag.NONE
        return [Message(self.servers[0], Header(Kind.COMMIT, step=self.step, flags=self._sent))], None

    def command(self) -> tuple[list[Message], Closed | None]:
        """Has the requested flags carried out between two steps; a READY reports when that is done."""
        flags = (self._flags | self._sent) & ~Flag.WITH_UPDATE
        self._flags = self._sent = Flag.NONE
        if not flags or self.stopped:
            return [], None
        return [Message(self.servers[0], Header(Kind.COMMIT, step=self.step, flags=flags | Flag.COMMAND))], None
