"""EnvPool's vector environments: simulators in C++ threads, outside the GIL."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from ddrl.envs.base import EpisodeTracker, InTurn, Step, environment_seeds
from ddrl.envs.control import flat_space
from ddrl.envs.envpool_games import Task, find_task, import_envpool
from ddrl.envs.game_names import atari_rom
from ddrl.envs.gymnasium_environment import stamp_of, versions
from ddrl.envs.observations import observation_of
from ddrl.envs.pinning import check_cores, new_threads_pinned
from ddrl.envs.protocols import Protocol
from ddrl.envs.spaces import action_space_of, check_actions, no_actions, random_action, random_start_of
from ddrl.errors import UsageError


class EnvPoolEnvironment(InTurn):
    """One game in EnvPool; recv gives the `batch_size` simulators that are ready first, or all of them in order.

    Where `batch_size < num_envs` the order of the rows depends on thread timing, while what each simulator shows
    depends on its seed and its actions only. Its state cannot be saved.

    If a game other than Atari ends by its own rules in the very step of its step limit, EnvPool reports only a
    truncation, where Gymnasium reports a termination as well.

    Args:
        game: its name, as in the settings.
        protocol: the protocol of Atari games.
        num_envs: simulators.
        batch_size: rows per recv (0: all).
        threads: simulator threads; more than the rows of a batch are not used.
        random_start_steps: every simulator begins with a number of random actions of its own, uniform in 0 to this.
        cores: the threads are pinned to these cores in turn (none: they are not pinned).

    Raises:
        UsageError: EnvPool is not installed, or lacks the game or an option.
    """

    def __init__(
        self,
        game: str,
        protocol: Protocol,
        num_envs: int,
        *,
        batch_size: int = 0,
        threads: int = 1,
        random_start_steps: int = 0,
        cores: Sequence[int] = (),
    ) -> None:
        self.num_envs, self.batch_size = num_envs, batch_size or num_envs
        if random_start_steps and self.batch_size < num_envs:
            raise UsageError(
                f"--random-start-steps {random_start_steps}: EnvPool cannot hold back a simulator of a group that is "
                "not stepped as a whole; use --random-start-steps 0 or --predict-batch 0"
            )
        self._task = find_task(game, protocol)
        self._threads, self._cores, self._random_start_steps = threads, cores, random_start_steps
        check_cores(cores)
        self._pool: Any = None  # made by reset, because EnvPool takes seeds only when it makes a pool
        self._tracker = EpisodeTracker(num_envs)
        self._first: tuple | None = None  # rows for the first recv
        self._ids = np.arange(num_envs, dtype=np.int32)  # env_id of the rows last received
        observations, actions, limit = _spaces(self._task)
        self._names: list[str] = sorted(observations.spaces) if isinstance(observations, gymnasium.spaces.Dict) else []
        flat = flat_space(observations) if isinstance(observations, gymnasium.spaces.Dict) else observations
        self.observation_shape, self.observation_dtype = observation_of(game, flat)
        self.action_space = action_space_of(game, actions)
        self._stack = protocol.stack if atari_rom(game) else 0
        self._frame_channels = self.observation_shape[0] // self._stack if self._stack else 0
        self.stamp = _stamp(game, protocol, limit)

    def reset(self, seed: int) -> None:
        """Start new games in a new pool, because EnvPool takes seeds only when it makes one."""
        seeds = environment_seeds(seed, self.num_envs)
        self.close()  # waits for the environments that step
        with new_threads_pinned(self._cores):
            self._pool = _make(
                self._task,
                num_envs=self.num_envs,
                batch_size=self.batch_size,
                num_threads=min(self._threads, self.batch_size),
                seed=seeds,
            )
        self._tracker.reset()
        self._pool.async_reset()
        if self._random_start_steps:
            self._first = self._random_start(seed)
        self._due = "recv"

    def recv(self) -> Step:
        """The `batch_size` rows that are ready first; the arrays are fresh every time."""
        self._check_due("recv")
        self._check_open()
        rows, self._first = self._first or self._receive(), None
        self._ids, observation, reward, terminated, truncated, lives = rows
        self._due = "send"
        return self._tracker.step(self._ids, observation, reward, terminated, truncated, lives)

    def send(self, actions: np.ndarray) -> None:
        """Take actions <int32>[batch_size], or <float32>[batch_size, A], which are clipped to the bounds.

        Raises ValueError for an action out of range or not finite.
        """
        self._check_due("send")
        self._check_open()
        self._pool.send(check_actions(actions, self.action_space, self.batch_size), self._ids)
        self._due = "recv"

    def close(self) -> None:
        """Stop the threads and free the memory."""
        self._pool, self._first = None, None

    def _check_open(self) -> None:
        if self._pool is None:
            raise RuntimeError("the environment is closed")

    def _receive(self) -> tuple:
        """env_id, observation, reward, terminated, truncated and lives of the rows that are ready."""
        observation, reward, terminated, truncated, info = self._pool.recv()
        if self._names:
            parts = [observation[name].reshape(len(reward), -1) for name in self._names]
            observation = np.concatenate(parts, axis=1)
        observation = observation.astype(self.observation_dtype, copy=False)
        if self._stack:
            terminated = info["terminated"].astype(bool)  # EnvPool's own is False in the step of the limit
            truncated = truncated & ~terminated
            self._blank(observation, info["elapsed_step"])
        return info["env_id"], observation, reward, terminated, truncated, info.get("lives")

    def _blank(self, observation: np.ndarray, age: np.ndarray) -> None:
        """Sets frames from before the game to zero; EnvPool repeats the first frame there."""
        for row in np.flatnonzero(age < self._stack - 1):
            observation[row, : (self._stack - 1 - age[row]) * self._frame_channels] = 0

    def _random_start(self, seed: int) -> tuple:
        """Takes the random first actions (Stooke and Abbeel 2018, section 5.3); returns the rows of all simulators."""
        starts = [random_start_of(seed, i, self._random_start_steps) for i in range(self.num_envs)]
        generators, left = [generator for generator, _ in starts], np.array([steps for _, steps in starts])
        self._tracker.begin_amid(np.arange(self.num_envs))
        rows = self._receive()
        while (left > 0).any():
            acting = np.flatnonzero(left > 0)
            rows = self._step_some(
                rows, acting, np.stack([random_action(self.action_space, generators[i]) for i in acting])
            )
            left[acting] -= 1
        over = np.flatnonzero(rows[3] | rows[4])
        return self._step_some(rows, over, no_actions(self.action_space, len(over))) if len(over) else rows

    def _step_some(self, rows: tuple, ids: np.ndarray, actions: np.ndarray) -> tuple:
        """Steps the simulators `ids`, puts their new rows into `rows` of all simulators, and returns `rows`."""
        self._pool.send(actions, ids)
        for old, new in zip(rows, self._receive()):
            if old is not None:
                old[ids] = new
        return rows


def _make(task: Task, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about bounds of its spaces that float32 cannot hold
        pool = import_envpool().make_gymnasium(task.name, **task.settings, **options)
        _ = pool.observation_space  # makes the spaces now; otherwise the first recv would
        return pool


def _spaces(task: Task) -> tuple[gymnasium.Space, gymnasium.Space, int]:
    """The observation space, the action space, and the step limit of a task."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = import_envpool().make_spec(task.name, **task.settings)
        observations, actions = spec.gymnasium_observation_space, spec.gymnasium_action_space
    if isinstance(observations, gymnasium.spaces.Dict):
        own = {name: space for name, space in observations.items() if name not in task.foreign_entries}
        observations = gymnasium.spaces.Dict(own)
    return observations, actions, int(spec.config.max_episode_steps)


def _stamp(game: str, protocol: Protocol, limit: int) -> dict[str, Any]:
    rom = atari_rom(game)
    if rom is None:
        return {**stamp_of("gymnasium", game, limit, "envpool"), "backend": "envpool"}
    own = {"noop_min": 1, "game": rom, "backend": "envpool"}
    return {**protocol.stamp(), **own, **versions("envpool")}
