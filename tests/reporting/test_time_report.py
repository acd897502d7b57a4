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


def said(records, servers=1, workers=2, parameters=1_000_000):
    config = dataclasses.replace(
        TrainConfig(algorithm=BA3CConfig()), exchange=ExchangeConfig(workers=workers, parameter_servers=servers)
    )
    return time_report.pace(records, config, parameters)


def test_the_workers_set_the_pace():
    text = "the workers' own computing set the pace; parameter servers were busy for 20% of the time"
    assert said([record(), {"kind": "event"}, record(server=0.3)])[0] == text


def test_the_servers_set_the_pace_and_more_of_them_are_advised():
    pace, advice = said([record(server=0.6)])
    assert pace == "the parameter servers set the pace: they were busy for 60% of the time"
    assert advice == (
        "try --parameter-servers 2 instead of 1: each has 4.00 MB of parameters, and receives and sends 8.00 MB in an "
        "update"
    )


def test_no_advice_where_there_are_as_many_as_suit():
    assert len(said([record()])) == 1


def test_the_slowest_worker_is_the_one_that_waits_least():
    found = said([record(waits=(52.0, 48.0, 5.0), updates_per_s=10.0)], workers=3)
    assert found == ["worker 2 set the pace: the others waited 45 ms for it in each update of 100 ms"]


def test_a_first_record_that_waits_for_tracing_says_nothing_of_the_pace():
    usual = [record(waits=(21.0, 20.0), updates_per_s=40.0)] * 3
    assert said([record(waits=(300.0, 20.0), updates_per_s=5.0), *usual])[0].startswith("the workers' own computing")


@pytest.mark.parametrize(
    ("busy", "servers", "workers", "advised"),
    [(0.0, 1, 4, 1), (0.25, 1, 4, 1), (0.26, 1, 4, 2), (0.1, 4, 8, 2), (0.9, 2, 4, 4), (0.25, 4, 64, 4)],
)
def test_advice(busy, servers, workers, advised):
    assert time_report.advised_servers(busy, servers, workers) == advised


def test_nothing_measured_nothing_said():
    assert said([]) == said([{"kind": "event"}, {"kind": "train", "update": 0}]) == []


def test_a_single_process_has_no_servers_to_report():
    assert said([record()], servers=0, workers=1) == []
