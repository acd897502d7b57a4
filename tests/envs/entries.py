"""The same numbers as a dictionary of four vectors and as one Box, for measures of what dictionaries cost.

`ddrl bench roofline --preset smoke --game tests.envs.entries:ddrl-test/Entries-v0`, and OneBox-v0 beside it; and
HalfCheetah's as two entries, for an environment that costs something: CheetahEntries-v0 beside HalfCheetah-v5.
"""

from __future__ import annotations

import gymnasium
import numpy as np

NAMES, SIZE, STEPS = ("position", "speed", "goal", "touch"), 16, 100


class Entries(gymnasium.Env):
    """64 numbers that move toward the chosen action; `one` is whether they are one Box."""

    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, one: bool = False) -> None:
        box = gymnasium.spaces.Box(-10.0, 10.0, (SIZE,), np.float32)
        several = gymnasium.spaces.Dict([(name, box) for name in NAMES])
        self.observation_space = gymnasium.spaces.Box(-10.0, 10.0, (len(NAMES) * SIZE,), np.float32) if one else several
        self._one, self._numbers, self._step = one, np.zeros(len(NAMES) * SIZE, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self._numbers, self._step = self.np_random.standard_normal(len(NAMES) * SIZE, np.float32), 0
        return self._observation(), {}

    def step(self, action):
        self._numbers = np.float32(0.9) * self._numbers + self.np_random.standard_normal(len(NAMES) * SIZE, np.float32)
        self._numbers[action] += 1.0
        self._step += 1
        return self._observation(), float(self._numbers[action]), False, self._step == STEPS, {}

    def _observation(self):
        if self._one:
            return self._numbers
        return dict(zip(NAMES, self._numbers.reshape(len(NAMES), SIZE)))


class CheetahEntries(gymnasium.ObservationWrapper):
    """HalfCheetah-v5 with positions and velocities as two entries, float64 as MuJoCo has them."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("HalfCheetah-v5").unwrapped)
        boxes = [gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64) for size in (8, 9)]
        self.observation_space = gymnasium.spaces.Dict(list(zip(("position", "velocity"), boxes)))

    def observation(self, observation):
        return {"position": observation[:8], "velocity": observation[8:]}


if "ddrl-test/CheetahEntries-v0" not in gymnasium.registry:
    gymnasium.register("ddrl-test/CheetahEntries-v0", entry_point=CheetahEntries, max_episode_steps=1000)
for name, one in (("Entries", False), ("OneBox", True)):
    if f"ddrl-test/{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"ddrl-test/{name}-v0", entry_point=Entries, kwargs={"one": one})
