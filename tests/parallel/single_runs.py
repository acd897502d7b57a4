"""Single-process training runs, all in this process: single_runs.py JSON-list-of-arguments.

TEST_NO_REPLAY_DIRECTORY: a file is in the place where the replays' directory should be.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from ddrl import rundir
from ddrl.commands.train import parse
from ddrl.launch import job
from ddrl.launch.resources import this_machine
from ddrl.roles.main import run

if __name__ == "__main__":
    for argv in json.loads(sys.argv[1]):
        arguments = parse(argv, this_machine())
        resume = Path(arguments.resume) if arguments.resume else None
        with contextlib.ExitStack() as stack:
            agreed = job.prepare(job.Wanted(arguments.config, resume), stack)
            path = Path(agreed["run_dir"])
            if "TEST_NO_REPLAY_DIRECTORY" in os.environ:
                (path / "replay").touch()
            if run(rundir.config_from_dict(agreed["config"], str(path)), path, resume=agreed["resume"]):
                sys.exit(1)
