"""The updates of `ddrl.exchange.optimizers` in NumPy, one operation after the other, each rounded to float32."""

from __future__ import annotations

import numpy as np

from ddrl.exchange.settings import OptimizerConfig

F = np.float32


class Rule:
    """A rule with its slots for a whole vector."""

    def __init__(self, config: OptimizerConfig, size: int, factors: np.ndarray | None = None):
        self.config, self.factors = config, factors
        names = {"adam": "mv", "rmsprop": "s", "rmsprop-centered": "sg", "sgd": ""}[config.optimizer]
        self.slots = {name: np.zeros(size, F) for name in names}

    def step(self, parameters, gradients, step_size, scale, trail=None, weight=1.0):
        """The new parameters; slots, and a trail, change in place."""
        total = gradients[0]
        for gradient in gradients[1:]:
            total = total + gradient
        direction = getattr(self, self.config.optimizer.replace("-", "_"))(total * F(scale))
        if trail is not None:
            trail += direction if weight == 1.0 else F(weight) * direction
        rate = F(step_size) if self.factors is None else self.factors * F(step_size)
        return parameters - direction * rate

    def sgd(self, g):
        return g

    def adam(self, g):
        config, slots = self.config, self.slots
        slots["m"] = decayed(slots["m"], g, config.beta1)
        slots["v"] = decayed(slots["v"], g * g, config.beta2)
        return slots["m"] / (np.sqrt(slots["v"]) + F(config.adam_epsilon))

    def rmsprop(self, g):
        self.slots["s"] = decayed(self.slots["s"], g * g, self.config.rmsprop_decay)
        return self.divided(g, self.slots["s"])

    def rmsprop_centered(self, g):
        self.rmsprop(g)
        self.slots["g"] = decayed(self.slots["g"], g, self.config.rmsprop_decay)
        return self.divided(g, np.maximum(self.slots["s"] - self.slots["g"] * self.slots["g"], F(0)))

    def divided(self, g, square):
        epsilon = F(self.config.rmsprop_epsilon)
        return g / (np.sqrt(square + epsilon) if self.config.rmsprop_epsilon_inside else np.sqrt(square) + epsilon)


def decayed(mean, value, decay):
    return mean * F(decay) + value * F(1.0 - decay)
