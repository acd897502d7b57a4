"""Running a benchmark's ranks under mpirun, and reading what one of them prints behind RESULT."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from cluster.launch import mpirun_command, mpirun_environment, python_command, start_mpirun
from cluster.session import SessionFiles
from ddrl.errors import UsageError
from ddrl.launch.local import require_mpirun


def run_ranks(ranks: int, module: str, options: Mapping[str, Any], timeout_seconds: float) -> Any:
    """The result of a module that runs on so many ranks of this machine.

    Raises:
        UsageError: no MPI here, no result in time, or the ranks failed.
    """
    launcher = require_mpirun()
    command = mpirun_command(ranks, [*python_command(module), json.dumps(options)], False, launcher)
    with SessionFiles() as files:
        environment = mpirun_environment(os.environ, os.geteuid() == 0, files)
        start = functools.partial(start_mpirun, command, environment, files)
        return json_line(start, timeout_seconds)


def json_line(start: Callable[..., subprocess.Popen], timeout_seconds: float) -> Any:
    """What a program prints behind RESULT; it has an end.

    Args:
        start: starts it in a session of its own, with the options of subprocess.Popen that it is given.
    """
    process = start(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise UsageError(f"no result within {timeout_seconds:.0f} s; ask for less") from None
    finally:  # after an interrupt, too; and what it may have left behind
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for line in output.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[len("RESULT ") :])
    tail = " | ".join((output + errors).strip().splitlines()[-3:])
    raise UsageError(f"the benchmark's processes ended without a result: {tail}")
