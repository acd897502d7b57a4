"""Atari through ale-py's native vector environment: emulation in C++ threads, outside the GIL."""

from __future__ import annotations

import importlib.metadata

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from ddrl.envs.base import EpisodeTracker, Step, environment_seeds
from ddrl.envs.protocols import Protocol
from ddrl.errors import UsageError
from ddrl.types import Discrete, EpisodeEnd


class NativeAtari:
    """One ROM under one protocol; recv gives the `batch_size` environments that are ready first.

    Where `batch_size < num_envs` the order of the rows depends on thread timing, while each environment's
    own trajectory depends on its seed and its actions only. With one thread the environments take strict
    turns; with more, one of them now and then waits for tens of recvs. Its state cannot be saved.

    The observation where a game is truncated shows the step's third frame over the previous observation,
    because the emulator loop leaves before it captures the last frame; where a game terminates it is not
    meaningful.
    """

    can_save_state = False

    def __init__(
        self, rom: str, protocol: Protocol, num_envs: int, *, batch_size: int = 0, threads: int = 1
    ) -> None:
        if not protocol.native:
            raise UsageError(f"protocol {protocol.name!r} has a random skip or a crop; use make_atari")
        self.num_envs, self.batch_size = num_envs, batch_size or num_envs
        self.observation_shape, self.observation_dtype = protocol.observation_shape, np.dtype(np.uint8)
        self._rom, self._protocol, self._threads = rom, protocol, threads
        self._tracker = EpisodeTracker(num_envs)
        self._envs: AtariVectorEnv | None = self._make()
        self.action_space = Discrete(int(self._envs.single_action_space.n))
        self._first: tuple | None = None  # what the library's reset received, for the first recv
        self._due = "reset"
        self.stamp = {
            **protocol.stamp(), "game": rom, "backend": "native",
            "ale_py": importlib.metadata.version("ale-py"),
        }

    def _make(self) -> AtariVectorEnv:
        protocol = self._protocol
        return AtariVectorEnv(
            self._rom, self.num_envs, batch_size=self.batch_size, num_threads=self._threads,
            thread_affinity_offset=-1, autoreset_mode=AutoresetMode.NEXT_STEP,
            # Counted in frames of agent steps; the no-ops and FIRE before a game do not count.
            max_num_frames_per_episode=protocol.max_frames,
            repeat_action_probability=protocol.stickiness, full_action_space=protocol.full_action_space,
            img_height=protocol.height, img_width=protocol.width, grayscale=not protocol.color,
            stack_num=protocol.stack, frameskip=protocol.frame_skip, maxpool=protocol.max_pool,
            # The library draws from 0..noop_max-1.
            noop_max=protocol.noop_max + 1, use_fire_reset=protocol.fire_reset,
            # Its episodic_life starts a new game at every life; raw rewards are needed for scores.
            episodic_life=False, life_loss_info=False, reward_clipping=False,
        )

    def reset(self, seed: int) -> None:
        """Start new games; about 0.1 s of one core per environment, as the ROM is loaded for the seed."""
        seeds = environment_seeds(seed, self.num_envs)
        if self._due != "reset" and self.batch_size < self.num_envs:
            self._envs = self._make()  # some environments are still stepping: a reset would race with them
        elif self._due == "recv" and self._first is None:
            self._envs.recv()
        self._tracker.reset()
        observation, info = self._envs.reset(seed=seeds)
        nothing = np.zeros(self.batch_size, bool)
        self._first = (observation, nothing, nothing, nothing, info)
        self._due = "recv"

    def recv(self) -> Step:
        """The `batch_size` rows that are ready first; the library gives fresh arrays every time."""
        if self._due != "recv":
            raise RuntimeError(f"recv called where {self._due} is due")
        rows, self._first = self._first or self._envs.recv(), None
        observation, reward, terminated, truncated, info = rows
        self._due = "send"
        if self._protocol.color:  # [b, stack, H, W, 3] -> [b, stack * 3, H, W]
            observation = np.moveaxis(observation, 4, 2).reshape(self.batch_size, *self.observation_shape)
        return self._tracker.step(info["env_id"], observation, reward, terminated, truncated, info["lives"])

    def send(self, actions: np.ndarray) -> None:
        """<int32>[batch_size] for the rows last received. Raises ValueError for an action out of range."""
        if self._due != "send":
            raise RuntimeError(f"send called where {self._due} is due")
        actions = np.ascontiguousarray(actions, np.int32)
        if actions.shape != (self.batch_size,) or actions.min() < 0 or actions.max() >= self.action_space.count:
            limit = self.action_space.count - 1
            raise ValueError(f"expected {self.batch_size} actions in 0..{limit}, got {actions}")
        self._envs.send(actions)
        self._due = "recv"

    def pop_episodes(self) -> list[EpisodeEnd]:
        """Whole games finished since the last call."""
        return self._tracker.pop_episodes()

    def get_state(self) -> dict[str, np.ndarray]:
        """Raises UsageError: the native emulator's state cannot be saved."""
        raise UsageError("the native Atari environment cannot save its state; reset at checkpoints instead")

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Raises UsageError, as get_state."""
        raise UsageError("the native Atari environment cannot restore a state; reset at checkpoints")

    def close(self) -> None:
        """Stop the emulator threads and free the memory."""
        self._envs, self._first = None, None
