"""Single-process training runs, all in this process: single_runs.py JSON-list-of-arguments."""

from __future__ import annotations

import contextlib
import json
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
            if run(rundir.config_from_dict(agreed["config"], str(path)), path, resume=agreed["resume"]):
                sys.exit(1)
