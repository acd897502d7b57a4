"""Running a benchmark's ranks under mpirun, and reading what one of them prints behind RESULT."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster.launch import mpirun_command, mpirun_environment, start_mpirun
from cluster.session import SessionFiles
from ddrl import programs
from ddrl.errors import UsageError
from ddrl.launch.local import require_mpirun
from ddrl.launch.processes import Interrupts, end_session
from ddrl.programs import python_command


def run_ranks(ranks: int, module: str, options: Mapping[str, Any], timeout_seconds: float) -> Any:
    """Runs a module on `ranks` ranks of this machine; returns the result that one of them prints.

    Raises:
        UsageError: MPI is not installed, there was no result in time, or the ranks failed.
    """
    launcher = require_mpirun()
    command = mpirun_command(ranks, [*python_command(module), json.dumps(options)], False, launcher)
    with SessionFiles() as files:
        environment = mpirun_environment(os.environ, os.geteuid() == 0, files)
        return json_line(command, environment, timeout_seconds, functools.partial(start_mpirun, launcher, files=files))


def run_rank(main: Callable[[], None]) -> None:
    """Runs a rank's main function; if it fails, it aborts all ranks, as the others would wait for this one forever."""
    from mpi4py import MPI

    status = 1
    try:
        status = programs.run(main, needs_output=False)
    except BaseException:  # noqa: BLE001 - whatever it was, the other ranks must end
        traceback.print_exc()
    if status:
        MPI.COMM_WORLD.Abort(status)


def by_number(rates: Mapping[int, float], digits: int) -> dict[str, float]:
    """Rates by number of ranks, rounded, with text keys for JSON."""
    return {str(number): round(rate, digits) for number, rate in rates.items()}


class _Interrupting(Interrupts):
    """Raises KeyboardInterrupt at the first request to end, whatever its signal; later ones let the cleanup finish."""

    def _handle(self, number: int, frame: object) -> None:
        first = self.stop is None
        super()._handle(number, frame)
        if first:
            raise KeyboardInterrupt


def _start(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen:
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


def json_line(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_seconds: float,
    start: Callable[..., subprocess.Popen] = _start,
) -> Any:
    """Runs a command in a session of its own and returns the JSON that it prints after RESULT; ends it in any case.

    Raises:
        UsageError: there was no result in time, or the command ended without one.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP asked this process to end.
    """
    with _Interrupting():
        process = start(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            output, errors = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            raise UsageError(f"no result within {timeout_seconds:.0f} s; ask for less") from None
        finally:  # also after an interrupt; not only the command's group, since mpirun gives each rank another one
            end_session(process.pid)
            process.wait()
    for line in output.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[len("RESULT ") :])
    tail = " | ".join((output + errors).strip().splitlines()[-3:])
    raise UsageError(f"the benchmark's processes ended without a result: {tail}")
