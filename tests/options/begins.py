"""An environment that gives what a test tells it to."""

from __future__ import annotations

import gymnasium
import numpy as np

DISCRETE, BOX, BITS = gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.MultiBinary(2)
STEP = (np.zeros(2), 0.0, False, False, {})


class Begins(gymnasium.Env):
    """Its reset gives this observation and info, and its step gives, or raises, what it was told to.

    Args:
        called: takes a name for each time that it is made, and for each call of reset and step.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self, observation, actions, step=STEP, called=lambda name: None, **info):
        self.action_space, self._start, self._step, self._called = actions, (observation, info), step, called
        called("make")

    def reset(self, *, seed=None, options=None):
        self._called("reset")
        return self._start

    def step(self, action):
        self._called("step")
        if isinstance(self._step, BaseException):
            raise self._step
        return self._step(action) if callable(self._step) else self._step
