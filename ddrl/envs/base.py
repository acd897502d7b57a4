"""What every vector environment offers: rows keyed by env_id, strictly recv, send, recv, send."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ddrl.errors import UsageError
from ddrl.types import ActionSpace, EpisodeEnd


class Step(NamedTuple):
    """b rows, one per environment that answered. The arrays belong to the caller and stay as they are.

    Attributes:
        env_id: <int32>[b].
        observation: <uint8 or float32>[b, ...].
        reward: <float32>[b], raw. Zero where not valid.
        terminated: <bool>[b] the game ended in this transition.
        truncated: <bool>[b] a step limit cut the game off in this transition.
        valid: <bool>[b] False: the row is a reset observation (the first after `reset`, or the autoreset
            step, whose action was ignored), so no transition belongs to it.
        life_lost: <bool>[b] a life was lost in this transition without ending the game; False where
            there are no lives.
    """

    env_id: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    life_lost: np.ndarray


class VectorEnvironment(Protocol):
    """num_envs environments behind one recv/send pair; used by one thread.

    Attributes:
        num_envs: environments, numbered 0..num_envs-1.
        batch_size: rows per recv.
        observation_shape: of one environment; channel-first for images.
        observation_dtype: uint8 or float32.
        action_space: what `send` takes.
        stamp: protocol and every explicit setting, the backend ('native' or 'gymnasium') and package
            versions; JSON-able.
        can_save_state: get_state and set_state work, to the bit.
    """

    num_envs: int
    batch_size: int
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    action_space: ActionSpace
    stamp: dict
    can_save_state: bool

    def reset(self, seed: int) -> None:
        """Start new games everywhere; environment i is seeded by (seed, i). recv is due next."""

    def recv(self) -> Step:
        """Wait for the environments until batch_size rows are there."""

    def send(self, actions: np.ndarray) -> None:
        """actions: <int32>[batch_size], in the order of the rows last received."""

    def pop_episodes(self) -> list[EpisodeEnd]:
        """Whole games (not lives) that finished since the last call, with raw scores."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything that decides the future. Raises UsageError unless can_save_state."""

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Go on from get_state(); the same one of recv or send is due as then."""

    def close(self) -> None:
        """Free the environments."""


def environment_seeds(seed: int, num_envs: int) -> np.ndarray:
    """<int64>[num_envs] seeds in [0, 2^31), one per environment, derived from (seed, i).

    Raises UsageError for a negative seed.
    """
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; give a whole number from 0 up")
    words = [np.random.SeedSequence([seed, i]).generate_state(1)[0] >> 1 for i in range(num_envs)]
    return np.array(words, np.int64)


class EpisodeTracker:
    """Turns raw environment rows into `Step`s: masks autoreset rows, lives to life_lost, sums scores."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self.reset()
        self._finished: list[EpisodeEnd] = []

    def reset(self) -> None:
        """Forget the games under way; the next row of every environment is a reset observation."""
        self._resetting = np.ones(self._num_envs, bool)
        self._lives = np.zeros(self._num_envs, np.int64)
        self._score = np.zeros(self._num_envs, np.float64)
        self._steps = np.zeros(self._num_envs, np.int64)

    @property
    def resetting(self) -> np.ndarray:
        """<bool>[num_envs]: the environment's next row is a reset observation."""
        return self._resetting

    def step(self, env_id, observation, reward, terminated, truncated, lives=None) -> Step:
        """The rows as a Step; env_id <int>[b] without repeats, lives <int>[b] or None."""
        env_id = np.array(env_id, np.int32)
        valid = ~self._resetting[env_id]
        terminated, truncated = np.array(terminated, bool) & valid, np.array(truncated, bool) & valid
        reward = np.where(valid, reward, 0.0).astype(np.float32)
        life_lost = np.zeros(len(env_id), bool)
        if lives is not None:
            life_lost = valid & ~terminated & (lives < self._lives[env_id])
            self._lives[env_id] = lives
        self._score[env_id] = np.where(valid, self._score[env_id] + reward, 0.0)
        self._steps[env_id] = np.where(valid, self._steps[env_id] + 1, 0)
        over = terminated | truncated
        self._resetting[env_id] = over
        for i in env_id[over].tolist():
            self._finished.append(EpisodeEnd(float(self._score[i]), int(self._steps[i]), i))
        return Step(env_id, observation, reward, terminated, truncated, valid, life_lost)

    def pop_episodes(self) -> list[EpisodeEnd]:
        """Games finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def get_state(self) -> dict[str, np.ndarray]:
        """Copies of all fields as arrays."""
        state = {name: getattr(self, f"_{name}").copy() for name in ("resetting", "lives", "score", "steps")}
        return {**state, "finished": np.array(self._finished, np.float64).reshape(-1, 3)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state."""
        for name in ("resetting", "lives", "score", "steps"):
            setattr(self, f"_{name}", np.array(state[name], getattr(self, f"_{name}").dtype))
        self._finished = [EpisodeEnd(float(s), int(n), int(i)) for s, n, i in state["finished"]]
