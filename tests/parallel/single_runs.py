"""Single-process training runs, all in this process: single_runs.py JSON-list-of-arguments.

TEST_NO_REPLAY_DIRECTORY: a file is in the place where the replays' directory should be.
TEST_LAST_CHECKPOINT: no checkpoint after that of this update can be written.
TEST_NAN_REWARDS: every so many steps of Catch have a reward that is no number.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from pathlib import Path

from ddrl import checkpoint, rundir
from ddrl.envs import catch
from ddrl.errors import UsageError
from ddrl.launch import job
from ddrl.options.train_options import parse
from ddrl.options.wanted import Wanted
from ddrl.placement.resources import this_machine
from ddrl.roles import checkpoint_saver
from ddrl.roles.main import run


def refuse_checkpoints(after: int) -> None:
    """Stands in for a disk that has room for replays and none for checkpoints."""
    save = checkpoint.save

    def refusing(run_dir, saved, *others):
        if saved.version > after:
            raise UsageError(f"cannot write checkpoint {saved.version}: No space left on device; free space")
        return save(run_dir, saved, *others)

    checkpoint.save = refusing
    checkpoint_saver.LAST_SAVE_SECONDS = 0.0


def spoil_rewards(every: int) -> None:
    """Stands in for an environment that now and then divides by zero."""
    step, steps = catch.Catch.step, itertools.count(1)

    def spoiled(self, action):
        observation, reward, *rest = step(self, action)
        return observation, float("nan") if next(steps) % every == 0 else reward, *rest

    catch.Catch.step = spoiled


if __name__ == "__main__":
    if "TEST_NAN_REWARDS" in os.environ:
        spoil_rewards(int(os.environ["TEST_NAN_REWARDS"]))
    if "TEST_LAST_CHECKPOINT" in os.environ:
        refuse_checkpoints(int(os.environ["TEST_LAST_CHECKPOINT"]))
    for argv in json.loads(sys.argv[1]):
        arguments = parse(argv, this_machine())
        resume = Path(arguments.resume) if arguments.resume else None
        with contextlib.ExitStack() as stack:
            agreed = job.prepare(Wanted(arguments.config, resume), stack)
            path = Path(agreed["run_dir"])
            if "TEST_NO_REPLAY_DIRECTORY" in os.environ:
                (path / "replay").touch()
            if run(rundir.config_from_dict(agreed["config"], str(path)), path, resume=agreed["resume"]):
                sys.exit(1)
