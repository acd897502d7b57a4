"""Synchronous steps: waiting for all, a quorum, or a deadline (docs/concepts/synchronous-step.md), step by step.

A step's messages are handled as arrays over workers and servers. A transfer is cut through: the receiving card begins
when the first byte comes, so alone it takes the latency and the slice's time once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ddrl.simulation.system import Prediction, System

WARM_UP_SHARE = 0.1  # of the steps, which fills the queues


class Closing(NamedTuple):
    """How a step ends.

    Attributes:
        seconds: when the chief has decided.
        members: <bool>[workers], whose gradients are averaged.
    """

    seconds: float
    members: np.ndarray


def simulate_synchronous(system: System, updates: int, seed: int) -> Prediction:
    """So many synchronous steps; a function of the seed."""
    generator, factors = np.random.default_rng(seed), system.factors()
    ready, busy = np.zeros(system.workers), np.zeros(system.workers)  # parameters are there; a gradient is under way
    free = np.zeros((system.servers, 1))  # of each server's receiving card
    warm_up = min(updates - 1, math.ceil(WARM_UP_SHARE * updates))
    began, averaged, dropped = 0.0, 0, 0
    for step in range(updates):
        if step == warm_up:
            began, averaged, dropped = float(ready.min()), 0, 0
        start = np.maximum(ready, busy)
        done = start + factors * system.compute.draw(generator, system.workers)
        arrived = _gradients(system, done, free)
        closing = _close(system, arrived)
        ready = _parameters(system, arrived, closing)
        begun = start < ready  # the others were busy until newer parameters came
        sent = begun & (done < ready)
        busy = np.where(begun, done, busy)
        free = np.maximum(free, np.where(sent, arrived, 0.0).max(axis=1, keepdims=True))
        averaged += int(closing.members.sum())
        dropped += int((begun & ~closing.members).sum())
    elapsed = float(ready.min()) - began
    rate = averaged * system.batch / elapsed
    return Prediction(
        system.workers,
        (updates - warm_up) / elapsed,
        rate,
        rate / system.ideal_datapoints_per_s(),
        0.0,
        dropped / (averaged + dropped),
    )


def _gradients(system: System, done: np.ndarray, free: np.ndarray) -> np.ndarray:
    """When each server has each worker's slice: <float64>[servers, workers].

    Args:
        done: <float64>[workers], when the gradients are computed.
        free: <float64>[servers, 1], of the receiving cards.
    """
    slice_seconds = system.worker_slice_seconds
    rows = by_host(done, system.workers_per_host)
    first = starts(rows, system.servers * slice_seconds).ravel()[: system.workers]
    sent = first + slice_seconds * np.arange(system.servers)[:, None]
    received = starts(sent + system.latency, system.server_slice_seconds, free) + system.server_slice_seconds
    return np.maximum(received, sent + slice_seconds + system.latency)


def _close(system: System, arrived: np.ndarray) -> Closing:
    """When and on whom the chief closes: on the intersection of what the servers hold."""
    held = arrived.max(axis=0)  # by all servers
    needed = (system.quorum or system.workers) - 1
    closes = np.partition(held, needed)[needed]
    if system.deadline_seconds:
        closes = min(closes, max(arrived.min() + system.deadline_seconds, held.min()))
    members = held <= closes
    decided = closes + system.latency + system.servers * system.message_seconds + system.decision_seconds
    return Closing(float(decided), members)


def _parameters(system: System, arrived: np.ndarray, closing: Closing) -> np.ndarray:
    """When each worker has the whole next version: <float64>[workers]."""
    count = int(closing.members.sum())
    told = closing.seconds + system.latency + system.message_seconds * (1 + np.arange(system.servers))
    work = system.update_seconds(count)
    # With all gradients there, a server computes the update while the chief still decides.
    applied = np.maximum(told, arrived.max(axis=1) + work) if count == system.workers else told + work
    sent = applied[:, None] + system.server_slice_seconds * np.arange(system.workers)
    slice_seconds = system.worker_slice_seconds
    rows = by_host((sent + system.latency).T, system.workers_per_host)
    received = starts(rows.reshape(len(rows), -1), slice_seconds).reshape(rows.shape) + slice_seconds
    whole = received.reshape(-1, system.servers)[: system.workers].max(axis=1)
    return np.maximum(whole, sent.max(axis=0) + system.server_slice_seconds + system.latency)


# queues: first come, first served, for many messages at once ----------------------------------------------------------


def starts(arrival: np.ndarray, seconds: float, free: np.ndarray | float = 0.0) -> np.ndarray:
    """When each message begins to be served: Lindley's recursion s_i = max(a_i, s_(i-1) + seconds), row by row.

    Args:
        arrival: <float64>[..., n] in any order; infinity: it never comes.
        seconds: that each message takes.
        free: <float64>[..., 1], when the server of a row has ended what came before.

    Returns:
        <float64>[..., n], in the order of `arrival`.
    """
    order = np.argsort(arrival, axis=-1, kind="stable")
    work = seconds * np.arange(arrival.shape[-1])
    ordered = np.maximum(np.take_along_axis(arrival, order, axis=-1), free)
    begun = np.maximum.accumulate(ordered - work, axis=-1) + work
    result = np.empty_like(begun)
    np.put_along_axis(result, order, begun, axis=-1)
    return result


def by_host(values: np.ndarray, ranks_per_host: int) -> np.ndarray:
    """Ranks in rows of their hosts, the last filled up with infinity: [ranks, ...] -> [hosts, ranks_per_host, ...]."""
    per_host = min(ranks_per_host, len(values)) or len(values)
    missing = -len(values) % per_host
    if missing:
        values = np.concatenate([values, np.full((missing, *values.shape[1:]), np.inf)])
    return values.reshape(-1, per_host, *values.shape[1:])
