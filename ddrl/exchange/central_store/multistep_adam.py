"""Adam with several local steps per synchronization with central parameters (Stooke and Abbeel 2018, appendix A).

A learner takes usual Adam steps on its own theta, m, v and t, and accumulates beside them, from zero:

    a_g  <- beta1 a_g  + g
    a_g2 <- beta2 a_g2 + g^2
    a_s  <- a_s + s             with s = a m / (sqrt(v) + epsilon), a = r sqrt(1 - beta2^t) / (1 - beta1^t)

(the paper's text lost the plus). A synchronization after n local steps, with the central values in capitals:

    theta, Theta <- Theta - a_s
    m, M <- beta1^n M + (1 - beta1) a_g
    v, V <- beta2^n V + (1 - beta2) a_g2
    t, T <- T + n
    a_g, a_g2, a_s <- 0

The paper does not say what t is; in its code each learner counts its own steps, and never learns of others'. Here,
between synchronizations t = T + k at the k-th local step, with T as it was at this learner's last synchronization:
others' steps since then are in neither its m nor its t. After two learners synchronized with n1 and n2 steps, T has
grown by n1 + n2. The weights of all gradients in M then sum to 1 - beta1^T (in V to 1 - beta2^T), whoever computed
them, and that is what the factors in `a` divide by.

For one learner this is Adam: to the bit with n = 1, and but for rounding with more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddrl.exchange.averaging import BLOCK
from ddrl.exchange.optimizers import Adam, Blocks
from ddrl.exchange.parameter_groups import ParameterGroup
from ddrl.exchange.settings import OptimizerConfig


class MultiStepAdam(Adam):
    """One learner's side for a slice of the parameters: `apply` takes a local step, `synchronize` ends a series.

    Attributes:
        slots: m, v, a_g, a_g2, a_s, each <float32>[size].
        count: t.
    """

    slot_names = ("m", "v", "a_g", "a_g2", "a_s")

    def __init__(self, config: OptimizerConfig, size: int, groups: Sequence[ParameterGroup] = ()) -> None:
        super().__init__(config, size, groups)
        self._synchronized_count = 0

    @property
    def local_steps(self) -> int:
        """n: steps since the last synchronization."""
        return self.count - self._synchronized_count

    def synchronize(self, theta: np.ndarray, slots: Blocks, count: int, out: np.ndarray) -> None:
        """Adds the local steps to the central state, and goes on from there; without a local step it only adopts it.

        Args:
            theta: <float32>[size], central parameters, changed in place.
            slots: central m and v, each <float32>[size], changed in place.
            count: T before the synchronization; the caller adds `local_steps` to it.
            out: <float32>[size] that takes the new parameters.
        """
        shapes = {array.shape for array in (theta, slots["m"], slots["v"], out)}
        if shapes != {(self.size,)}:
            raise ValueError(f"central arrays of shapes {sorted(shapes)} must have shape ({self.size},)")
        for start in range(0, self.size, BLOCK):
            block = slice(start, min(start + BLOCK, self.size))
            self._synchronize_moment(slots["m"][block], block, "m", "a_g", self.config.beta1)
            self._synchronize_moment(slots["v"][block], block, "v", "a_g2", self.config.beta2)
            theta[block] -= self.slots["a_s"][block]
            self.slots["a_s"][block] = 0.0
            out[block] = theta[block]
        self.count = self._synchronized_count = count + self.local_steps

    def ahead_of(self, theta: np.ndarray, out: np.ndarray) -> None:
        """out = theta - a_s: newer central parameters <float32>[size] with this learner's local steps kept."""
        np.subtract(theta, self.slots["a_s"], out=out)

    def _synchronize_moment(self, central: np.ndarray, block: slice, own: str, sum_name: str, decay: float) -> None:
        accumulated = self.slots[sum_name][block]
        accumulated *= np.float32(1.0 - decay)
        central *= np.float32(decay**self.local_steps)
        central += accumulated
        accumulated[:] = 0.0
        self.slots[own][block] = central

    def _update(self, old: Blocks, new: Blocks, g: np.ndarray, scratch: np.ndarray) -> np.ndarray:
        np.multiply(old["a_g"], np.float32(self.config.beta1), out=new["a_g"])
        new["a_g"] += g
        np.multiply(g, g, out=scratch)
        np.multiply(old["a_g2"], np.float32(self.config.beta2), out=new["a_g2"])
        new["a_g2"] += scratch
        return super()._update(old, new, g, scratch)

    def _stepped(self, old: Blocks, new: Blocks, step: np.ndarray) -> None:
        np.add(old["a_s"], step, out=new["a_s"])
