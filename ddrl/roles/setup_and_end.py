"""The chief's first and last messages: SETUP, with what servers and workers need to begin, and END for everyone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddrl.checkpoint import Checkpoint
from ddrl.exchange.transport import Blob
from ddrl.job.layout import JobLayout
from ddrl.job.role import Topic, json_blob
from ddrl.npz import encode_arrays


def setups(layout: JobLayout, start: Checkpoint) -> Iterator[Blob]:
    """A SETUP for each server that is a rank of its own, and one for each worker, with the worker's saved state.

    Args:
        layout: the job's layout.
        start: the checkpoint from which this part of the run starts.
    """
    setup = {"parameters": int(start.parameters.size), "tensors": start.layout}
    servers = set(layout.servers) - set(layout.workers.values())
    yield from (json_blob(process, Topic.SETUP, setup) for process in servers)
    counts = {name: np.asarray(getattr(start, name), np.int64) for name in ("version", "agent_steps")}
    for worker, process in layout.workers.items():
        state = start.worker_states.get(worker, {}) | counts
        yield Blob(process, Topic.SETUP, encode_arrays(state))


def ends(layout: JobLayout, evaluator: int | None) -> Iterator[Blob]:
    """An END for every process, with that of the chief last.

    Args:
        layout: the job's layout.
        evaluator: process of the evaluator; None if there is none, or it is dead.
    """
    everyone = {*range(layout.size), *layout.servers}
    if evaluator is not None:
        everyone.add(evaluator)
    yield from (Blob(process, Topic.END, b"") for process in everyone - {layout.chief})
    yield Blob(layout.chief, Topic.END, b"")
