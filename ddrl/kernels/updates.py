"""Updates of a slice of parameters: the sum of gradients, the rule, its slots and the step in one pass; and the average
of gradients, and norms.

Kernels take addresses of vectors <float32>[size], which must outlive the call: so they need none of Numba's runtime.
Every rule takes, beside its own numbers:

    step: see `Step`.
    old, new: addresses of each slot before and after; they may be the same.

Rules are those of `ddrl.exchange.optimizers`, where their sources are named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import extending
from numba.core import types

from ddrl.kernels.compiled import compiled, part, reassociated_part

BLOCK = 4_096  # float32 values: what is needed again at once stays in the first-level cache
SCRATCH = 2 * BLOCK  # float32 values that an update works in
NOTHING = np.uint64(0)  # the address of a vector that is not there

Addresses = tuple[np.uint64, ...]


class Step(NamedTuple):
    """What every rule needs. What is not there has the address NOTHING.

    Attributes:
        size: of all vectors.
        gradients: address of the addresses <uint64>[number] of vectors, which are added in their order.
        number: of gradients.
        scale: factor on their sum.
        parameters: the old ones.
        out: takes the new ones; it may be the same.
        rate: step size on the direction.
        factors: on the step size, or nothing.
        trail: to which `weight` times the direction is added, or nothing.
        weight: see `trail`.
        scratch: address of <float32>[SCRATCH], which nobody else uses meanwhile.
    """

    size: int
    gradients: np.uint64
    number: int
    scale: np.float32
    parameters: np.uint64
    out: np.uint64
    rate: np.float32
    factors: np.uint64
    trail: np.uint64
    weight: np.float32
    scratch: np.uint64


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Lets kernels call a function: a call becomes the LLVM code that the function's `generate` makes.

    Kernels give all of its arguments but the first, `context`, which is Numba's.
    """
    return extending.intrinsic(function)


def _item(builder: Any, context: Any, kind: Any, address: Any, i: Any) -> Any:
    """The pointer to item i of a vector of this type."""
    return builder.gep(builder.inttoptr(address, context.get_value_type(kind).as_pointer()), [i])


@_intrinsic
def read(context: Any, vector: Any, i: Any) -> Any:
    """read(vector, i) -> float32: item i of a vector <float32>."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_item(builder, context, types.float32, *arguments))

    return types.float32(types.uint64, types.int64), generate


@_intrinsic
def write(context: Any, vector: Any, i: Any, value: Any) -> Any:
    """write(vector, i, value): item i of a vector <float32> becomes `value`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _item(builder, context, types.float32, *arguments[:2]))
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.float32), generate


@_intrinsic
def entry(context: Any, table: Any, i: Any) -> Any:
    """entry(table, i) -> uint64: item i of a vector <uint64>, such as an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_item(builder, context, types.uint64, *arguments))

    return types.uint64(types.uint64, types.int64), generate


@_intrinsic
def read_each(context: Any, vectors: Any, i: Any) -> Any:
    """read_each(vectors, i) -> a tuple of float32: item i of each of these vectors <float32>."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = []
        for k in range(len(vectors)):
            address = builder.extract_value(arguments[0], k)
            found.append(builder.load(_item(builder, context, types.float32, address, arguments[1])))
        return context.make_tuple(builder, signature.return_type, found)

    return types.BaseTuple.from_types((types.float32,) * len(vectors))(vectors, types.int64), generate


@_intrinsic
def write_each(context: Any, vectors: Any, i: Any, values: Any) -> Any:
    """write_each(vectors, i, values): item i of each of these vectors <float32> becomes its value, a number of any
    type. The value of a single vector may stand without a tuple."""
    several = isinstance(values, types.BaseTuple)
    kinds = tuple(values) if several else (values,)
    if len(kinds) != len(vectors):
        return None  # Numba refuses the call

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for k, kind in enumerate(kinds):
            address = builder.extract_value(arguments[0], k)
            value = builder.extract_value(arguments[2], k) if several else arguments[2]
            value = context.cast(builder, value, kind, types.float32)
            builder.store(value, _item(builder, context, types.float32, address, arguments[1]))
        return context.get_dummy_value()

    return types.void(vectors, types.int64, values), generate


@compiled
def sgd(step: Step) -> None:
    """The direction is the gradient."""
    for start in range(0, step.size, BLOCK):
        n = min(BLOCK, step.size - start)
        _take(step, start, n, _gradient(step, start, n))


@compiled
def adam(step: Step, old: Addresses, new: Addresses, beta1: float, beta2: float, epsilon: float) -> None:
    """m' = beta1 m + (1 - beta1) g, v' = beta2 v + (1 - beta2) g^2, direction m' / (sqrt(v') + epsilon)."""
    for start in range(0, step.size, BLOCK):
        n = min(BLOCK, step.size - start)
        g = _gradient(step, start, n)
        m, v = _carry(old[0], new[0], start, n), _carry(old[1], new[1], start, n)
        _take(step, start, n, _adam(step, n, g, m, v, beta1, beta2, epsilon))


@compiled
def multistep_adam(step: Step, old: Addresses, new: Addresses, beta1: float, beta2: float, epsilon: float) -> None:
    """Adam's m and v, and beside them a_g' = beta1 a_g + g, a_g2' = beta2 a_g2 + g^2, and a_s' = a_s + the step."""
    decay1, decay2 = np.float32(beta1), np.float32(beta2)
    for start in range(0, step.size, BLOCK):
        n = min(BLOCK, step.size - start)
        g = _gradient(step, start, n)
        m, v = _carry(old[0], new[0], start, n), _carry(old[1], new[1], start, n)
        a_g, a_g2 = _carry(old[2], new[2], start, n), _carry(old[3], new[3], start, n)
        a_s = _carry(old[4], new[4], start, n)
        for i in range(n):
            write(a_g, i, read(a_g, i) * decay1 + read(g, i))
            write(a_g2, i, read(a_g2, i) * decay2 + read(g, i) * read(g, i))
        direction = _adam(step, n, g, m, v, beta1, beta2, epsilon)
        _take(step, start, n, direction)
        if step.factors:
            factors = _block(step.factors, start)
            for i in range(n):
                write(a_s, i, read(a_s, i) + read(direction, i) * (read(factors, i) * step.rate))
        else:
            for i in range(n):
                write(a_s, i, read(a_s, i) + read(direction, i) * step.rate)


@compiled
def rmsprop(step: Step, old: Addresses, new: Addresses, decay: float, epsilon: float, inside: bool) -> None:
    """s' = decay s + (1 - decay) g^2, direction g / (sqrt(s') + epsilon), or g / sqrt(s' + epsilon) where `inside`."""
    d, rest, e = np.float32(decay), np.float32(1.0 - decay), np.float32(epsilon)
    direction = _direction(step)
    for start in range(0, step.size, BLOCK):
        n = min(BLOCK, step.size - start)
        g, s = _gradient(step, start, n), _carry(old[0], new[0], start, n)
        for i in range(n):
            square = read(s, i) * d + (read(g, i) * read(g, i)) * rest
            write(s, i, square)
            write(direction, i, read(g, i) / (np.sqrt(square + e) if inside else np.sqrt(square) + e))
        _take(step, start, n, direction)


@compiled
def centered_rmsprop(step: Step, old: Addresses, new: Addresses, decay: float, epsilon: float, inside: bool) -> None:
    """As `rmsprop`, with the variance s' - mean'^2, 0 or more, for s'; mean' = decay mean + (1 - decay) g."""
    d, rest, e, zero = np.float32(decay), np.float32(1.0 - decay), np.float32(epsilon), np.float32(0.0)
    direction = _direction(step)
    for start in range(0, step.size, BLOCK):
        n = min(BLOCK, step.size - start)
        g, s, mean = _gradient(step, start, n), _carry(old[0], new[0], start, n), _carry(old[1], new[1], start, n)
        for i in range(n):
            square = read(s, i) * d + (read(g, i) * read(g, i)) * rest
            first = read(mean, i) * d + read(g, i) * rest
            write(s, i, square)
            write(mean, i, first)
            variance = max(square - first * first, zero)
            write(direction, i, read(g, i) / (np.sqrt(variance + e) if inside else np.sqrt(variance) + e))
        _take(step, start, n, direction)


@functools.cache
def of_step_function(function: Callable[..., Any]) -> Any:
    """The kernel of a user's step function. It is compiled at its first call in a process, and not kept on disk.

    Args:
        function: (gradient, parameter, count, *slots, *numbers) -> (direction, *slots), for one parameter; see
            `ddrl.exchange.step_functions`.

    Returns:
        A function of step, old and new as every rule takes them, the number of this update <float64>, and a tuple of
            numbers <float64>.
    """
    step_of_one = part(function)

    @part
    def update(step: Step, old: Addresses, new: Addresses, count: float, numbers: tuple[float, ...]) -> None:
        direction = _direction(step)
        for start in range(0, step.size, BLOCK):
            n = min(BLOCK, step.size - start)
            g = _gradient(step, start, n)
            for before, after in zip((NOTHING,) + old, (NOTHING,) + new):  # Numba loops over no empty tuple
                _carry(before, after, start, n)
            written = (direction - np.uint64(4 * start),) + new  # so that item `start` is the first of the block
            for i in range(n):
                given = (read(g, i), read(step.parameters, start + i), count) + read_each(new, start + i) + numbers
                write_each(written, start + i, step_of_one(*given))
            _take(step, start, n, direction)

    return update


@compiled
def move(
    size: int, parameters: np.uint64, direction: np.uint64, rate: np.float32, factors: np.uint64, out: np.uint64
) -> None:
    """out = parameters - rate (factors) direction; there may be no factors."""
    if factors:
        for i in range(size):
            write(out, i, read(parameters, i) - read(direction, i) * (read(factors, i) * rate))
    else:
        for i in range(size):
            write(out, i, read(parameters, i) - read(direction, i) * rate)


@compiled
def synchronize(
    size: int, central: np.uint64, own: np.uint64, accumulated: np.uint64, decay: float, steps: int
) -> None:
    """central = own = decay^steps central + (1 - decay) accumulated, and accumulated = 0."""
    kept, rest = np.float32(decay**steps), np.float32(1.0 - decay)
    for i in range(size):
        value = read(central, i) * kept + read(accumulated, i) * rest
        write(central, i, value)
        write(own, i, value)
        write(accumulated, i, np.float32(0.0))


@compiled
def average(size: int, gradients: np.uint64, count: int, scale: np.float32, out: np.uint64) -> float:
    """out = scale (g_0 + g_1 + ...), added in their order; the sum of its squares, in float64.

    Args:
        size: of all vectors.
        gradients: address of the addresses <uint64>[count] of g_k.
        count: number of gradients.
        scale: factor on the sum.
        out: takes the average.
    """
    total = 0.0
    for start in range(0, size, BLOCK):
        n, block = min(BLOCK, size - start), _block(out, start)
        _sum(gradients, count, start, n, scale, block)
        total += _squares(block, n)
    return total


@compiled
def squared_norm(size: int, vector: np.uint64) -> float:
    """The sum of the squares of a vector, in float64."""
    return _squares(vector, size)


@reassociated_part
def _squares(block: np.uint64, n: int) -> float:
    total = 0.0
    for i in range(n):
        value = np.float64(read(block, i))
        total += value * value
    return total


@part
def _gradient(step: Step, start: int, n: int) -> np.uint64:
    """The block of n values from `start` on of the scaled sum of the gradients, to be read only."""
    if step.number == 1 and step.scale == np.float32(1.0):
        return _block(entry(step.gradients, 0), start)
    _sum(step.gradients, step.number, start, n, step.scale, step.scratch)
    return step.scratch


@part
def _direction(step: Step) -> np.uint64:
    """Where a block of the direction may be written."""
    return _block(step.scratch, BLOCK)


@part
def _carry(old: np.uint64, new: np.uint64, start: int, n: int) -> np.uint64:
    """A block of a vector, as it was, where it may change. Loops over arrays that overlap would not be vectorized."""
    block = _block(new, start)
    if old != new:
        before = _block(old, start)
        for i in range(n):
            write(block, i, read(before, i))
    return block


@part
def _adam(
    step: Step, n: int, g: np.uint64, m: np.uint64, v: np.uint64, beta1: float, beta2: float, epsilon: float
) -> np.uint64:
    """Blocks of the moments change; the block of the direction."""
    decay1, decay2, e = np.float32(beta1), np.float32(beta2), np.float32(epsilon)
    rest1, rest2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    direction = _direction(step)
    for i in range(n):
        first = read(m, i) * decay1 + read(g, i) * rest1
        second = read(v, i) * decay2 + (read(g, i) * read(g, i)) * rest2
        write(m, i, first)
        write(v, i, second)
        write(direction, i, first / (np.sqrt(second) + e))
    return direction


@part
def _take(step: Step, start: int, n: int, direction: np.uint64) -> None:
    """Subtracts a block's step from the parameters."""
    parameters = _carry(step.parameters, step.out, start, n)
    if step.trail:
        trail = _block(step.trail, start)
        for i in range(n):
            each = read(direction, i)
            write(trail, i, read(trail, i) + (each if step.weight == np.float32(1.0) else step.weight * each))
    if step.factors:
        factors = _block(step.factors, start)
        for i in range(n):
            write(parameters, i, read(parameters, i) - read(direction, i) * (read(factors, i) * step.rate))
    else:
        for i in range(n):
            write(parameters, i, read(parameters, i) - read(direction, i) * step.rate)


@part
def _sum(gradients: np.uint64, count: int, start: int, n: int, scale: np.float32, total: np.uint64) -> None:
    """total = scale (g_0 + g_1 + ...), added in their order, for the block of n values from `start` on.

    Args:
        gradients: address of the addresses <uint64>[count] of g_k.
        count: number of gradients.
        start: of the block.
        n: values in it.
        scale: factor on the sum.
        total: <float32>[n].
    """
    first = _block(entry(gradients, 0), start)
    for i in range(n):
        write(total, i, read(first, i))
    for k in range(1, count):
        more = _block(entry(gradients, k), start)
        for i in range(n):
            write(total, i, read(total, i) + read(more, i))
    if scale != np.float32(1.0):
        for i in range(n):
            write(total, i, read(total, i) * scale)


@part
def _block(vector: np.uint64, start: int) -> np.uint64:
    """The address of item `start` of a vector <float32>."""
    return vector + np.uint64(4 * start)
