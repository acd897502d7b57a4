"""What ranks measure and the chief collects: sums worked out by hand."""

from __future__ import annotations

import json
import math
import threading

import numpy as np
import pytest

from ddrl.reporting.collector import Collector
from ddrl.reporting.metrics import MetricsWriter, read_metrics
from ddrl.reporting.rank_metrics import AHEAD, RankMetrics


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def report(role="worker", index=0, interval=10.0, **parts):
    """A report as it arrives at the chief: through JSON."""
    empty = {"counters": {}, "means": {}, "maxima": {}, "gauges": {}, "seconds": {}, "episodes": []}
    whole = {"role": role, "index": index, "interval_seconds": interval, "cpu_seconds": interval / 4}
    whole["resident_mb"] = 500.0 + index
    return json.loads(json.dumps(whole | empty | parts))


def test_a_rank_reports_what_came_since_the_last_report():
    clock = Clock()
    metrics = RankMetrics("worker", 3, clock)
    metrics.count("agent_steps", 20)
    metrics.count("agent_steps", 5)
    metrics.count("gradients")
    metrics.mean("loss", 2.0)
    metrics.mean("loss", 5.0, weight=2)
    metrics.maximum("lag", 3)
    metrics.maximum("lag", 1)
    metrics.gauge("learning_rate", 0.5)
    metrics.gauge("learning_rate", 0.25)
    metrics.episode(11.0, 700)
    metrics.event("found", "something")
    with metrics.timer("acting"):
        clock.now += 1.5
    with metrics.timer("wait"):
        clock.now += 0.5
    with metrics.timer("acting"):
        clock.now += 2.0
    found = json.loads(json.dumps(metrics.report()))
    assert found.pop("resident_mb") > 5
    assert found.pop("cpu_seconds") > 0
    assert found == {
        "role": "worker",
        "index": 3,
        "interval_seconds": 4.0,
        "counters": {"agent_steps": 25, "gradients": 1},
        "means": {"loss": [12.0, 3]},
        "maxima": {"lag": 3.0},
        "gauges": {"learning_rate": 0.25},
        "seconds": {"acting": 3.5, "wait": 0.5},
        "episodes": [[11.0, 700]],
        "events": [{"name": "found", "text": "something"}],
    }
    clock.now += 1
    again = metrics.report()
    assert again["interval_seconds"] == 1.0
    assert not any(again[part] for part in ("counters", "means", "maxima", "gauges", "seconds", "episodes", "events"))


def test_an_open_timer_counts_in_every_report_that_it_spans():
    clock = Clock()
    metrics = RankMetrics("evaluator", 0, clock)
    clock.now += 2
    with metrics.timer("acting"):
        clock.now += 3
        assert metrics.report()["seconds"] == {"acting": 3.0}
        clock.now += 4
        assert metrics.report()["seconds"] == {"acting": 4.0}
        clock.now += 1
    assert metrics.report()["seconds"] == {"acting": 1.0}


def test_a_timer_ends_when_its_body_raises():
    clock = Clock()
    metrics = RankMetrics("worker", 0, clock)
    with pytest.raises(KeyError), metrics.timer("push"):
        clock.now += 1
        raise KeyError
    clock.now += 5
    assert metrics.report()["seconds"] == {"push": 1.0}


def test_counts_of_many_threads_are_all_there():
    metrics = RankMetrics("worker", 0)
    reports = []

    def work():
        for _ in range(2000):
            metrics.count("agent_steps")
            metrics.mean("loss", 1.0)
            with metrics.timer("acting"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        reports.append(metrics.report())
    reports.append(metrics.report())
    assert sum(found["counters"].get("agent_steps", 0) for found in reports) == 8000
    assert sum(found["means"].get("loss", (0, 0))[1] for found in reports) == 8000


def test_line_by_hand():
    """Two workers and a server over 10 s and 4 updates; the chief counts what was applied."""
    collector = Collector(update=6, wall_seconds=50.0, state={"totals": {"agent_steps": 1000}, "episodes": 2})
    collector.add(
        report(
            counters={
                "agent_steps": 300,
                "frames": 1200,
                "datapoints": 256,
                "gradients_dropped": 1,
                "datapoints_applied": 384,
            },
            means={"loss": [3.0, 2], "lag": [4.0, 4]},
            maxima={"lag": 2.0},
            gauges={"live_workers": 2, "learning_rate": 0.001},
            seconds={"acting": 5.0, "wait": 1.0},
            episodes=[[10.0, 100], [20.0, 200]],
        )
    )
    collector.add(
        report(
            index=1,
            counters={"agent_steps": 200, "frames": 800, "datapoints": 192},
            means={"loss": [1.0, 2], "lag": [8.0, 2]},
            maxima={"lag": 5.0},
            seconds={"acting": 7.0},
            episodes=[[60.0, 50]],
        )
    )
    collector.add(report(role="parameter_server", interval=8.0))
    line = collector.line(update=10, wall_seconds=60.0)
    assert line == {
        "kind": "train",
        "wall_seconds": 60.0,
        "update": 10,
        "agent_steps": 1500,
        "gradients_dropped": 1,
        "agent_steps_per_s": 50.0,
        "frames_per_s": 200.0,
        "datapoints_per_s": 44.8,
        "updates_per_s": 0.4,
        "training_intensity": 0.896,
        "effective_batch": 96.0,
        "episodes": 5,
        "online_score_mean": 30.0,
        "online_score_max": 60.0,
        "interval_score_mean": 30.0,
        "loss": 1.0,
        "lag_mean": 2.0,
        "lag_max": 5.0,
        "live_workers": 2,
        "learning_rate": 0.001,
        "time_split": {"worker": {"acting": 0.6, "wait": 0.05}},
        "cpu_cores": {"worker-0": 0.25, "worker-1": 0.25, "parameter_server-0": 0.25},
        "resident_mb": {"worker-0": 500.0, "worker-1": 501.0, "parameter_server-0": 500.0},
    }


def test_the_deviation_of_gradient_times_is_over_all_workers():
    times = ([80.0, 120.0], [100.0, 140.0])  # milliseconds of two gradients of each worker
    collector = Collector()
    for index, mine in enumerate(times):
        means = {"compute_ms": [sum(mine), 2], "compute_ms_squared": [sum(x * x for x in mine), 2]}
        collector.add(report(index=index, means=means))
    line = collector.line(update=4, wall_seconds=1.0)
    assert line["compute_ms"] == 110.0 and "compute_ms_squared" not in line
    assert line["compute_ms_deviation"] == pytest.approx(np.std(times))


def test_effective_batch_without_the_chiefs_count_is_all_samples_per_update():
    collector = Collector()
    collector.add(report(counters={"datapoints": 320}))
    assert collector.line(5, 1.0)["effective_batch"] == 64.0
    collector.add(report(counters={"datapoints": 320}))
    assert "effective_batch" not in collector.line(5, 2.0)


def test_rates_are_of_the_interval_and_totals_of_the_run():
    collector = Collector()
    collector.add(report(counters={"agent_steps": 100, "steps_refused": 2}))
    collector.line(1, 10.0)
    collector.add(report(counters={"agent_steps": 40}))
    line = collector.line(3, 12.0)
    assert (line["agent_steps"], line["agent_steps_per_s"], line["updates_per_s"]) == (140, 20.0, 1.0)
    assert line["steps_refused"] == 2
    assert collector.agent_steps == 140


@pytest.mark.parametrize("seconds, rates", [(0.999, {}), (1.0, {"agent_steps_per_s": 40.0, "updates_per_s": 2.0})])
def test_an_interval_that_is_shorter_than_that_of_reports_has_no_rates(seconds, rates):
    collector = Collector()
    collector.line(1, 10.0)
    collector.add(report(counters={"agent_steps": 40}))
    line = collector.line(3, 10.0 + seconds, shortest=1.0)
    assert {name: value for name, value in line.items() if name.endswith("_per_s")} == rates
    assert line["agent_steps"] == 40


def test_what_was_not_measured_is_absent():
    assert Collector().line(0, 0.0) == {"kind": "train", "wall_seconds": 0.0, "update": 0, "episodes": 0}


def test_online_score_looks_back_on_100_episodes():
    collector = Collector()
    collector.add(report(episodes=[[1000.0, 1]] + [[float(score), 1] for score in range(100)]))
    line = collector.line(1, 1.0)
    assert (line["online_score_mean"], line["online_score_max"], line["episodes"]) == (49.5, 99.0, 101)
    collector.add(report(episodes=[[7.0, 1], [9.0, 1]]))
    assert collector.line(2, 2.0)["interval_score_mean"] == 8.0  # of those alone that ended since the last line
    assert "interval_score_mean" not in collector.line(3, 3.0)


def test_scores_that_are_no_numbers_are_counted_told_once_and_hide_no_mean():
    rank, collector = RankMetrics("worker", 3), Collector(state={"scores": [math.nan, 4.0]})  # of an older version
    for score in (2.0, math.nan, -math.inf):
        rank.episode(score, 7)
    counted = rank.report()
    collector.add(counted)
    line = collector.line(1, 1.0)
    assert (line["online_score_mean"], line["online_score_max"], line["scores_not_finite"]) == (3.0, 4.0, 2)
    (event,) = counted["events"]
    assert event["name"] == "score_not_finite" and "worker 3 has the score nan" in event["text"]
    rank.episode(math.nan, 7)
    assert rank.report()["events"] == []


def test_a_resumed_collector_goes_on_as_the_uninterrupted_one():
    whole, first = Collector(), Collector()
    for collector in (whole, first):
        collector.add(report(counters={"agent_steps": 7, "evaluations_skipped": 1}, episodes=[[3.0, 5]]))
        collector.line(2, 4.0)
    resumed = Collector(2, 4.0, json.loads(json.dumps(first.state())))
    for collector in (whole, resumed):
        collector.add(report(counters={"agent_steps": 9}, episodes=[[5.0, 5]]))
    assert whole.line(4, 8.0) == resumed.line(4, 8.0)
    assert whole.state() == resumed.state()


def test_torn_updates_of_earlier_parts_of_a_run_are_in_the_total():
    collector = Collector(state={"totals": {"torn_updates": 2}})
    collector.add(report(role="central_store", counters={"torn_updates": 1}))
    assert collector.line(1, 1.0)["torn_updates"] == collector.state()["totals"]["torn_updates"] == 3


def test_agent_steps_ahead_of_a_checkpoint_are_reported_and_no_part_of_it():
    collector = Collector()
    ahead = "agent_steps" + AHEAD
    collector.add(report(counters={"agent_steps": 100, ahead: 40}))
    line = collector.line(1, 2.0)
    assert (line["agent_steps"], line["agent_steps_per_s"]) == (collector.agent_steps, 70.0) == (140, 70.0)
    assert ahead not in line and collector.state()["totals"] == {"agent_steps": 100}
    collector.add(report(counters={"agent_steps": 50, ahead: -30}))
    assert collector.agent_steps == 160 and collector.state()["totals"] == {"agent_steps": 150}


def test_episodes_and_frames_ahead_of_a_checkpoint_are_reported_and_no_part_of_it():
    rank, collector = RankMetrics("worker", 0), Collector()
    rank.episode(1.0, 5)
    rank.settle()
    rank.count("frames", 8, ahead=True)
    for score in (3.0, 8.0, math.nan):
        rank.episode(score, 5, ahead=True)
    collector.add(rank.report())
    line = collector.line(1, 2.0)
    assert (line["episodes"], line["online_score_mean"], line["frames_per_s"]) == (3, 4.0, 4.0)
    assert line["scores_not_finite"] == 1
    state = collector.state()
    assert (state["episodes"], state["scores"]) == (1, [1.0])
    assert state["totals"] == {"frames": 0, "scores_not_finite": 0}
    rank.settle()
    rank.episode(5.0, 5, ahead=True)
    collector.add(rank.report())
    state = collector.state()
    assert (state["episodes"], state["scores"]) == (3, [1.0, 3.0, 8.0])
    assert state["totals"] == {"frames": 8, "scores_not_finite": 1}
    assert collector.line(2, 4.0)["episodes"] == 4
    rank.settle()
    collector.add(rank.report())
    assert (collector.state()["episodes"], collector.state()["scores"]) == (4, [1.0, 3.0, 8.0, 5.0])


def test_scores_ahead_of_a_checkpoint_push_none_of_its_100_out():
    rank, collector = RankMetrics("worker", 0), Collector()
    scores = [float(score) for score in range(200)]
    for number, score in enumerate(scores):
        rank.episode(score, 5, ahead=number >= 150)
    collector.add(rank.report())
    assert collector.state()["scores"] == scores[50:150]
    assert collector.line(1, 2.0)["online_score_mean"] == 149.5  # of the last 100, those ahead among them
    rank.settle()
    collector.add(rank.report())
    assert collector.state()["scores"] == scores[100:]


def test_not_finite_numbers_are_left_out(tmp_path):
    collector = Collector()
    means = {"loss": (math.nan, 1), "entropy": (2.0, 1)}
    collector.add({**report(), "means": means, "maxima": {"lag": math.inf}})
    line = collector.line(1, 1.0)
    assert "loss" not in line and "lag_max" not in line and line["entropy"] == 2.0
    writer = MetricsWriter(tmp_path)
    missing = {"loss": np.float32("nan"), "split": {"a": math.inf}, "lag": None}
    writer.write({"kind": "train", "wall_seconds": 1.0, "entropy": np.float32(0.5)} | missing)
    assert read_metrics(tmp_path) == [{"kind": "train", "wall_seconds": 1.0, "entropy": 0.5}]
