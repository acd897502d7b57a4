"""One Atari game under a protocol on the Gymnasium interface: random skip, crop and color frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ale_py
import cv2
import gymnasium
import numpy as np
from ale_py.env import AtariEnv

from ddrl.envs.protocols import Protocol
from ddrl.envs.starts import Starts, check_protocol
from ddrl.errors import UsageError


class AtariFrames(gymnasium.Wrapper):
    """Preprocessing of `protocol` around ale-py's Gymnasium environment.

    Written for what gymnasium.wrappers.AtariPreprocessing lacks (random skip, crop, last frame only), and
    in the order of ale-py's native environment, so that both show the same pixels.

    Args:
        rom: name in snake case.
        protocol: any.
        on_frame: called with the emulator after every frame that the agent's actions make.
        starts: a game begins with one of these, instead of no-ops and FIRE.
    """

    def __init__(
        self, rom: str, protocol: Protocol, on_frame: Callable[[Any], None] | None = None, starts: Starts | None = None
    ) -> None:
        if starts is not None:
            check_protocol(protocol)
        emulator = AtariEnv(
            rom,
            obs_type="ram",
            frameskip=1,
            repeat_action_probability=protocol.stickiness,
            full_action_space=protocol.full_action_space,
            render_mode="rgb_array",
        )
        super().__init__(emulator)
        cv2.setNumThreads(1)  # frames are small, and every process would have a pool of its own
        self._protocol, self._on_frame, self._starts = protocol, on_frame, starts
        self._draws = np.random.default_rng()  # draws the recorded start of each game
        self._ale = emulator.ale
        full = protocol.full_action_space
        self._actions = self._ale.getLegalActionSet() if full else self._ale.getMinimalActionSet()
        shape = protocol.observation_shape
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self._stack = np.zeros(shape, np.uint8)
        rows, columns = self._ale.getScreenDims()
        self._last = np.zeros((rows, columns, 3) if protocol.color else (rows, columns), np.uint8)
        self._before = np.zeros_like(self._last)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """A new game; draws come from the generator that `seed` set. Raises UsageError if the start ends the game."""
        if self._starts is None:
            self.env.reset(seed=seed, options=options)
            self._begin_with_noops()
        else:
            self._begin_recorded(self._starts, seed)
        self._steps = 0
        self._stack[:] = 0
        self._capture(self._last)
        self._push(self._last)
        return self._stack.copy(), {"lives": self._ale.lives()}

    def _begin_with_noops(self) -> None:
        protocol, ale = self._protocol, self._ale
        noops = int(self.np_random.integers(protocol.noop_max + 1))
        if protocol.fire_reset and ale_py.Action.FIRE in self._actions:
            ale.act(ale_py.Action.FIRE)
            noops -= 1
        for _ in range(noops):
            ale.act(ale_py.Action.NOOP)
            if ale.game_over():
                ale.reset_game()

    def _begin_recorded(self, starts: Starts, seed: int | None) -> None:
        if seed is not None:
            self._draws = np.random.default_rng(seed)
        number = int(self._draws.integers(len(starts.actions)))
        self.env.reset(seed=starts.seed)
        for action in starts.actions[number]:
            self._ale.act(int(action))
        if self._ale.game_over():
            raise UsageError(
                f"--starts: start {number} of {starts.stamp['starts']} ends the game; give starts of this game"
            )

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One agent step of `frame_skip` frames; shorter where the game ends."""
        protocol, ale = self._protocol, self._ale
        skip, reward, over = protocol.frame_skip, 0.0, False
        if not isinstance(skip, int):
            skip = int(self.np_random.integers(skip[0], skip[1] + 1))
        for frame in range(skip):
            reward += ale.act(self._actions[action])
            over = ale.game_over()
            if self._on_frame is not None:
                self._on_frame(ale)
            if protocol.max_pool and frame == skip - 2:
                self._capture(self._before)
            if over:
                break
        self._capture(self._last)
        pool = protocol.max_pool and skip > 1 and not over
        self._push(np.maximum(self._last, self._before) if pool else self._last)
        self._steps += 1
        cut = self._steps >= protocol.max_agent_steps and not over
        return self._stack.copy(), reward, over, cut, {"lives": ale.lives()}

    def _capture(self, frame: np.ndarray) -> None:
        if self._protocol.color:
            self._ale.getScreenRGB(frame)
        else:
            self._ale.getScreenGrayscale(frame)

    def _push(self, frame: np.ndarray) -> None:
        protocol = self._protocol
        if protocol.crop_rows:
            frame = frame[: -protocol.crop_rows]
        image = cv2.resize(frame, (protocol.width, protocol.height), interpolation=cv2.INTER_AREA)
        image = np.moveaxis(image, 2, 0) if protocol.color else image[None]
        self._stack[: -len(image)] = self._stack[len(image) :].copy()
        self._stack[-len(image) :] = image
