"""What tests of environments share."""

from __future__ import annotations

import gymnasium
import numpy as np

from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.spaces import random_action
from ddrl.structured import ACTION_MASK

spaces = gymnasium.spaces


def make(game: str, num_envs: int = 2, **options):
    return make_environment(EnvironmentConfig(game=game), num_envs, **options)


def play(env, steps, seed=1):
    """Random legal actions; the steps received."""
    generator, received = np.random.default_rng(seed), []
    env.reset(seed)
    for _ in range(steps):
        step = env.recv()
        received.append(step)
        masks = step.observation[ACTION_MASK] if ACTION_MASK in (step.observation.dtype.names or ()) else None
        rows = range(len(step.env_id))
        env.send(
            np.stack([random_action(env.action_space, generator, None if masks is None else masks[i]) for i in rows])
        )
    return received


class Masking(gymnasium.Env):
    """Gives the masks that it was told to, one for the reset and one for each step."""

    observation_space = spaces.Box(0, 1, (2,))

    def __init__(self, masks, action_space=None, ends=False):
        self.action_space = action_space or spaces.Discrete(3)
        self._masks, self._ends = list(masks), ends

    def _info(self):
        mask = self._masks.pop(0)
        return {} if mask is None else {ACTION_MASK: mask}

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), self._info()

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, self._ends, False, self._info()


def raising(error):
    raise error
