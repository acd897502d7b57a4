"""What set the pace: from records as the chief writes them."""

from __future__ import annotations

import dataclasses

import pytest

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import ExchangeConfig, TrainConfig
from ddrl.reporting import time_report

WORKER = {"simulation": 1.1, "gradient": 0.4, "wait_parameters": 0.2}


def record(server=0.1, waits=(20.0, 21.0), updates_per_s=10.0):
    return {
        "kind": "train",
        "updates_per_s": updates_per_s,
        "time_split": {"worker": WORKER, "parameter_server": {"apply": server * 0.75, "receive": server * 0.25}},
        "exchange_ms_by_worker": {f"worker-{i}": wait for i, wait in enumerate(waits)},
    }


def rows(records, servers=1, workers=2, parameters=1_000_000):
    config = dataclasses.replace(
        TrainConfig(algorithm=BA3CConfig()), exchange=ExchangeConfig(workers=workers, parameter_servers=servers)
    )
    return dict(time_report.time_report(records, config, parameters))


def test_shares_largest_first():
    found = rows([record(), {"kind": "event"}, record(server=0.3)])
    assert found["time of workers"] == "simulate 110%, gradient 40%, wait for parameters 20%"
    assert found["time of servers"] == "apply 15%, receive 5%"


def test_the_workers_set_the_pace():
    assert rows([record()])["pace"].startswith("the workers' own computing sets it; servers are busy for 10%")


def test_the_servers_set_the_pace():
    found = rows([record(server=0.6)])
    assert found["pace"] == "the parameter servers set it: busy for 60% of the time"
    assert found["shards"] == "1 of 4.00 MB; each takes and gives 8.00 MB in an update; 2 servers advised"


def test_the_slowest_worker_is_the_one_that_waits_least():
    found = rows([record(waits=(52.0, 48.0, 5.0), updates_per_s=10.0)], workers=3)
    assert found["pace"] == "worker 2 sets it: the others wait 45 ms for it in each update of 100 ms"


@pytest.mark.parametrize(
    ("busy", "servers", "workers", "advised"),
    [(0.0, 1, 4, 1), (0.25, 1, 4, 1), (0.26, 1, 4, 2), (0.1, 4, 8, 2), (0.9, 2, 4, 4), (0.25, 4, 64, 4)],
)
def test_advice(busy, servers, workers, advised):
    assert time_report.advised_servers(busy, servers, workers) == advised


def test_nothing_measured_nothing_said():
    assert rows([]) == {}
    assert rows([{"kind": "event"}, {"kind": "train", "update": 0}]) == {}


def test_a_single_process_has_no_servers_to_report():
    config = dataclasses.replace(
        TrainConfig(algorithm=BA3CConfig()), exchange=ExchangeConfig(workers=1, parameter_servers=0)
    )
    assert [name for name, _ in time_report.time_report([record()], config, 10)] == [
        "time of workers",
        "time of servers",
    ]
