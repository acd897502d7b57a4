"""Pins simulator threads to cores of this process' affinity mask.

A thread inherits the mask of the thread that makes it. So the mask of the maker is narrowed to the cores while a native
pool makes its threads, and then each of them gets one core of its own. Each mask is read back from the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ddrl.errors import UsageError


def check_cores(cores: Sequence[int]) -> None:
    """Raises UsageError for a core that this process may not use."""
    allowed = process_cores()
    for core in cores:
        if core not in allowed:
            raise UsageError(
                f"--pin-simulators: core {core} is not one that this process may use ({_text(allowed)}); give it that "
                "core, or leave the option out"
            )


def process_cores() -> set[int]:
    """The cores of the process, which are those of its main thread, even if the calling thread is pinned."""
    return os.sched_getaffinity(os.getpid())


def pin_thread(core: int) -> None:
    """Pin the calling thread to one core. Raises UsageError when the kernel does not do it."""
    check_cores([core])
    _set(0, {core})


def use_all_cores() -> None:
    """Let the calling thread use all cores of the process; without this it has the one of a pinned thread that made it.

    Does nothing where the kernel does not do it.
    """
    with suppress(OSError):
        os.sched_setaffinity(0, process_cores())


@contextmanager
def new_threads_pinned(cores: Sequence[int]) -> Iterator[None]:
    """Pins the threads made inside to `cores` in turn, one core each; the calling thread gets its own mask back.

    Without any, nothing is pinned.

    Raises UsageError for a core outside the mask, when the kernel does not do it, and when no thread was made.
    """
    if not cores:
        yield
        return
    check_cores(cores)
    before, mask = _threads(), os.sched_getaffinity(0)
    _set(0, set(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, mask)
    made = [thread for thread in sorted(_threads() - before) if os.sched_getaffinity(thread) == set(cores)]
    if not made:
        raise UsageError("--pin-simulators: no simulator thread was found to pin; leave the option out")
    for number, thread in enumerate(made):
        _set(thread, {cores[number % len(cores)]})


def _set(thread: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except OSError as error:
        raise UsageError(
            f"--pin-simulators: the kernel refused core {_text(cores)}: {error.strerror}; leave the option out"
        ) from error
    if os.sched_getaffinity(thread) != cores:
        raise UsageError(
            f"--pin-simulators: asked for core {_text(cores)}, the kernel gave {_text(os.sched_getaffinity(thread))}; "
            "leave the option out"
        )


def _threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def _text(cores: set[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
