"""Catch: a ball falls down a small board and a paddle catches it or not. Learned in seconds.

After Osband et al., Behaviour Suite for Reinforcement Learning, 2020.
"""

from __future__ import annotations

import gymnasium
import numpy as np

from ddrl.envs.saved_state import generator_state, set_generator_state


class Catch(gymnasium.Env):
    """Board of 10 rows and 5 columns; the ball starts in a random column of the top row.

    Observation: <uint8>[1, 10, 5], 255 at the ball and the paddle. Actions: 0 left, 1 stay, 2 right.
    Reward +1 or -1 at the end, when the ball reaches the paddle's row after 9 agent steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    rows, columns = 10, 5

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (1, self.rows, self.columns), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._ball = self._row = self._paddle = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """A new ball."""
        super().reset(seed=seed)
        self._ball, self._row = int(self.np_random.integers(self.columns)), 0
        self._paddle = self.columns // 2
        return self._board(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Move the paddle, then the ball."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.columns - 1)
        self._row += 1
        over = self._row == self.rows - 1
        reward = (1.0 if self._paddle == self._ball else -1.0) if over else 0.0
        return self._board(), reward, over, False, {}

    def render(self) -> np.ndarray:
        """<uint8>[80, 40, 3]."""
        return np.kron(self._board()[0], np.ones((8, 8), np.uint8))[..., None].repeat(3, axis=2)

    def get_state(self) -> dict[str, np.ndarray]:
        """Positions and generator."""
        place = np.array([self._ball, self._row, self._paddle], np.int64)
        return {"place": place, "generator": generator_state(self.np_random)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state."""
        self._ball, self._row, self._paddle = (int(number) for number in state["place"])
        set_generator_state(self.np_random, state["generator"])

    def _board(self) -> np.ndarray:
        board = np.zeros((1, self.rows, self.columns), np.uint8)
        board[0, self._row, self._ball] = 255
        board[0, self.rows - 1, self._paddle] = 255
        return board


class CatchPicture(Catch):
    """The same game as a picture, so that networks for images learn something within minutes.

    Observation: <uint8>[1, 84, 84], each cell of the board 8 by 8 points, in the middle of the picture.
    """

    size, cell = 84, 8

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = gymnasium.spaces.Box(0, 255, (1, self.size, self.size), np.uint8)

    def render(self) -> np.ndarray:
        """<uint8>[84, 84, 3]."""
        return self._board()[0, ..., None].repeat(3, axis=2)

    def _board(self) -> np.ndarray:
        (cells,) = super()._board()
        board = np.kron(cells, np.ones((self.cell, self.cell), np.uint8))
        margins = [(self.size - length) // 2 for length in board.shape]
        return np.pad(board, [(margin, margin) for margin in margins])[None]


for name, kind in (("ddrl/Catch-v0", "Catch"), ("ddrl/CatchPicture-v0", "CatchPicture")):
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=f"ddrl.envs.catch:{kind}")
