"""What users register by name: algorithms, networks and more. Of the system it imports only checks and errors.

A plugin is a user's module that calls these functions; `plugin_modules` finds and imports it.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from ddrl.checks import did_you_mean
from ddrl.errors import UsageError

OWN = "ddrl"
"""The package from which the system itself registers things."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")
MAIN = "__main__"
GIVEN = ("id", "render_mode", "disable_env_checker")
"""Arguments of `gymnasium.make` that the system gives itself."""
NEXT_OPTION = re.compile(r",\s*[^\W\d]\w*=")
BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}  # how much deeper one leads

Value = TypeVar("Value")


class Origin(NamedTuple):
    """The module that registered something, and its file; empty where it has none."""

    module: str
    file: str

    def __str__(self) -> str:
        if self.module.split(".")[0] == OWN:
            return OWN
        return f"{self.module} ({self.file})" if self.file else self.module


class Registry(Generic[Value]):
    """All registered values of one kind, by name.

    Attributes:
        kind: name of the kind, for errors.
        values: a view of the values by name, which also shows those that are registered later.
        check: called with name and value; refuses a value with a UsageError. The module that uses the values sets it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._values: dict[str, Value] = {}
        self._origins: dict[str, Origin] = {}
        self.values: Mapping[str, Value] = MappingProxyType(self._values)
        self.check: Callable[[str, Any], None] = lambda name, value: None

    def add(self, name: str, value: Value) -> None:
        """Registers a value.

        A program or notebook (`__main__`) may replace what it registered itself, and so may the program's own file when
        it is imported as a plugin. What a notebook registered may be replaced by any plugin, to which the code of a
        cell may have moved.

        Raises:
            UsageError: the name is taken or invalid, or the value is refused.
        """
        if not isinstance(name, str):
            raise UsageError(f"{self.kind} {name!r:.80}: a name must be a string")
        if not NAME.fullmatch(name):
            raise UsageError(f"{self.kind} {name!r:.80}: a name may have only letters, digits, and _ . / -")
        origin = _caller()
        before = self._origins.get(name)
        if before is not None and not _may_replace(before, origin):
            raise UsageError(f"{self.kind} {name} is registered twice, by {before} and by {origin}: rename one of them")
        self.check(name, value)
        self._values[name], self._origins[name] = value, origin

    def get(self, name: str) -> Value:
        """The value of this name.

        Raises:
            UsageError: there is none.
        """
        if name not in self._values:
            known = f"choose one of {', '.join(self._values)}" if self._values else "a --plugin may register one"
            meant = did_you_mean(name, self._values) or f"; {known}"
            raise UsageError(f"{self.kind} {name:.80}: there is none of that name{meant}")
        return self._values[name]

    def with_options(self, option: str, text: str) -> Callable[..., Any]:
        """The function that `text` names, with the options in it; see `split_options`.

        Raises:
            UsageError: there is no such function, or the options are malformed.
        """
        name, options = split_options(option, text)
        return functools.partial(cast("Callable[..., Any]", self.get(name)), **options)

    def names(self) -> list[str]:
        """All names, in the order in which they were registered."""
        return list(self._values)

    def origin(self, name: str) -> Origin:
        """The module that registered a name."""
        return self._origins[name]

    def of_module(self, module: str) -> list[str]:
        """Names that a module has registered, or the modules of a package."""
        return [name for name, origin in self._origins.items() if f"{origin.module}.".startswith(f"{module}.")]

    def remove(self, name: str) -> None:
        """Removes a name with its value."""
        del self._values[name], self._origins[name]


algorithms: Registry[Any] = Registry("algorithm")
"""Each a `ddrl.algorithms.Algorithm`, by the name in its settings."""
networks: Registry[Callable[..., Any]] = Registry("network")
environments: Registry[Callable[..., Any]] = Registry("environment")
wrappers: Registry[Callable[..., Any]] = Registry("wrapper")
exchanges: Registry[Any] = Registry("exchange")
"""Each a `ddrl.exchange.kind.Exchange`, by its name."""
loggers: Registry[Callable[..., Any]] = Registry("logger")
callbacks: Registry[Callable[..., Any]] = Registry("callback")
optimizers: Registry[Any] = Registry("optimizer")
"""Each a step function (`ddrl.exchange.step_functions`), or a subclass of `ddrl.exchange.optimizers.Optimizer`."""
learning_rate_schedules: Registry[Callable[..., float]] = Registry("learning-rate schedule")
REGISTRIES: tuple[Registry[Any], ...] = (
    algorithms, networks, environments, wrappers, exchanges, loggers, callbacks, optimizers, learning_rate_schedules,
)  # fmt: skip


def register_algorithm(algorithm: Any) -> None:
    """Makes an algorithm known under the names that it has on the command line.

    Args:
        algorithm: a `ddrl.algorithms.Algorithm`.

    Raises:
        UsageError: as `Registry.add`.
    """
    name = _name_of(algorithm, "register_algorithm takes a ddrl.algorithms.Algorithm")
    if not name:
        raise UsageError('register_algorithm: its settings have no name; write `name: ClassVar[str] = "mine"` there')
    algorithms.add(name, algorithm)


def register_network(name: str, build: Callable[..., Any]) -> None:
    """Makes a network known to --network.

    Args:
        name: for --network.
        build: (Spaces, NetworkConfig) -> a Keras model or a `Network`, see `ddrl.networks`.

    Raises:
        UsageError: as `Registry.add`.
    """
    networks.add(name, _callable(build, "register_network"))


def register_environment(name: str, make: Callable[..., Any]) -> None:
    """Makes an environment known to --game.

    Args:
        name: for --game.
        make: makes a `gymnasium.Env`. It is called with the options in `--game-options KEY=VALUE` by their names, and
            for videos with `render_mode="rgb_array"`.

    Raises:
        UsageError: as `Registry.add`.
    """
    environments.add(name, _callable(make, "register_environment"))


def register_wrapper(name: str, wrap: Callable[..., Any]) -> None:
    """Makes a wrapper of environments known.

    Args:
        name: the name by which users ask for it.
        wrap: takes a `gymnasium.Env`, and the options in `--wrappers NAME:KEY=VALUE` by their names; returns a
            `gymnasium.Env`.

    Raises:
        UsageError: as `Registry.add`.
    """
    wrappers.add(name, _callable(wrap, "register_wrapper"))


def register_exchange(exchange: Any) -> None:
    """Makes a `ddrl.exchange.kind.Exchange` known to --exchange.

    Raises:
        UsageError: as `Registry.add`.
    """
    exchanges.add(_name_of(exchange, "register_exchange takes a ddrl.exchange.kind.Exchange"), exchange)


def register_logger(name: str, make: Callable[..., Any]) -> None:
    """Makes a logger known.

    Args:
        name: the name by which users ask for it.
        make: RunContext -> the logger of that run, a `ddrl.Callback`. It also gets the options in `--loggers
            NAME:KEY=VALUE`, by their names.

    Raises:
        UsageError: as `Registry.add`.
    """
    loggers.add(name, _callable(make, "register_logger"))


def register_callback(name: str, make: Callable[..., Any]) -> None:
    """Makes a callback known.

    Args:
        name: the name by which users ask for it.
        make: RunContext -> the `ddrl.Callback` of that run. It also gets the options in `--callbacks NAME:KEY=VALUE`,
            by their names.

    Raises:
        UsageError: as `Registry.add`.
    """
    callbacks.add(name, _callable(make, "register_callback"))


def register_optimizer(name: str, step: Callable[..., Any]) -> None:
    """Makes an optimizer known to --optimizer.

    Args:
        name: for --optimizer.
        step: (gradient, parameter, count, *slots, **options) -> the direction, or a tuple of it and the new slots. It
            gets the numbers of one parameter. Its arguments without a default are its slots, which begin at zero, and
            those with one are the options in `--optimizer NAME:KEY=VALUE`, all of them numbers. `count` is the number
            of the update, from 1 on. The learning rate times the direction is subtracted from the parameter.
            `ddrl.exchange.step_functions` says more.

    Raises:
        UsageError: as `Registry.add`; or the function has other arguments.
    """
    optimizers.add(name, _callable(step, "register_optimizer"))


def register_learning_rate_schedule(name: str, schedule: Callable[..., float]) -> None:
    """Makes a schedule known to --learning-rate-schedule.

    Args:
        name: for --learning-rate-schedule.
        schedule: (left, start, end) -> the learning rate. `left` is the share of the schedules that is left, from 1 to
            0, as losses have it in `context.anneal`; `start` and `end` are --learning-rate and --learning-rate-end. It
            also gets the options in `--learning-rate-schedule NAME:KEY=VALUE`, by their names. The rate must depend on
            nothing else: several processes compute it.

    Raises:
        UsageError: as `Registry.add`.
    """
    learning_rate_schedules.add(name, _callable(schedule, "register_learning_rate_schedule"))


def split_options(option: str, text: str) -> tuple[str, dict[str, Any]]:
    """Name and keyword arguments in NAME or NAME:KEY=VALUE,KEY=VALUE. A comma within brackets belongs to a value.

    Args:
        option: the option of the command line that has this text, for errors.
        text: as users write it.

    Raises:
        UsageError: what stands before the colon is no name, or as `_arguments`.
    """
    name, colon, listed = text.partition(":")
    if "=" in name:
        raise UsageError(f"--{option} {text:.80}: it has no name; write NAME:KEY=VALUE,KEY=VALUE")
    form, comma = f"{name}:KEY=VALUE,KEY=VALUE", "another option is within its brackets; close them before the comma"
    return name, _arguments(f"--{option} {name}:", _between_commas(listed) if colon else (), form, comma)


def game_arguments(texts: Iterable[str]) -> dict[str, Any]:
    """The keyword arguments in --game-options.

    Args:
        texts: KEY=VALUE each, as users write them.

    Raises:
        UsageError: a key is one of GIVEN, or as `_arguments`.
    """
    comma = "a comma does not separate options; write spaces between them"
    arguments = _arguments("--game-options ", texts, "is_slippery=False, for example", comma)
    for key in GIVEN:
        if key in arguments:
            raise UsageError(f"--game-options {key}={arguments[key]!s:.80}: ddrl gives {key} itself; leave it out")
    return arguments


def _arguments(before: str, texts: Iterable[str], form: str, comma: str) -> dict[str, Any]:
    """Keyword arguments. A value is a number, True, False, None, a list or tuple as Python writes it, or else a text.

    Args:
        before: what stands before each text on the command line, for errors.
        texts: KEY=VALUE each, as users write them.
        form: how to write them, for errors.
        comma: what is wrong with a text that goes on with another option, for errors.

    Raises:
        UsageError: a text is not KEY=VALUE, a key is there twice, or a value was meant otherwise.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        key, equals, written = text.partition("=")
        value, why = _value(written), ""
        if not (equals and key.isidentifier()):
            why = f"it is not KEY=VALUE; write {form}"
        elif key in arguments:
            why = f"{key} is there twice; give it once"
        elif isinstance(value, str) and value.lower() in ("true", "false"):  # which an `if` would take for True
            why = f"the value would be a text; write {key}={value.capitalize()}"
        elif isinstance(value, str) and NEXT_OPTION.search(value):
            why = comma
        if why:
            raise UsageError(f"{before}{text:.80}: {why}")
        arguments[key] = value
    return arguments


def _between_commas(listed: str) -> Iterator[str]:
    """Yields the texts between those commas that are not within brackets."""
    depth, start = 0, 0
    for place, letter in enumerate(listed):
        if letter in BRACKETS:
            depth = max(0, depth + BRACKETS[letter])
        elif letter == "," and not depth:
            yield listed[start:place]
            start = place + 1
    yield listed[start:]


def _value(text: str) -> Any:
    """The literal that `text` is, if that is a number, True, False, None, a list or a tuple; else the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # it is no literal of Python
        return text
    return value if value is None or isinstance(value, (bool, int, float, list, tuple)) else text


def same_file(one: str | None, other: str) -> bool:
    """Whether two paths lead to the same existing file; None leads to none."""
    return one is not None and os.path.exists(one) and os.path.samefile(one, other)


def _may_replace(before: Origin, origin: Origin) -> bool:
    """Whether what was registered by `before` may be registered anew by `origin`: see `Registry.add`."""
    itself = bool(origin.file) and same_file(before.file, origin.file)
    return before.module == MAIN and (origin.module == MAIN or itself or not before.file)


def _caller() -> Origin:
    """The module that called a function of this module."""
    frame: Any = sys._getframe(1)  # noqa: SLF001  # the one way to see who calls
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    names = frame.f_globals if frame is not None else {}
    return Origin(str(names.get("__name__", MAIN)), str(names.get("__file__") or ""))


def _name_of(value: Any, what: str) -> str:
    name = getattr(value, "name", None)
    if not isinstance(name, str):
        raise UsageError(f"{what}, not {value!r:.80}")
    return name


def _callable(value: Any, function: str) -> Callable[..., Any]:
    if not callable(value):
        raise UsageError(f"{function} takes a function, not {value!r:.80}")
    return value
