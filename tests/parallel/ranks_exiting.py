"""Ranks whose environment ends the process: TEST_EXIT is HOW:RANK, with one of WAYS, or REFUSED for one that cannot be
made."""

from __future__ import annotations

import ctypes
import os
import sys

from ddrl.envs.catch import Catch
from ddrl.errors import UsageError
from ddrl.roles.__main__ import main

STEPS = 400  # of all simulators of a rank, until then
WORDS = "the rom is gone"
REFUSED = "refused"


def interrupt() -> None:
    """What an interrupted library raises."""
    raise KeyboardInterrupt(WORDS)


WAYS = {
    "_exit": lambda: os._exit(0),
    "SystemExit": lambda: sys.exit(WORDS),
    "KeyboardInterrupt": interrupt,
    "library": lambda: ctypes.CDLL(None)._exit(0),  # behind Python's back
}


def refuse(*arguments: object, **options: object) -> None:
    """What this rank alone finds wrong with what was asked for."""
    raise UsageError(f"{WORDS}: install it")


def arm(how: str) -> None:
    """Catch ends this process after some steps, or cannot be made."""
    if how == REFUSED:
        Catch.__init__ = refuse
        return
    step, taken = Catch.step, 0

    def ending(env, action):
        nonlocal taken
        taken += 1
        if taken > STEPS:
            WAYS[how]()
        return step(env, action)

    Catch.step = ending


if __name__ == "__main__":
    import light

    light.install()
    way, rank = os.environ["TEST_EXIT"].split(":")
    if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == rank:
        arm(way)
    sys.exit(main())
