"""How long a supervisor waits for ranks that have a result: until they could save, or not at all."""

from __future__ import annotations

import io
import os
import signal
import sys
import time

import pytest
from rich.console import Console

from cluster.launch import Launcher
from ddrl import algorithms, checkpoint, rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.json_lines import JsonLines
from ddrl.launch import supervisor
from ddrl.launch.processes import Interrupts, session_members
from ddrl.placement import start
from ddrl.roles import checkpoint_saver
from ddrl.slurm.script import warning_seconds
from ddrl.types import Machine


class Silent:
    def update(self, records):
        pass


class Saving(Silent):
    """The second look at the run finds a result."""

    def __init__(self, path):
        self.path, self.looks = path, 0

    def update(self, records):
        self.looks += 1
        if self.looks == 2:
            rundir.write_json(self.path / rundir.RESULT, {"status": "stopped"})


def watched(path, stop_seconds, seconds=60, config=None, asked=None, display=None):
    """A process that ends by itself only then, watched to its end."""
    with Interrupts() as interrupts, (path / "log.txt").open("ab") as log:
        interrupts.stop = asked
        one = supervisor.Supervisor(config or TrainConfig(algorithm=BA3CConfig()), path, interrupts, stop_seconds)
        one.start([sys.executable, "-c", f"import time; time.sleep({seconds})"], None, log, log.fileno())
        one.watch(display or Silent(), JsonLines(path / rundir.METRICS), Console(file=io.StringIO()))
    assert not session_members(one._process.pid)
    return one.overdue


@pytest.mark.parametrize(
    "algorithm, more, saves, limit",
    [("ba3c", 600.0, False, "0.4"), ("dqn", 0.6, False, "1"), ("dqn", 600.0, True, "0.4")],
)
def test_a_replay_has_more_time_to_be_saved_after_a_stop(tmp_path, monkeypatch, algorithm, more, saves, limit):
    """As long as there is no result."""
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.4)
    monkeypatch.setattr(checkpoint, "REPLAY_SECONDS", checkpoint.GATHER_SECONDS + more)
    config = algorithms.preset("smoke", None, Machine(8, 1 << 40), algorithm)
    display = Saving(tmp_path) if saves else None
    said = watched(tmp_path, None, config=config, asked=signal.SIGINT, display=display)
    assert said == f"the ranks did not end within {limit} s and were killed"


@pytest.mark.parametrize("ignored, asked", [(True, None), (False, signal.SIGHUP)])
def test_a_terminal_that_goes_away_ends_no_run_under_nohup(ignored, asked):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
        assert interrupts.stop == asked and (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) == ignored
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_launcher_waits_longer_than_the_chief():
    """For the parts of a checkpoint, and then while it tries again to write it."""
    for algorithm in ("ba3c", "dqn"):
        config = algorithms.preset("smoke", None, Machine(8, 1 << 40), algorithm)
        longest = supervisor.STOP_SECONDS - checkpoint.GATHER_SECONDS + checkpoint.gather_seconds(config)
        assert longest > checkpoint.gather_seconds(config) + checkpoint_saver.LAST_SAVE_SECONDS
        assert warning_seconds(config) > longest


@pytest.mark.parametrize(
    "content, limit",
    [({"lost": "server 0 died"}, "0.4"), ({"status": "failed"}, "0.4"), ({"status": "finished"}, "0.8")],
)
def test_after_a_loss_there_is_nothing_to_wait_for(tmp_path, monkeypatch, content, limit):
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 0.4)
    rundir.write_json(tmp_path / rundir.RESULT, content)
    assert watched(tmp_path, stop_seconds=0.8) == f"the ranks did not end within {limit} s and were killed"


def test_without_patience_for_a_stop_there_is_none_for_a_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 50.0)  # longer than any pause of a busy machine
    rundir.write_json(tmp_path / rundir.RESULT, {"lost": "server 0 died"})
    began = time.monotonic()
    assert "0.2 s" in watched(tmp_path, stop_seconds=0.2)
    assert time.monotonic() - began < supervisor.LOST_SECONDS


def test_a_rank_is_missing_until_it_has_come_to_mpi(tmp_path):
    start.leave_note(tmp_path, {"PMI_RANK": "0"}, start.AT_MPI)
    start.leave_note(tmp_path, {"OMPI_COMM_WORLD_RANK": "1"}, start.BEGUN)
    start.leave_note(tmp_path, {}, start.AT_MPI)  # a run of one process
    assert start.missing(tmp_path, 3) == [1, 2]
    start.leave_note(tmp_path, {"OMPI_COMM_WORLD_RANK": "1"}, start.AT_MPI)
    assert start.missing(tmp_path, 2) == []
    assert start.gone(tmp_path, [os.getpid()]) == {} and list(start.gone(tmp_path, [])) == [0, 1]
    start.clear_notes(tmp_path)
    assert start.missing(tmp_path, 2) == [0, 1] and start.missing(tmp_path / "nowhere", 1) == [0]


def test_ranks_of_every_launcher_leave_notes_with_their_names(tmp_path):
    launchers = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # mpirun; srun with Open MPI; srun with MPICH
    for rank, variable in enumerate(launchers):
        start.leave_note(tmp_path, {variable: str(rank)}, start.IN_JOB, f"worker {rank} (rank {rank})")
    names = [f"worker {rank} (rank {rank})" for rank in range(3)]
    assert [note.name for _, note in sorted(start.notes(tmp_path).items())] == names
    (tmp_path / start.RANKS / "0").write_text('{"host": "n1", "pid": 7, "stage": 2}')
    assert start.notes(tmp_path)[0].name == "", "of an earlier version"


def test_notes_follow_no_link_and_nothing_else_is_removed(tmp_path):
    """In a directory of several users, somebody may have put there a link to any file of this user."""
    rank, ranks, own = {"PMI_RANK": "0"}, tmp_path / start.RANKS, tmp_path / "own"
    own.mkdir()
    for name in ("0", "thesis"):
        (own / name).write_text("kept")
    ranks.symlink_to(own)
    start.leave_note(tmp_path, rank, start.BEGUN)
    start.clear_notes(tmp_path)
    assert {file.name: file.read_text() for file in own.iterdir()} == {"0": "kept", "thesis": "kept"}
    ranks.unlink()
    ranks.mkdir()
    (ranks / "0").symlink_to(own / "thesis")
    (ranks / "list.txt").touch()
    start.leave_note(tmp_path, rank, start.BEGUN)
    assert (own / "thesis").read_text() == "kept" and start.notes(tmp_path)[0].pid == os.getpid()
    os.mkfifo(ranks / "1")  # a reader of which would wait for ever
    assert list(start.notes(tmp_path)) == [0]
    start.clear_notes(tmp_path)
    assert [file.name for file in ranks.iterdir()] == ["list.txt"]


@pytest.mark.parametrize(
    "stages, said", [((start.AT_MPI,), "rank 0 died"), ((start.BEGUN, start.IN_JOB), "ranks 0, 1")]
)
def test_a_rank_that_is_gone_before_mpi_knew_of_it_is_missed_soon(tmp_path, monkeypatch, stages, said):
    monkeypatch.setattr(supervisor, "UNSAID_SECONDS", 60.0)
    leave_dead_notes(tmp_path, stages)
    assert watched(tmp_path, stop_seconds=90.0).startswith(said)


def test_of_a_later_death_the_other_ranks_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "GONE_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "UNSAID_SECONDS", 60.0)
    leave_dead_notes(tmp_path, (start.IN_JOB,))
    assert watched(tmp_path, stop_seconds=90.0, seconds=2) == ""


def test_of_a_later_death_of_which_no_rank_tells_all_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "GONE_SECONDS", 60.0)
    monkeypatch.setattr(supervisor, "UNSAID_SECONDS", 0.3)
    leave_dead_notes(tmp_path, (start.IN_JOB,))
    assert watched(tmp_path, stop_seconds=90.0) == "rank 0 died before the job began"


def test_a_run_of_one_process_that_begins_too_late_misses_no_rank(tmp_path):
    config = TrainConfig(algorithm=BA3CConfig()).changed(run={"start_seconds": 0.5})
    said = watched(tmp_path, stop_seconds=90.0, config=config)
    remedy = "raise --start-seconds on a slow or busy machine"
    assert said == f"the run did not begin within 0.5 s, and its process was killed ({remedy})"


@pytest.mark.parametrize("single", [False, True])
def test_an_mpirun_that_stays_when_its_ranks_are_gone_is_not_waited_for(tmp_path, monkeypatch, single):
    monkeypatch.setattr(supervisor, "LAUNCHER_SECONDS", 0.2)
    begin = supervisor.Supervisor.start

    def started(own, *arguments):
        begin(own, *arguments)
        own._single = single

    monkeypatch.setattr(supervisor.Supervisor, "start", started)
    leave_dead_notes(tmp_path, [start.IN_JOB] * TrainConfig(algorithm=BA3CConfig()).ranks)
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished"})
    said = watched(tmp_path, stop_seconds=1.0 if single else 60.0)  # a late look must not find both times over
    assert said.endswith(
        "did not end within 1 s and were killed" if single else "within 0.2 s of its ranks, and was killed"
    )


def test_an_mpirun_that_cannot_be_kept_off_the_network_is_told_of_once(tmp_path, monkeypatch):
    def start_mpirun(launcher, command, environment, files, exposed, **options):
        exposed()
        program = [sys.executable, "-c", "import time; time.sleep(1)"]
        return supervisor.start_process(program, environment, files, **options)

    monkeypatch.setattr(supervisor, "start_mpirun", start_mpirun)
    console = Console(file=io.StringIO(), width=400)
    with Interrupts() as interrupts, (tmp_path / "log.txt").open("ab") as log:
        one = supervisor.Supervisor(TrainConfig(algorithm=BA3CConfig()), tmp_path, interrupts, 60.0)
        one.start(["rank"], Launcher("mpirun", True, 5), log, log.fileno())
        one.watch(Silent(), JsonLines(tmp_path / rundir.METRICS), console)
    assert console.file.getvalue() == f"warning: {supervisor.EXPOSED}\n"


def leave_dead_notes(path, stages):
    """Notes of ranks whose process is none of the session."""
    for rank, stage in enumerate(stages):
        start.leave_note(path, {"OMPI_COMM_WORLD_RANK": str(rank)}, stage)


@pytest.mark.parametrize(
    "file, died, asked", [(None, True, False), (rundir.STOP, False, True), (rundir.RESULT, False, False)]
)
def test_a_process_that_was_killed_died_unless_an_end_was_asked_for_or_had_come(tmp_path, file, died, asked):
    program = f"open({str(tmp_path / file)!r}, 'w');" if file else ""
    with Interrupts() as interrupts, (tmp_path / "log.txt").open("ab") as log:
        one = supervisor.Supervisor(TrainConfig(algorithm=BA3CConfig()), tmp_path, interrupts, 90.0)
        command = [sys.executable, "-c", f"import os, time; {program} os.kill(os.getpid(), 9)"]
        one.start(command, None, log, log.fileno())
        one.watch(Silent(), JsonLines(tmp_path / rundir.METRICS), Console(file=io.StringIO()))
    assert one.died == ("the process of the run was killed (SIGKILL)" if died else "")
    assert one.asked == asked


@pytest.mark.parametrize(
    "on_loss, status, result, stopping, died",
    [
        ("restart", 137, "stopped", False, "a rank was killed (SIGKILL)"),
        ("restart", 139, "stopped", False, "a rank was killed (SIGSEGV)"),
        ("restart", 1, "stopped", False, ""),  # mpirun itself was asked to end
        ("restart", 137, "finished", False, ""),
        ("restart", 137, "stopped", True, ""),  # the user was first
        ("survive", 137, "stopped", False, ""),  # the death was some time ago
    ],
)
def test_ranks_that_stopped_because_another_died_were_not_asked_to(tmp_path, on_loss, status, result, stopping, died):
    config = TrainConfig(algorithm=BA3CConfig()).changed(exchange={"on_worker_loss": on_loss})
    with Interrupts() as interrupts, (tmp_path / "log.txt").open("ab") as log:
        one = supervisor.Supervisor(config, tmp_path, interrupts, 90.0)
        one.asked = stopping
        write = f"open({str(tmp_path / rundir.RESULT)!r}, 'w').write('{{\"status\": \"{result}\"}}')"
        one.start([sys.executable, "-c", f"{write}; raise SystemExit({status})"], None, log, log.fileno())
        one.watch(Silent(), JsonLines(tmp_path / rundir.METRICS), Console(file=io.StringIO()))
    assert one.died == died


def test_a_stop_that_came_within_a_poll_is_no_death(tmp_path):
    """A signal to the launcher and to all of its ranks at once, which end sooner than the launcher looks."""
    config = TrainConfig(algorithm=BA3CConfig()).changed(exchange={"on_worker_loss": "restart"})
    with Interrupts() as interrupts, (tmp_path / "log.txt").open("ab") as log:
        one = supervisor.Supervisor(config, tmp_path, interrupts, 90.0)
        write = f"open({str(tmp_path / rundir.RESULT)!r}, 'w').write('{{\"status\": \"stopped\"}}')"
        one.start([sys.executable, "-c", f"{write}; raise SystemExit(143)"], None, log, log.fileno())
        one._process.wait()
        interrupts.stop = signal.SIGTERM
        one.watch(Silent(), JsonLines(tmp_path / rundir.METRICS), Console(file=io.StringIO()))
    assert one.died == ""
