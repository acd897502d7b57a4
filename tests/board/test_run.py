"""One run as the board sees it while it is written, damaged, resumed and ended."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time

import pytest

from ddrl import json_lines, run_lock, rundir
from ddrl.board.records import MOST_EVENTS, TAIL_BYTES
from ddrl.board.run import BoardRun, to_json
from ddrl.board.series import MOST_POINTS
from tests.board.runs import end, evaluation, make_run, train_record


def seen(path, name="run"):
    run = BoardRun(1, path, name, itertools.count(1))
    run.look()
    return run


def column(run, name):
    return run.columns([name])[name]


def test_a_run_that_goes_on(tmp_path):
    writer = make_run(tmp_path / "run", agent_steps=10_000)
    run = seen(tmp_path / "run")
    assert run.summary()["state"] == "running" and run.summary()["phase"] == "starting"
    for line in range(1, 41):
        writer.write(train_record(line))
    writer.write(evaluation(30, 7.5))
    run.look()
    row = run.summary()
    assert row["agent_steps"] == 4000 and row["progress"] == pytest.approx(0.4) and row["left"] == pytest.approx(60.0)
    assert row["agent_steps_per_s"] == pytest.approx(100.0) and row["update_per_s"] == pytest.approx(1.0)
    assert (row["evaluation"], row["training"], row["phase"]) == (7.5, 4.0, "training")
    assert column(run, "train/update") == list(range(1, 41)) and column(run, "evaluation/version") == [30]
    details = run.details()
    assert details["time"] == {"worker": {"simulation": 0.5, "wait_data": 0.25}}
    assert details["ranks"] == {"worker-0": {"cores": 0.75, "memory": 640.0}}


def test_phase_and_time_left_are_those_that_the_run_tells(tmp_path):
    writer = make_run(tmp_path / "run")
    writer.write(train_record(10, phase="evaluating", seconds_left=42.0))
    row = seen(tmp_path / "run").summary()
    assert (row["phase"], row["left"]) == ("evaluating", 42.0)


def test_only_what_was_appended_is_read_and_half_a_line_waits(tmp_path, monkeypatch):
    make_run(tmp_path / "run").write(train_record(1))
    run, metrics = seen(tmp_path / "run"), tmp_path / "run" / rundir.METRICS
    read = []
    whole = json_lines._read_at
    monkeypatch.setattr(json_lines, "_read_at", lambda *at: read.append(whole(*at)) or read[-1])
    line = metrics.read_bytes().replace(b'"update": 1,', b'"update": 2,')
    line = line[: line.rfind(b', "crc32"')] + b"}\n"  # lines of earlier versions have no checksum
    with metrics.open("ab") as file:
        file.write(line[:50])
        file.flush()
        run.look()
        assert column(run, "train/update") == [1] and run.details()["notes"] == []
        file.write(line[50:])
        file.flush()
        run.look()
    assert column(run, "train/update") == [1, 2]
    assert sum(map(len, read)) <= 50 + len(line)


def test_damaged_lines_are_counted_and_left_out(tmp_path):
    writer = make_run(tmp_path / "run")
    writer.write(train_record(1))
    with (tmp_path / "run" / rundir.METRICS).open("ab") as file:
        file.write(b'{"kind": "train", "wall_seconds": "soon"}\n\0\0\0\n{"kind": "event", "name": 3}\n[]\n')
    writer.write(train_record(2))
    run = seen(tmp_path / "run")
    assert column(run, "train/update") == [1, 2]
    assert run.details()["notes"] == ["4 damaged lines of metrics.jsonl left out"]


def test_numbers_beyond_all_floats_are_left_out(tmp_path):
    """One run that has them must not hide all others from the page."""
    writer = make_run(tmp_path / "run")
    writer.write(train_record(1))
    with (tmp_path / "run" / rundir.METRICS).open("ab") as file:
        for name in ("loss", "agent_steps"):
            file.write(b'{"kind": "train", "wall_seconds": 2, "update": 2, "%s": %s}\n' % (name.encode(), b"9" * 400))
    run = seen(tmp_path / "run")
    assert column(run, "train/update") == [1, 2] and column(run, "train/loss") == [0.5, None]
    assert run.details()["notes"] == ["1 damaged line of metrics.jsonl left out"]


def test_numbers_beyond_float32_are_left_out(tmp_path):
    """A series keeps them as float32, in which they are infinite, and JSON has no such number."""
    writer = make_run(tmp_path / "run")
    writer.write(train_record(1, exchange_ms_by_worker={"worker-0": 2.0, "worker-1": 3.0}))
    huge = {
        "time_split": {"worker": {"simulation": 1e39, "wait_data": 0.25}},
        "cpu_cores": {"worker-0": 1e39},
        "resident_mb": {"worker-0": 1e39},
        "exchange_ms_by_worker": {"worker-0": 1e39, "worker-1": 3.0},
    }
    writer.write(train_record(2, **huge))
    details = seen(tmp_path / "run").details()
    assert details["time"] == {"worker": {"wait_data": 0.25}}
    assert details["ranks"] == {"worker-1": {"exchange": 3.0}}
    to_json(details)


def test_settings_beyond_all_floats_are_left_out(tmp_path):
    make_run(tmp_path / "run", agent_steps=10_000).write(train_record(1))
    config = tmp_path / "run" / rundir.CONFIG
    content = rundir.read_json(config)
    content["run"]["minutes"] = 10**400
    rundir.write_json(config, content)
    row = seen(tmp_path / "run").summary()
    assert row["progress"] == pytest.approx(0.01) and row["update"] == 1
    to_json(row)


def test_whether_an_evaluation_is_the_final_one_is_yes_or_no(tmp_path):
    """Lines of earlier versions have no checksum, so that anything may stand there."""
    make_run(tmp_path / "run").write(evaluation(1, 2.0))
    assert seen(tmp_path / "run").summary()["final"] is False
    line = {"kind": "evaluation", "wall_seconds": 2, "version": 2, "mean": 3, "maximum": 3, "games": 1}
    with (tmp_path / "run" / rundir.METRICS).open("a") as file:
        file.write(json.dumps({**line, "final": [float("nan")]}) + "\n")
    row = seen(tmp_path / "run").summary()
    assert row["evaluation"] == 3 and row["final"] is True
    to_json(row)


def test_what_a_resume_took_back_is_gone(tmp_path):
    writer = make_run(tmp_path / "run")
    for line in range(1, 9):
        writer.write(train_record(line))
        writer.write(evaluation(line, 100.0 + line))
    writer.event("resumed", "from update 4", 4.0)
    writer.write(train_record(5))
    run = seen(tmp_path / "run")
    assert column(run, "train/update") == [1, 2, 3, 4, 5]
    assert column(run, "evaluation/mean") == [101, 102, 103, 104] and run.summary()["best"] == 104


def test_what_a_resume_took_back_is_gone_before_the_run_writes_anew(tmp_path):
    writer = make_run(tmp_path / "run", agent_steps=1600)
    for line in range(1, 9):
        writer.write(train_record(line, phase="training", seconds_left=16.0 - line))
        writer.write(evaluation(line, 100.0 + line))
    run = seen(tmp_path / "run")
    assert (run.summary()["update"], run.summary()["evaluation"], run.summary()["left"]) == (8, 108, 8)
    writer.event("resumed", "from update 4", 4.0)
    run.look()
    row = run.summary()
    assert (row["update"], row["agent_steps"], row["evaluation"], row["best"]) == (4, 400, 104, 104)
    assert row["progress"] == pytest.approx(0.25) and "left" not in row, "nothing tells of a pace yet"
    assert column(run, "train/update") == [1, 2, 3, 4]
    writer.write(train_record(5, phase="training"))
    run.look()
    assert run.summary()["left"] == 11.0, "1,100 agent steps, at the pace of all 5 s, not of the last one alone"


def test_minutes_that_were_spent_before_a_resume_count_to_the_budget(tmp_path):
    writer = make_run(tmp_path / "run", minutes=1.0)
    writer.event("resumed", "from update 40", 40.0, spent_seconds=40.0)
    writer.write(train_record(45))
    assert seen(tmp_path / "run").summary()["progress"] == pytest.approx(0.75)
    writer.event("resumed", "from update 45", 45.0)
    writer.write(train_record(51))
    assert seen(tmp_path / "run").summary()["progress"] == pytest.approx(0.1)


def test_the_end_of_a_long_file_shows_nothing_that_a_resume_took_back(tmp_path):
    writer = make_run(tmp_path / "run")
    for line in range(2500):
        writer.write(train_record(line))
    writer.write(evaluation(2499, 9.0))
    writer.event("resumed", "from update 2490", 2490.0)
    run = seen(tmp_path / "run")
    assert not run.whole and run.summary()["update"] == 2490 and "evaluation" not in run.summary()
    writer.write(train_record(2491))
    run.look()
    assert not run.whole and run.summary()["update"] == 2491


def test_a_long_run_shows_its_end_first_and_is_thinned(tmp_path):
    writer = make_run(tmp_path / "run")
    writer.event("started", "first update", 0.0)
    for line in range(2500):
        writer.write(train_record(line))
    writer.write(evaluation(2499, 9.0))  # the lines before it are among those that the series does not keep
    end(tmp_path / "run")
    assert (tmp_path / "run" / rundir.METRICS).stat().st_size > TAIL_BYTES
    run = seen(tmp_path / "run")
    assert not run.whole and run.summary()["update"] == 2499
    run.read()
    updates = column(run, "train/update")
    assert len(updates) <= MOST_POINTS + 1 and updates[:2] == [0, 4] and updates[-1] == 2499
    assert run.summary()["update"] == 2499
    assert [event["name"] for event in run.details()["events"]] == ["started"]
    assert len(run.columns(["train/loss"], most=100)["train/loss"]) <= 100
    writer.event("resumed", "from update 2490", 2490.0)
    run.look()
    again = seen(tmp_path / "run")
    again.read()
    assert run.summary()["update"] == again.summary()["update"] == 2488, "the last one that the series has"


def test_states(tmp_path):
    path = tmp_path / "run"
    writer = make_run(path)
    writer.write(train_record(1))
    assert seen(path).summary()["state"] == "running", "it wrote just now"
    os.utime(path / rundir.METRICS, (0, 0))
    assert seen(path).summary()["state"] == "interrupted"
    os.utime(path / rundir.METRICS, (time.time() + 3600,) * 2)
    assert seen(path).summary()["state"] == "interrupted", "the clock was set back since it wrote"
    with (path / run_lock.LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = seen(path)
        assert run.summary()["state"] == "running", "its process holds the lock"
        end(path)
        run.look()
        assert run.summary()["state"] == "running", "its curve and video are being made"
    run.look()
    assert run.summary()["state"] == "finished" and run.summary()["progress"] == 1
    end(path, "failed", "the <b>disk</b>\nis full")
    run.look()
    assert (run.summary()["state"], run.summary()["why"]) == ("failed", "the <b>disk</b> is full")
    end(path, "stopped", "as asked")
    assert seen(path).summary()["state"] == "stopped"
    rundir.write_json(path / rundir.RESULT, {"status": "finished", "message": "all updates", "unevaluated": True})
    assert seen(path).summary()["state"] == "finished"


def test_files_that_shrink_are_read_anew(tmp_path):
    path = tmp_path / "run"
    writer = make_run(path)
    for line in range(1, 5):
        writer.write(train_record(line))
    run = seen(path)
    whole = (path / rundir.METRICS).read_bytes()
    (path / rundir.METRICS).write_bytes(whole[: whole.index(b"\n") + 1])
    run.look()
    assert column(run, "train/update") == [1]


def test_texts_from_disk_are_letters(tmp_path):
    writer = make_run(tmp_path / "run")
    writer.event("odd", "\x1b[31mred\u202e\x00", 1.0)
    (tmp_path / "run" / rundir.LOG).write_bytes(b"\x1b[1mbold\x1b[0m\tline\x07\n\xff\n")
    run = seen(tmp_path / "run", "a\nb\udcff")
    assert run.name == "a\\nb\\udcff"
    assert run.details()["events"][0]["text"] == "\\x1b[31mred\\u202e\\x00"
    assert run.log()[:2] == ["bold    line\\x07", "\ufffd"]


def test_a_log_that_is_a_link_is_not_shown(tmp_path):
    """It may lead to a key of whoever looks at the run of somebody else, and sends the page on."""
    make_run(tmp_path / "run")
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "run" / rundir.LOG).symlink_to(tmp_path / "key")
    assert seen(tmp_path / "run").log() == [""]


def test_reading_a_run_imports_none_of_its_plugins(tmp_path, monkeypatch):
    (tmp_path / "hostile_plugin.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    make_run(tmp_path / "run")
    config = tmp_path / "run" / rundir.CONFIG
    content = rundir.read_json(config)
    content["run"]["plugins"] = ["hostile_plugin"]
    content["network"]["network"] = "theirs"
    rundir.write_json(config, content)
    run = seen(tmp_path / "run")
    assert run.details()["settings"]["network"]["network"] == "theirs" and run.summary()["algorithm"] == "ba3c"


def test_a_group_has_the_runs_that_began_with_the_same_parameters(tmp_path):
    """A mean over seeds says nothing where some runs go on from what others learned."""
    begun = {"drawn": "", "again": "", "tuned": "/runs/a/checkpoints/best.npz", "other": "/runs/b/checkpoints/best.npz"}
    for seed, (name, source) in enumerate(begun.items()):
        make_run(tmp_path / name, seed=seed, init_from=source)
    groups = {name: seen(tmp_path / name).summary()["group"] for name in begun}
    assert groups["drawn"] == groups["again"]
    assert len({groups["drawn"], groups["tuned"], groups["other"]}) == 3


def test_a_group_has_the_runs_that_were_evaluated_by_the_same_rules(tmp_path):
    rules = {"greedy": {}, "again": {"eval_every_updates": 7, "eval_games": 3}, "drawn": {"eval_actions": "drawn"}}
    for seed, (name, rule) in enumerate(rules.items()):
        make_run(tmp_path / name, seed=seed)
        rundir.update_run_dir(tmp_path / name, rundir.load_config(tmp_path / name).changed(evaluation=rule))
    groups = {name: seen(tmp_path / name).summary()["group"] for name in rules}
    assert groups["greedy"] == groups["again"] != groups["drawn"]


def test_settings_that_cannot_be_read_are_said_to_be(tmp_path):
    make_run(tmp_path / "run").write(train_record(1))
    (tmp_path / "run" / rundir.CONFIG).write_text('{"algorithm_name": "ppo"')
    run = seen(tmp_path / "run")
    assert run.summary()["algorithm"] == "unknown" and "is damaged" in run.details()["notes"][0]
    (tmp_path / "run" / rundir.CONFIG).write_text(
        json.dumps({"algorithm_name": "later", "run": {"seed": "x"}, "new": 3})
    )
    run.look()
    assert run.summary()["algorithm"] == "later" and run.summary()["seed"] == 0


def test_events_have_a_bound(tmp_path):
    writer = make_run(tmp_path / "run")
    for number in range(MOST_EVENTS + 5):
        writer.event("odd", str(number), 1.0)
    run = seen(tmp_path / "run")
    run.read()
    assert len(run.details()["events"]) == MOST_EVENTS and run.details()["events"][-1]["text"] == str(MOST_EVENTS + 4)
