"""An environment that ends its process ends no rank in silence: it is an error of that environment, with its words.

Without, the rank is lost like a killed one: nothing says why, and its state is not saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

OURS = ("ddrl", "cluster")


class EnvironmentExit(RuntimeError):
    """An environment called os._exit."""


def refuse_exits(end: Callable[[int], None] = os._exit) -> None:
    """From now on os._exit raises EnvironmentExit where ddrl is what called the code that calls it.

    Otherwise, in a thread that such code has started, `end` ends the process with that status. Processes that this one
    forks are let alone, and so is ddrl itself.
    """
    leave, owner = os._exit, os.getpid()

    def exit_of_others(status: int) -> NoReturn:
        callers = _modules(sys._getframe(1))  # noqa: SLF001  # the one way to see who calls
        caller = next(callers)
        if os.getpid() != owner or caller.partition(".")[0] in OURS:
            leave(status)
        if any(module.partition(".")[0] in OURS for module in callers):
            raise EnvironmentExit(f"{caller} called os._exit({status})")
        print(f"{caller} called os._exit({status})", file=sys.stderr, flush=True)
        end(status)
        leave(status)

    os._exit = exit_of_others


def _modules(frame: FrameType | None) -> Iterator[str]:
    """Names of the modules of a frame, its caller and so on."""
    while frame is not None:
        spec = frame.f_globals.get("__spec__")  # knows the name of a module that runs as __main__, too
        yield str(getattr(spec, "name", "") or frame.f_globals.get("__name__", ""))
        frame = frame.f_back
