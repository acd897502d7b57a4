"""Records of jobs in the directories where they work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.slurm.records import JobRecord, note, noted
from tests.submit.support import FAKES, in_job


def test_jobs_are_noted_once_and_damaged_lines_left_out(here):
    record = JobRecord("12_3", here / "slurm-12_3.out")
    for _ in range(2):
        note(here, record)
    with (here / "slurm-jobs.tsv").open("ab") as file:
        file.write(b"\xff\xfe\nno job\tx\n17\n" + b"9" * 5000 + b"\tx\n18\tout")
    assert noted(here) == [record, JobRecord("18", Path("out"))]
    assert record.number == "12"


def test_a_job_notes_itself_in_no_link_and_no_pipe(here):
    """A link may lead to any file of this user, and a pipe is waited for without end."""
    (here / "own").write_text("kept")
    for name in ("linked", "piped"):
        (here / name).mkdir()
    (here / "linked" / "slurm-jobs.tsv").symlink_to(here / "own")
    os.mkfifo(here / "piped" / "slurm-jobs.tsv")
    done = in_job(here, f"{FAKES}note_job linked\n[[ $(<own) != kept ]] || note_job piped\nnote_job new")
    assert done.returncode == 0, done.stderr
    assert (here / "own").read_text() == "kept" and (here / "new" / "slurm-jobs.tsv").read_text() == "1\t\n"


def test_a_directory_with_what_jobs_leave_can_be_begun_in(here):
    run = here / "run"
    run.mkdir()
    for name in ("job.sbatch", "slurm-jobs.tsv", "slurm-12.out"):
        (run / name).write_text("x")
    rundir.make_run_dir(run)
    (run / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match="holds other files"):
        rundir.make_run_dir(run)
