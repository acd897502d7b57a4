"""Processes that measure: each reads lines of JSON and answers each with one. They end with whoever started them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ddrl.errors import UsageError
from ddrl.programs import python_command


def start_child(module: str, first: dict[str, Any], log: Any) -> subprocess.Popen:
    """Starts `python -m module` and tells it the first line; what it prints as errors goes to the file `log`."""
    process = subprocess.Popen(
        python_command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,  # Ctrl-C is for whoever started it, who then ends it
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    say(process, first)
    return process


def say(process: subprocess.Popen, message: dict[str, Any]) -> None:
    """Sends one line."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it died: the missing answer says so


def answers(processes: Sequence[subprocess.Popen], log: Any) -> list[dict[str, Any]]:
    """One line of each. Waits; whoever calls has a timer that kills the processes.

    Raises:
        RuntimeError: one died or was killed.
        UsageError: one says that what was asked for cannot be.
    """
    heard = []
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            log.seek(0)
            tail = " | ".join(log.read().strip().splitlines()[-3:])
            raise RuntimeError(f"a measuring process ended or did not answer in time: {tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise UsageError(answer["error"])
        heard.append(answer)
    return heard


def kill(processes: Sequence[subprocess.Popen]) -> None:
    """Ends them all."""
    for process in processes:
        process.kill()
        process.wait()


class Children:
    """Processes of one module that measure at the same time; they are killed at the end, or when time is up.

    Args:
        module: whose `main` calls `serve`.
        firsts: the first message of each process.
        seconds: after which all are killed.
    """

    def __init__(self, module: str, firsts: Sequence[dict[str, Any]], seconds: float):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._processes = [start_child(module, first, self._log) for first in firsts]
        self._timer = threading.Timer(seconds, kill, [self._processes])

    def __enter__(self) -> Children:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        kill(self._processes)
        self._log.close()

    def hear(self) -> list[dict[str, Any]]:
        """One answer of each; see `answers`."""
        return answers(self._processes, self._log)

    def ask(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Tells all of them, and waits for their answers."""
        for process in self._processes:
            say(process, message)
        return self.hear()


def serve(answers_to: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]) -> int:
    """The side of the process: answers a line of JSON for each that `answers_to` gives; returns the exit status.

    Answers go to the standard output of its start; anything else that prints goes to standard error. The process ends
    when nobody reads or writes any more, so it cannot outlive the process that started it.

    Args:
        answers_to: takes the first message; reads further ones from standard input.
    """
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        for answer in answers_to(first):
            channel.write(json.dumps(answer) + "\n")
    except UsageError as error:
        channel.write(json.dumps({"error": str(error)}) + "\n")
        return 2
    return 0


def bind(cores: Iterable[int]) -> None:
    """Fixes this process to cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))
