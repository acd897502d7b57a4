"""Asynchronous updates, which are applied as gradients arrive, without a step that all servers close together.

This module has the chief's coordinator, and the functions with which a server refuses a gradient and reports to the
chief what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddrl.exchange.interface import Closed, Coordinator
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.sharding import from_bitmap, to_bitmap

OLD_RATE = 0.01  # relative change of the learning rate from which on the servers are sent the new one


class AsynchronousCoordinator(Coordinator):
    """Counts the updates that servers report. A request, such as for a checkpoint, is a command that closes no step."""

    asynchronous = True

    _sent_rate = float("nan")

    def begin(self, parameters: np.ndarray, slots: Sequence[np.ndarray], count: int) -> list[Message]:
        self._sent_rate = self.learning_rate(self.version)
        return super().begin(parameters, slots, count)

    @property
    def next_version(self) -> int:
        return self.version  # a request does not wait for the next update

    @property
    def wants_command(self) -> bool:
        rate = self.learning_rate(self.version)
        return bool(self._flags) or abs(rate - self._sent_rate) > OLD_RATE * abs(self._sent_rate)

    def handle(self, header: Header, now: float) -> list[Closed]:
        """Takes a READY, which reports an update that has already happened, or a gradient that was dropped."""
        self.step += 1
        self.version = max(self.version, header.version)
        self.refused_steps += bool(header.refused)
        skip = bool(header.flags & Flag.SKIP)
        return [
            Closed(
                header.step,
                self.version,
                members=() if skip else from_bitmap(header.members),
                samples=0 if skip else header.count,
                refused=from_bitmap(header.refused),
                norm=float("nan"),
                flags=header.flags,
                staleness=header.value,
            )
        ]

    def command(self) -> tuple[list[Message], Closed]:
        flags = self._take_flags() | Flag.COMMAND
        self._sent_rate = self.learning_rate(self.version)
        header = Header(Kind.COMMIT, step=self.step, version=self.version, flags=flags, value=self._sent_rate)
        closed = Closed(self.step, self.version, (), 0, (), float("nan"), flags)
        return [Message(process, header) for process in self.servers], closed


def refuses(gradient: Header, version: int, max_staleness: int) -> bool:
    """Whether to drop a gradient: it is not finite, or more than `max_staleness` versions older than `version`.

    With a `max_staleness` of 0 no gradient is too old.
    """
    too_old = 0 < max_staleness < version - gradient.version
    return too_old or not gradient.flags & Flag.FINITE


def report(gradient: Header, version: int, staleness: int, flags: Flag) -> Header:
    """The READY by which one server tells the chief what became of a gradient.

    Args:
        gradient: header of the gradient.
        version: version of the server's parameters, after the update if there was one.
        staleness: number of versions that the gradient was behind.
        flags: SKIP if the gradient was not applied.
    """
    refused = 0 if gradient.flags & Flag.FINITE else to_bitmap([gradient.sender])
    return Header(
        Kind.READY,
        step=gradient.step,
        version=version,
        count=gradient.count,
        value=float(staleness),
        members=to_bitmap([gradient.sender]),
        refused=refused,
        flags=flags,
    )
