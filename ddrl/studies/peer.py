"""Runs a point of a study with another library, in a program under the Python of that library's own environment."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddrl import run_lock, rundir
from ddrl.bench import peer_learner
from ddrl.bench.peers import how_to_install, peer_command
from ddrl.errors import UsageError, in_one_line
from ddrl.files import append_regular
from ddrl.launch.processes import Interrupts
from ddrl.reporting.metrics import MetricsWriter

PEER = "stable-baselines3"
PROGRAM = "peer_learner.py"
POLL_SECONDS = 0.2
END_SECONDS = 60.0  # that the program has to save its model after a request to stop


def run_peer(python: str, options: Sequence[str], path: Path) -> None:
    """Trains with the other library in `path`, or goes on there; leaves metrics.jsonl and result.json as ddrl does.

    The result also has the options, so that a report can compare them with those of the point.

    Args:
        python: the Python of the environment that has the library.
        options: options of the program, without the directory.

    Raises:
        UsageError: there is no such Python, or it lacks the library.
        RuntimeError: the program failed (its errors are in log.txt), or its records cannot be kept.
    """
    command = [*peer_command(python, PEER, PROGRAM), *options, "--directory", str(path)]
    path.mkdir(parents=True, exist_ok=True)
    with run_lock.locked(path), Interrupts() as interrupts, append_regular(path / rundir.LOG) as log:
        (path / rundir.RESULT).unlink(missing_ok=True)
        if not (path / peer_learner.STATE).exists():  # it begins anew: records of a start that saved nothing are undone
            (path / rundir.METRICS).unlink(missing_ok=True)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        result: dict[str, Any] = {}
        troubles: list[Exception] = []
        reader = threading.Thread(target=_read, args=(process, path, result, troubles), daemon=True)
        reader.start()
        status = _wait(process, interrupts)
        reader.join()
        if result and not troubles:  # while the directory is locked: another process may be about to run the point
            rundir.write_json(path / rundir.RESULT, result | {"options": list(options)})
    if troubles:
        raise RuntimeError(f"{PEER} was ended, as its records could not be kept: {in_one_line(troubles[0])}")
    if status == peer_learner.MISSING:
        raise UsageError(f"--peer-python {python}: {PEER} is not installed; {how_to_install(PEER)}")
    if not result and status != peer_learner.STOPPED and not interrupts.stop:
        raise RuntimeError(f"{PEER} ended with status {status}: see {path / rundir.LOG}")


def _read(process: subprocess.Popen[str], path: Path, result: dict[str, Any], troubles: list[Exception]) -> None:
    """Writes the records that the program prints until its output ends.

    If that fails, the program is killed: without a reader of its output it would wait forever, and so would the thread
    that waits for it.
    """
    try:
        _keep(process, path, result)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program must end
        troubles.append(error)
        process.kill()


def _keep(process: subprocess.Popen[str], path: Path, result: dict[str, Any]) -> None:
    assert process.stdout is not None
    writer = MetricsWriter(path)
    for line in process.stdout:
        if line.startswith(peer_learner.RECORD):
            record = json.loads(line.removeprefix(peer_learner.RECORD))
            if record["kind"] == "result":
                result.update(record)
            else:
                writer.write(record)
    writer.close()


def _wait(process: subprocess.Popen[str], interrupts: Interrupts) -> int:
    """Waits for the program and returns its exit status.

    After a request to stop, the program is asked to save, and killed if that takes too long.
    """
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if interrupts.stop:
                break
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
