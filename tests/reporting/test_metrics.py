"""Metrics: sums worked out by hand, files that survive a kill, events read back by TensorFlow."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from ddrl import sealed
from ddrl.errors import UsageError
from ddrl.reporting.callbacks import CallbackThread, RunContext
from ddrl.reporting.collector import Collector
from ddrl.reporting.metrics import MetricsWriter, best_online, evaluation_record, lines_of, read_metrics, without_undone
from ddrl.reporting.rank_metrics import AHEAD, RankMetrics
from ddrl.reporting.tensorboard import TensorBoard, crc32c


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


def evaluation(protocol):
    return evaluation_record(
        mean=1.5,
        maximum=4.0,
        games=50,
        unfinished=0,
        version=5,
        agent_steps=100,
        wall_seconds=1.0,
        seconds=0.5,
        protocol=protocol,
    )


def write_three(run_dir):
    writer = MetricsWriter(run_dir)
    split = {"worker": {"acting": 0.25}}
    writer.write({"kind": "train", "wall_seconds": 1.0, "update": 5, "agent_steps": 100, "time_split": split})
    writer.write(evaluation(protocol={"name": "nature"}))
    writer.event("worker_lost", "worker 1 ended", wall_seconds=1.25, worker=1)
    writer.close()


def test_records_come_back(tmp_path):
    write_three(tmp_path)
    train, played, event = read_metrics(tmp_path)
    assert train["time_split"]["worker"]["acting"] == 0.25
    assert played == {
        "kind": "evaluation",
        "wall_seconds": 1.0,
        "version": 5,
        "agent_steps": 100,
        "mean": 1.5,
        "maximum": 4.0,
        "games": 50,
        "unfinished": 0,
        "timed_out": 0,
        "seconds": 0.5,
        "protocol": {"name": "nature"},
    }
    assert event == {
        "kind": "event",
        "wall_seconds": 1.25,
        "name": "worker_lost",
        "text": "worker 1 ended",
        "worker": 1,
    }


def test_a_half_written_last_line_is_passed_over_and_cut_off_on_resume(tmp_path):
    write_three(tmp_path)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for half in (b"{", b'{"kind": "tr', b'{"kind": "train"}'):
        path.write_bytes(whole + half)
        assert len(read_metrics(tmp_path)) == 3
    MetricsWriter(tmp_path).write({"kind": "train", "update": 6})
    assert path.read_bytes() == whole + sealed.line_bytes({"kind": "train", "update": 6})
    path.write_bytes(b'{"kind"')
    MetricsWriter(tmp_path).close()
    assert path.read_bytes() == b""


def test_metrics_of_no_run_are_empty(tmp_path):
    assert read_metrics(tmp_path / "none") == []


def test_a_line_that_finds_no_space_is_taken_back(tmp_path, monkeypatch):
    writer = MetricsWriter(tmp_path)
    writer.write({"kind": "train", "wall_seconds": 1.0, "update": 1})
    real = writer._file

    class Filling:
        def write(self, data):
            return real.write(data[:5])

    monkeypatch.setattr(writer, "_file", Filling())
    with pytest.raises(UsageError, match="cannot write metrics .*no space"):
        writer.write({"kind": "train", "wall_seconds": 1.0, "update": 2})
    monkeypatch.setattr(writer, "_file", real)
    writer.write({"kind": "train", "wall_seconds": 1.0, "update": 3})
    assert [record["update"] for record in read_metrics(tmp_path)] == [1, 3]


def test_a_directory_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=os.strerror(errno.ENOENT)):
        MetricsWriter(tmp_path / "none")


def test_a_pipe_in_the_place_of_metrics_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="no regular file"):
        lines_of(tmp_path)
    with pytest.raises(UsageError, match="cannot write metrics in .*no regular file"):
        MetricsWriter(tmp_path)


def test_a_resume_takes_back_what_came_after_its_checkpoint():
    def line(kind, seconds, **rest):
        return {"kind": kind, "wall_seconds": seconds, **rest}

    lost = line("event", 25.0, name="worker_lost")
    resumed = line("event", 20.0, name="resumed")
    before, after = [line("train", 10.0), line("evaluation", 20.0)], [line("train", 22.0)]
    undone = [line("train", 30.0), line("evaluation", 20.5)]
    assert without_undone([*before, *undone, lost, resumed, *after]) == [*before, lost, resumed, *after]


def test_the_best_online_score_is_of_fewer_episodes_only_where_there_are_no_more():
    few = [{"episodes": 1, "online_score_mean": 9.0}, {"episodes": 40, "online_score_mean": 3.0}, {"episodes": 50}]
    assert best_online(few) == 9.0 and best_online(few[2:]) is None
    assert best_online([*few, {"episodes": 100, "online_score_mean": 2.0}]) == 2.0
    assert best_online([*few, {"online_score_mean": 1.0}]) == 1.0, "of an earlier version, which did not count them"


def test_crc32c_of_known_vectors():
    """RFC 3720, B.4."""
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283


def test_events_are_read_back_by_tensorflow(tmp_path):
    """TensorFlow's reader checks both CRCs of every record; the long tag needs a length of two bytes."""
    thread = CallbackThread({"tensorboard": TensorBoard(RunContext(None, tmp_path))})
    writer = MetricsWriter(tmp_path, thread.put)
    tag = "x" * 200
    numbers = {"agent_steps": 3_000_000_000, "update": 7, "split": {tag: -0.25}, "far": 1e300}
    writer.write({"kind": "train"} | numbers)
    writer.event("checkpoint", "saved", 1.0)
    writer.write(evaluation(protocol="nature"))
    writer.close()
    assert thread.close({"status": "finished"}) == []
    import tensorflow as tf

    (path,) = [str(path) for path in tmp_path.glob("events.out.tfevents.*")]
    version, *events = list(tf.compat.v1.train.summary_iterator(path))
    assert version.file_version == "brain.Event:2"
    values = [{value.tag: value.simple_value for value in event.summary.value} for event in events]
    assert list(zip([event.step for event in events], values)) == [
        (3_000_000_000, {"train/agent_steps": 3e9, "train/update": 7.0, f"train/split/{tag}": -0.25}),
        (
            100,
            {
                "evaluation/mean": 1.5,
                "evaluation/maximum": 4.0,
                "evaluation/games": 50.0,
                "evaluation/unfinished": 0.0,
                "evaluation/timed_out": 0.0,
                "evaluation/version": 5.0,
                "evaluation/agent_steps": 100.0,
                "evaluation/wall_seconds": 1.0,
                "evaluation/seconds": 0.5,
            },
        ),
    ]
    assert all(abs(event.wall_time - version.wall_time) < 600 for event in events)


def test_every_start_has_an_events_file_of_its_own(tmp_path):
    for _ in range(2):
        TensorBoard(RunContext(None, tmp_path)).on_end({})
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2


def test_metrics_checkpoints_and_progress_load_no_tensorflow():
    modules = ("checkpoint", "reporting.metrics", "reporting.rank_metrics", "reporting.plots", "reporting.progress")
    code = f"import sys, {', '.join(f'ddrl.{name}' for name in modules)};"
    code += "sys.exit(bool({'tensorflow', 'matplotlib', 'mpi4py'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_damaged_lines_are_left_out_and_told_once(tmp_path, capsys):
    write_three(tmp_path)
    path = tmp_path / "metrics.jsonl"
    sound = read_metrics(tmp_path)
    with path.open("ab") as file:
        line = sealed.line_bytes({"kind": "train", "update": 9, "agent_steps": 3})
        file.write(line.replace(b"agent_steps", b"agent_stepr"))  # a key that a flip changed
        file.write(b'{"kind": "train", "update": "7"}\n{"kind": "trainz", "update": 7}\n{"kind": []}\n[3]\n')
        file.write(b'{"kind": "event", "name": "x"}\n{"kind": "evaluation", "mean": 1.0}\n\xff\n' + b"[" * 9999 + b"\n")
        file.write(b'{"kind": "train", "wall_seconds": 1.0, "update": ' + b"9" * 400 + b"}\n")
        file.write(b'{"kind": "train", "wall_seconds": 1.0, "seconds_left": Infinity}\n')
    assert read_metrics(tmp_path) == read_metrics(tmp_path) == sound
    error = capsys.readouterr().err
    assert error == f"ddrl: warning: {path}: 11 damaged lines left out\n"
