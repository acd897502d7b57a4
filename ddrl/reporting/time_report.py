"""What set the pace of a run: from the records of metrics.jsonl alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ddrl.config import TrainConfig

SERVER_LIMIT = 0.5  # a server that is busy for more than half of the time sets the pace
SERVER_TARGET = 0.25  # share of its time that a server should be busy; in the rest it waits for gradients
STRAGGLER_SHARE = 0.1  # share of an update's time: if others wait longer for the slowest worker, it sets the pace


def pace(records: Sequence[Mapping[str, Any]], config: TrainConfig, parameters: int) -> list[str]:
    """Sentences about what set the pace of a run with parameter servers, and how many would suit it; empty if unknown.

    Args:
        records: the records of metrics.jsonl.
        config: the settings of the run.
        parameters: number of float32 parameters of the network; 0 if unknown.
    """
    train = [record for record in records if record["kind"] == "train" and record.get("updates_per_s", 0) > 0]
    if not train or not config.exchange.servers or config.apex.actors:
        return []
    return [_pace(train), *_advice(train, config, parameters)]


def server_busy(train: Sequence[Mapping[str, Any]]) -> float:
    """Share of their time that the servers handled messages, 0 to 1."""
    splits = [record.get("time_split", {}).get("parameter_server") for record in train]
    shares = [sum(split.values()) for split in splits if split is not None]
    return statistics.mean(shares) if shares else 0.0


def waiting_for_slowest(train: Sequence[Mapping[str, Any]]) -> tuple[str, float, float] | None:
    """The slowest worker, by how many ms the others wait longer than it, and the ms of an update.

    None with fewer than two workers. The slowest worker is the one that waits least between sending a gradient and
    having new parameters: it waits for the exchange alone, while the others also wait for it. The times are medians,
    since the first updates wait for functions that TensorFlow traces.
    """
    waits: dict[str, list[float]] = {}
    for record in train:
        for worker, milliseconds in record.get("exchange_ms_by_worker", {}).items():
            waits.setdefault(worker, []).append(milliseconds)
    if len(waits) < 2:
        return None
    usual = {worker: statistics.median(values) for worker, values in waits.items()}
    slowest = min(usual, key=usual.__getitem__)
    others = statistics.mean(value for worker, value in usual.items() if worker != slowest)
    update_ms = 1000.0 / statistics.median(record["updates_per_s"] for record in train)
    return slowest, others - usual[slowest], update_ms


def _pace(train: Sequence[Mapping[str, Any]]) -> str:
    busy = server_busy(train)
    if busy >= SERVER_LIMIT:
        return f"the parameter servers set the pace: they were busy for {busy:.0%} of the time"
    waiting = waiting_for_slowest(train)
    if waiting and waiting[1] > STRAGGLER_SHARE * waiting[2]:
        worker, milliseconds, update_ms = waiting
        name = worker.replace("-", " ")
        return (
            f"{name} set the pace: the others waited {milliseconds:.0f} ms for it in each update of {update_ms:.0f} ms"
        )
    return f"the workers' own computing set the pace; parameter servers were busy for {busy:.0%} of the time"


def advised_servers(busy: float, servers: int, workers: int) -> int:
    """The number of servers that would be busy for a quarter of their time: at least one, at most one per worker.

    Args:
        busy: share of their time that the present servers are busy, 0 to 1.
        servers: number of servers.
        workers: number of workers.
    """
    return max(1, min(workers, math.ceil(servers * busy / SERVER_TARGET)))


def _advice(train: Sequence[Mapping[str, Any]], config: TrainConfig, parameters: int) -> list[str]:
    """Advice to use another number of servers; empty if the run had as many as would suit it."""
    servers, workers = config.exchange.servers, config.exchange.workers
    advice = advised_servers(server_busy(train), servers, workers)
    if advice == servers or not parameters:
        return []
    megabytes = 4e-6 * math.ceil(parameters / servers)
    traffic = (
        f"each has {megabytes:.2f} MB of parameters, and receives and sends {megabytes * workers:.2f} MB in an update"
    )
    return [f"try --parameter-servers {advice} instead of {servers}: {traffic}"]
