"""Updates of a slice of parameters: the sum of gradients, the rule, its slots and the step in one pass.

Every kernel takes, beside its rule's own arguments:

    step: see `Step`.
    old, new: each slot <float32>[size] before and after; they may be the same array.

Rules are those of `ddrl.exchange.optimizers`, where their sources are named.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from ddrl.kernels.compiled import compiled

BLOCK = 4_096  # float32 values: what is needed again at once stays in the first-level cache

Slots = tuple[np.ndarray, ...]


class Step(NamedTuple):
    """What every rule needs.

    Attributes:
        gradients: addresses <uint64>[K] of vectors <float32>[size], which are added in their order.
        scale: factor on their sum.
        parameters: address of <float32>[size], which may be read-only.
        out: <float32>[size] that takes the new parameters; it may be the same.
        rate: step size on the direction.
        factors: <float32>[size] on the step size, or nothing: <float32>[0].
        trail: <float32>[size] to which `weight` times the direction is added, or nothing: <float32>[0].
        weight: see `trail`.
    """

    gradients: np.ndarray
    scale: np.float32
    parameters: np.uint64
    out: np.ndarray
    rate: np.float32
    factors: np.ndarray
    trail: np.ndarray
    weight: np.float32


@compiled
def sgd(step: Step) -> None:
    """The direction is the gradient."""
    buffers = np.empty((2, min(BLOCK, len(step.out))), np.float32)
    for start in range(0, len(step.out), BLOCK):
        g, direction = _gradient(step, start, buffers)
        for i in range(len(g)):
            direction[i] = g[i]
        _take(step, start, direction)


@compiled
def adam(step: Step, old: Slots, new: Slots, beta1: float, beta2: float, epsilon: float) -> None:
    """m' = beta1 m + (1 - beta1) g, v' = beta2 v + (1 - beta2) g^2, direction m' / (sqrt(v') + epsilon)."""
    buffers = np.empty((2, min(BLOCK, len(step.out))), np.float32)
    for start in range(0, len(step.out), BLOCK):
        g, direction = _gradient(step, start, buffers)
        m, v = _carry(old[0], new[0], start, len(g)), _carry(old[1], new[1], start, len(g))
        _adam(g, m, v, beta1, beta2, epsilon, direction)
        _take(step, start, direction)


@compiled
def multistep_adam(step: Step, old: Slots, new: Slots, beta1: float, beta2: float, epsilon: float) -> None:
    """Adam's m and v, and beside them a_g' = beta1 a_g + g, a_g2' = beta2 a_g2 + g^2, and a_s' = a_s + the step."""
    decay1, decay2 = np.float32(beta1), np.float32(beta2)
    buffers = np.empty((2, min(BLOCK, len(step.out))), np.float32)
    for start in range(0, len(step.out), BLOCK):
        g, direction = _gradient(step, start, buffers)
        n = len(g)
        m, v = _carry(old[0], new[0], start, n), _carry(old[1], new[1], start, n)
        a_g, a_g2, a_s = (
            _carry(old[2], new[2], start, n),
            _carry(old[3], new[3], start, n),
            _carry(old[4], new[4], start, n),
        )
        for i in range(n):
            a_g[i] = a_g[i] * decay1 + g[i]
            a_g2[i] = a_g2[i] * decay2 + g[i] * g[i]
        _adam(g, m, v, beta1, beta2, epsilon, direction)
        _take(step, start, direction)
        for i in range(n):
            a_s[i] += direction[i] * (step.factors[start + i] * step.rate if len(step.factors) else step.rate)


@compiled
def rmsprop(step: Step, old: Slots, new: Slots, decay: float, epsilon: float, inside: bool) -> None:
    """s' = decay s + (1 - decay) g^2, direction g / (sqrt(s') + epsilon), or g / sqrt(s' + epsilon) where `inside`."""
    d, rest, e = np.float32(decay), np.float32(1.0 - decay), np.float32(epsilon)
    buffers = np.empty((2, min(BLOCK, len(step.out))), np.float32)
    for start in range(0, len(step.out), BLOCK):
        g, direction = _gradient(step, start, buffers)
        s = _carry(old[0], new[0], start, len(g))
        if inside:
            for i in range(len(g)):
                s[i] = s[i] * d + (g[i] * g[i]) * rest
                direction[i] = g[i] / np.sqrt(s[i] + e)
        else:
            for i in range(len(g)):
                s[i] = s[i] * d + (g[i] * g[i]) * rest
                direction[i] = g[i] / (np.sqrt(s[i]) + e)
        _take(step, start, direction)


@compiled
def centered_rmsprop(step: Step, old: Slots, new: Slots, decay: float, epsilon: float, inside: bool) -> None:
    """As `rmsprop`, with the variance s' - mean'^2, 0 or more, for s'; mean' = decay mean + (1 - decay) g."""
    d, rest, e, zero = np.float32(decay), np.float32(1.0 - decay), np.float32(epsilon), np.float32(0.0)
    buffers = np.empty((2, min(BLOCK, len(step.out))), np.float32)
    for start in range(0, len(step.out), BLOCK):
        g, direction = _gradient(step, start, buffers)
        s, mean = _carry(old[0], new[0], start, len(g)), _carry(old[1], new[1], start, len(g))
        for i in range(len(g)):
            s[i] = s[i] * d + (g[i] * g[i]) * rest
            mean[i] = mean[i] * d + g[i] * rest
            variance = s[i] - mean[i] * mean[i]
            variance = max(variance, zero)
            direction[i] = g[i] / (np.sqrt(variance + e) if inside else np.sqrt(variance) + e)
        _take(step, start, direction)


@compiled
def move(parameters: np.ndarray, direction: np.ndarray, rate: np.float32, factors: np.ndarray, out: np.ndarray) -> None:
    """out = parameters - rate (factors) direction; every array <float32>[size], or factors <float32>[0]: none."""
    for i in range(len(out)):
        out[i] = parameters[i] - direction[i] * (factors[i] * rate if len(factors) else rate)


@compiled
def synchronize(central: np.ndarray, own: np.ndarray, accumulated: np.ndarray, decay: float, steps: int) -> None:
    """central = own = decay^steps central + (1 - decay) accumulated, and accumulated = 0; all <float32>[size]."""
    kept, rest = np.float32(decay**steps), np.float32(1.0 - decay)
    for i in range(len(central)):
        central[i] = central[i] * kept + accumulated[i] * rest
        own[i] = central[i]
        accumulated[i] = 0.0


@compiled
def _gradient(step: Step, start: int, buffers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scaled sum of the gradients for the block from `start` on, to be read only; and a direction to fill."""
    size = len(step.out)
    n = min(buffers.shape[1], size - start)
    direction = buffers[1, :n]
    if len(step.gradients) == 1 and step.scale == np.float32(1.0):
        return _vector_at(step.gradients[0], size)[start : start + n], direction
    total = buffers[0, :n]
    _sum(step.gradients, size, start, step.scale, total)
    return total, direction


@compiled
def _carry(old: np.ndarray, new: np.ndarray, start: int, count: int) -> np.ndarray:
    """A block of a vector, as it was, where it may change. Loops over arrays that overlap would not be vectorized."""
    before, block = old[start : start + count], new[start : start + count]
    if before.ctypes.data != block.ctypes.data:
        for i in range(count):
            block[i] = before[i]
    return block


@compiled
def _adam(
    g: np.ndarray, m: np.ndarray, v: np.ndarray, beta1: float, beta2: float, epsilon: float, direction: np.ndarray
) -> None:
    """A block of the moments and of the direction."""
    decay1, decay2, e = np.float32(beta1), np.float32(beta2), np.float32(epsilon)
    rest1, rest2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    for i in range(len(g)):
        m[i] = m[i] * decay1 + g[i] * rest1
        v[i] = v[i] * decay2 + (g[i] * g[i]) * rest2
        direction[i] = m[i] / (np.sqrt(v[i]) + e)


@compiled
def _take(step: Step, start: int, direction: np.ndarray) -> None:
    """Subtracts a block's step from the parameters."""
    n = len(direction)
    parameters = _carry(_vector_at(step.parameters, len(step.out)), step.out, start, n)
    if len(step.trail):
        trail = step.trail[start : start + n]
        for i in range(n):
            trail[i] += direction[i] if step.weight == np.float32(1.0) else step.weight * direction[i]
    if len(step.factors):
        factors = step.factors[start : start + n]
        for i in range(n):
            parameters[i] -= direction[i] * (factors[i] * step.rate)
    else:
        for i in range(n):
            parameters[i] -= direction[i] * step.rate


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """A number as the address that it is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@compiled
def _vector_at(address: np.uint64, size: int) -> np.ndarray:
    """The vector <float32>[size] at an address."""
    return numba.carray(_pointer(address), (size,), np.float32)  # type: ignore[attr-defined, call-arg]


@compiled
def _sum(gradients: np.ndarray, size: int, start: int, scale: np.float32, total: np.ndarray) -> None:
    """total = scale (g_0 + g_1 + ...), added in their order, for a block that begins at `start`.

    Args:
        gradients: addresses <uint64>[K] of g_k <float32>[size].
        size: of each.
        start: of the block.
        scale: factor on the sum.
        total: <float32>[block].
    """
    stop = start + len(total)
    first = _vector_at(gradients[0], size)[start:stop]
    for i in range(len(total)):
        total[i] = first[i]
    for gradient in gradients[1:]:
        more = _vector_at(gradient, size)[start:stop]
        for i in range(len(total)):
            total[i] += more[i]
    if scale != np.float32(1.0):
        for i in range(len(total)):
            total[i] *= scale
