"""The chief's requests for the workers' states, which a checkpoint has."""

from __future__ import annotations

from ddrl.exchange.transport import Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, json_blob


class StateRequests:
    """Asks workers for their states where CHECKPOINT may not reach all of them with their parameters.

    With asynchronous updates, servers do not pass it on. If steps may close early, a straggler may skip the parameters
    that have it. Such a straggler is not asked again before it has answered, since it may hang for hours, and blobs
    that it does not receive would pile up (see `Message`).

    Args:
        asynchronous: whether servers and workers count their own steps.
    """

    def __init__(self, context: JobContext, transport: Transport, asynchronous: bool):
        self._context, self._transport, self._asynchronous = context, transport, asynchronous
        self._unanswered: set[int] = set()  # workers that were asked for a state and have sent none since

    def ask(self, number: int, live: set[int]) -> None:
        """Asks the workers that are alive for their states with this number, if parameters may not ask all of them."""
        if not self._asynchronous and not self._context.config.exchange.may_close_early:
            return
        asked = live - (set() if self._asynchronous else self._unanswered)
        self._unanswered |= asked
        workers = (self._context.layout.workers[worker] for worker in asked)
        self._transport.send(json_blob(process, Topic.STATE_DUE, number) for process in workers)

    def answered(self, worker: int) -> None:
        """Takes note that a worker has sent a state."""
        self._unanswered.discard(worker)
