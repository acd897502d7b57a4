"""What a launcher says of a run that left no result."""

from __future__ import annotations

import os

import pytest
from rich.console import Console

from ddrl import rundir
from ddrl.launch import outcome

RULE = "-" * 60
FAREWELL = [RULE, "prterun detected that one or more processes exited with non-zero status", "Exit code: 1", RULE]


def test_log_tail_keeps_other_framed_messages(tmp_path):
    told = [RULE, "There are not enough slots available", RULE]
    log = tmp_path / "log.txt"
    log.write_text("\n".join(["before", "reason", *told, *FAREWELL, "after"]))
    assert outcome.log_tail(log, len("before\n")) == ["reason", told[1], "after"]
    log.write_text("\n".join(FAREWELL))
    assert outcome.log_tail(log) == FAREWELL
    os.mkfifo(tmp_path / "pipe")  # a reader of which would wait for ever
    assert outcome.log_tail(tmp_path / "none") == outcome.log_tail(tmp_path / "pipe") == []


LOST = ["Fatal Python error: Segmentation fault", "", f"{rundir.GOES_ON}worker 1 (rank 1) died; training goes on"]
TRACEBACK = ["Traceback (most recent call last):", '  File "a.py", line 7, in f', "    raise error", "    ^^^^^^^^^^^"]


@pytest.mark.parametrize(
    "log, overdue, cause",
    [
        ([*TRACEBACK, "ValueError: first", *TRACEBACK, "KeyError: second", "end"], "", "ValueError: first"),
        (
            [*TRACEBACK, "KeyError: 'a'", "", "During handling of the above exception, another exception occurred:", ""]
            + [*TRACEBACK, "my.Error", "goodbye"],
            "",
            "my.Error",
        ),
        (["ddrl: warning: old", "ddrl: cannot write", *TRACEBACK, "ValueError: second"], "", "cannot write"),
        (["Fatal Python error: Segmentation fault", "", "Thread 0x1:"], "", "Fatal Python error: Segmentation fault"),
        ([*LOST, "the end"], "", "no result; the log ends with: the end"),
        ([*LOST, *TRACEBACK, "ValueError: second"], "", "ValueError: second"),
        ([*LOST, *LOST, "Fatal Python error: Aborted"], "", "Fatal Python error: Aborted"),
        (["the beginning", "the end"], "", "no result; the log ends with: the end"),
        (["x" * 2000], "", f"no result; the log ends with: {'x' * 1000} ..."),
        (FAREWELL, "", f"no result; the log ends with: {FAREWELL[1]} Exit code: 1"),
        ([], "", "no result"),
        ([*TRACEBACK, "OSError"], "rank 1 died before the job began", "rank 1 died before the job began (OSError)"),
        (["the end"], "rank 1 died before the job began", "rank 1 died before the job began"),
    ],
)
def test_a_run_without_a_result_says_the_last_error_of_the_process_that_failed_first(tmp_path, log, overdue, cause):
    (tmp_path / rundir.LOG).write_text("\n".join(["RuntimeError: of an earlier part", *log]))
    console, causes = Console(record=True, width=2000), []
    start = len("RuntimeError: of an earlier part\n")
    assert outcome.report(tmp_path, start, overdue, console, causes.append) == 1
    assert causes == [f"{cause}; see {tmp_path / rundir.LOG}"]
    first, *_, last = console.export_text().splitlines()
    assert first == f"ddrl: the run failed: {cause}" and "ddrl train --resume-or-start --run-dir" in last
