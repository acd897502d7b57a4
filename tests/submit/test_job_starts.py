"""How `job.sh` starts ranks, and what it does when they have ended."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest

from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.run_lock import LOCK, locked
from ddrl.slurm import site as sites
from tests.submit.support import DIES_ONCE, FAKES, STOPS, in_job, trained


@pytest.mark.parametrize(
    "words, shares",
    [
        ("", "ba3c 1 2"),
        ("ppo --parameter-servers 2 --no-evaluator", "ppo 2 2"),
        ("--parameter_servers=1 --no-evaluator --evaluator", "ba3c 1 2"),
        ("--workers 7", "ba3c 1 7"),
        ("--parameter-servers 4", "4 ranks leave none for workers beside 4 parameter servers and 1 evaluator"),
        ("--parameter-servers x", "x parameter servers: give a whole number"),
    ],
)
def test_ranks_are_shared_by_the_options(here, words, shares):
    program = 'SERVERS=1; share_ranks "$@"; echo "${ALGORITHM:-ba3c} $SERVERS $WORKERS"'
    done = in_job(here, program, *words.split())
    if done.returncode == 0:
        assert done.stdout == f"{shares}\n"
    else:
        assert done.returncode == 2 and done.stderr.startswith("ddrl: ") and shares in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_start_after_a_death_is_not_asked_for_the_time_of_a_checkpoint(here):
    done = trained(here, DIES_ONCE.format(status=9), "RESTARTS=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "a rank begins, of a job that ends at 1",
        "ddrl ended with status 9: it starts again, from the last checkpoint if there is one",
        "a rank begins, of a job that ends at a time that is not told",
    ]


@pytest.mark.parametrize("restarts", ["-1", "three", "1.5"])
def test_a_number_of_new_starts_that_is_none_is_refused(here, restarts):
    done = trained(here, "echo a rank begins", f"RESTARTS={restarts}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ddrl: RESTARTS={restarts}: give a whole number\n"


def test_a_job_without_new_starts_ends_with_the_status_of_a_death_while_all_nodes_answer(here):
    done = trained(here, "echo a rank begins; exit 9", "REQUEUE=yes RESTARTS=0")
    assert (done.returncode, done.stdout) == (9, "a rank begins\n"), done.stderr


def test_a_run_that_somebody_else_has_stopped_ends_the_job(here):
    done = trained(here, STOPS, "REQUEUE=yes RESTARTS=3")
    assert (done.returncode, done.stdout) == (0, "a rank begins\n"), done.stderr


@pytest.mark.parametrize("status", [0, 9])
def test_the_result_of_an_earlier_job_is_not_that_of_a_start_that_did_not_begin(here, status):
    result = here / "run" / rundir.RESULT
    result.parent.mkdir()
    result.write_text('{"status": "finished"}')
    os.utime(result, (1, 1))
    done = trained(here, DIES_ONCE.format(status=status), "RESTARTS=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a rank begins") == 2 and "stopped" in result.read_text()


@pytest.mark.parametrize("in_use", [False, True])
def test_a_finished_run_keeps_its_result_if_ranks_that_mpi_ends_did_not_begin(here, in_use):
    """Unless another process is about to go on with it. A failure that a new start would make again leads to none."""
    fails = """\
echo a rank begins
mv "$HOME/run/result.json" "$HOME/run/result-before.json"
echo '{"status": "failed"}' >"$HOME/run/result.json"
exit 1
"""
    result = here / "run" / rundir.RESULT
    result.parent.mkdir()
    result.write_text('{"status": "finished"}')
    (result.parent / LOCK).touch()
    with locked(result.parent) if in_use else contextlib.nullcontext():
        done = trained(here, fails, "RESTARTS=3")
    assert (done.returncode, done.stdout) == (1, "a rank begins\n"), done.stderr
    assert ("finished" in result.read_text()) is not in_use
    assert (result.parent / rundir.RESULT_BEFORE).exists() is in_use


def test_a_launcher_that_stays_after_a_failed_run_does_not_keep_the_job(here):
    hangs = """\
exec >/dev/null
echo '{"status": "failed"}' >"$HOME/run/result.json"
while kill -0 $PPID; do sleep 0.1; done
"""
    soon = "sleep() { command sleep 0.1; }"  # else five seconds, and then ten
    done = trained(here, hangs, f"REQUEUE=yes RESTARTS=3 LAUNCHER_SECONDS=0\n{soon}")
    assert done.returncode in (137, 143), done.stderr
    assert done.stdout == "the run has ended, and srun has not in 0 s: it is killed\n"


TOLD = '{ printenv | grep ^SRUN_ || true; }; printf "%s " "${LAUNCH[@]}"'


@pytest.mark.parametrize(
    "settings, told",
    [
        ("LAUNCHER=mpirun MPI='mpirun (Open MPI) 5.0.8'", ["mpirun --with-ft ulfm --bind-to none -n 8 "]),
        ("LAUNCHER=mpirun MPI='mpirun (Open MPI) 10.0.0'", ["mpirun --with-ft ulfm --bind-to none -n 8 "]),
        ("LAUNCHER=mpirun MPI='mpirun (Open MPI) 4.1.6'", ["mpirun --bind-to none -n 8 "]),
        ("LAUNCHER=mpirun MPI='Intel(R) MPI Library for Linux* OS, Version 2021.9'", ["mpirun -n 8 "]),
        (
            "LAUNCHER=srun SLURM_CPUS_PER_TASK=4",
            ["SRUN_CPUS_PER_TASK=4", "srun --mpi=pmix --kill-on-bad-exit=1 --ntasks=8 "],
        ),
        (
            "LAUNCHER=srun HET_GROUPS=0,1 SLURM_CPUS_PER_TASK_HET_GROUP_0=8",
            [
                "SRUN_CPUS_PER_TASK_HET_GROUP_0=8", "SRUN_CPUS_PER_TASK_HET_GROUP_1=1",
                "srun --mpi=pmix --kill-on-bad-exit=1 --het-group=0,1 ",
            ],
        ),
    ],
)  # fmt: skip
def test_what_starts_the_ranks_and_how_many_cores_srun_gives_them(here, settings, told):
    """The srun with which mpirun starts its daemons has to give them all cores of their nodes.

    Only Open MPI 5 can go on without a rank, and other MPIs refuse the options of Open MPI.
    """
    program = here / "bin" / "mpirun"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$*" = --version ] && echo "$MPI"\n')
    program.chmod(0o755)
    settings = f"PATH=$HOME/bin:$PATH SLURM_CPUS_PER_TASK=4\nexport SRUN_CPUS_PER_TASK=3 MPI=\n{settings}"
    done = in_job(here, f"{settings}\nlaunch 8\n{TOLD}")
    assert sorted(done.stdout.splitlines()) == told, done.stderr


@pytest.mark.parametrize(
    "asked, kept",
    [("cpu=1", ""), ("cpu:2", ""), ("cpu=8,gres/gpu:a100=1", "gres/gpu:a100=1"), ("gres/gpu=1,cpu=8", "gres/gpu=1")],
)
def test_srun_is_told_of_one_number_of_processors(here, asked, kept):
    """A site's limit of memory for each processor raises SLURM_CPUS_PER_TASK alone, and srun ends if they differ."""
    names = ("SLURM_TRES_PER_TASK", "SLURM_TRES_PER_TASK_HET_GROUP_1")
    done = in_job(here, "printenv | grep ^SLURM_TRES_ || true", **dict.fromkeys(names, asked))
    assert sorted(done.stdout.splitlines()) == [f"{name}={kept}" for name in names if kept], done.stderr


def test_the_end_of_a_heterogeneous_job_is_that_of_its_first_component(here):
    """Slurm before 23.02 tells it in the queue alone, in a line for each component."""
    program = here / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 2026-11-23T12:00:00\necho 2026-11-23T12:00:00\n")
    program.chmod(0o755)
    variables = {"SLURM_JOB_END_TIME": "", "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = in_job(here, 'date -d "@$SLURM_JOB_END_TIME" +%FT%T', **variables)
    assert done.stdout == "2026-11-23T12:00:00\n", done.stderr


SCRIPTS = sites.HERE.parents[1] / "slurm"


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sbatch")))
def test_a_script_finds_the_code_that_it_shares_in_a_long_record(here, script):
    """To the task that has the number of its array, Slurm shows all of them."""
    lines = (SCRIPTS / script).read_text().partition("\nset -euo pipefail\n")[2].partition("\nsource ")[0]
    for folder in ("slurm", "ddrl/slurm"):
        (here / folder).mkdir(parents=True)
    (here / "ddrl" / "slurm" / "job.sh").touch()
    record = 'scontrol() { printf "   Command=$HOME/slurm/mine.sbatch --seed %s\\n" {1..20000}; }'
    program = f'set -euo pipefail\n{record}\n{lines}\necho "$shared"'
    variables = {"PATH": os.environ["PATH"], "HOME": str(here), "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", "-c", program], env=variables, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{here}/slurm/../ddrl/slurm/job.sh\n"), done.stderr


@pytest.mark.parametrize("mask, kept", [(0o077, "0077"), (0o002, "0002"), (0o000, "0002")])
def test_the_files_of_a_job_have_the_rights_that_its_user_wants_but_not_everybody_writes(here, mask, kept):
    before = os.umask(mask)
    try:
        assert in_job(here, "umask").stdout == f"{kept}\n"
    finally:
        os.umask(before)


def test_a_result_that_is_a_pipe_is_not_waited_for(here):
    (here / "run").mkdir()
    os.mkfifo(here / "run" / rundir.RESULT)
    asks = 'for each in "well run" "ended run old" "ended_well run old" "cut_off run"; do ! $each || echo "$each"; done'
    done = in_job(here, f"{FAKES}nodes_answer() {{ return 1; }}\n{asks}; echo answered")
    assert (done.stdout, done.stderr) == ("answered\n", "")


@pytest.mark.parametrize(
    "minutes, result, ended",
    [
        (0.0, {}, "no"),
        (0.0, {"status": "stopped"}, "no"),
        (0.0, {"status": "finished"}, "yes"),
        (0.0, {"status": "failed"}, "yes"),
        (0.0, {"status": "failed", "unsaved": True}, "no"),
        (0.0, {"status": "finished", "unevaluated": True}, "no"),
        (5.0, {"status": "finished", "unevaluated": True}, "no"),
        (5.0, {"status": "finished"}, "yes"),
    ],
)
def test_which_runs_have_ended(here, minutes, result, ended):
    """A new start makes the final evaluation alone."""
    config = TrainConfig(algorithm=BA3CConfig()).changed(run={"run_dir": "run", "max_updates": 200, "minutes": minutes})
    rundir.create_run_dir(config)
    rundir.write_json(here / "run" / rundir.RESULT, result)
    assert in_job(here, "ended run '' && echo yes || echo no").stdout == f"{ended}\n"
