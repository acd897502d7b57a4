"""Optimizers, all elementwise: a slice updated alone equals the same slice of the whole vector, bit for bit.

They need no TensorFlow, whose import costs a parameter server seconds and half a gigabyte of memory. Their loops are in
`ddrl.kernels.updates`. `plugins.optimizers` has the classes here by their names, and the step functions of plugins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ddrl import plugins
from ddrl.errors import UsageError
from ddrl.exchange.parameter_groups import ParameterGroup, factors_of
from ddrl.exchange.statistics import Statistics
from ddrl.exchange.step_functions import named_step_function, step_function
from ddrl.exchange.vectors import empty_vector
from ddrl.lazy import lazy_module

if TYPE_CHECKING:
    from ddrl.exchange.settings import OptimizerConfig
    from ddrl.kernels import compiled, updates
else:
    compiled, updates = lazy_module("ddrl.kernels.compiled"), lazy_module("ddrl.kernels.updates")

SHARED_SIZE = 500_000  # parameters from which on a second thread saves more time than it costs to hand it its half


def make_optimizer(
    config: OptimizerConfig,
    size: int,
    groups: Sequence[ParameterGroup] = (),
    threads: int = 1,
    statistics: Statistics | None = None,
) -> Optimizer:
    """Makes the configured optimizer for a slice of the parameters, with slots of zeros.

    Args:
        config: settings of the update rule.
        size: number of parameters in the slice.
        groups: the parameter groups in the slice.
        threads: with 2 or more, which make sense if another core is idle during updates, a second thread computes half
            of a large slice.
        statistics: position of the running statistics at the end of the slice; None if it has none.

    Raises:
        UsageError: the step function of a plugin fails, or cannot be compiled.
    """
    rule = rule_of(config.optimizer)
    nothing = np.zeros(1, np.float32)
    rule(config, 1).apply(nothing, nothing, 0.0)  # compiles the rule, or reads it from disk, before others wait for it
    optimizer = rule(config, size, groups, statistics)
    if threads > 1 and size >= SHARED_SIZE:
        optimizer.share()
    return optimizer


def rule_of(text: str) -> type[Optimizer]:
    """The class of the optimizer that --optimizer names; as for `named_step_function`, options may follow the name."""
    own = named_step_function(text) is None
    rule: type[Optimizer] = plugins.optimizers.get(text.partition(":")[0]) if own else OfStepFunction
    return rule


class UpdateRule(Protocol):
    """The interface of the object with which a server makes updates.

    Attributes:
        slots: name -> state for each parameter, <float32>[size].
        count: number of updates applied.
        statistics: position of the running statistics among the parameters; None if there are none.
    """

    slots: dict[str, np.ndarray]
    count: int
    statistics: Statistics | None

    def apply(
        self,
        parameters: np.ndarray,
        gradient: Sequence[np.ndarray],
        learning_rate: float,
        scale: float,
        out: np.ndarray,
    ) -> None:
        """See `Optimizer.apply`."""


class Optimizer:
    """An update rule and its state for one slice of the parameters.

    Args:
        config: settings of the rule.
        size: number of parameters in the slice.
        groups: ranges of the slice whose learning rate has a factor.
        statistics: position of the running statistics at the end of the slice, which are merged and take no step; None
            if there are none.

    Attributes:
        slots: name -> <float32>[size].
        count: number of updates applied.

    Raises:
        ValueError: the statistics are not at the end of the slice.
    """

    slot_names: tuple[str, ...] = ()

    def __init__(
        self,
        config: OptimizerConfig,
        size: int,
        groups: Sequence[ParameterGroup] = (),
        statistics: Statistics | None = None,
    ) -> None:
        if statistics is not None and statistics.stop != size:
            raise ValueError(f"{statistics} do not end with the {size} parameters")
        self.config = config
        self.size = size
        self.statistics = statistics
        self._stepped = size if statistics is None else statistics.start  # values that take steps; they come first
        self.count = 0
        self.slots = {name: np.zeros(size, np.float32) for name in self.slot_names}
        self._ahead: dict[str, np.ndarray] = {}
        self._factors = factors_of(groups, size)
        self._scratch = np.empty(updates.SCRATCH, np.float32)
        self._second: tuple[ThreadPoolExecutor, np.ndarray] | None = None  # thread of the second half, and its scratch

    def share(self) -> None:
        """Has a second thread compute half of each update from now on, with the same bits as result."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="optimizer")
        self._second = thread, np.empty(updates.SCRATCH, np.float32)

    def apply(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Sequence[np.ndarray],
        learning_rate: float,
        scale: float = 1.0,
        out: np.ndarray | None = None,
        trail: Trail | None = None,
    ) -> None:
        """Applies one update.

        Args:
            parameters: <float32>[size].
            gradient: <float32>[size], not changed; or several, which are added in the order given, block by block.
            learning_rate: learning rate of this update.
            scale: factor on the sum of the gradients, such as 1 / members or that of clipping.
            out: <float32>[size] that takes the new parameters; by default they replace the old ones.
            trail: if given, the direction of the step is added to it.
        """
        target = parameters if out is None else out
        self._compute(parameters, gradient, learning_rate, scale, target, self.slots, trail)
        self.count += 1

    def prepare(
        self, parameters: np.ndarray, gradient: np.ndarray | Sequence[np.ndarray], learning_rate: float, scale: float
    ) -> np.ndarray:
        """Computes an update ahead of time: returns new parameters <float32>[size] in a new array.

        The optimizer's state does not change before `accept`.

        Args:
            parameters: <float32>[size], not changed.
            gradient, learning_rate, scale: as in `apply`.
        """
        if not self._ahead:
            self._ahead = {name: np.empty_like(slot) for name, slot in self.slots.items()}
        out = empty_vector(self.size)
        self._compute(parameters, gradient, learning_rate, scale, out, self._ahead)
        return out

    def accept(self) -> None:
        """Makes the update of the last `prepare` count: its slots become the optimizer's state."""
        self.slots, self._ahead = self._ahead, self.slots
        self.count += 1

    def _compute(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Sequence[np.ndarray],
        learning_rate: float,
        scale: float,
        out: np.ndarray,
        new_slots: dict[str, np.ndarray],
        trail: Trail | None = None,
    ) -> None:
        gradients = [gradient] if isinstance(gradient, np.ndarray) else list(gradient)
        if not gradients:
            raise ValueError("an update of no gradient")
        table = compiled.addresses(gradients, self.size)
        step = updates.Step(
            self._stepped,
            _where(table),
            len(gradients),
            np.float32(scale),
            self._address(parameters),
            self._address(out, written=True),
            np.float32(self.step_size(learning_rate)),
            self._address(self._factors),
            self._address(None if trail is None else trail.vector, written=True),
            np.float32(1.0 if trail is None else trail.weight),
            _where(self._scratch),
        )
        old = tuple(self._address(slot) for slot in self.slots.values())
        new = tuple(self._address(slot, written=True) for slot in new_slots.values())
        self._run(step, table, old, new)
        if self.statistics is not None:
            self.statistics.advance(parameters, gradients, out)
            if trail is not None:
                self.statistics.advance(trail.vector, gradients, trail.vector)

    def _run(self, step: updates.Step, table: np.ndarray, old: updates.Addresses, new: updates.Addresses) -> None:
        """Takes a step, with its second half in the second thread if there is one.

        Args:
            step: the whole step.
            table: addresses of the gradients, <uint64>[number].
            old: addresses of the slots before the step.
            new: addresses of the slots after the step.
        """
        if self._second is None:
            self._update(step, old, new)
            return
        thread, scratch = self._second
        half = self._stepped // 2 // updates.BLOCK * updates.BLOCK
        tables = table + np.uint64(4 * half)  # addresses of the gradients' second halves
        rest = _from(step, half)._replace(gradients=np.uint64(tables.ctypes.data), scratch=_where(scratch))
        second = thread.submit(
            self._update, rest, *(tuple(_moved(slot, half) for slot in slots) for slots in (old, new))
        )
        try:
            self._update(step._replace(size=half), old, new)
        finally:  # the thread works on vectors that this call keeps alive
            second.result()

    def step_size(self, learning_rate: float) -> float:
        """The factor on the direction of the next update; for Adam, it has the bias correction."""
        return learning_rate

    def move(self, parameters: np.ndarray, direction: np.ndarray, step_size: float, out: np.ndarray) -> None:
        """Takes a step against a given direction, and leaves the optimizer's state as it is.

        Running statistics in the direction, which is a trail or an average of trails, are merged.

        Args:
            parameters: <float32>[size].
            direction: <float32>[size].
            step_size: factor on the direction, as `step_size` returns it.
            out: <float32>[size] that takes the new parameters.
        """
        where = map(self._address, (parameters, direction))
        factors, target = self._address(self._factors), self._address(out, written=True)
        updates.move(self._stepped, *where, np.float32(step_size), factors, target)
        if self.statistics is not None:
            self.statistics.advance(parameters, [direction], out)

    def _address(self, vector: np.ndarray | None, written: bool = False) -> np.uint64:
        return updates.NOTHING if vector is None else compiled.address(vector, self.size, written)

    def _update(self, step: updates.Step, old: updates.Addresses, new: updates.Addresses) -> None:
        """Takes a step by the rule, which reads the slots at `old` and writes them at `new`."""
        raise NotImplementedError


def _where(array: np.ndarray) -> np.uint64:
    return np.uint64(array.ctypes.data)


def _moved(vector: np.uint64, start: int) -> np.uint64:
    """The address of item `start` of the vector <float32> at address `vector`; `NOTHING` stays `NOTHING`."""
    return vector + np.uint64(4 * start) if vector else vector


def _from(step: updates.Step, start: int) -> updates.Step:
    """The part of a step from item `start` on; the caller has to replace its gradients and its scratch."""
    return step._replace(
        size=step.size - start,
        parameters=_moved(step.parameters, start),
        out=_moved(step.out, start),
        factors=_moved(step.factors, start),
        trail=_moved(step.trail, start),
    )


class Trail:
    """The weighted sum of the directions of several steps; a weight is a step's size divided by that of the first step.

    So the steps together are one step with the size of the first. A single step's trail is its direction bit for bit.

    Attributes:
        vector: the sum, <float32>[size].
        weight: weight of the next step's direction.
    """

    def __init__(self, size: int) -> None:
        self.vector = np.empty(size, np.float32)
        self._first = self.weight = 0.0

    def begin(self, step_size: float) -> None:
        """Starts a new sum; the first step will have this size."""
        # Adding to -0.0 keeps all bits of the other term, even those of a zero of either sign. As statistics, its count
        # is 0.
        self.vector.fill(-0.0)
        self._first = step_size
        self.next(step_size)

    def next(self, step_size: float) -> None:
        """Sets the size of the next step, and so the weight of its direction."""
        self.weight = step_size / self._first if self._first else 1.0  # a schedule may have fallen to 0


class SGD(Optimizer):
    """Plain stochastic gradient descent: theta -= lr g."""

    def _update(self, step: updates.Step, old: updates.Addresses, new: updates.Addresses) -> None:
        updates.sgd(step)


class Adam(Optimizer):
    """Adam in the epsilon-hat form: theta -= lr_t m / (sqrt(v) + epsilon).

    lr_t = lr sqrt(1 - beta2^t) / (1 - beta1^t).
    Kingma and Ba 2015, end of section 2; Adamski et al. 2018, equations 5 and 6, as TensorFlow has it.
    """

    slot_names: tuple[str, ...] = ("m", "v")

    def step_size(self, learning_rate: float) -> float:
        beta1, beta2, count = self.config.beta1, self.config.beta2, self.count + 1
        return learning_rate * math.sqrt(1.0 - beta2**count) / (1.0 - beta1**count)

    def _update(self, step: updates.Step, old: updates.Addresses, new: updates.Addresses) -> None:
        config = self.config
        updates.adam(step, old, new, config.beta1, config.beta2, config.adam_epsilon)


class RMSProp(Optimizer):
    """RMSProp: theta -= lr g / (sqrt(s) + epsilon), or / sqrt(s + epsilon), with s the decaying mean of g^2.

    Tieleman and Hinton 2012, lecture 6.5. s begins at zero.
    """

    slot_names: tuple[str, ...] = ("mean_square",)

    def _update(self, step: updates.Step, old: updates.Addresses, new: updates.Addresses) -> None:
        config = self.config
        updates.rmsprop(step, old, new, config.rmsprop_decay, config.rmsprop_epsilon, config.rmsprop_epsilon_inside)


class CenteredRMSProp(RMSProp):
    """RMSProp with the variance s - mean(g)^2 in place of s (Graves 2013, section 4.2; Mnih et al. 2015).

    Rounding can leave the variance just below zero; it counts as zero then.
    """

    slot_names = ("mean_square", "mean_gradient")

    def _update(self, step: updates.Step, old: updates.Addresses, new: updates.Addresses) -> None:
        config = self.config
        updates.centered_rmsprop(
            step, old, new, config.rmsprop_decay, config.rmsprop_epsilon, config.rmsprop_epsilon_inside
        )


class OfStepFunction(Optimizer):
    """The optimizer of a plugin's step function; see `ddrl.exchange.step_functions`."""

    def __init__(
        self,
        config: OptimizerConfig,
        size: int,
        groups: Sequence[ParameterGroup] = (),
        statistics: Statistics | None = None,
    ) -> None:
        step = named_step_function(config.optimizer)
        assert step is not None, "the registry has a class for it"
        self.slot_names, self._numbers, self._kernel = step.slots, step.numbers, step.kernel()
        super().__init__(config, size, groups, statistics)

    def _update(self, step: updates.Step, old: updates.Addresses, new: updates.Addresses) -> None:
        self._kernel(step, old, new, self.count + 1.0, self._numbers)


def _check(name: str, registered: Any) -> None:
    if not isinstance(registered, type):
        step_function(name, registered)
    elif not issubclass(registered, Optimizer):
        raise UsageError(f"register_optimizer takes a step function, not {registered!r:.80}")


plugins.optimizers.check = _check
for _name, _rule in (("adam", Adam), ("rmsprop", RMSProp), ("rmsprop-centered", CenteredRMSProp), ("sgd", SGD)):
    plugins.register_optimizer(_name, _rule)
