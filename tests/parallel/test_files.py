"""A run directory that goes away under a running job: an end in bounded time, and one line that says why."""

from __future__ import annotations

import errno
import os
import shutil
import signal

import pytest

from ddrl import checkpoint
from tests.parallel import lost_files
from tests.parallel.support import CATCH, events, marked, needs_mpirun, newest, result
from tests.parallel.support import forked_light_train as train

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
LONG = (*CATCH, "--max-updates", "100000", "--no-evaluator", "--checkpoint-every-updates", "20")
END_SECONDS = 60.0
LOST = {"program": "ranks_faulty.py", "environment": {"TEST_FAULT": "lost_files", "TEST_LOST_FILES": "1"}}
"""For ranks and launcher."""


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


@pytest.mark.parametrize("error", ["ESTALE", "EIO", "EROFS"])
def test_a_file_system_that_refuses_everything_or_every_change(tmp_path, error):
    run = tmp_path / "run"
    with train(run, *LONG, **LOST) as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        lost_files.marker(run).write_text(error)
        said = said_of(run, job)
    assert f"can no longer be written ({os.strerror(getattr(errno, error))})" in said
    assert f"ddrl train --resume {run}" in said and events(run, "restarted") == []
    assert newest(run).version >= 20


def test_a_file_system_that_does_not_answer_the_ranks(tmp_path):
    run = tmp_path / "run"
    lost = LOST | {"environment": {"TEST_FAULT": "lost_files"}}
    with train(run, *LONG, "--stall-seconds", "5", "--on-server-loss", "stop", **lost) as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        lost_files.marker(run).write_text(lost_files.HANG)
        said_of(run, job)
    assert "no progress: " in job.output and "has waited" in job.output
    assert "and the run directory does not answer either" in job.output
    assert newest(run).version >= 20


def test_a_file_system_that_does_not_answer_the_launcher_either(tmp_path):
    """Once it answers again, the launcher finds its ranks gone, and starts others."""
    run = tmp_path / "run"
    with train(run, *LONG, "--stall-seconds", "5", **LOST) as job:
        job.wait_for(lambda: checkpoint.list_checkpoints(run), "checkpoint")
        lost_files.marker(run).write_text(lost_files.HANG)
        job.wait_for(lambda: set(marked(job.mark)) == {job.process.pid}, "end of all but the launcher")
        saved = newest(run).version
        lost_files.marker(run).unlink()
        job.wait_for(lambda: events(run, "resumed"), "new start")
        (again,), (resumed,) = events(run, "restarted"), events(run, "resumed")
        assert again["text"].startswith(f"a rank died: the run starts again from update {saved}")
        job.wait_for(lambda: newest(run).version > resumed["update"], "checkpoint after the new start")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 0, job.output
    assert "and the run directory does not answer either" in job.output
    assert result(run)["status"] == "stopped"
