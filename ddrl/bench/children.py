"""Child processes that measure: each answers lines of JSON with lines of JSON, and ends with the process above it."""

from __future__ import annotations

import contextlib
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


class Children:
    """Child processes of one module that measure at the same time, killed on exit or when an answer is late.

    Their standard error goes to a temporary file. They do not receive Ctrl-C: this process does, and then ends them.

    Args:
        module: a program that calls `serve`.
        firsts: the first message of each process.
        seconds: the longest time that an answer may take.
    """

    def __init__(self, module: str, firsts: Sequence[dict[str, Any]], seconds: float):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._seconds = seconds
        self._processes = [
            subprocess.Popen(
                python_command(module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            for _ in firsts
        ]
        for process, first in zip(self._processes, firsts):
            self._say(process, first)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *error: object) -> None:
        self._kill()
        self._log.close()

    def ask(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends the message to all processes and waits for their answers; raises what `hear` raises."""
        for process in self._processes:
            self._say(process, message)
        return self.hear()

    def hear(self) -> list[dict[str, Any]]:
        """Waits for one answer of each process.

        Raises:
            UsageError: a process died, did not answer in time, or answered that the request is impossible.
        """
        timer = threading.Timer(self._seconds, self._kill)
        timer.start()
        try:
            return [self._answer(process) for process in self._processes]
        finally:
            timer.cancel()

    def _answer(self, process: subprocess.Popen) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self._log.seek(0)
            tail = " | ".join(self._log.read().strip().splitlines()[-3:])
            raise UsageError(f"a measuring process ended or did not answer in time: {tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise UsageError(answer["error"])
        return answer

    @staticmethod
    def _say(process: subprocess.Popen, message: dict[str, Any]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process died: `_answer` reports it
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def serve(answers_to: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]) -> int:
    """Runs the side of the child process: writes each answer as a line of JSON; returns the exit status.

    Answers go to the original standard output; everything else that is printed goes to standard error. The process ends
    when its pipes close, so it cannot outlive the process that started it.

    Args:
        answers_to: takes the first message and yields the answers; reads further messages from standard input.
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
