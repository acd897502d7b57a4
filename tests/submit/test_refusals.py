"""What cannot be submitted, shown, or followed is refused in one line, and leaves nothing behind."""

from __future__ import annotations

import pytest

from ddrl.slurm.records import JobRecord, note
from tests.submit.support import SMOKE, a_run

CASES = {
    "no such job": (["submit", "trian"], "submit trian: there is no such job; did you mean train?"),
    "no job": (["submit"], "submit: say what to submit"),
    "no Slurm": (SMOKE, "there is no sbatch here"),
    "no Slurm for a study": (["submit", "study", "scaling", "--quick"], "there is no sbatch here"),
    "too few ranks": (
        [*SMOKE, "--nodes", "1", "--ranks-per-node", "3", "--parameter-servers", "4"],
        "--nodes 1 --ranks-per-node 3: 3 ranks, and other roles leave none of them for workers",
    ),
    "other ranks": (
        [*SMOKE, "--nodes", "2", "--ranks-per-node", "3", "--parameter-servers", "1", "--workers", "1"],
        "--nodes 2 --ranks-per-node 3: 6 ranks, and the settings need 3",
    ),
    "memory of one host": (["submit", "train", "a3c", "--preset", "smoke", "--nodes", "2"], "--nodes 2: --exchange"),
    "no time": ([*SMOKE, "--time", "soon"], "--time soon: write it as Slurm does"),
    "no room for the final evaluation": (
        [*SMOKE, "--minutes", "600", "--time", "30"],
        "--time 30: the final evaluation may take 48 min, and jobs are warned 120 s before their end; use a longer",
    ),
    "a warning at once": (
        ["submit", "train", "dqn", "--preset", "smoke", "--minutes", "0", "--max-updates", "9", "--time", "7"],
        "--time 7: jobs are warned 420 s before their end, to save a checkpoint, so this one would not train; use a ",
    ),
    "too little time": ([*SMOKE, "--minutes", "9", "--time", "3"], "the first checkpoint is due after 5"),
    "no nodes": ([*SMOKE, "--nodes", "0"], "--nodes 0: must be between 1 and"),
    "no quote": ([*SMOKE, "--sbatch-options=--comment='x"], "--sbatch-options --comment='x: No closing quotation"),
    "line end": ([*SMOKE, "--sbatch-options=--comment='x\ny'"], "sbatch takes no control characters"),
    "backslash": ([*SMOKE, "--run-dir", "a\\b"], "Slurm cannot write its output there"),
    "no site": ([*SMOKE, "--site", "none"], "--site none: there is no such file; `ddrl submit site none` creates one"),
    "a mistake of train": ([*SMOKE, "--adam-epsilon", "-1"], "--adam-epsilon"),
    "a game that is not": ([*SMOKE, "--game", "brakeout"], "brakeout"),
    "no run": (["status", "nowhere"], "nowhere: there is no such directory"),
    "an empty directory": (["logs", "empty"], "empty: it holds no run, study, or search"),
    "no name": (["logs"], "logs: name the directory of a run, study, or search"),
    "no job of a run": (["logs", "run", "-f"], "run: no Slurm job has worked there"),
    "a job that is gone": (["logs", "gone"], "job 12 of gone has left the queue without any output"),
    "dry run of nothing": (["study", "scaling", "--dry-run"], "--dry-run goes with --submit"),
    "options of no job": (
        ["study", "scaling", "--list", "--sbatch-options=-H"], "--sbatch-options goes with --submit: give both",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_is_one_line(here, ddrl, name):
    (here / "empty").mkdir()
    a_run(here / "run")
    note(a_run(here / "gone"), JobRecord("12", here / "gone" / "slurm-12.out"))
    words, message = CASES[name]
    status, out, err = ddrl(*words)
    assert (status, out) == (2, "") and message in err
    assert err.startswith("ddrl: ") and err.count("\n") == 1
    assert not (here / "runs").exists() and not (here / "studies").exists(), "nothing is left"
