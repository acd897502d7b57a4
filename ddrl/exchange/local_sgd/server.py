"""A worker's server of local SGD, as a state machine: it takes local steps, and averages them by an all-reduce.

A round is some local steps and the average that follows. It is one step of a `Replica`, whose vector is the whole
state: the parameters, and after them each optimizer slot. As its gradient of that step, a worker hands in how far its
parameters have moved since the beginning of the round, as a multiple of the first step's size (`Trail`), and its slots
as they are. So the replicas handle deaths, refusals, checkpoints and the end: after a death, the survivors average what
they have; a gradient that is not finite ends its worker's round, and all replicas refuse that round and start again
from its beginning.

Worker and chief count steps, and the replicas count rounds; this module converts between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ddrl.exchange.allreduce.replica import Replica
from ddrl.exchange.interface import Due, Server
from ddrl.exchange.messages import Flag, Header, Kind, Message, Payload
from ddrl.exchange.optimizers import Optimizer, Trail
from ddrl.exchange.transport import Channel
from ddrl.exchange.vectors import empty_vector


class AverageOfRound:
    """The update rule of a round: it makes the next common state of the average of what the workers handed in.

    Args:
        optimizer: the optimizer of the local steps.
        steps: number of local steps in a round.
    """

    def __init__(self, optimizer: Optimizer, steps: int):
        self.optimizer, self.steps = optimizer, steps
        self.statistics = optimizer.statistics  # at the same position, since the parameters come first in the vector
        self.slots: dict[str, np.ndarray] = {}  # none, since the optimizer's slots are in the vector itself
        self.count = 0

    def apply(
        self,
        parameters: np.ndarray,
        gradient: Sequence[np.ndarray],
        learning_rate: float,
        scale: float,
        out: np.ndarray,
    ) -> None:
        """Applies the average trail as one step with the size of the round's first; takes the average slots."""
        (average,) = gradient
        size, self.optimizer.count = self.optimizer.size, self.count
        step_size = self.optimizer.step_size(learning_rate)
        self.optimizer.move(parameters[:size], average[:size], step_size, out=out[:size])
        out[size:] = average[size:]
        self.count += self.steps


class LocalSgdServer(Server):
    """The server of one worker in local SGD; see the module.

    Args:
        worker: id of the worker in whose process this server is.
        processes: process of each worker, by worker id.
        chief: the chief's process, which is that of worker 0.
        optimizer: the optimizer of the local steps, for all parameters.
        learning_rate: version -> learning rate of the local step that leads to the next version.
        steps: number of local steps in a round.

    Attributes:
        parameters: <float32>[size], which within a round are this worker's own.
        dropped: number of gradients that were not for the step under way, or came after the last round.
    """

    role = "replica"
    activities = Replica.activities

    def __init__(
        self,
        worker: int,
        processes: Mapping[int, int],
        chief: int,
        optimizer: Optimizer,
        learning_rate: Callable[[int], float],
        steps: int,
    ):
        self.worker, self.process = worker, processes[worker]
        self.optimizer, self.learning_rate, self.steps = optimizer, learning_rate, steps
        self.size, self.dropped = optimizer.size, 0
        self.parameters = np.zeros(self.size, np.float32)
        rows = 1 + len(optimizer.slots)
        rule, rate = AverageOfRound(optimizer, steps), lambda version: learning_rate(self._version_of(version))
        self.replica = Replica(worker, processes, chief, rows * self.size, rule, rate)
        self._first_step = self._first_version = 0  # where this part of the run began
        self._taken = self._samples = 0  # local steps of this round so far, and data-points in its gradients
        self._trail = Trail(self.size)

    def channels(self, readers: Sequence[int]) -> list[Channel]:
        return self.replica.channels(readers)

    def handle(self, peer: int, header: Header, payload: Payload) -> list[Message]:
        if header.kind == Kind.GRADIENT:
            return self._on_gradient(header, payload)
        if header.kind == Kind.LOAD:
            self._first_step, self._first_version = header.step, header.version
        elif header.kind == Kind.COMMIT:
            header = header._replace(step=self._first_step + (header.step - self._first_step) // self.steps)
        elif header.kind == Kind.FETCH:
            header = header._replace(version=self._first_version - (self._first_version - header.version) // self.steps)
        return self._told(self.replica.handle(peer, header, payload))

    def worker_lost(self, worker: int) -> list[Message]:
        return self._told(self.replica.worker_lost(worker))

    def due(self) -> bool:
        return self.replica.due()

    def waits(self) -> Due | None:
        due = self.replica.waits()
        return due and due._replace(may_compile=self.replica.step == self._first_step)

    def counts(self) -> dict[str, int]:
        return {"gradients_dropped": self.dropped}

    def _on_gradient(self, header: Header, gradient: np.ndarray) -> list[Message]:
        if header.step != self.step or self.stopped:
            self.dropped += 1
            return []
        self._samples += header.count
        if header.flags & Flag.FINITE:
            self._take_step(gradient)
            if self._taken < self.steps:
                return [
                    Message(
                        self.process, Header(Kind.PARAMETERS, step=self.step, version=self.version), self.parameters
                    )
                ]
        state = np.concatenate([self._trail.vector, *self.optimizer.slots.values()])
        step, version, flags = self.replica.step, self.replica.version, header.flags & Flag.FINITE
        handed_in = Header(Kind.GRADIENT, 0, self.worker, step, version, flags, self._samples)
        return self._told(self.replica.handle(self.process, handed_in, state))

    def _take_step(self, gradient: np.ndarray) -> None:
        rate, parameters = self.learning_rate(self.version), empty_vector(self.size)
        (self._trail.next if self._taken else self._trail.begin)(self.optimizer.step_size(rate))
        self.optimizer.apply(self.parameters, gradient, rate, out=parameters, trail=self._trail)
        parameters.flags.writeable = False
        self.parameters = parameters
        self._taken += 1
        self.step, self.version = self.step + 1, self.version + 1

    def _told(self, messages: list[Message]) -> list[Message]:
        """Converts the replica's messages: those to processes that count steps get steps instead of rounds."""
        return [self._in_steps(message) for message in messages]

    def _in_steps(self, message: Message) -> Message:
        header, payload = message.header, message.payload
        if header.kind == Kind.PARAMETERS:
            self._begin_round()
            header = header._replace(step=self.step, version=self.version)
            return message._replace(header=header, payload=self.parameters)
        if header.kind == Kind.READY:  # it names a round that is over, and so the last step of that round
            last = self._step_of(header.step + 1) - 1
            header = header._replace(step=last, version=self._version_of(header.version), value=float("nan"))
        elif header.kind == Kind.SNAPSHOT:
            header = header._replace(step=self._step_of(header.step), version=self._version_of(header.version))
        elif header.kind == Kind.PUBLISHED:
            header, payload = header._replace(version=self._version_of(header.version)), payload[: self.size]
        return message._replace(header=header, payload=payload)

    def _begin_round(self) -> None:
        """Starts a round from the state that all replicas have in common.

        What this worker did in the last round is in that state, unless the round was refused.
        """
        replica = self.replica
        state = replica.parameters.reshape(-1, self.size)
        self.parameters = state[0]
        for slot, values in zip(self.optimizer.slots.values(), state[1:], strict=True):
            slot[:] = values
        self.optimizer.count = replica.optimizer.count
        self.step, self.version = self._step_of(replica.step), self._version_of(replica.version)
        self.loaded, self.stopped = replica.loaded, replica.stopped
        self._taken = self._samples = 0

    def _step_of(self, replicas_step: int) -> int:
        return self._first_step + (replicas_step - self._first_step) * self.steps

    def _version_of(self, replicas_version: int) -> int:
        return self._first_version + (replicas_version - self._first_version) * self.steps
