"""Processes that measure: each reads lines of JSON and answers each with one. They end with whoever started them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
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
    found = []
    for process in processes:
        line = process.stdout.readline()
        if not line:
            log.seek(0)
            tail = " | ".join(log.read().strip().splitlines()[-3:])
            raise RuntimeError(f"a measuring process ended or did not answer in time: {tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise UsageError(answer["error"])
        found.append(answer)
    return found


def kill(processes: Sequence[subprocess.Popen]) -> None:
    """Ends them all."""
    for process in processes:
        process.kill()
        process.wait()
