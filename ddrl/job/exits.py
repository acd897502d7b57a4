"""Turns an environment's call of os._exit into an error of that environment.

Otherwise its rank would be lost as if it had been killed: nothing would say why, and its state would not be saved.
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
    """From now on os._exit raises EnvironmentExit if the code that calls it was itself called by ddrl.

    If that code was not called by ddrl, as in a thread that an environment has started, a line on stderr reports the
    call, and `end` ends the process with its status. ddrl's own calls work as before, and so do those in processes that
    this one forks.
    """
    leave, owner = os._exit, os.getpid()

    def exit_of_others(status: int) -> NoReturn:
        callers = _modules(sys._getframe(1))  # noqa: SLF001  # the only way to see the caller
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
    """The names of the modules of a frame, of its caller, of that one's caller, and so on."""
    while frame is not None:
        spec = frame.f_globals.get("__spec__")  # it has the name of a module that runs as __main__, too
        yield str(getattr(spec, "name", "") or frame.f_globals.get("__name__", ""))
        frame = frame.f_back
