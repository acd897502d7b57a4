"""Running a benchmark's ranks under mpirun, and reading what one of them prints behind RESULT."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.launch import mpirun_command, mpirun_environment, session_directory
from ddrl.errors import UsageError
from ddrl.launch.local import require_mpirun


def run_ranks(ranks: int, module: str, options: Mapping[str, Any], timeout_seconds: float) -> Any:
    """The result of a module that runs on so many ranks of this machine.

    Raises:
        UsageError: no MPI here, no result in time, or the ranks failed.
    """
    launcher = require_mpirun()
    command = mpirun_command(ranks, [sys.executable, "-m", module, json.dumps(options)], False, launcher)
    with session_directory() as directory:
        environment = mpirun_environment(os.environ, os.geteuid() == 0, directory)
        return json_line(command, environment, timeout_seconds)


def json_line(command: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Any:
    """What the command prints behind RESULT; it runs in a session of its own, and has an end."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
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
