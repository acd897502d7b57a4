"""Records of a run: files that survive a kill, events read back by TensorFlow."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from ddrl import sealed
from ddrl.errors import UsageError
from ddrl.reporting.callbacks import CallbackThread, RunContext
from ddrl.reporting.metrics import MetricsWriter, best_online, evaluation_record, lines_of, read_metrics, without_undone
from ddrl.reporting.tensorboard import TensorBoard, crc32c


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
