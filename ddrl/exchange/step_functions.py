"""Step functions, with which plugins add optimizers: plain functions of the numbers of one parameter.

    step(gradient, parameter, count, SLOT, ..., OPTION=NUMBER, ...) -> direction, SLOT, ...

`count` is the number of this update, which begins at 1. The slots begin at zero, and a function without slots returns
the direction alone. The learning rate times the direction is subtracted from the parameter. A step sees nothing of
other parameters, so a slice that is updated alone gets the same bits as within the whole vector.

Numba compiles the function. Gradient, parameter, and slots are float32, and everything else is float64; what the
function returns is rounded to float32.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddrl import checks, plugins
from ddrl.errors import UsageError, in_one_line, raised_at
from ddrl.lazy import lazy_module

if TYPE_CHECKING:
    from ddrl.kernels import updates
else:
    updates = lazy_module("ddrl.kernels.updates")

FORM = "step(gradient, parameter, count, SLOT, ..., OPTION=NUMBER, ...)"
GIVEN = 3  # arguments before the slots
NUMBERS = (bool, int, float, np.generic)


class StepFunction(NamedTuple):
    """A step function, and what its signature says of it.

    Attributes:
        function: the function itself.
        text: its name, and options as in --optimizer.
        slots: names of its slots.
        options: names of its options, with their values.
    """

    function: Callable[..., Any]
    text: str
    slots: tuple[str, ...]
    options: dict[str, float]

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values of the options, in the function's order."""
        return tuple(self.options.values())

    def kernel(self) -> Any:
        """The compiled function; see `ddrl.kernels.updates.of_step_function`.

        Raises:
            UsageError: the function fails, returns something else than it must, or cannot be compiled.
        """
        self._try()
        nothing, one = updates.NOTHING, np.float32(1.0)
        empty = updates.Step(0, nothing, 1, one, nothing, nothing, one, nothing, nothing, one, nothing)
        slots = (nothing,) * len(self.slots)
        try:
            kernel = updates.of_step_function(self.function)
            kernel(empty, slots, slots, 1.0, self.numbers)
        except Exception as error:
            raise UsageError(
                f"--optimizer {self.text:.80}: Numba cannot compile its step function ({_of_numba(error):.200}); use "
                "arithmetic, NumPy's functions of numbers, and functions with @numba.njit only"
            ) from error
        return kernel

    def _try(self) -> None:
        """Calls the function itself, whose mistakes Python reports better than Numba."""
        zero = np.float32(0.0)
        try:
            with np.errstate(all="ignore"):
                made = self.function(zero, zero, 1.0, *(zero for _ in self.slots), *self.numbers)
        except Exception as error:
            why = f"{in_one_line(error)}{raised_at(error)}"
            raise UsageError(f"--optimizer {self.text:.80}: its step function fails: {why}; fix it") from error
        values = made if isinstance(made, tuple) else (made,)
        if len(values) != 1 + len(self.slots) or not all(isinstance(value, NUMBERS) for value in values):
            must = ", ".join(("the direction", *(f"the new {name}" for name in self.slots)))
            raise UsageError(f"--optimizer {self.text:.80}: its step function gave {made!r:.80}; have it return {must}")


def step_function(name: str, function: Callable[..., Any]) -> StepFunction:
    """Reads the signature of a step function, whose options then have their defaults.

    Args:
        name: under which it is registered.
        function: the function.

    Raises:
        UsageError: it is no function that Numba can compile, or has another signature than a step function.
    """
    function = getattr(function, "py_func", function)  # that of @numba.njit, which is compiled into the kernel
    if not inspect.isfunction(function):  # a method, an object, or a function that is not written in Python
        raise UsageError(f"optimizer {name}: {function!r:.80} is no step function; write one with def, as {FORM}")
    arguments = list(inspect.signature(function).parameters.values())
    slots = [each.name for each in arguments if each.default is each.empty]
    options = {each.name: each.default for each in arguments if each.default is not each.empty}
    plain = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in arguments)
    if len(slots) < GIVEN or not (plain and all(map(_is_number, options.values()))):
        shown = ", ".join(map(str, arguments))
        raise UsageError(f"optimizer {name}: its step function takes ({shown:.200}); it must be {FORM}")
    numbers = {key: float(value) for key, value in options.items()}
    return StepFunction(function, name, tuple(slots[GIVEN:]), numbers)


def named_step_function(text: str) -> StepFunction | None:
    """The step function that --optimizer names, with its options; None for an optimizer with a kernel of its own.

    Args:
        text: NAME or NAME:KEY=VALUE,KEY=VALUE.

    Raises:
        UsageError: nothing of that name is registered, it has no such option, or a value is no finite number.
    """
    name, given = plugins.split_options("optimizer", text)
    registered = plugins.optimizers.get(name)
    own = isinstance(registered, type)
    known = {} if own else step_function(name, registered).options
    for key, value in given.items():
        if key not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            there = "its settings are options of their own (ddrl train --help-all)" if own else there
            there += checks.did_you_mean(key, known)
            raise UsageError(f"--optimizer {text:.80}: {name} has no option {key:.80}; {there}")
        if not _is_number(value):
            raise UsageError(f"--optimizer {text:.80}: {key:.80} must be a finite number")
    if own:
        return None
    numbers = known | {key: float(value) for key, value in given.items()}
    return step_function(name, registered)._replace(text=text, options=numbers)


def _of_numba(error: Exception) -> str:
    """The line of Numba's long message that says what is wrong, without the colors of a terminal."""
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.startswith("Failed in")), type(error).__name__)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) and checks.is_finite(value)
