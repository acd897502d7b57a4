"""A game with observations of several entries and doors that may not be tried: learned in seconds.

`--game tests.envs.doors:ddrl-test/Doors-v0`; it raises where a policy tries a closed door.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from ddrl.envs.saved_state import generator_state, set_generator_state

spaces = gymnasium.spaces
DOORS, STEPS = 4, 8


class Doors(gymnasium.Env):
    """Each step one of four doors is right: that of the number, or the next one where the light is on.

    Reward 1 for the right door. Some of the others are closed. An episode has 8 steps.

    Args:
        masked: whether `info` has the mask of open doors; all are open otherwise.
        actions: `one` door (Discrete from 1 up), `pair` (MultiDiscrete: the door and a lamp, which must stay as the
            light is), `bits` (MultiBinary: the same door as two bits; all doors are open) or `box` (a Box [1, 2], which
            must both be 1 where the light is on, and -1 where not).
        flat: observations are one Box of the same numbers.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self, masked: bool = True, actions: str = "one", flat: bool = False, render_mode: str | None = None
    ) -> None:
        self.render_mode, self._masked, self._actions, self._flat = render_mode, masked, actions, flat
        self.observation_space: Any = spaces.Dict(
            {
                "light": spaces.Box(0, 255, (8, 8, 1), np.uint8),
                "number": spaces.Discrete(DOORS, start=1),
                "rest": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1.0, 1.0, (2, 2), np.float64))),
            }
        )
        if flat:
            self.observation_space = spaces.Box(-1.0, 1.0, (64 + DOORS + 2 + 4,), np.float32)
        self.action_space: Any = {
            "one": spaces.Discrete(DOORS, start=1),
            "pair": spaces.MultiDiscrete([DOORS, 2]),
            "bits": spaces.MultiBinary(2),
            "box": spaces.Box(-1.0, 1.0, (1, 2)),
        }[actions]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._step = 0
        return self._next()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        reward = self._reward(action)
        self._step += 1
        observation, info = self._next()
        return observation, reward, self._step == STEPS, False, info

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), 255 * self._lit, np.uint8)

    def get_state(self) -> dict[str, np.ndarray]:
        numbers = np.array([self._step, self._number, self._lit, *self._open], np.int64)
        return {"numbers": numbers, "generator": generator_state(self.np_random)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self._step, self._number, self._lit, *opened = map(int, state["numbers"])
        self._open = np.array(opened, bool)
        set_generator_state(self.np_random, state["generator"])

    def _reward(self, action: Any) -> float:
        if self._actions == "box":
            assert self.action_space.contains(action), action
            return 1.0 - float(np.abs(action - (2 * self._lit - 1)).mean())
        door, lamp = self._chosen(action)
        assert self._open[door], f"door {door} is closed: {self._open}"
        assert self._actions != "pair" or not self._masked or lamp == self._lit
        return float(door == (self._number + self._lit) % DOORS)

    def _chosen(self, action: Any) -> tuple[int, int]:
        if self._actions == "one":
            assert 1 <= action <= DOORS
            return int(action) - 1, self._lit
        assert self.action_space.contains(action), action
        return (int(action[0]), int(action[1])) if self._actions == "pair" else (2 * int(action[0]) + int(action[1]), 0)

    def _next(self) -> tuple[Any, dict]:
        random = self.np_random
        self._number, self._lit = int(random.integers(DOORS)), int(random.integers(2))
        self._open = (
            random.random(DOORS) < 0.5 if self._masked and self._actions in ("one", "pair") else np.ones(DOORS, bool)
        )
        self._open[(self._number + self._lit) % DOORS] = True
        light = np.full((8, 8, 1), 255 * self._lit, np.uint8)
        bits, noise = random.integers(2, size=2).astype(np.int8), random.uniform(-1.0, 1.0, (2, 2))
        observation: Any = {"light": light, "number": self._number + 1, "rest": (bits, noise)}
        if self._flat:
            one_hot = np.arange(DOORS) == self._number
            observation = np.concatenate([light.ravel() / 255.0, one_hot, bits, noise.ravel()]).astype(np.float32)
        return observation, self._info()

    def _info(self) -> dict:
        if not self._masked:
            return {}
        mask = self._open.astype(np.int8)
        if self._actions == "one":
            return {"action_mask": mask}
        if self._actions == "pair":
            return {"action_mask": (mask, np.arange(2, dtype=np.int8) == self._lit)}
        return {"action_mask": np.full(2, 2, np.int8)} if self._actions == "bits" else {}


for name, arguments in {
    "Doors": {},
    "OpenDoors": {"masked": False},
    "FlatOpenDoors": {"masked": False, "flat": True},
    "FlatDoors": {"flat": True},
    "PairDoors": {"actions": "pair"},
    "BitDoors": {"actions": "bits"},
    "BoxDoors": {"actions": "box"},
}.items():
    if f"ddrl-test/{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"ddrl-test/{name}-v0", entry_point=Doors, kwargs=arguments)
