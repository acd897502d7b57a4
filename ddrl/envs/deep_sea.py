"""Deep Sea: a diver reaches the treasure only by going right in every row. Random play does so once in 2^rows games.

After Osband et al., Behaviour Suite for Reinforcement Learning, 2020.
"""

from __future__ import annotations

import gymnasium
import numpy as np

MOVE_COST = 0.01  # total cost of going right in every row
MAPPING_SEED = 42


class DeepSea(gymnasium.Env):
    """Square of `size` by `size` cells; the diver starts at the top left, and sinks by a row with each agent step.

    Observation: <uint8>[1, size, size], 255 at the diver; all 0 after the end. Actions: 0 and 1. One of them goes
    right and the other left; which one goes right differs from cell to cell, but is the same in all games. Going right
    costs 0.01 / size, and brings +1 in the last column. A game takes `size` agent steps.

    Args:
        render_mode: None or rgb_array, for videos.
        size: rows and columns.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, render_mode: str | None = None, size: int = 10) -> None:
        self.render_mode, self.size = render_mode, size
        self.observation_space = gymnasium.spaces.Box(0, 255, (1, size, size), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._right = np.random.default_rng(MAPPING_SEED).integers(2, size=(size, size))
        self._row = self._column = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """A new dive."""
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._board(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """A move to one side, and down."""
        reward = 0.0
        if int(action) == self._right[self._row, self._column]:
            reward = float(self._column == self.size - 1) - MOVE_COST / self.size
            self._column = min(self._column + 1, self.size - 1)
        else:
            self._column = max(self._column - 1, 0)
        self._row += 1
        return self._board(), reward, self._row == self.size, False, {}

    def render(self) -> np.ndarray:
        """<uint8>[8 * size, 8 * size, 3]."""
        return np.kron(self._board()[0], np.ones((8, 8), np.uint8))[..., None].repeat(3, axis=2)

    def get_state(self) -> dict[str, np.ndarray]:
        """The diver's place; nothing is drawn at random."""
        return {"place": np.array([self._row, self._column], np.int64)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state."""
        self._row, self._column = (int(number) for number in state["place"])

    def _board(self) -> np.ndarray:
        board = np.zeros((1, self.size, self.size), np.uint8)
        if self._row < self.size:
            board[0, self._row, self._column] = 255
        return board


if "ddrl/DeepSea-v0" not in gymnasium.registry:
    gymnasium.register("ddrl/DeepSea-v0", entry_point="ddrl.envs.deep_sea:DeepSea")
