"""An environment of one's own with several entries in its observations and with legal actions.

    ddrl train ppo --plugin examples/courier.py --game courier --preset smoke
    ddrl train dqn --plugin examples/courier.py --game courier --preset smoke

Everything that a `gymnasium.Env` needs is here; ddrl needs nothing beyond that but its name.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from ddrl import register_environment

SIZE, STEPS = 4, 40
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # up, down, left, right


class Courier(gymnasium.Env):
    """A courier on a square fetches a parcel and brings it home. Walls around it make moves illegal.

    Observation: `courier` <float32>[2] in [-1, 1]; `parcel` and `home`, row and column; `carries`, 0 or 1. Actions: up,
    down, left, right; `info["action_mask"]` has the legal ones. Reward: 0.5 for the parcel, 0.5 at home with it, and
    -0.01 for each step, of which there are 40 at most.

    Args:
        render_mode: None or rgb_array, for videos.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = Discrete(len(MOVES))
        place = MultiDiscrete([SIZE, SIZE])
        self.observation_space = Dict(
            {"courier": Box(-1.0, 1.0, (2,), np.float32), "parcel": place, "home": place, "carries": Discrete(2)}
        )
        self._courier = self._parcel = self._home = np.zeros(2, np.int64)
        self._carries, self._step = False, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Three different places."""
        super().reset(seed=seed)
        cells = self.np_random.choice(SIZE * SIZE, 3, replace=False)
        self._courier, self._parcel, self._home = np.stack(np.divmod(cells, SIZE), axis=1)
        self._carries, self._step = False, 0
        return self._observation(), self._info()

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """A move. Raises ValueError where it is illegal: none of these ever comes here."""
        if not self._legal()[action]:
            raise ValueError(f"there is a wall: action {action} at {self._courier}")
        self._courier, self._step = self._courier + MOVES[action], self._step + 1
        found = not self._carries and np.array_equal(self._courier, self._parcel)
        self._carries |= found
        home = self._carries and np.array_equal(self._courier, self._home)
        reward = 0.5 * found + 0.5 * home - 0.01
        return self._observation(), reward, home, self._step == STEPS, self._info()

    def render(self) -> np.ndarray:
        """<uint8>[80, 80, 3]: the courier white, the parcel red, home green."""
        cells = np.zeros((SIZE, SIZE, 3), np.uint8)
        cells[tuple(self._home)] = (0, 160, 0)
        if not self._carries:
            cells[tuple(self._parcel)] = (200, 0, 0)
        cells[tuple(self._courier)] = 255
        return np.kron(cells, np.ones((80 // SIZE, 80 // SIZE, 1), np.uint8))

    def _legal(self) -> np.ndarray:
        after = self._courier + MOVES
        return ((after >= 0) & (after < SIZE)).all(axis=1)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._legal().astype(np.int8)}

    def _observation(self) -> dict[str, Any]:
        courier = (2.0 * self._courier / (SIZE - 1) - 1.0).astype(np.float32)
        return {"courier": courier, "parcel": self._parcel, "home": self._home, "carries": int(self._carries)}


register_environment("courier", Courier)
