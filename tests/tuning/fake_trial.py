"""In place of a trial's process: a run that learns nothing, whose score is told by its settings.

It is the higher the nearer Adam's epsilon is to 1e-5, and grows while it goes on. With a batch of 64 it fails. Where
FAKE_TRIAL_PACE names a directory, it goes on only as a file there allows, see `allowed`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

from ddrl import run_lock, rundir, sealed

LINES, SECONDS = 20, 0.003
PACE = "FAKE_TRIAL_PACE"


def allowed(path: Path) -> int:
    """Lines that a trial may have written by now: all, or the number in its file in PACE's directory, at first 1."""
    if PACE not in os.environ:
        return LINES
    try:
        return int(Path(os.environ[PACE], path.name).read_text())
    except (OSError, ValueError):  # it is not there yet, or half written
        return 1


def main() -> None:
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    asked = json.loads(sys.stdin.buffer.readline())
    path, config = Path(asked["path"]), rundir.config_from_dict(asked["config"])
    path.mkdir(parents=True, exist_ok=True)
    with run_lock.locked(path):
        rundir.write_json(path / rundir.CONFIG, rundir.config_to_dict(config))
        if config.optimizer.batch_size == 64:
            rundir.write_json(path / rundir.RESULT, {"status": "failed", "message": "it broke"})
            return
        best = 1.0 - abs(math.log10(config.optimizer.adam_epsilon) + 5) / 10
        with (path / rundir.METRICS).open("ab") as metrics:
            lines = (path / rundir.METRICS).read_bytes().count(b"\n")
            while lines < LINES and not stopped:
                if lines >= allowed(path):
                    time.sleep(SECONDS)
                    continue
                lines += 1
                part = lines / LINES
                steps = round(part * config.run.agent_steps)
                record = {"kind": "train", "wall_seconds": part, "update": lines, "agent_steps": steps}
                metrics.write(sealed.line_bytes(record | {"online_score_mean": part * best}))
                metrics.flush()
                time.sleep(SECONDS)
        rundir.write_json(path / rundir.RESULT, {"status": "finished" if lines == LINES else "stopped"})


if __name__ == "__main__":
    main()
