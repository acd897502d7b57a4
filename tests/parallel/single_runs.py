"""Single-process training runs, all in this process: single_runs.py JSON-list-of-arguments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ddrl import job
from ddrl.commands.train import parse
from ddrl.resources import this_machine
from ddrl.roles.main import run

if __name__ == "__main__":
    for argv in json.loads(sys.argv[1]):
        arguments = parse(argv, this_machine())
        resume = Path(arguments.resume) if arguments.resume else None
        path, config = job.prepare(arguments.config, resume)
        if run(config, path, resume=resume is not None):
            sys.exit(1)
