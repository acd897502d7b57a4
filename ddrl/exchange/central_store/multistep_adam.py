"""Adam with several local steps per synchronization with central parameters (Stooke and Abbeel 2018, appendix A).

A learner takes ordinary Adam steps on its own theta, m, v and t. Besides, it accumulates, from zero:

    a_g  <- beta1 a_g  + g
    a_g2 <- beta2 a_g2 + g^2
    a_s  <- a_s + s             with s = a m / (sqrt(v) + epsilon), a = r sqrt(1 - beta2^t) / (1 - beta1^t)

(the paper's text lost the plus). A synchronization after n local steps, with the central values in capitals:

    theta, Theta <- Theta - a_s
    m, M <- beta1^n M + (1 - beta1) a_g
    v, V <- beta2^n V + (1 - beta2) a_g2
    t, T <- T + n
    a_g, a_g2, a_s <- 0

The paper does not say what t is; in its code each learner counts its own steps only. Here, t = T + k at the k-th local
step after a synchronization, with T as it was at that synchronization: steps of other learners since then are in
neither this learner's m nor its t. After two learners have synchronized with n1 and n2 steps, T has grown by n1 + n2.
The weights of all gradients in M, of whichever learner, then sum to 1 - beta1^T (in V to 1 - beta2^T), and these sums
are what the factors in `a` correct for.

For one learner this is Adam: bit for bit with n = 1, and up to rounding with more steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddrl.exchange.optimizers import Adam, Trail
from ddrl.lazy import lazy_module

if TYPE_CHECKING:
    from ddrl.kernels import compiled, updates
else:
    compiled, updates = lazy_module("ddrl.kernels.compiled"), lazy_module("ddrl.kernels.updates")


class MultiStepAdam(Adam):
    """One learner's optimizer of a slice: `apply` takes a local step, and `synchronize` ends a series of them.

    Attributes:
        slots: m, v, a_g, a_g2 and a_s, each <float32>[size].
        count: t, the number of updates behind m and v.
    """

    slot_names = ("m", "v", "a_g", "a_g2", "a_s")
    _synchronized_count = 0  # `count` at the last synchronization

    @property
    def local_steps(self) -> int:
        """n, the number of local steps since the last synchronization."""
        return self.count - self._synchronized_count

    def synchronize(self, theta: np.ndarray, slots: dict[str, np.ndarray], count: int, out: np.ndarray) -> None:
        """Adds the local steps to the central state, and continues from the result.

        Without local steps, this learner takes the central state as it is.

        Args:
            theta: central parameters <float32>[size], changed in place.
            slots: central m and v, each <float32>[size], changed in place.
            count: T before the synchronization; the caller adds `local_steps` to it.
            out: <float32>[size] that takes the new parameters.
        """
        steps, own = self.local_steps, self.slots
        for name, sums, decay in (("m", "a_g", self.config.beta1), ("v", "a_g2", self.config.beta2)):
            where = [
                compiled.address(vector, self.size, written=True) for vector in (slots[name], own[name], own[sums])
            ]
            updates.synchronize(self.size, *where, decay, steps)
        self.ahead_of(theta, out=theta)
        own["a_s"].fill(0.0)
        out[:] = theta
        self.count = self._synchronized_count = count + self.local_steps

    def ahead_of(self, theta: np.ndarray, out: np.ndarray) -> None:
        """Sets `out` to theta - a_s: newer central parameters <float32>[size], moved by this learner's local steps."""
        parameters, ahead = slice(0, self._stepped), self.slots["a_s"]
        np.subtract(theta[parameters], ahead[parameters], out=out[parameters])
        if self.statistics is not None:
            self.statistics.advance(theta, [ahead], out)

    def apply(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Sequence[np.ndarray],
        learning_rate: float,
        scale: float = 1.0,
        out: np.ndarray | None = None,
        trail: Trail | None = None,
    ) -> None:
        """Takes a local step; the arguments are those of `Optimizer.apply`.

        At the place of the running statistics, a_s merges those of the local steps' gradients.
        """
        super().apply(parameters, gradient, learning_rate, scale, out, trail)
        if self.statistics is not None:
            gradients = [gradient] if isinstance(gradient, np.ndarray) else gradient
            self.statistics.advance(self.slots["a_s"], gradients, self.slots["a_s"])

    def _update(self, step: updates.Step, old: updates.Addresses, new: updates.Addresses) -> None:
        config = self.config
        updates.multistep_adam(step, old, new, config.beta1, config.beta2, config.adam_epsilon)
