"""Points run one after the other: finished ones are skipped, interrupted and failed ones taken up again."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
import types

import pytest

from ddrl import run_lock, rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.launch.processes import Interrupts
from ddrl.reporting import machine
from ddrl.studies import engine
from ddrl.studies import plan as plans
from ddrl.studies.collect import RESULTS, TABLE, collect
from ddrl.studies.engine import run_points, time_left
from ddrl.studies.points import Point, state_of
from ddrl.studies.settings import to_json
from tests.studies.support import MACHINE, Runner, points, study

NAMES = ["size1-seed1", "size1-seed2", "size2-seed1", "size2-seed2"]


def begun(directory, runner):
    made = study(runner)
    plan = plans.Plan(directory, "fake", to_json(made.defaults), tuple(points(made.defaults, MACHINE)))
    plans.write(plan)
    return made, plan


def statuses(plan):
    return [plan.state(point).status for point in plan.points]


def test_all_points_run_in_order_and_finish(tmp_path, capsys):
    runner = Runner()
    _, plan = begun(tmp_path / "s", runner)
    assert run_points(plan, runner) == 0
    assert runner.ran == NAMES
    assert statuses(plan) == ["finished"] * 4
    said = capsys.readouterr().out
    assert "[2/4] size1-seed2 begins; time left for all points: about" in said
    assert "[4/4] size2-seed2: finished" in said


def test_a_point_is_recorded_with_the_source_that_was_there_when_it_began(tmp_path, monkeypatch):
    """Somebody commits while it runs."""
    source = ["first"]
    monkeypatch.setattr(machine, "source_commit", lambda: source[-1])
    _, plan = begun(tmp_path, Runner())

    def run(point, path):
        Runner()(point, path)
        source.append(f"after {point.name}")

    assert run_points(plan, run, plan.points[:2]) == 0
    commits = [rundir.read_json(plan.path(point) / engine.MACHINE)["commit"] for point in plan.points[:2]]
    assert commits == ["first", "after size1-seed1"]


def test_a_line_says_how_far_a_point_is(tmp_path, monkeypatch, capsys):
    """On a terminal it is cut, as a line that wraps is not overwritten."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    _, plan = begun(tmp_path, Runner())
    path = plan.path(plan.points[0])
    assert engine.how_far(path) == ""

    def run(point, path):
        Runner()(point, path)
        said = ": 8% of 1.0 minute, score 5.0"
        assert engine.how_far(path) == said
        deadline = time.monotonic() + 30
        shown = ""
        while said not in shown and time.monotonic() < deadline:
            shown += capsys.readouterr().out
        lines = shown.split("\r\033[K")
        assert f"[1/1] size1-seed1{said}; time left for all points"[:59] in lines
        assert all(len(line) < 60 for line in lines)

    assert run_points(plan, run, plan.points[:1]) == 0


def test_a_failure_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(engine, "time", types.SimpleNamespace(monotonic=lambda: 50.0))  # git may take half a second
    runner = Runner(size1_seed2="fail", size2_seed1="refuse")
    _, plan = begun(tmp_path, runner)
    assert run_points(plan, runner) == 1
    assert runner.ran == NAMES
    assert statuses(plan) == ["finished", "failed", "failed", "finished"]
    said = capsys.readouterr().out
    assert "size1-seed2: failed after 0 s: broke" in said and "size2-seed1: failed after 0 s: no way" in said
    again = Runner()
    assert run_points(plan, again) == 0
    assert again.ran == NAMES[1:3]
    assert "already finished: 2 of 4 points" in capsys.readouterr().out


def test_a_stopped_point_ends_the_study_and_goes_on_next_time(tmp_path, capsys):
    runner = Runner(size1_seed2="stop")
    _, plan = begun(tmp_path, runner)
    assert run_points(plan, runner) == 0
    assert statuses(plan) == ["finished", "interrupted", "waiting", "waiting"]
    assert "stopped, as requested" in capsys.readouterr().out
    again = Runner()
    run_points(plan, again)
    assert again.ran == NAMES[1:]
    assert "size1-seed2 goes on" in capsys.readouterr().out


def test_a_signal_between_two_points_ends_the_study_after_the_point(tmp_path):
    runner = Runner()

    def interrupting(point, path):
        runner(point, path)
        os.kill(os.getpid(), signal.SIGTERM)

    _, plan = begun(tmp_path, runner)
    assert run_points(plan, interrupting) == 0
    assert statuses(plan) == ["finished", "waiting", "waiting", "waiting"]


def test_a_signal_to_a_point_that_fails_ends_the_study_too(tmp_path):
    """A point catches the signal, to save its state, and then fails for a reason of its own."""
    runner = Runner(size1_seed1="fail")

    def interrupted(point, path):
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupts.stop == signal.SIGTERM
        runner(point, path)

    _, plan = begun(tmp_path, runner)
    assert run_points(plan, interrupted) == 1
    assert statuses(plan) == ["failed", "waiting", "waiting", "waiting"]


def test_a_point_that_another_process_runs_is_left_to_it(tmp_path, capsys):
    runner = Runner()
    _, plan = begun(tmp_path, runner)
    path = plan.path(plan.points[0])
    path.mkdir(parents=True)
    with (path / run_lock.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert plan.state(plan.points[0]).status == "running"
        run_points(plan, runner)
    assert runner.ran == NAMES[1:]
    assert "another process is running it" in capsys.readouterr().out


def test_a_requeued_job_waits_for_a_point_that_a_lost_node_seems_to_run(tmp_path, monkeypatch):
    """Without that its task of the array would end well, and nobody would run the point."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(run_lock, "STARTED", time.monotonic())
    runner = Runner()
    _, plan = begun(tmp_path, runner)
    path = plan.path(plan.points[0])
    path.mkdir(parents=True)
    lock = os.open(path / run_lock.LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(0.3, os.close, (lock,)).start()
    run_points(plan, runner, plan.points[:1])
    assert runner.ran == NAMES[:1]


def test_a_point_alone_by_name_or_number(tmp_path):
    runner = Runner()
    _, plan = begun(tmp_path, runner)
    run_points(plan, runner, [plan.find("size2-seed1"), plan.find("0")])
    assert runner.ran == ["size2-seed1", "size1-seed1"]
    with pytest.raises(UsageError, match="--point 4: .* none of that name"):
        plan.find("4")


def test_states_of_half_written_directories(tmp_path):
    assert state_of(tmp_path / "none").status == "waiting"
    (tmp_path / "begun").mkdir()
    assert state_of(tmp_path / "begun").status == "interrupted"
    (tmp_path / "begun" / rundir.RESULT).write_text('{"status": "fini')
    assert state_of(tmp_path / "begun").status == "interrupted"
    (tmp_path / "begun" / rundir.RESULT).write_text("[]")
    assert state_of(tmp_path / "begun").status == "interrupted"


def test_a_point_that_was_asked_to_end_in_its_final_evaluation_is_gone_on_with(tmp_path):
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished"})
    assert state_of(tmp_path).status == "finished"
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished", "unevaluated": True})
    assert state_of(tmp_path).status == "interrupted"


def point_of(minutes, cores=0):
    return Point("p", TrainConfig(algorithm=BA3CConfig()).changed(run={"minutes": minutes}), {}, cores)


def test_time_left():
    assert time_left([10.0, 20.0], [point_of(0.0)] * 4, 5.0) == (55.0, False)
    assert time_left([], [point_of(1.0), point_of(2.0)], 30.0) == (150.0, True)
    assert time_left([], [point_of(1.0), point_of(0.0)], 0.0).seconds is None
    assert time_left([], [point_of(0.0)], 0.0).seconds is None
    assert time_left([10.0], [point_of(1.0)], 99.0) == (0.0, True)
    assert time_left([10.0], [point_of(1.0)], 121.0).text() == "unknown", "it takes longer than anybody expected"
    assert time_left([100.0], [point_of(1.0)] * 2, 150.0) == (100.0, False), "the next one does not take less for that"


def test_what_a_point_tells_of_its_end_counts_more_than_its_budget():
    assert time_left([], [point_of(1.0)], 50.0, 600.0) == (600.0, False)
    assert time_left([], [point_of(0.0)], 50.0, 600.0) == (600.0, False)
    assert time_left([], [point_of(1.0)] * 2, 50.0, 600.0) == (660.0, True)
    assert time_left([10.0], [point_of(1.0)] * 2, 50.0, 600.0) == (610.0, False)
    assert time_left([], [point_of(1.0)], 700.0, -5.0) == (0.0, False)
    assert time_left([], [point_of(1.0)], 700.0, -61.0).text() == "unknown"


def test_a_line_has_the_time_left_that_a_point_tells(tmp_path, capsys):
    """A peer's training takes its minutes, and its evaluations come on top of that."""
    _, plan = begun(tmp_path, Runner())
    first = plan.path(plan.points[0])
    first.mkdir(parents=True)
    told = {"kind": "train", "wall_seconds": 1.0, "agent_steps": 1, "seconds_left": 7200.0}
    (first / rundir.METRICS).write_text(json.dumps(told) + "\n")
    run_points(plan, Runner(), plan.points[:1])
    assert "[1/1] size1-seed1 goes on; time left for all points: about 2.0 h\n" in capsys.readouterr().out
    run_points(plan, Runner(), plan.points[1:])
    said = capsys.readouterr().out
    assert "[1/3] size1-seed2 begins; time left for all points: about 3 min (a first guess)\n" in said


def test_the_time_that_a_point_has_left_runs_down_while_it_tells_nothing_new(tmp_path, monkeypatch):
    now = [50.0]
    monkeypatch.setattr(engine, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    running = engine.Running(tmp_path)
    assert running.left() is None
    lines = [{"kind": "train", "wall_seconds": at, "agent_steps": 1, "seconds_left": 600.0 - at} for at in (1.0, 2.0)]
    for elapsed, number, left in ((10.0, 1, 599.0), (250.0, 1, 359.0), (260.0, 2, 598.0)):
        now[0] = 50.0 + elapsed
        (tmp_path / rundir.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines[:number]))
        assert (running.seconds, running.left()) == (elapsed, left)
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished"})
    assert running.left() is None


@pytest.mark.parametrize("seconds, text", [(5, "5 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations(seconds, text):
    assert engine.duration(seconds) == text


def test_names_and_messages_of_others_come_without_control_characters(tmp_path, capsys):
    def run(point, path):
        raise UsageError("broke\x1b[2J\x9bK")

    plan = plans.Plan(tmp_path, "fake", {}, (point_of(1.0)._replace(name="p\x1b]0;owned\x07"),))
    assert run_points(plan, run) == 1
    said = capsys.readouterr().out
    assert "[1/1] p?]0;owned?: failed" in said and "broke?[2J?K" in said and not set("\x1b\x9b\x07") & set(said)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_a_point_uses_no_more_cores_than_it_should(tmp_path):
    seen, before = [], os.sched_getaffinity(0)
    plan = plans.Plan(tmp_path, "fake", {}, (point_of(1.0, 1), point_of(1.0, 4096)._replace(name="q")))
    status = run_points(
        plan,
        lambda point, path: (seen.append(os.sched_getaffinity(0)), Runner()(point._replace(labels={"size": 1}), path)),
    )
    assert status == 1 and [len(cores) for cores in seen] == [1]
    assert "needs 4096 cores" in plan.state(plan.points[1]).why
    assert os.sched_getaffinity(0) == before


def test_collecting_reports_what_has_finished_and_names_the_rest(tmp_path, capsys):
    made, plan = begun(tmp_path, Runner())
    run_points(plan, Runner(size1_seed2="fail", size2_seed1="stop"))
    capsys.readouterr()
    own = tmp_path / "own"
    own.write_text("kept")
    for name in (TABLE, "figure.png", "figure.pdf"):  # where several users work, somebody may have put them there
        (tmp_path / name).symlink_to(own)
    collect(plan, made)
    assert own.read_text() == "kept"
    said = capsys.readouterr().out
    for text in (
        "|    1 |     5 |",
        "failed: size1-seed2: broke",
        "not finished: 1 interrupted, 1 waiting",
        "made up",
        "1 run that failed does not count here.",
        "1 of 4 points",
    ):
        assert text in said
    assert (tmp_path / TABLE).read_text().startswith("# A fake\n\none seed")
    results = json.loads((tmp_path / RESULTS).read_text())
    assert results["study"] == "fake" and results["settings"]["sizes"] == [1, 2]
    assert results["tables"][0]["rows"] == [[1, {"mean": 5.0, "low": None, "high": None, "count": 1, "values": []}]]
    assert [p["status"] for p in results["points"]] == ["finished", "failed", "interrupted", "waiting"]
    assert results["points"][0]["machine"]["cores"] >= 1
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "figure.pdf").read_bytes()[:4] == b"%PDF"


def test_nothing_finished_is_said_in_one_line(tmp_path):
    made, plan = begun(tmp_path, Runner())
    with pytest.raises(UsageError, match=r"no point has finished \(not finished: 4 waiting\)"):
        collect(plan, made)


def test_a_plan_is_read_as_it_was_written(tmp_path):
    _, plan = begun(tmp_path / "new" / "s", Runner())
    assert plans.load(tmp_path / "new" / "s", "fake") == plan
    assert plans.load(tmp_path, "fake") is None


def test_a_damaged_plan_and_one_of_another_study_are_refused(tmp_path):
    begun(tmp_path, Runner())
    with pytest.raises(UsageError, match="holds `ddrl study fake`"):
        plans.load(tmp_path, "other")
    (tmp_path / plans.PLAN).write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        plans.load(tmp_path, "fake")


def test_two_points_of_one_name_are_refused(tmp_path):
    twice = (point_of(1.0), point_of(2.0))
    with pytest.raises(UsageError, match="two points are called p"):
        plans.check_names(plans.Plan(tmp_path, "fake", {}, twice))
