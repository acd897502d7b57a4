"""dm_control's tasks as Gymnasium environments, by shimmy's adapter; their dictionary observations become vectors."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import sys
from collections.abc import Iterator

import gymnasium
import numpy as np

from ddrl.errors import UsageError

DM_CONTROL = "dm_control/"
RENDERER = "MUJOCO_GL"  # the variable that tells MuJoCo how to draw
OFFSCREEN = {"egl": "EGL", "osmesa": "OSMesa"}  # its values that need no display -> the library that each needs


def register_dm_control() -> None:
    """Makes Gymnasium know dm_control's tasks.

    Raises:
        UsageError: a package is missing.
    """
    try:
        with _without_renderer():
            import dm_control  # noqa: F401  (without it, shimmy registers nothing and says nothing)
            import shimmy
    except ImportError as error:
        remedy = 'pip install "ddrl[control]"'
        raise UsageError(f"{DM_CONTROL} games need a package that is not installed ({error}): {remedy}") from error
    gymnasium.register_envs(shimmy)


def choose_renderer() -> None:
    """Makes MuJoCo draw without a display in this process, by EGL or else OSMesa, if the machine has one of them.

    Call it before the first environment is made, because dm_control reads MUJOCO_GL only once. Nothing changes if
    MUJOCO_GL is set already, or if there is a display.
    """
    if _may_choose():
        found = [name for name in OFFSCREEN if ctypes.util.find_library(OFFSCREEN[name])]
        if found:
            os.environ[RENDERER] = found[0]


@contextlib.contextmanager
def _without_renderer() -> Iterator[None]:
    """Disables the renderer while dm_control is imported, which complains if it finds no display.

    Nothing changes if MUJOCO_GL is set already, or if there is a display.
    """
    if not _may_choose():
        yield
        return
    os.environ[RENDERER] = "disable"
    try:
        yield
    finally:
        del os.environ[RENDERER]


def _may_choose() -> bool:
    """Whether nobody has chosen a renderer, and there is no display."""
    return RENDERER not in os.environ and not os.environ.get("DISPLAY") and sys.platform.startswith("linux")


def flat_space(entries: gymnasium.spaces.Dict) -> gymnasium.spaces.Box:
    """The space of the vector that a dictionary of arrays becomes. Raises UsageError if an entry has no floats."""
    names = sorted(entries.spaces)
    spaces = [entries[name] for name in names]
    for name, space in zip(names, spaces):
        if not isinstance(space, gymnasium.spaces.Box) or space.dtype.kind != "f":
            raise UsageError(f"observation {name} is {space}; a dictionary of observations must hold floats only")
    low, high = (np.concatenate([np.ravel(getattr(s, end)) for s in spaces]) for end in ("low", "high"))
    with np.errstate(over="ignore"):  # a bound beyond float32 becomes infinite
        return gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))


class FlatObservation(gymnasium.ObservationWrapper):
    """Turns observations that are dictionaries of arrays into vectors of float32.

    The arrays come in the alphabetical order of their names, each in row-major order; a single number is one component.

    Raises:
        UsageError: an entry is no array of floats.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        entries = env.observation_space
        assert isinstance(entries, gymnasium.spaces.Dict)
        self._names = sorted(entries.spaces)
        self.observation_space = flat_space(entries)

    def observation(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """The numbers of all entries, one after the other: <float32>[D]."""
        return np.concatenate([np.ravel(observation[name]) for name in self._names]).astype(np.float32)
