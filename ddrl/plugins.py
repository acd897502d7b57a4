"""What modules of users register by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, TypeVar

from ddrl.errors import UsageError

Value = TypeVar("Value")


class Registry(Generic[Value]):
    """What there is of one kind, by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._values: dict[str, Value] = {}

    def add(self, name: str, value: Value) -> None:
        """Registers a value. Raises UsageError for a name that is taken."""
        if name in self._values:
            raise UsageError(f"{self.kind} {name} is registered twice: rename one of them")
        self._values[name] = value

    def get(self, name: str) -> Value:
        """The value of this name. Raises UsageError where there is none."""
        if name not in self._values:
            known = ", ".join(self._values) or "there is none at all"
            raise UsageError(f"{self.kind} {name:.80}: there is none of that name; choose one of {known}")
        return self._values[name]

    def names(self) -> list[str]:
        """In the order in which they were registered."""
        return list(self._values)

    def remove(self, name: str) -> None:
        """Forgets it."""
        del self._values[name]


environments: Registry[Callable[..., Any]] = Registry("environment")
wrappers: Registry[Callable[..., Any]] = Registry("wrapper")


def register_environment(name: str, make: Callable[..., Any]) -> None:
    """Makes an environment known to --game: `make` makes a `gymnasium.Env`, and takes `render_mode` for videos."""
    environments.add(name, make)


def register_wrapper(name: str, wrap: Callable[..., Any]) -> None:
    """Makes a wrapper of environments known to --wrapper: `wrap` takes a `gymnasium.Env` and returns one."""
    wrappers.add(name, wrap)


def import_named_module(name: str) -> ModuleType:
    """A module of Python's path. Raises UsageError where there is none; what it raises itself stays as it is."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"there is no module {name} on Python's path; install it, or set PYTHONPATH") from error
