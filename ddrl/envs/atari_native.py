"""Atari through ale-py's native vector environment: emulation in C++ threads, outside the GIL."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from ddrl.envs.base import EpisodeTracker, InTurn, Step, environment_seeds
from ddrl.envs.pinning import new_threads_pinned
from ddrl.envs.protocols import Protocol
from ddrl.envs.spaces import check_actions, random_start_of
from ddrl.errors import UsageError
from ddrl.types import ActionSpace, Discrete


class NativeAtari(InTurn):
    """One ROM under one protocol; recv gives the `batch_size` simulators that are ready first.

    Where `batch_size < num_envs` the order of the rows depends on thread timing, while what each simulator
    shows depends on its seed and its actions only. With one thread the simulators take strict turns; with
    more, one of them now and then waits for tens of recvs. Its state cannot be saved.

    The observation where a game is truncated shows the step's third frame over the previous observation,
    because the emulator loop leaves before it captures the last frame; where a game terminates it is not
    meaningful.

    Args:
        random_start_steps: every simulator begins with a number of random actions of its own, uniform in 0 to this.
            With `batch_size < num_envs` it takes at least that many, since the pool cannot hold an environment back.
        cores: the emulator threads are pinned to these cores in turn (none: they are not pinned).
    """

    def __init__(
        self,
        rom: str,
        protocol: Protocol,
        num_envs: int,
        *,
        batch_size: int = 0,
        threads: int = 1,
        random_start_steps: int = 0,
        cores: Sequence[int] = (),
    ) -> None:
        if not protocol.native:
            raise UsageError(f"protocol {protocol.name!r} has a random skip or a crop; use make_atari")
        self.num_envs, self.batch_size = num_envs, batch_size or num_envs
        self.observation_shape: tuple[int, ...] = protocol.observation_shape
        self.observation_dtype: np.dtype = np.dtype(np.uint8)
        self._rom, self._protocol, self._threads, self._cores = rom, protocol, threads, cores
        self._random_start_steps = random_start_steps
        self._tracker = EpisodeTracker(num_envs)
        self._open: AtariVectorEnv | None = self._make()
        actions = self._envs.single_action_space
        assert isinstance(actions, gymnasium.spaces.Discrete)
        self._count = int(actions.n)
        self.action_space: ActionSpace = Discrete(self._count)
        self._first: tuple | None = None  # rows of the library's reset, for the first recv
        self.stamp = {
            **protocol.stamp(),
            "game": rom,
            "backend": "native",
            "ale_py": importlib.metadata.version("ale-py"),
        }

    @property
    def _envs(self) -> AtariVectorEnv:
        if self._open is None:
            raise RuntimeError("the environment is closed")
        return self._open

    def _make(self) -> AtariVectorEnv:
        protocol = self._protocol
        assert isinstance(protocol.frame_skip, int), "a native protocol has no random skip"
        with new_threads_pinned(self._cores):
            return AtariVectorEnv(
                self._rom,
                self.num_envs,
                batch_size=self.batch_size,
                num_threads=self._threads,
                # The library's own pinning counts cores from 0, whatever cores the process may use.
                thread_affinity_offset=-1,
                autoreset_mode=AutoresetMode.NEXT_STEP,
                # Counted in frames of agent steps; the no-ops and FIRE before a game do not count.
                max_num_frames_per_episode=protocol.max_frames,
                repeat_action_probability=protocol.stickiness,
                full_action_space=protocol.full_action_space,
                img_height=protocol.height,
                img_width=protocol.width,
                grayscale=not protocol.color,
                stack_num=protocol.stack,
                frameskip=protocol.frame_skip,
                maxpool=protocol.max_pool,
                # The library draws from 0..noop_max-1.
                noop_max=protocol.noop_max + 1,
                use_fire_reset=protocol.fire_reset,
                # The library's episodic_life starts a new game at every life; scores need whole games and raw rewards.
                episodic_life=False,
                life_loss_info=False,
                reward_clipping=False,
            )

    def reset(self, seed: int) -> None:
        """Start new games. This takes about 0.1 s of one core per environment, which loads its ROM to be seeded."""
        seeds = environment_seeds(seed, self.num_envs)
        if self._due != "reset" and self.batch_size < self.num_envs:
            self._open = self._make()  # some environments are still stepping: a reset would race with them
        elif self._due == "recv" and self._first is None:
            self._envs.recv()
        self._tracker.reset()
        observation, info = self._envs.reset(seed=seeds)
        nothing = np.zeros(self.batch_size, bool)
        self._first = (observation, nothing, nothing, nothing, info)
        if self._random_start_steps:
            self._tracker.begin_amid(np.arange(self.num_envs))
            self._first = self._random_start(seed, self._first)
        self._due = "recv"

    def _random_start(self, seed: int, rows: tuple) -> tuple:
        """Takes the random first actions (Stooke and Abbeel 2018, section 5.3); returns the rows last received."""
        starts = [random_start_of(seed, i, self._random_start_steps) for i in range(self.num_envs)]
        generators, left = [generator for generator, _ in starts], np.array([steps for _, steps in starts])
        if self.batch_size < self.num_envs:
            while left.max() > 0:
                ids = rows[4]["env_id"]
                rows = self._act_randomly(generators, ids, np.ones(self.batch_size, bool))
                left[ids] -= 1
            return rows
        # All are stepped together; one that takes fewer actions is reset when the others have that many left to take.
        for remaining in range(left.max(), -1, -1):
            begins = (left == remaining) & (left < left.max())
            if begins.any():
                observation, info = self._envs.reset(options={"reset_mask": begins})
                rows = (observation, rows[1], rows[2] & ~begins, rows[3] & ~begins, info)
            if remaining:
                rows = self._act_randomly(generators, np.arange(self.num_envs), left >= remaining)
        return rows

    def _act_randomly(self, generators: list, ids: np.ndarray, acting: np.ndarray) -> tuple:
        actions = [generators[i].integers(self._count) if acts else 0 for i, acts in zip(ids, acting)]
        self._envs.send(np.array(actions, np.int32))
        return self._envs.recv()

    def recv(self) -> Step:
        """The `batch_size` rows that are ready first; the library gives fresh arrays every time."""
        self._check_due("recv")
        rows, self._first = self._first or self._envs.recv(), None
        observation, reward, terminated, truncated, info = rows
        self._due = "send"
        if self._protocol.color:  # [b, stack, H, W, 3] -> [b, stack * 3, H, W]
            observation = np.moveaxis(observation, 4, 2).reshape(self.batch_size, *self.observation_shape)
        return self._tracker.step(
            info["env_id"], observation, reward, terminated, truncated, info["lives"], ended=terminated | truncated
        )

    def send(self, actions: np.ndarray) -> None:
        """<int32>[batch_size] for the rows last received. Raises ValueError for an action out of range."""
        self._check_due("send")
        actions = check_actions(actions, self.action_space, self.batch_size)
        self._envs.send(actions)
        self._due = "recv"

    def close(self) -> None:
        """Stop the emulator threads and free the memory."""
        self._open, self._first = None, None
