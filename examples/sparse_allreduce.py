"""An all-reduce that sends only the largest values of each gradient, as a plugin (Lin et al. 2018, "Deep Gradient
Compression: Reducing the Communication Bandwidth for Distributed Training", section 3).

    ddrl train ba3c --plugin examples/sparse_allreduce.py --exchange sparse_allreduce --preset smoke --workers 2

Each worker w has an error e_w, which is what it has not sent yet. At each step

    total_w = g_w + e_w        its gradient and its error
    sent_w  = total_w where it is among the largest SHARE of all values by size, else 0
    e_w     = total_w - sent_w

and all workers update their parameters with the average of sent_w over the workers. What goes over the wire are indices
and values: of sent_w to whoever averages that slice, and of the average back to all.

This is section 3.1 of the paper. Its momentum correction (3.2) and factor masking (3.3) are left out, since momentum
comes before the exchange there, and here the optimizer, of whichever kind, comes after it. The average is clipped, not
each gradient, and the share does not shrink over a warm-up. The largest values are those of the whole vector, not of
each layer.

A step that is refused leaves the errors as they were. Errors are no part of a checkpoint, which has the slots of one
replica for all: after a resume they begin at 0, and a worker that dies takes its own with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ddrl import register_exchange
from ddrl.exchange.allreduce import Allreduce
from ddrl.exchange.allreduce.replica import Replica
from ddrl.exchange.interface import Server, Setup
from ddrl.exchange.kind import FLOAT_BYTES
from ddrl.exchange.messages import Flag, Header, Kind, Message, Payload
from ddrl.exchange.optimizers import UpdateRule
from ddrl.exchange.settings import ExchangeConfig

SHARE = 0.1
"""Of the values of a gradient, how many are sent, above 0 and at most 1. The paper sends 0.001 of networks of many
millions of parameters; the network of the smoke preset is small. An exchange has no options of its own: edit this."""


def number_sent(share: float, size: int) -> int:
    """How many of `size` values are sent: at least one."""
    return min(size, max(1, round(share * size)))


def largest(vector: np.ndarray, number: int) -> np.ndarray:
    """Where the `number` largest values by size are: <int>[number]. Of equal ones the first, on every machine."""
    sizes = np.abs(vector)
    least = np.partition(sizes, sizes.size - number)[sizes.size - number]
    above, equal = np.flatnonzero(sizes > least), np.flatnonzero(sizes == least)
    return np.concatenate([above, equal[: number - above.size]])


class ErrorFeedback:
    """The update rule of one worker's replica, which also keeps the worker's error.

    A replica applies its rule exactly when a step has become part of the parameters, on whatever way, also after a
    death. That is when the worker's error changes.

    Args:
        optimizer: makes the update itself.
        size: float32 values of the parameter vector.
        share: of a gradient's values that are sent.

    Attributes:
        error: <float32>[size], or up to the running statistics, which are sent whole.
    """

    def __init__(self, optimizer: UpdateRule, size: int, share: float):
        self.optimizer, self.slots, self.count = optimizer, optimizer.slots, optimizer.count
        self.statistics = optimizer.statistics  # at the end of the vector
        self.stepped = size if self.statistics is None else self.statistics.start
        self.number = number_sent(share, self.stepped)
        self.error = self._next_error = np.zeros(self.stepped, np.float32)

    def sent(self, gradient: np.ndarray) -> np.ndarray:
        """What is sent of a gradient <float32>[size] and the error: <float32>[size], a new array, mostly 0."""
        total = gradient[: self.stepped] + self.error
        where = largest(total, self.number)
        sent = np.zeros_like(gradient)
        sent[where] = total[where]
        sent[self.stepped :] = gradient[self.stepped :]
        total[where] = 0.0
        self._next_error = total
        return sent

    def apply(
        self,
        parameters: np.ndarray,
        gradient: Sequence[np.ndarray],
        learning_rate: float,
        scale: float,
        out: np.ndarray,
    ) -> None:
        """See `ddrl.exchange.optimizers.UpdateRule`."""
        self.optimizer.count = self.count
        self.optimizer.apply(parameters, gradient, learning_rate, scale, out)
        self.count = self.optimizer.count
        self.error = self._next_error


class SparseReplica(Replica):
    """A replica that contributes the largest values of its worker's gradients, and sends indices and values.

    Steps, deaths, refusals, checkpoints, and the end are those of `Replica`.

    Args:
        share: of a gradient's values that are sent.
        worker, processes, chief, size, optimizer, learning_rate, clip_norm: as for `Replica`.
    """

    def __init__(
        self,
        worker: int,
        processes: Mapping[int, int],
        chief: int,
        size: int,
        optimizer: UpdateRule,
        learning_rate: Callable[[int], float],
        *,
        share: float,
        clip_norm: float = 0.0,
    ):
        self.feedback = ErrorFeedback(optimizer, size, share)
        super().__init__(worker, processes, chief, size, self.feedback, learning_rate, clip_norm=clip_norm)

    def handle(self, peer: int, header: Header, payload: Payload) -> list[Message]:
        """As `Replica`; a gradient that is not finite goes as it is, since all replicas refuse its step."""
        if header.kind == Kind.GRADIENT and header.flags & Flag.FINITE and header.step == self.step:
            if self._gradient is not None:  # this step's has been contributed, and the error belongs to it
                return []
            payload = self.feedback.sent(payload)
        return super().handle(peer, header, payload)

    def encoded(self, part: np.ndarray) -> np.ndarray:
        """The number of values that are not 0, their indices, and they themselves. Numbers and indices are int32 in the
        words of a float32 vector. All values without indices, where that is shorter."""
        where = np.flatnonzero(part).astype(np.int32)
        number = np.array([where.size], np.int32).view(np.float32)
        if 2 * where.size >= part.size:
            return np.concatenate([number, part])
        return np.concatenate([number, where.view(np.float32), part[where]])

    def decoded(self, payload: np.ndarray, size: int) -> np.ndarray:
        """The inverse of `encoded`."""
        number = int(payload[:1].view(np.int32)[0])
        if 2 * number >= size:
            return payload[1 : 1 + size]
        part = np.zeros(size, np.float32)
        part[payload[1 : 1 + number].view(np.int32)] = payload[1 + number : 1 + 2 * number]
        return part

    def most_floats(self, size: int) -> int:
        """All values, and their number."""
        return 1 + size


class SparseAllreduce(Allreduce):
    """See the module. The chief's part is that of the all-reduce."""

    name = "sparse_allreduce"
    summary = "an all-reduce that sends the largest values of each gradient, and adds the others to the next one"
    share = SHARE

    def bytes_per_update(self, config: ExchangeConfig, parameters: int, slots: int) -> int:
        """The most that it can be without running statistics: no value stays in its own process, and no two workers
        send values of the same index."""
        workers, others = config.workers, config.workers - 1
        words = 2 * workers * number_sent(self.share, parameters)  # indices and values that all workers send
        of_slices, of_averages = min(words, others * parameters), others * min(words, parameters)
        numbers = 2 * workers * others  # one in each message
        return FLOAT_BYTES * (of_slices + of_averages + numbers)

    def server(self, setup: Setup, index: int, size: int) -> Server:
        """As `Allreduce`."""
        return SparseReplica(
            index,
            setup.workers,
            setup.chief,
            size,
            setup.make_optimizer(0, size),
            setup.learning_rate,
            share=self.share,
            clip_norm=setup.clips_averages,
        )


register_exchange(SparseAllreduce())
