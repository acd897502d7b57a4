"""Runs one trial as a process: `python -m ddrl.tuning.trial` reads its settings and its directory from its input.

It ends when its input ends, since then there is no process left that would read its score.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ddrl import plugin_modules, programs, rundir
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting import machine
from ddrl.studies.engine import MACHINE
from ddrl.studies.points import Point, note_failure, state_of
from ddrl.studies.training import train_point


def order(config: TrainConfig, path: Path) -> bytes:
    """The line that the process of a trial reads."""
    return json.dumps({"path": str(path), "config": rundir.config_to_dict(config)}).encode() + b"\n"


def main() -> int:
    """Trains in the directory, or goes on there; if the trial fails, result.json there says why."""
    asked: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    path = Path(asked["path"])
    try:
        here = machine.describe()  # before the run: its processes load the source as it is now
        plugin_modules.load_named(rundir.plugins_of(asked["config"]))  # for those recorded before
        train_point(Point(path.name, rundir.config_from_dict(asked["config"]), {}), path)
        if state_of(path).status == "finished":
            rundir.write_json(path / MACHINE, here)
    except (UsageError, RuntimeError, OSError) as error:
        note_failure(path, " ".join(str(error).split()))
    return 0


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(programs.run(main, needs_output=False))
