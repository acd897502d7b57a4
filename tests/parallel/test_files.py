"""A run directory that goes away under a running job: an end in bounded time, and one line that says why."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from ddrl import checkpoint
from tests.parallel import lost_files
from tests.parallel.support import CATCH, events, needs_mpirun, newest
from tests.parallel.support import light_train as train

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
LONG = (*CATCH, "--max-updates", "100000", "--no-evaluator", "--checkpoint-every-updates", "20")
END_SECONDS = 60.0
LOST = {"program": "ranks_faulty.py", "environment": {"TEST_FAULT": "lost_files"}}


def said_of(run, job):
    """What the launcher said of the end of a job that failed."""
    assert job.wait(END_SECONDS) == 1, job.output
    said = job.output.split("\n---")[0]
    assert said.count("the run failed") == 1 and "Traceback" not in said, said
    return said


def test_a_run_directory_that_is_removed(tmp_path):
    run = tmp_path / "run"
    with train(run, *LONG) as job:
        job.wait_for_update(20)
        while run.exists():
            shutil.rmtree(run, ignore_errors=True)
        said = said_of(run, job)
    assert f"run directory {run} can no longer be written ({os.strerror(errno.ENOENT)})" in said
    assert not run.exists(), "a new run began where the old one was lost"


def test_a_file_system_that_refuses_everything(tmp_path):
    run = tmp_path / "run"
    environment = LOST["environment"] | {"TEST_LOST_FILES": "1"}
    with train(run, *LONG, program=LOST["program"], environment=environment) as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        lost_files.marker(run).write_text("ESTALE")
        said = said_of(run, job)
    assert f"can no longer be written ({os.strerror(errno.ESTALE)})" in said
    assert f"ddrl train --resume {run}" in said and events(run, "restarted") == []
    assert newest(run).version >= 20


def test_a_file_system_that_does_not_answer(tmp_path):
    run = tmp_path / "run"
    with train(run, *LONG, "--stall-seconds", "5", "--on-server-loss", "stop", **LOST) as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        lost_files.marker(run).write_text("HANG")
        said_of(run, job)
    assert "no progress: " in job.output and "has waited" in job.output
    assert "and the run directory does not answer either" in job.output
    assert newest(run).version >= 20
