"""`slurm/train.sbatch` on a real Slurm: it trains with both launchers, survives, is preempted, and goes on."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.parallel.support import events, kill, lines, newest, result
from tests.slurm.conftest import VENV

pytestmark = pytest.mark.timeout(600)
THREE_NODES = ("--nodes=3", "--ntasks-per-node=1")
SETTINGS = """\
SERVERS=1 REQUEUE=yes RESTARTS=1
if ((${{SLURM_RESTART_COUNT:-0}})); then SERVERS=2; fi
OPTIONS=(--preset smoke --no-evaluator --workers $((3 - SERVERS)) --minutes 0 --max-updates {updates})
OPTIONS+=(--checkpoint-every-updates 20)
"""


def until_warned(target: Path) -> str:
    """Settings of a run that ends only when it is warned; in the queue again, it goes on to the update in `target`.

    A run with an end could come to it before the warning does.
    """
    waits = f"until [[ -s {target} ]]; do sleep 0.2; done; UPDATES=$(<{target})"
    again = f"if ((${{SLURM_RESTART_COUNT:-0}})); then {waits}; fi\n"
    return "UPDATES=1000000\n" + again + SETTINGS.format(updates="$UPDATES")


def update_of(job) -> int:
    """The last update that a job's run has told of; 0 before that."""
    found = [line["update"] for line in lines(job.run)] if list(job.runs.glob(f"*-{job.number}")) else []
    return found[-1] if found else 0


def warned(job, slurm) -> None:
    """Warns a job as Slurm does before its end, and waits until it is in the queue again."""
    slurm.run("scancel", "--signal=USR1", "--batch", job.number)
    job.wait_for(lambda: job.show("Restarts") == "1", "requeue")
    assert newest(job.run).version == update_of(job) >= 20, "an update before the warning was lost"


@pytest.mark.usefixtures("alone")
def test_srun_starts_again_after_a_death_is_warned_requeued_and_trains_to_the_end(submit, slurm, tmp_path):
    target = tmp_path / "target"
    job = submit("train.sbatch", until_warned(target), *THREE_NODES, launcher="srun", curve=True)
    job.wait_for(lambda: update_of(job) > 20 and events(job.run, "checkpoint"), "checkpoint")
    (worker,) = job.processes(PMIX_RANK="2")
    kill(worker)
    job.wait_for(lambda: events(job.run, "resumed"), "another start")
    job.wait_for(lambda: len(events(job.run, "started")) == 2, "another update")
    warned(job, slurm)
    second = newest(job.run).version
    last = second + 200
    target.write_text(str(last))
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert [event["update"] for event in events(job.run, "resumed")][1:] == [second]
    assert newest(job.run).version == last
    assert job.output.count(f"finished: the budget of {last:,} updates is used up") == 1, "rank 0 speaks, and no other"
    assert "learning_curve.png" in job.output and (job.run / "learning_curve.png").exists()
    assert f"ddrl train --resume {job.run}" in job.output


def test_mpirun_outlives_a_worker_is_requeued_and_trains_to_the_end(submit, slurm, tmp_path):
    target = tmp_path / "target"
    job = submit("train.sbatch", until_warned(target), *THREE_NODES, curve=True)
    job.wait_for(lambda: update_of(job) > 20, "update 20")
    (worker,) = job.processes(OMPI_COMM_WORLD_RANK="2")  # rank 1, on a node of its own, is the server
    kill(worker)
    job.wait_for(lambda: events(job.run, "worker_lost"), "loss of a worker")
    (lost,) = events(job.run, "worker_lost")
    assert re.match(r"worker 1 \(rank 2 on n\d\) died; ", lost["text"])
    warned(job, slurm)
    last = newest(job.run).version + 200
    target.write_text(str(last))
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert result(job.run)["status"] == "finished" and newest(job.run).version == last
    assert "learning_curve.png" in job.output and (job.run / "learning_curve.png").exists()
    assert set(newest(job.run).worker_states) == {0}, "one worker and two servers went on"


def test_the_ranks_of_mpirun_have_the_cores_of_the_job_on_every_node(submit, slurm):
    settings = SETTINGS.format(updates=10**6).replace("3 - SERVERS", "6 - SERVERS")
    job = submit("train.sbatch", settings, "--nodes=3", "--ntasks-per-node=2")
    job.wait_for(lambda: update_of(job), "update")
    ranks = [pid for rank in range(6) for pid in job.processes(OMPI_COMM_WORLD_RANK=str(rank))]
    environments = [dict(line.partition("=")[::2] for line in environment(pid)) for pid in ranks]
    slurm.run("scancel", job.number)
    found = {(each["SLURMD_NODENAME"], each["SLURM_CPUS_ON_NODE"]) for each in environments}
    assert len(found) == 3 and {cores for _, cores in found} == {"2"}, found


def environment(pid: int) -> list[str]:
    """The lines of a process's environment."""
    return Path("/proc", str(pid), "environ").read_text().split("\0")


LATE = """\
#!/bin/bash
# a job with the mark is about to end
if [[ -e {mark} && ${{SLURM_JOB_END_TIME:-}} ]]; then export SLURM_JOB_END_TIME=$(($(date +%s) + 3)); fi
exec {ddrl} "$@"
"""


def test_a_rank_that_dies_in_the_last_minutes_of_a_job_does_not_fail_it(submit, slurm, tmp_path):
    program, mark = tmp_path / "venv" / "bin" / "ddrl", tmp_path / "mark"
    program.parent.mkdir(parents=True)
    program.write_text(LATE.format(mark=mark, ddrl=f"{VENV}/bin/ddrl"))
    program.chmod(0o755)
    site = f"VENV={program.parents[1]}; load_modules() {{ export PATH={VENV}/bin:$PATH; }}"
    settings = SETTINGS.format(updates=10**6)
    settings += "OPTIONS+=(--checkpoint-every-updates 0 --checkpoint-every-minutes 0.1)\n"
    job = submit("train.sbatch", settings, *THREE_NODES, launcher="srun", site=site)
    job.wait_for(lambda: update_of(job) > 20 and events(job.run, "checkpoint"), "checkpoint")
    mark.touch()
    (worker,) = job.processes(PMIX_RANK="2")
    kill(worker)
    # its checkpoint, which comes by the clock, may be of one of the first updates
    job.wait_for(lambda: len(events(job.run, "started")) == 2 and update_of(job) >= 20, "another start")
    mark.unlink()
    warned(job, slurm)
    slurm.run("scancel", job.number)


WARNING = 'scancel --signal=USR1 --batch "$SLURM_JOB_ID"'
STAYS = 'LAUNCHER_SECONDS=2; mpirun() { command mpirun "$@"; sleep 1000; }'


@pytest.fixture(scope="module")
def alone(submit):
    """Name -> a job that comes to its end by itself. All at once, and beside a test: each waits more than it works."""
    run = functools.partial(submit, "train.sbatch", SETTINGS.format(updates=20), *THREE_NODES)
    once = f"((${{SLURM_RESTART_COUNT:-0}})) || {WARNING}\ncheck_nodes\n"
    return {
        "warned": run(edits={"check_nodes\n": once}),
        "short": run("--time=5", edits={"check_nodes\n": f"{WARNING}\ncheck_nodes\n"}),
        "stays": run(site=STAYS),
    }


def test_a_job_that_is_warned_while_it_checks_its_nodes_goes_back_and_trains_to_the_end(alone):
    job = alone["warned"]
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert job.show("Restarts") == "1" and result(job.run)["status"] == "finished"


def test_a_job_that_is_warned_as_it_begins_for_lack_of_time_does_not_go_back(alone):
    job = alone["short"]
    assert job.wait() == ("FAILED", "2:0"), job.output
    assert "ddrl: Slurm warned the job of its end in its first minute, so it does not go back" in job.output
    assert job.show("Restarts") == "0"


def test_a_launcher_that_stays_after_the_run_does_not_keep_the_job(alone):
    job = alone["stays"]
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    assert "the run has ended, and mpirun has not in 2 s: it is killed" in job.output
    assert result(job.run)["status"] == "finished"


def test_a_canceled_job_of_srun_leaves_a_checkpoint(submit, slurm):
    job = submit("train.sbatch", SETTINGS.format(updates=10**6), *THREE_NODES, launcher="srun")
    job.wait_for(lambda: update_of(job) > 20, "update 20")
    slurm.run("scancel", job.number)
    state, _ = job.wait()
    assert state == "CANCELLED" and job.show("Restarts") == "0", job.output
    assert result(job.run)["status"] == "stopped", job.output
    assert newest(job.run).version == result(job.run)["update"]
    assert "worker 1 (rank 2 on n" in (job.run / "ranks" / "2").read_text(), "who is task 2 of srun"


def test_a_job_that_was_killed_without_warning_goes_on_when_it_is_put_back(submit, slurm):
    settings = SETTINGS.format(updates=1500).replace("RESTARTS=1", "RESTARTS=0")
    job = submit("train.sbatch", settings, *THREE_NODES, launcher="srun")
    job.wait_for(lambda: update_of(job) > 20 and events(job.run, "checkpoint"), "checkpoint")
    for pid in [pid for rank in "012" for pid in job.processes(PMIX_RANK=rank)]:
        kill(pid)
    assert job.wait()[0] == "FAILED" and job.show("Restarts") == "0"
    slurm.run("scontrol", "requeue", job.number)
    job.wait_for(lambda: events(job.run, "resumed"), "another start")
    job.wait_for(lambda: len(events(job.run, "started")) == 2, "another update")
    assert events(job.run, "resumed")[0]["update"] >= 20
    slurm.run("scancel", job.number)


@pytest.mark.parametrize("launcher, nodes", [("srun", 2), ("mpirun", 1)])
def test_a_preempted_job_saves_within_the_grace_and_goes_on(submit, slurm, tmp_path, launcher, nodes):
    """Slurm tells the ranks of srun, with their simulators, and not the script. For mpirun a step listens."""
    target = tmp_path / "target"
    settings = until_warned(target) + "OPTIONS+=(--simulator-processes 1 --checkpoint-every-updates 0)\n"
    settings = settings.replace("SERVERS=2; fi", "SERVERS=1; fi").replace("3 - SERVERS", "2 - SERVERS")
    size = (f"--nodes={nodes}", f"--ntasks-per-node={2 // nodes}")
    job = submit("train.sbatch", settings, *size, "--partition=low", launcher=launcher)
    job.wait_for(lambda: update_of(job) > 20, "update 20")
    where = f"--nodelist={','.join(nodes_of(job, slurm))}"
    other = ("--partition=high", "--exclusive", "--mem-per-cpu=1", "--output=/dev/null", "--wrap=true")
    slurm.run("sbatch", where, *other)
    job.wait_for(lambda: job.show("Restarts") == "1", "requeue")
    stopped = result(job.run)
    assert stopped["status"] == "stopped", job.output
    assert newest(job.run).version == stopped["update"] == update_of(job) > 20, "an update was lost"
    assert job.output.count("ddrl: Slurm preempts the job, whose nodes another one needs\n") == 1
    last = stopped["update"] + 20
    target.write_text(str(last))
    assert job.wait() == ("COMPLETED", "0:0"), job.output
    finished, (resumed,) = result(job.run), events(job.run, "resumed")
    assert (finished["status"], finished["update"], job.show("Restarts")) == ("finished", last, "1")
    before = next(line["wall_seconds"] for line in lines(job.run) if line["update"] > 20)
    assert resumed["update"] == stopped["update"], "what was saved is where it went on"
    assert before <= resumed["wall_seconds"] < finished["wall_seconds"], "the minutes of both jobs count"


def test_jobs_whose_nodes_crash_go_on_with_others(submit, slurm):
    """One of each launcher, at once: most of the time it is Slurm that waits."""
    # Without an end, as one job may begin long before the other; both are canceled with the last test.
    settings = SETTINGS.format(updates=10**6).replace("SERVERS=2; fi", "SERVERS=1; fi")
    jobs = [submit("train.sbatch", settings, *THREE_NODES, launcher=launcher) for launcher in ("mpirun", "srun")]
    for job in jobs:
        job.wait_for(lambda: update_of(job) > 20 and events(job.run, "checkpoint"), "checkpoint")
    crashed = {nodes_of(job, slurm)[-1] for job in jobs}
    for node in crashed:
        slurm.crash(node)
    try:
        for job in jobs:
            job.wait_for(lambda: job.show("Restarts") == "1", "requeue")
        for job in jobs:
            job.wait_for(lambda: events(job.run, "resumed"), "another start")
            job.wait_for(lambda: len(events(job.run, "started")) == 2, "another update")
    finally:
        for node in crashed:
            slurm.start_node(node)
    assert all("a node does not answer" in job.output for job in jobs)


def nodes_of(job, slurm) -> list[str]:
    """The nodes on which a job runs."""
    return slurm.run("scontrol", "show", "hostnames", slurm.run("squeue", "-h", "-j", job.number, "-o", "%N")).split()
