"""`ddrl status`: runs, studies and searches, with jobs of Slurm and without."""

from __future__ import annotations

import os
import socket
import time

import pytest

from ddrl import run_lock, rundir
from ddrl.errors import UsageError
from ddrl.slurm import queue as queues
from ddrl.slurm.records import JobRecord, note
from tests.submit.support import ESCAPE, a_run

TRAIN = {"kind": "train", "wall_seconds": 9.0, "update": 50, "agent_steps": 800, "online_score_mean": 1.25}
EVALUATION = {"kind": "evaluation", "wall_seconds": 8.0, "version": 40, "mean": 2.0, "maximum": 3.0, "games": 4}


def rows_of(out: str) -> list[list[str]]:
    """The cells of a table, without its headings and without empty ones."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()[1:]]


def test_status_of_runs_studies_and_searches(here, ddrl):
    halfway = a_run(here / "halfway", [TRAIN, EVALUATION])
    with (halfway / rundir.METRICS).open("ab") as file:
        file.write(b'{"kind": "train", "update": "many"}\n{"kind": "train", "wall_')
    os.utime(halfway / rundir.METRICS, (1, 1))
    a_run(here / "broken", [TRAIN], {"status": "failed", "message": f"a worker {ESCAPE}died"})
    a_run(here / "done", [TRAIN | {"update": 200}], {"status": "finished", "message": "the budget is used up"})
    gone = a_run(here / "gone").rename(here / f"gone{ESCAPE}")
    note(gone, JobRecord("12", gone / "slurm-12.out"))
    (gone / "slurm-12.out").write_text("ddrl: no such thing\nlast line\n")
    study = here / "study"
    points = [{"name": name} for name in ("one", "two", "three")]
    a_run(study / "points" / "one", [], {"status": "target"})
    a_run(study / "points" / "two", [], {"status": "failed"})
    a_run(study / "points" / "three", [], {"status": "finished", "unevaluated": True})
    rundir.write_json(study / "study.json", {"points": points})
    status, out, err = ddrl("status", *(path.name for path in (halfway, here / "broken", here / "done", gone, study)))
    assert (status, err) == (0, "")
    assert rows_of(out) == [
        ["interrupted", "25% of 200 updates", "1.2, evaluated 2.0", "halfway"],
        ["failed", "25% of 200 updates", "1.2", "broken"],
        ["a worker ?]0;owned?died"],
        ["finished", "100% of 200 updates", "1.2", "done"],
        ["12", "gone", "gone?]0;owned?"],
        ["ddrl: no such thing"],
        ["interrupted", "1 of 3 points finished, 1 failed", "study"],
    ]
    assert ESCAPE not in out


def test_a_directory_that_holds_runs_and_studies_stands_for_them(here, ddrl):
    first, second = (a_run(here / "mine" / name, [TRAIN]) for name in ("first", "deep/second"))
    for study in (here / "mine" / "study", here / "mine" / "deep" / "study"):
        a_run(study / "points" / "one", [], {"status": "finished"})
        rundir.write_json(study / "study.json", {"points": [{"name": "one"}]})
    (here / "mine" / "pending").mkdir()
    (here / "mine" / "pending" / "slurm-jobs.tsv").write_text("")
    for run in (first, second):
        os.utime(run / rundir.METRICS, (1, 1))
    status, out, err = ddrl("status", "mine")
    assert (status, err) == (0, "")
    expected = ["mine/deep/second", "mine/deep/study", "mine/first", "mine/pending", "mine/study"]
    assert sorted(row[-1] for row in rows_of(out)) == expected
    (here / "none").mkdir()
    assert ddrl("status", "none")[2].startswith("ddrl: none: it holds no run, study, or search;")


def test_damaged_plans_and_lines_hide_no_other_run(here, ddrl):
    run = a_run(here / "run", [TRAIN])
    with (run / rundir.METRICS).open("ab") as file:
        file.write(b'{"kind": "train", "wall_seconds": 9.0, "update": 60, "seconds_left": Infinity}\n')
    studies = []
    for number, points in enumerate((None, 3, [3, {}, {"name": 7}, {"name": "../../run"}])):
        studies.append(here / f"study{number}")
        studies[-1].mkdir()
        rundir.write_json(studies[-1] / "study.json", {"points": points})
    status, out, err = ddrl("status", "run", *(study.name for study in studies))
    assert (status, err) == (0, "") and "25% of 200 updates" in out
    assert out.count("0 of 0 trials finished") == 3


def test_a_budget_beyond_all_floats_hides_no_other_run(here, ddrl):
    a_run(here / "run", [TRAIN])
    odd = a_run(here / "odd", [TRAIN])
    content = rundir.read_json(odd / rundir.CONFIG)
    content["run"] |= {"max_updates": 0, "minutes": 10**400}
    rundir.write_json(odd / rundir.CONFIG, content)
    status, out, err = ddrl("status", "run", "odd")
    assert (status, err) == (0, "") and "25% of 200 updates" in out and "800 agent steps" in out


HERE = f"process {os.getpid()} on {socket.gethostname()}"


def test_a_run_that_is_locked_is_running_and_its_process_is_named(here, ddrl):
    run = a_run(here / "run", [TRAIN | {"seconds_left": 60.0}])
    row = ["25% of 200 updates, 1:00 left", "1.2", "run"]
    with run_lock.locked(run):
        assert rows_of(ddrl("status", "run")[1]) == [[f"running ({HERE})", *row]]
        rundir.write_json(run / rundir.RESULT, {"status": "finished"})  # its curve is still to be drawn
        assert rows_of(ddrl("status", "run")[1]) == [[f"running ({HERE})", "25% of 200 updates", *row[1:]]]
        (run / run_lock.LOCK).write_text("a text that is somebody's")
        assert rows_of(ddrl("status", "run")[1])[0][0] == "running"
    assert rows_of(ddrl("status", "run")[1]) == [["finished", "25% of 200 updates", *row[1:]]]
    (run / rundir.RESULT).unlink()
    assert rows_of(ddrl("status", "run")[1]) == [["interrupted", "25% of 200 updates", *row[1:]]]
    with run_lock.locked(run):
        note(run, JobRecord("12", run / "slurm-12.out"))  # another job may have ended before
        assert rows_of(ddrl("status", "run")[1])[0][0] == "running"
    assert (run / run_lock.LOCK).read_text() == "a text that is somebody's"


def test_a_run_whose_lock_cannot_be_seen_is_running_while_it_writes(here, ddrl):
    run = a_run(here / "run", [TRAIN])
    os.utime(run / rundir.METRICS)
    assert rows_of(ddrl("status", "run")[1])[0][0] == "running"
    os.utime(run / rundir.METRICS, (time.time() - 100,) * 2)
    assert rows_of(ddrl("status", "run")[1])[0][0] == "interrupted"
    config = rundir.load_config(run).changed(run={"log_every_seconds": 60.0})
    rundir.write_json(run / rundir.CONFIG, rundir.config_to_dict(config))
    assert rows_of(ddrl("status", "run")[1])[0][0] == "running", "it is not yet due to write again"
    os.utime(run / rundir.METRICS)
    rundir.write_json(run / rundir.RESULT, {"status": "stopped"})
    assert rows_of(ddrl("status", "run")[1])[0][0] == "stopped"


def test_studies_that_run_without_jobs_show_the_points_that_do(here, ddrl):
    study = here / "study"
    for name in ("one", "two"):
        a_run(study / "points" / name, [TRAIN])
    rundir.write_json(study / "study.json", {"points": [{"name": name} for name in ("one", "two", "three")]})
    point = ["25% of 200 updates", "1.2", "study/points/two"]
    with run_lock.locked(study / "points" / "two"):
        assert rows_of(ddrl("status", "study")[1]) == [[f"running ({HERE})", "0 of 3 points finished", "study"], point]
    with run_lock.locked(study):
        assert rows_of(ddrl("status", "study")[1]) == [[f"running ({HERE})", "0 of 3 points finished", "study"]]


def test_without_slurm_and_names_the_runs_here_are_listed(here, ddrl):
    status, out, err = ddrl("status")
    assert (status, out, err) == (0, "there are no runs in runs; `ddrl train` starts one\n", "")
    for number in range(12):
        run = a_run(here / "runs" / "of a day" / f"run{number:02d}", [TRAIN], {"status": "finished"})
        os.utime(run / rundir.METRICS, (100 + number,) * 2)
    rundir.write_json(here / "runs" / rundir.CONFIG, {"of": "another program"})
    goes_on = a_run(here / "runs" / "goes on", [TRAIN])
    (here / "studies" / "study").mkdir(parents=True)
    rundir.write_json(here / "studies" / "study" / "study.json", {"points": [{"name": "one"}]})
    with run_lock.locked(goes_on):
        status, out, err = ddrl("status")
        every = ddrl("status", "--all")[1]
    assert (status, err) == (0, "")
    *rows, more = rows_of(out)
    assert [row[-1] for row in rows] == [
        "runs/goes on",
        "studies/study",
        *(f"runs/of a day/run{number:02d}" for number in range(11, 2, -1)),
    ]
    assert rows[0][0].startswith("running") and rows[1][0] == "interrupted" and rows[2][0] == "finished"
    assert more == ["and 3 more that ended earlier (--all)"] and len(rows_of(every)) == 14


def test_status_leaves_out_what_a_resume_has_taken_back(here, ddrl):
    """And evaluations that time cut off: what is there is of the games that were short."""
    resumed = {"kind": "event", "name": "resumed", "text": "from update 30", "wall_seconds": 5.0}
    kept = [EVALUATION | {"wall_seconds": 3.0, "mean": 1.0}, EVALUATION | {"wall_seconds": 4.0, "timed_out": 3}]
    kept.append(TRAIN | {"wall_seconds": 5.0, "update": 30, "online_score_mean": 0.5})
    undone = [TRAIN | {"seconds_left": 60.0}, EVALUATION]
    a_run(here / "again", [*kept, *undone, resumed])
    a_run(here / "further", [*kept, *undone, resumed, TRAIN | {"wall_seconds": 6.0, "seconds_left": 60.0}])
    timed = a_run(here / "timed", [*kept, *undone, resumed])
    config = rundir.load_config(timed).changed(run={"max_updates": 0, "minutes": 2.0})
    rundir.write_json(timed / rundir.CONFIG, rundir.config_to_dict(config))
    requeued = a_run(here / "requeued", [*kept, *undone, resumed | {"wall_seconds": 6.0, "spent_seconds": 6.0}])
    rundir.write_json(requeued / rundir.CONFIG, rundir.config_to_dict(config))
    for path in (here / "again", here / "further", timed, requeued):
        os.utime(path / rundir.METRICS)
    assert rows_of(ddrl("status", "again", "further", "timed", "requeued")[1]) == [
        ["running", "15% of 200 updates, starting", "0.5, evaluated 1.0", "again"],
        ["running", "25% of 200 updates, 1:00 left", "1.2, evaluated 1.0", "further"],
        ["running", "0% of 2.0 minutes, starting", "0.5, evaluated 1.0", "timed"],
        ["running", "4% of 2.0 minutes, starting", "0.5, evaluated 1.0", "requeued"],
    ]


def test_a_job_that_never_began_has_not_ended_as_the_one_before_it_did(here, ddrl):
    run = a_run(here / "run", [TRAIN], {"status": "failed", "message": "of another job"})
    note(run, JobRecord("12", run / "slurm-12.out"))
    os.utime(run / "slurm-jobs.tsv", (1, 1))
    assert "12   failed" in ddrl("status", "run")[1]
    note(run, JobRecord("13", run / "slurm-13.out"))
    os.utime(run / rundir.RESULT, (2, 2))
    (run / "slurm-13.out").write_text("ddrl: the nodes differ\n")
    lines = ddrl("status", "run")[1].splitlines()
    assert lines[1].startswith("13   gone") and lines[2].strip() == "ddrl: the nodes differ" and len(lines) == 3


@pytest.mark.parametrize(
    "said",
    [
        "ddrl: the nodes differ",
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED DUE TO TIME LIMIT ***",
        "srun: error: n3: task 2: Killed",
        "srun: fatal: cpus-per-task set by two different environment variables",
    ],
)
def test_status_tells_why_a_job_is_gone(here, ddrl, said):
    run = a_run(here / "run")
    os.utime(run / rundir.METRICS)  # it wrote just now, but Slurm knows that it is gone
    note(run, JobRecord("12", run / "slurm-12.out"))
    (run / "slurm-12.out").write_text(f"first\n{said}\nlast\n")
    lines = ddrl("status", "run")[1].splitlines()
    assert lines[1].startswith("12   gone") and lines[2].strip() == said


@pytest.mark.parametrize("start", ["run directory run", "ddrl ended with status 1: it starts again, from the last one"])
def test_what_a_job_said_of_an_earlier_start_is_not_why_it_is_gone(here, ddrl, start):
    """A job that was put back into the queue goes on in the same output."""
    run = a_run(here / "run")
    note(run, JobRecord("12", run / "slurm-12.out"))
    output = run / "slurm-12.out"
    output.write_text(f"run directory run\nddrl: a rank died while the job began\n{start}\ntrains\n")
    assert ddrl("status", "run")[1].splitlines()[2].strip() == f"it has left no result; its last output is in {output}"
    with output.open("a") as file:
        file.write("srun: error: n3: task 2: Killed\n")
    assert ddrl("status", "run")[1].splitlines()[2].strip() == "srun: error: n3: task 2: Killed"


def test_jobs_in_the_queue_come_first(here, ddrl, monkeypatch):
    runs = {name: a_run(here / "runs" / name, [TRAIN]) for name in ("first", "array", "waits")}
    elsewhere = a_run(here / "of another place", [TRAIN])
    note(elsewhere, JobRecord("15", elsewhere / "slurm-15.out"))
    for job, run in zip(("12", "13", "14"), runs.values()):
        note(run, JobRecord(job, run / "slurm.out"))
    jobs = [
        queues.QueuedJob("13_0", "RUNNING", "1:00", "2:00", "None", "/x.sh"),
        queues.QueuedJob("13_1", "RUNNING", "0:30", "2:00", "None", "/x.sh"),
        queues.QueuedJob("13_[2-9]", "PENDING", "0:00", "2:00", "Priority", "/x.sh"),
        queues.QueuedJob("14", "PENDING", "0:00", "2:00", "Resources", "/x.sh"),
        queues.QueuedJob("99", "RUNNING", "0:00", "2:00", "None", "/x.sh"),
        queues.QueuedJob("15", "RUNNING", "0:00", "2:00", "None", f"{elsewhere}/job.sbatch"),
        queues.QueuedJob("16", "RUNNING", "0:00", "2:00", "None", "/another/project/job.sbatch"),
    ]
    monkeypatch.setattr("ddrl.commands.status.has_queue", lambda: True)
    monkeypatch.setattr("ddrl.commands.status.queue", lambda: jobs)
    status, out, _ = ddrl("status")
    lines = out.splitlines()
    assert status == 0 and len(lines) == 6
    assert lines[1].startswith("13   RUNNING (2 tasks)    1:00 of 2:00") and lines[1].endswith("runs/array")
    assert lines[2].startswith("14   PENDING (Resources)") and lines[4].startswith("12   gone")
    assert lines[3].startswith("15   RUNNING") and lines[3].endswith("of another place")
    assert lines[5].strip() == "it has left no output"


NO_CONFIGURATION = """\
squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
squeue: error: fetch_config: DNS SRV lookup failed
squeue: error: _establish_config_source: failed to fetch config
squeue: fatal: Could not establish a configuration source
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("squeue: error:  no\tcontroller\nsqueue: error: gone\n", "squeue failed: squeue: error: no controller"),
        ("", "squeue failed: no reason given"),
    ],
)
def test_a_squeue_that_fails_is_told_of_in_one_short_line(here, ddrl, monkeypatch, said, told):
    failing_squeue(here, monkeypatch, said)
    status, _, err = ddrl("status")
    assert status == 2 and err.startswith(f"ddrl: {told}") and err.count("\n") == 1
    assert "gone" not in err


def test_a_machine_whose_slurm_knows_of_no_cluster_has_runs_without_jobs(here, ddrl, monkeypatch):
    failing_squeue(here, monkeypatch, NO_CONFIGURATION)
    a_run(here / "runs" / "mine")
    status, out, err = ddrl("status")
    assert (status, err) == (0, "") and out.splitlines()[1].endswith("runs/mine")
    with pytest.raises(
        UsageError, match="Slurm's client has no configuration here; log in where Slurm is, or name its"
    ):
        queues.queue()


def failing_squeue(here, monkeypatch, said):
    """Puts a squeue on the path that prints this and fails."""
    program = here / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}END\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for module in ("ddrl.slurm.queue", "ddrl.commands.status"):
        monkeypatch.setattr(f"{module}.has_queue", lambda: True)
