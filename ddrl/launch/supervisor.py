"""Starts the ranks of a local run and watches them until they end, or ends them when they take too long."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from cluster.launch import Launcher, mpirun_command, mpirun_environment, start_mpirun, start_process
from cluster.session import SessionFiles
from ddrl import rundir
from ddrl.checkpoint import GATHER_SECONDS, gather_seconds
from ddrl.config import TrainConfig
from ddrl.files import leave_mark
from ddrl.json_lines import JsonLines
from ddrl.launch.processes import Interrupts, children, end_session, session_members
from ddrl.placement import start
from ddrl.reporting.phases import EVALUATING
from ddrl.reporting.progress import Progress
from ddrl.wording import plural

POLL_SECONDS = 0.2
STOP_SECONDS = 90.0  # for the ranks to end once they were asked to, if there is no replay to be written
KILL_SECONDS = 5.0
SIGNALED = 128  # plus the signal's number: exit status of mpirun if a signal ended a rank
TERM_SECONDS = 3.0  # an mpirun that ends its ranks sends them SIGTERM first, which asks for a stop
LOST_SECONDS = 15.0  # after the loss of a server or the chief, or a failure before the start: nothing is left to save
GONE_SECONDS = 0.6  # after which a rank that ended before MPI knew of it counts as dead
UNSAID_SECONDS = 15.0  # the same if MPI knew of it: the others report its death, once they have loaded TensorFlow
LAUNCHER_SECONDS = 10.0  # for mpirun, once there is a result and all of its ranks are gone
EXPOSED = (
    "mpirun accepts connections at all addresses of this machine, as the system does not let ddrl move it to the "
    "loopback interface: allow that (Linux 5.6 or later, in Docker with --cap-add SYS_PTRACE), or shield its ports "
    "with a firewall"
)


class Supervisor:
    """One start of a run's ranks. After a stop request or their result they have `stop_seconds` to end.

    Without `stop_seconds` they have STOP_SECONDS, and as many more as replays may take to be written. Once there is a
    result, the replays have been written.

    Attributes:
        killed: whether a second Ctrl-C ended them.
        overdue: why they were killed; empty if they were not.
        died: which of mpirun, a rank or the run's only process was killed though nobody asked for an end; else empty.
        asked: whether the user wants the run to end.
        begun: whether they have written a record.
        phase: of the run, by its newest record; empty before the first one.
    """

    def __init__(self, config: TrainConfig, path: Path, interrupts: Interrupts, stop_seconds: float | None = None):
        self._config, self._path, self._interrupts = config, path, interrupts
        self._stop_seconds = self._patience = STOP_SECONDS if stop_seconds is None else stop_seconds
        self._replay_seconds = gather_seconds(config) - GATHER_SECONDS if stop_seconds is None else 0.0
        self._deadline: float | None = None
        self._said = False
        self._exposed = threading.Event()
        self._gone_since: float | None = None
        self._left_since: float | None = None  # when mpirun was first seen without ranks
        self._stop_since: float | None = None
        self.killed = self.asked = self.begun = False
        self.overdue = self.died = self.phase = ""

    def start(self, argv: Sequence[str], launcher: Launcher | None, log: BinaryIO, lock: int) -> None:
        """Starts them in a session of their own; they hold the lock of the run directory, too.

        Args:
            argv: program and arguments of each rank.
            launcher: the mpirun that starts them; None: there is one process, without.
            log: takes what they print.
            lock: descriptor of the run directory's lock.
        """
        self._files = SessionFiles()
        environment = mpirun_environment(os.environ, launcher is not None and os.geteuid() == 0, self._files)
        environment |= {rundir.LAUNCHER_PID: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        self._began = time.monotonic()
        self._single = launcher is None
        self._most_born = 0  # children of mpirun at once
        self._name = "the process of the run" if launcher is None else os.path.basename(launcher.path)
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT, "pass_fds": (lock,)}
        if launcher is None:
            self._process = start_process(argv, environment, self._files, **streams)
        else:
            survive = self._config.exchange.on_worker_loss == "survive"
            command = mpirun_command(self._config.ranks, argv, survive, launcher)
            exposed = self._exposed.set
            self._process = start_mpirun(launcher, command, environment, self._files, exposed, **streams)

    def watch(self, display: Progress, follower: JsonLines, console: Console) -> None:
        """Returns when the ranks have ended, or were ended: `killed` or `overdue` then say why."""
        try:
            while self._process.poll() is None and not self.killed and not self.overdue:
                self._show(display, follower)
                with contextlib.suppress(OSError):  # a closed terminal must not end the run without a checkpoint
                    self._warn_if_exposed(console)
                    self._ask_to_stop(console)
                self._look()
                time.sleep(POLL_SECONDS)
            self._show(display, follower)
            self._look_how_it_ended()
        finally:
            end_session(self._process.pid, KILL_SECONDS)
            self._process.wait(timeout=KILL_SECONDS)
            self._files.close()

    def _show(self, display: Progress, follower: JsonLines) -> None:
        records = follower.read()
        self.begun = self.begun or bool(records)
        self.phase = next((record["phase"] for record in reversed(records) if "phase" in record), self.phase)
        with contextlib.suppress(OSError):
            display.update(records)

    def _look_how_it_ended(self) -> None:
        """Notes how mpirun ended, before the remaining ranks are ended: afterward that looks like a user's request."""
        status = self._process.poll()
        if status in (None, 0) or self.killed:
            return
        self.asked = self.asked or self._interrupts.stop is not None  # since the last look
        if os.path.exists(self._path / rundir.RESULT):
            self.died = self._death_taken_for_a_stop(status)
            return
        stop = os.path.exists(self._path / rundir.STOP)
        # mpirun passes a SIGTERM on to the ranks, and kills them soon. Without ULFM it does so when one dies, too.
        if status > 0 and stop and not self._said and self._config.exchange.on_worker_loss == "survive":
            self.asked = True
            self.overdue = (
                f"{self._name} was told to end and killed the ranks before they saved; send the signal to `ddrl train` "
                "instead"
            )
        elif status < 0:
            self.asked = self.asked or stop
            self.died = "" if self.asked else f"{self._name} was killed ({_signal(-status)})"

    def _death_taken_for_a_stop(self, status: int) -> str:
        """Without ULFM mpirun sends SIGTERM to the ranks that a death leaves, and the quick ones save and stop."""
        stopped = (rundir.read_json(self._path / rundir.RESULT) or {}).get("status") == "stopped"
        if self.asked or not stopped or status <= SIGNALED or self._config.exchange.on_worker_loss == "survive":
            return ""
        return f"a rank was killed ({_signal(status - SIGNALED)})"

    def _warn_if_exposed(self, console: Console) -> None:
        if self._exposed.is_set():
            self._exposed.clear()
            console.print(f"warning: {EXPOSED}", highlight=False, markup=False)

    def _ask_to_stop(self, console: Console) -> None:
        if self._interrupts.stop is None or self._said:
            return
        leave_mark(self._path / rundir.STOP)
        self._said = self.asked = True
        what = "end the final evaluation and keep its games" if self.phase == EVALUATING else "checkpoint and end"
        console.print(
            f"{self._interrupts.stop.name}: asked the ranks to {what}; Ctrl-C again kills them", highlight=False
        )

    def _look(self) -> None:
        self.killed = self._interrupts.kill
        now = time.monotonic()
        result = os.path.exists(self._path / rundir.RESULT)  # no error where the file system is lost
        stop = not result and os.path.exists(self._path / rundir.STOP)
        self._stop_since = (self._stop_since or now) if stop else None
        self.asked = self.asked or (self._stop_since is not None and now > self._stop_since + TERM_SECONDS)
        if result and self._replay_seconds:  # replays have been written
            self._replay_seconds, self._deadline = 0.0, None
        if self._deadline is None and (self._said or result):
            told = (rundir.read_json(self._path / rundir.RESULT) or {}) if result else {}
            nothing_to_save = "lost" in told or (not self.begun and told.get("status") == "failed")
            patience = self._stop_seconds + self._replay_seconds
            self._patience = min(LOST_SECONDS, patience) if nothing_to_save else patience
            self._deadline = now + self._patience
        if not self.begun and not result:
            self._look_for_ranks(now)
        if result and not self._single:
            self._look_for_launcher(now)
        if self._deadline is not None and now > self._deadline:
            self.overdue = f"the ranks did not end within {self._patience:g} s and were killed"

    def _look_for_launcher(self, now: float) -> None:
        """An mpirun that stays when all ranks are gone has nothing to wait for: a rank left without MPI_Finalize."""
        alone = len(start.gone(self._path, session_members(self._process.pid))) == self._config.ranks
        self._left_since = (self._left_since or now) if alone else None
        if self._left_since is not None and now > self._left_since + LAUNCHER_SECONDS:
            self.overdue = f"{self._name} did not end within {LAUNCHER_SECONDS:g} s of its ranks, and was killed"

    def _look_for_ranks(self, now: float) -> None:
        """Before the job begins: finds ranks that are missing, for which the others would wait without end."""
        dead, told_of = self._dead_ranks()
        if not dead:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now > self._gone_since + (UNSAID_SECONDS if told_of else GONE_SECONDS):
            self.overdue = f"{_ranks(dead)} died before the job began"
        limit = self._config.run.start_seconds
        if not self.overdue and now > self._began + limit:
            who, killed = self._late()
            more = "raise --start-seconds on a slow or busy machine"
            self.overdue = f"{who} did not begin within {limit:g} s, and {killed} killed ({more})"

    def _late(self) -> tuple[str, str]:
        """Who did not begin in time, and who was killed for it, as parts of a sentence."""
        if self._single:  # the only process leaves no note
            return "the run", "its process was"
        missing = start.missing(self._path, self._config.ranks)
        return _ranks(missing) if missing else "all ranks came to MPI, but the job", "all were"

    def _dead_ranks(self) -> tuple[list[int], bool]:
        """Which have begun and are gone, and whether MPI knew of all of them."""
        dead = start.gone(self._path, session_members(self._process.pid))
        if dead or self._single:
            return list(dead), all(note.stage == start.IN_JOB for note in dead.values())
        born, ranks = len(children(self._process.pid)), self._config.ranks
        self._most_born = max(self._most_born, born)
        unnoted = sorted(set(range(ranks)) - set(start.notes(self._path)))
        if self._most_born >= ranks and len(unnoted) == ranks - born:  # all that live have left their notes
            return unnoted, False
        return [], True


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have no names
        return f"signal {number}"


def _ranks(numbers: Sequence[int]) -> str:
    return f"{plural('rank', len(numbers))} {', '.join(map(str, numbers))}"
