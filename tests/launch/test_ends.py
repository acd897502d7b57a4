"""The local launcher with real mpirun and fake ranks: every way to end, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import RunConfig, TrainConfig
from ddrl.launch import processes
from ddrl.launch.processes import session_members, stat_of
from tests.launch.support import (
    PATIENCE_SECONDS,
    Terminal,
    assert_none_left,
    command,
    needs_mpirun,
    run_fake,
    started,
    wait_for,
)

pytestmark = pytest.mark.slow


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


def interrupted(behavior: str, path: Path, *more: str) -> Terminal:
    """A launcher in a terminal in which Ctrl-C was pressed once its ranks had started."""
    terminal = Terminal(command(behavior, path, *more))
    wait_for(lambda: started(path), "ranks")
    terminal.control_c()
    return terminal


@needs_mpirun
def test_control_c_on_a_terminal_stops_cleanly(tmp_path):
    path = tmp_path / "run"
    terminal = interrupted("obedient", path)
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
    terminal = interrupted("deaf", path)
    wait_for(lambda: (path / rundir.STOP).exists(), "stop file")
    terminal.control_c()
    assert terminal.wait() == 130, terminal.output
    assert "ddrl train --resume" in terminal.output
    assert_none_left(path)


@needs_mpirun
def test_ranks_that_do_not_stop_in_time_are_killed(tmp_path):
    path = tmp_path / "run"
    terminal = interrupted("deaf", path, "--impatient")
    assert terminal.wait() == 1, terminal.output
    assert "did not end within" in terminal.output
    assert_none_left(path)


@needs_mpirun
def test_resume_clears_what_the_last_run_left_and_tells_the_ranks(tmp_path):
    path, _ = rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig(), run=RunConfig(run_dir=str(tmp_path / "run"))))
    (path / rundir.STOP).touch()
    rundir.write_json(path / rundir.RESULT, {"status": "finished"})
    os.utime(path / rundir.RESULT, (9, 9))
    assert run_fake("crash", path, "--resume").returncode == 1, "the result of the run before was taken for this one"
    assert (path / "resumed").exists()
    assert not (path / rundir.STOP).exists()
    assert rundir.read_json(path / rundir.RESULT) == {"status": "finished"}, "lost, though the ranks did not begin"
    assert (path / rundir.RESULT).stat().st_mtime == 9


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


@pytest.mark.parametrize("own", ["process_group=0", "start_new_session=True"], ids=["groups", "sessions"])
def test_session_members_include_groups_and_sessions_that_their_processes_make(own):
    """The mpirun of Open MPI gives each rank a group, and that of MPICH a session."""
    if sys.version_info < (3, 11) and own == "process_group=0":
        own = "preexec_fn=os.setpgrp"
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(30)"
    program = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeper!r}], {own}).wait()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        members = session_members(process.pid)
        assert len(members) == 2 and process.pid in members
        processes.end_session(process.pid, 0.5)
    assert session_members(process.pid) == []
    assert all((stat := stat_of(pid)) is None or stat.state in "ZX" for pid in members)


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
