"""What is known by name beside the algorithms: loggers and callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddrl.errors import UsageError


class Registry:
    """Things of one kind by name.

    Args:
        kind: for messages.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._known = kind, dict[str, Any]()

    def add(self, name: str, value: Any) -> None:
        """Raises UsageError where the name is taken."""
        if name in self._known:
            raise UsageError(f"there is a {self._kind} named {name!r} already: choose another name")
        self._known[name] = value

    def get(self, name: str) -> Any:
        """Raises UsageError where there is none of that name."""
        if name not in self._known:
            known = f"there are {', '.join(self._known)}" if self._known else "there are none"
            raise UsageError(f"{name!r:.80}: no such {self._kind}; {known}")
        return self._known[name]

    def names(self) -> list[str]:
        """In the order in which they were added."""
        return list(self._known)


LOGGERS, CALLBACKS = Registry("logger"), Registry("callback")


def register_logger(name: str, make: Callable[[Any], Any]) -> None:
    """Makes a logger known to `--loggers`.

    Args:
        name: of the option.
        make: RunContext -> Callback; UsageError for what is missing.
    """
    LOGGERS.add(name, make)


def register_callback(name: str, make: Callable[[Any], Any]) -> None:
    """Makes a callback known to `--callbacks`.

    Args:
        name: of the option.
        make: RunContext -> Callback; UsageError for what is missing.
    """
    CALLBACKS.add(name, make)
