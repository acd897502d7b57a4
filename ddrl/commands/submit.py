"""`ddrl submit`: the same options as of the commands that it submits, as a job of Slurm."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from cluster.topology import Seat
from ddrl import checks, rundir
from ddrl.checks import did_you_mean
from ddrl.commands.slurm_job import JobArguments, SlurmJob
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.launch.job import JOB_END, check_time
from ddrl.launch.outcome import lacks_evaluation_only
from ddrl.launch.restarts import seconds_trained
from ddrl.options import command_line, early_options, train_options
from ddrl.options.wanted import Wanted, ready
from ddrl.placement.ranks import place_ranks, sizes_of
from ddrl.placement.resources import this_machine
from ddrl.slurm import site as sites
from ddrl.slurm.queue import queue
from ddrl.slurm.records import JobRecord, note, noted
from ddrl.slurm.script import SCRIPT, own_venv, warning_seconds, words_of
from ddrl.slurm.submission import require_sbatch, submit
from ddrl.slurm.text import as_typed
from ddrl.terminal import printable
from ddrl.types import Machine
from ddrl.wording import counted

HELP = """usage: ddrl submit train [ALGORITHM] [OPTIONS]
       ddrl submit study NAME [OPTIONS]
       ddrl submit tune ALGORITHM [OPTIONS]
       ddrl submit site [FILE]

Writes the script of a Slurm job and submits it. The options are those of the same command without `submit`; `train`
also has some for the job.

  ddrl submit train ppo --game pong --parameter-servers 1 --nodes 2 --ranks-per-node 8
                              one run; when the time of a job is up, it continues in a new one
  ddrl submit study scaling   a task for each point of a study, and a job that writes the report at the end
  ddrl submit tune ba3c ...   a task for each trial of a search; the last one writes the report
  ddrl submit site            write the file that says what this cluster needs: account, partition, modules, MPI

`--dry-run` prints the script and submits nothing; `ddrl submit train --help` explains the options of the job.
Afterward, `ddrl status` lists the jobs with their runs, and `ddrl logs RUN -f` follows what one prints.
"""
COMMANDS = ("train", "study", "tune", "site")
NO_LIMIT = 1 << 62  # bytes of memory of nodes whose size is not known here
MOST_TRIES = 10  # at a number of workers: each is eight times nearer to one that fits, if there is one


def main(argv: Sequence[str]) -> int:
    """Runs `ddrl submit`; returns the exit status."""
    if argv and argv[0] in command_line.HELP:
        print(HELP, end="")
        return 0
    command, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if command not in COMMANDS:
        meant = did_you_mean(command, COMMANDS) or f"; use one of {', '.join(COMMANDS)}"
        what = f"submit {command:.80}: there is no such job{meant}" if command else "submit: say what to submit"
        raise UsageError(f"{what} (ddrl submit --help)")
    if command == "train":
        return submit_job(read_job(rest))
    if command == "site":
        return write_site(rest)
    if command == "study":
        from ddrl.commands import study

        return study.main([*rest, "--submit"])
    from ddrl.commands import tune

    return tune.main([*rest, "--submit"])


def write_site(argv: Sequence[str]) -> int:
    """Writes a site file; returns the exit status."""
    if len(argv) > 1 or any(word.startswith("-") for word in argv):
        raise UsageError(f"submit site: give only one word, the file to write (default: {sites.home()})")
    path = Path(argv[0]) if argv else sites.home()
    sites.write_example(path, own_venv())
    print(f"{path} was written; say there which account, partition, modules, and MPI launcher this cluster needs")
    return 0


def _check_warning(config: TrainConfig, job: JobArguments, seconds: float) -> None:
    """Refuses jobs that would follow each other without end: those that are warned at once, and those that have no room
    for the final evaluation."""
    warning, evaluation = warning_seconds(config), config.evaluation
    if seconds <= warning:
        why = f"jobs are warned {warning} s before their end, to save a checkpoint, so this one would not train"
        checks.refuse(job, "time", f"{why}; use a longer one")
    final = evaluation.longest_final_seconds(60.0 * config.run.minutes or seconds)
    if final > seconds - warning and not evaluation.plays_all_games:
        why = f"the final evaluation may take {final / 60:g} min, and jobs are warned {warning} s before their end"
        checks.refuse(job, "time", f"{why}; use a longer one, or a shorter --final-evaluation-minutes")


def submit_job(job: SlurmJob) -> int:
    """Submits a run, or prints the script of its job; returns the exit status.

    Raises:
        UsageError: there is no sbatch, it refuses, or a job of this run waits or runs.
    """
    script = job.script()  # refused before there is a directory
    if job.arguments.dry_run:
        print(script, end="")
        return 0
    require_sbatch()
    refuse_while_queued(job.directory)
    if job.resumed is None and not make_directory(job):
        return submit_job(job._replace(directory=run_directory(job.config, None, job.site)))
    try:
        number = submit(job.directory / SCRIPT, script, job.site, job.sbatch_words)
    except UsageError:
        give_up(job.directory)
        raise
    note(job.directory, JobRecord(number, job.directory / f"slurm-{number}.out"))
    config, where = job.config, as_typed(job.directory)
    ranks = counted(config.ranks, "rank")
    print(printable(f"job {number}: {config.title} on {config.environment.game}, {ranks}: {sizes_of(config)}"))
    print(f"run directory {printable(where)}")
    print(f"follow it with: ddrl logs {printable(shlex.quote(where))} -f")
    return 0


def read_job(argv: Sequence[str]) -> SlurmJob:
    """The job that a command line asks for.

    Raises:
        UsageError: the settings are refused, or do not fit the job.
    """
    job, words = command_line.read_known(JobArguments, argv, "ddrl submit train", JobArguments(), others=True)
    site, more = sites.read(sites.find(job.site)), words_of(job.sbatch_options)
    more = [f"--time={job.time}", *more] if job.time else more  # a limit of the site would win over the script
    words, arguments = with_ranks(words, job)
    wanted = ready(arguments, machine_of(job))
    config, words, trained = of_whole_run(wanted, words)
    directory = run_directory(config, wanted.resume, site)
    place_ranks(config, [Seat()] * config.ranks)
    if job.seconds is not None:
        check_time(config, {JOB_END: str(job.seconds)}, now=0.0, spent_seconds=60.0 * trained)
        _check_warning(config, job, job.seconds)
    command = shlex.join(["ddrl", "submit", "train", *argv])
    return SlurmJob(job, config, words, wanted.resume, trained, site, more, command, directory)


def of_whole_run(wanted: Wanted, words: Sequence[str]) -> tuple[TrainConfig, list[str], float]:
    """The settings, the options of `ddrl train`, and the minutes trained so far, of the jobs of a run.

    With --resume, --minutes says how many more. All starts of the jobs have one command, so in that it is those of the
    whole run.

    Raises:
        UsageError: the run has used up its minutes, and lacks not even its final evaluation.
    """
    config, run = wanted.config, wanted.resume
    minutes = config.run.minutes
    if run is None or not minutes:
        return config, list(words), 0.0
    trained = seconds_trained(run, config) / 60.0
    if wanted.trains_more:
        peek = early_options.Parser(prog="ddrl submit train")
        peek.add_argument("--minutes")
        _, others = peek.parse_known_args(list(words))
        minutes = round(trained + minutes, 2)
        return config.changed(run={"minutes": minutes}), [*others, "--minutes", str(minutes)], trained
    if trained >= minutes and not wanted.minutes_of_run and not lacks_evaluation_only(run, config):
        used = f"it has trained {trained:.1f} minutes, and its --minutes {minutes:g} are used up"
        raise UsageError(f"--resume {run}: {used}; say with --minutes how many more")
    return config, list(words), trained


def with_ranks(words: Sequence[str], job: JobArguments) -> tuple[list[str], train_options.TrainArguments]:
    """The options of `ddrl train` with the number of workers (or actors) among them, and the arguments they make.

    Presets choose that number by the cores of the machine that reads them, which is not that of the job.

    Raises:
        UsageError: the settings are refused, or need another number of ranks than the nodes have.
    """
    machine = machine_of(job)
    own = [option.name for option in command_line.options_of(JobArguments)]
    arguments = train_options.parse(words, machine, "ddrl submit train", own)
    words, config = train_options.without_file(words, arguments), arguments.config
    role, number = ("actors", config.apex.actors) if config.apex.actors else ("workers", config.exchange.workers)
    if any(command_line.name_of(word) == role for word in words):
        check_ranks(config, job)
        return words, arguments
    ranks = job.ranks
    number = ranks or number  # too many at first, as too few may be refused: by --quorum, for instance
    for _ in range(MOST_TRIES):  # whether there is an evaluator, and how many servers, depends on the workers
        pinned = [*words, f"--{role}", str(number)]
        # What was chosen was known before: here the words of a file are among those that were typed.
        arguments = dataclasses.replace(train_options.parse(pinned, machine), chosen=arguments.chosen)
        config = arguments.config
        if ranks is None or ranks == config.ranks:
            break
        number += ranks - config.ranks
        if number < 1:
            raise UsageError(
                f"{_nodes(job)}, and other roles leave none of them for {role} ({sizes_of(config)}): give more ranks, "
                "or lower the others"
            )
    check_ranks(config, job)
    return pinned, arguments


def check_ranks(config: TrainConfig, job: JobArguments) -> None:
    """Raises UsageError if the settings need another number of ranks or nodes than the job has."""
    if job.ranks not in (None, config.ranks):
        raise UsageError(
            f"{_nodes(job)}, and the settings need {config.ranks} ({sizes_of(config)}): start as many, or change the "
            "numbers"
        )
    if config.exchange.kind.one_host and (job.nodes or 1) > 1:
        raise UsageError(
            f"--nodes {job.nodes}: --exchange {config.exchange.exchange} is memory that workers share; use --nodes 1"
        )


def _nodes(job: JobArguments) -> str:
    return f"--nodes {job.nodes} --ranks-per-node {job.ranks_per_node}: {counted(job.ranks or 0, 'rank')}"


def machine_of(job: JobArguments) -> Machine:
    """The nodes as one machine; if their size is not given, it has the cores of this machine."""
    here = this_machine()
    return here._replace(cores=(job.ranks or 0) * job.cpus_per_rank or here.cores, memory_bytes=NO_LIMIT)


def run_directory(config: TrainConfig, resumed: Path | None, site: sites.Site) -> Path:
    """Where the run is or will be: as named, or in the site's directory of runs."""
    named = resumed or config.run.run_dir
    if named:
        return Path(named).absolute()
    paths = map(site.runs.joinpath, rundir.numbered(Path(rundir.default_run_dir(config)).name))
    return next(path for path in paths if not os.path.lexists(path))


def make_directory(job: SlurmJob) -> bool:
    """Makes the directory of a new run; false if its name was free, and a command of the same second now has it: two
    jobs would train in it, and the second one go on with the run of the first.

    Raises:
        UsageError: it holds more than a start without training leaves, or cannot be made.
    """
    if not job.config.run.run_dir and not rundir.makes(job.directory):
        return False
    rundir.make_run_dir(job.directory)
    return True


def give_up(directory: Path) -> None:
    """Removes the script, and a directory that holds nothing else."""
    with contextlib.suppress(OSError):
        (directory / SCRIPT).unlink()
        directory.rmdir()


def refuse_while_queued(directory: Path) -> None:
    """Raises UsageError when a job of this run waits or runs."""
    numbers = {record.number for record in noted(directory)}
    for job in queue() if numbers else ():
        if job.number in numbers:
            raise UsageError(
                f"job {job.number} of {directory} is {job.state.lower()}: wait until it ends, or end it with "
                f"`scancel {job.number}`"
            )
