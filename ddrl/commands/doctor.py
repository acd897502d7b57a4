"""`ddrl doctor`: is everything here that training needs? On every rank of a job, or on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.job import Job, detect_job
from cluster.launch import mpirun_command, mpirun_environment, start_mpirun
from cluster.roles import Assignment, Sizes
from cluster.session import SessionFiles
from ddrl import checks, rundir
from ddrl.config import TrainConfig
from ddrl.doctor import report
from ddrl.doctor.checks import exit_status
from ddrl.doctor.examination import RankExamination, examine_here
from ddrl.doctor.survey import Finding, Need
from ddrl.errors import UsageError
from ddrl.launch import local as launch
from ddrl.launch.processes import end_session
from ddrl.options import command_line, early_options, train_options
from ddrl.options.game_settings import tried_game
from ddrl.placement.ranks import sizes_of
from ddrl.placement.resources import check_machine, this_machine
from ddrl.programs import python_command

PROG = "ddrl doctor"
KILL_SECONDS = 5.0
LAUNCH_SECONDS = 60.0  # for mpirun, and for Python on a slow file system, before any rank's own time begins
INSIDE = "DDRL_DOCTOR_ALONE"  # the environment variable of ranks that `_alone` started


@dataclasses.dataclass(frozen=True)
class OwnArguments:
    """Check everything that training needs, on every rank, and print one table, problems first. Start it as you will
    start `ddrl train`, with the same options; by itself, it starts the ranks on this machine.

      mpirun -n 4 ddrl doctor --preset laptop --workers 2 --run-dir RUN
      srun --mpi=pmix ddrl doctor --run-dir RUN

    Exit status: 0 ready to train (there may be warnings), 1 training would fail, 2 the request cannot be met.
    """

    timeout: float = 60.0
    """Seconds for all ranks to start and report what they see. Missing ones are named."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""
    gpus_per_node: int = 0
    """GPUs that each node must show (0: those that its ranks were given)."""

    def __post_init__(self) -> None:
        checks.above(self, 0.0, "timeout")
        checks.at_least(self, 0, "gpus_per_node")


@dataclasses.dataclass(frozen=True)
class DoctorArguments:
    """Doctor's own options, and what it is to be compared with.

    Attributes:
        own: its own.
        given: whether there are options of `ddrl train` besides the run directory.
        train: settings of the run.
    """

    own: OwnArguments
    given: bool
    train: train_options.TrainArguments


def parse(argv: Sequence[str]) -> DoctorArguments:
    """The arguments of `ddrl doctor`.

    Raises:
        UsageError: an option is unknown, or a value is refused.
    """
    own, rest = command_line.read_known(OwnArguments, argv, PROG, others=True)
    where = early_options.Parser(prog=PROG)
    where.add_argument("--run-dir")
    given = bool(where.parse_known_args(rest)[1])
    names = [option.name for option in command_line.options_of(OwnArguments)]
    return DoctorArguments(own, given, train_options.parse(rest, this_machine(), PROG, names))


def need_of(arguments: DoctorArguments, alone: bool) -> Need:
    """What the settings ask of the ranks.

    Args:
        arguments: the arguments of doctor.
        alone: whether doctor itself started the ranks, on this machine.
    """
    config = arguments.train.config
    known = arguments.given or alone
    return Need(
        sizes=sizes_of(config) if known else None,
        memory=functools.partial(_memory_of, config) if known else None,
        survive=config.exchange.on_worker_loss == "survive",
        gpus_per_node=arguments.own.gpus_per_node,
        existing=bool(arguments.train.resume),
        outside=_outside() if alone else "",
    )


def _memory_of(config: TrainConfig, assignments: Sequence[Assignment]) -> Sequence[float]:
    """Bytes of memory of each rank, as `ddrl plan` shows them."""
    from ddrl.memory import memory_of  # only rank 0 needs what it imports

    return memory_of(config, tried_game(config.environment), assignments)


def _outside() -> str:
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "1")
    return f"a Slurm job of {nodes} nodes, of which only this one is checked" if nodes not in ("", "1") else ""


def main(argv: Sequence[str]) -> int:
    """Runs `ddrl doctor`; returns the exit status."""
    job = detect_job(os.environ)
    if job is None or job.rank == 0:
        return _main(argv, job)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        return _main(argv, job)


def _main(argv: Sequence[str], job: Job | None) -> int:
    arguments = parse(argv)
    config = arguments.train.config
    # Of a default directory only the parent: its own name has the time, and would differ between ranks.
    run_dir = Path(os.path.abspath(config.run.run_dir or os.path.dirname(rundir.default_run_dir(config))))
    if job is None and INSIDE not in os.environ:
        return _alone(argv, arguments, run_dir)
    need = need_of(arguments, alone=INSIDE in os.environ)
    return RankExamination(
        job or Job(0, 1, "none"),
        need,
        run_dir,
        arguments.own.timeout,
        lambda findings, survey: report.emit(findings, survey, arguments.own.json),
    ).run()


def _alone(argv: Sequence[str], arguments: DoctorArguments, run_dir: Path) -> int:
    """Starts the ranks that the settings need on this machine; if they cannot run, examines it without them."""
    config, need = arguments.train.config, need_of(arguments, alone=True)
    refusal = ""
    if not config.single_process:
        try:
            check_machine(config, this_machine())
            return _start_ranks(argv, arguments, config)
        except UsageError as error:
            refusal = str(error)
    findings, survey = examine_here(dataclasses.replace(need, sizes=Sizes(1, 0)), run_dir)
    if refusal:
        findings = [Finding("problem", "ranks", refusal), *(f for f in findings if f.check != "ranks")]
    report.emit(findings, survey, arguments.own.json)
    return exit_status(findings)


def _start_ranks(argv: Sequence[str], arguments: DoctorArguments, config: TrainConfig) -> int:
    launcher = launch.require_mpirun()
    survive = config.exchange.on_worker_loss == "survive"
    words = [os.path.join(os.curdir, word) if word == ":" else word for word in argv]  # mpirun takes : for its own
    program = [*python_command("ddrl.cli"), "doctor", *words]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors, SessionFiles() as files:
        environment = mpirun_environment(os.environ, os.geteuid() == 0, files) | {INSIDE: "1"}
        command = mpirun_command(config.ranks, program, survive, launcher)
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
        process = start_mpirun(launcher, command, environment, files, **options)
        seconds = 8 * arguments.own.timeout + LAUNCH_SECONDS
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            why = f"{launcher.path} did not end within {seconds:g} s"
            raise UsageError(f"{why}; start it yourself to see why, or raise --timeout") from None
        finally:
            end_session(process.pid, KILL_SECONDS)
            process.wait(timeout=KILL_SECONDS)
        output.seek(0)
        print(output.read(), end="")  # mpirun itself would not report that its output is closed
        if status not in (0, 1):
            errors.seek(0)
            print(errors.read(), file=sys.stderr, end="")
    return status
