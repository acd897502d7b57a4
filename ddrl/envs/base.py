"""The interface of every vector environment: rows keyed by env_id, with calls of recv and send strictly in turn."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ddrl.errors import UsageError
from ddrl.types import ActionSpace, EpisodeEnd


class Step(NamedTuple):
    """b rows, one per environment that answered. The arrays belong to the caller and are not written to again.

    Attributes:
        env_id: <int32>[b].
        observation: [b, ...].
        reward: <float32>[b], raw. Zero where not valid.
        terminated: <bool>[b] the game ended in this transition.
        truncated: <bool>[b] a step limit cut the game off in this transition.
        valid: <bool>[b] False: the row is a reset observation (the first after `reset`, or the autoreset
            step, whose action was ignored, or a simulator that idles until `reset_ended`), so no transition
            belongs to it.
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


class GameFacts(Protocol):
    """What networks and memory depend on in a game, whether it can still be played or was closed.

    Attributes:
        observation_shape: shape of one environment's observation; channels first for images of Atari; () if the
            observation has several fields.
        observation_dtype: uint8, float32, bool, or fields of these (`ddrl.structured`).
        action_space: what `send` takes.
        stamp: protocol and every explicit setting, the backend ('native', 'gymnasium' or 'envpool') and package
            versions; JSON-able.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    action_space: ActionSpace
    stamp: dict


class VectorEnvironment(GameFacts, Protocol):
    """num_envs environments behind one recv/send pair; used by one thread.

    Attributes:
        num_envs: environments, numbered 0..num_envs-1.
        batch_size: rows per recv.
        players: rows of one game, next to each other, that share its episodes and its score; 1 except in football.
        can_save_state: whether get_state and set_state work, so that an environment continues bit for bit.
    """

    num_envs: int
    batch_size: int
    players: int
    can_save_state: bool

    def reset(self, seed: int) -> None:
        """Start new games everywhere; environment i is seeded by (seed, i). recv is due next."""

    def recv(self) -> Step:
        """Wait for the environments until batch_size rows are there."""

    def send(self, actions: np.ndarray) -> None:
        """Send an action to the environment of each row last received, in the order of the rows.

        Args:
            actions: <int32>[batch_size] or [batch_size, K], or <float32>[batch_size, A], which are clipped to the
                bounds of the action space.
        """

    def rest(self, env_id: np.ndarray) -> None:
        """Declare, when recv is due, that nobody looks at the rows of env_id <int>[b] until the next reset.

        Where simulators step one after the other, these then do not step, and batch_size no longer counts their rows.
        """

    def pop_episodes(self) -> list[EpisodeEnd]:
        """Whole games (not lives) that finished since the last call, with raw scores."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything that decides the future. Raises UsageError unless can_save_state."""

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from what get_state() returned; recv or send is due, as it was then."""

    def close(self) -> None:
        """Free the environments."""


class InTurn:
    """Base class of the environments, which checks the order of calls: reset, recv, send, recv, send, ...

    Its defaults are for environments that cannot save a state or let single simulators rest, as most cannot.
    """

    can_save_state = False
    players = 1
    stamp: dict
    _tracker: EpisodeTracker
    _due = "reset"  # the call that is due next; reset is always allowed

    def rest(self, env_id: np.ndarray) -> None:
        """Does nothing: all environments go on stepping."""

    def pop_episodes(self) -> list[EpisodeEnd]:
        """Whole games finished since the last call."""
        return self._tracker.pop_episodes()

    def get_state(self) -> dict[str, np.ndarray]:
        """Raises UsageError."""
        raise UsageError(f"{self.stamp['game']} cannot save its state; reset it at checkpoints instead")

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Raises UsageError."""
        raise UsageError(f"{self.stamp['game']} cannot restore a state; reset it at checkpoints instead")

    def _check_due(self, due: str, call: str = "") -> None:
        if self._due != due:
            raise RuntimeError(f"{call or due} called where {self._due} is due")


def frames_of(environment: GameFacts) -> int:
    """The number of frames stacked in an observation, so that a replay can keep each frame once.

    It is 1 for an environment with wrappers, which may have changed the observation.
    """
    stamp = environment.stamp
    return 1 if stamp.get("wrappers") else stamp.get("stack", 1)


def environment_seeds(seed: int, num_envs: int, first: int = 0) -> np.ndarray:
    """<int64>[num_envs] seeds in [0, 2^31), one per environment, derived from (seed, i), i from `first` up.

    Raises UsageError for a negative seed.
    """
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; use a whole number of at least 0")
    words = [np.random.SeedSequence([seed, i]).generate_state(1)[0] >> 1 for i in range(first, first + num_envs)]
    return np.array(words, np.int64)


class EpisodeTracker:
    """Turns raw environment rows into `Step`s: masks autoreset rows, derives life_lost from lives, sums scores.

    Args:
        num_envs: environments.
        players: rows per game; the first of them speaks for the game's episodes.
    """

    def __init__(self, num_envs: int, players: int = 1) -> None:
        self._num_envs, self._players = num_envs, players
        self.reset()
        self._finished: list[EpisodeEnd] = []

    def reset(self) -> None:
        """Forget the games under way; the next row of every environment is a reset observation."""
        self._resetting = np.ones(self._num_envs, bool)
        self._partial = np.zeros(self._num_envs, bool)
        self._lives = np.zeros(self._num_envs, np.int64)
        self._score = np.zeros(self._num_envs, np.float64)
        self._steps = np.zeros(self._num_envs, np.int64)

    def begin_amid(self, env_id: np.ndarray) -> None:
        """Note that the games in env_id <int>[b] began before their first row, so that they are not reported."""
        self._partial[env_id] = True

    def step(
        self,
        env_id: np.ndarray,
        observation: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        lives: np.ndarray | None = None,
        *,
        points: np.ndarray | None = None,
        ended: np.ndarray | None = None,
    ) -> Step:
        """The rows as a Step.

        Args:
            env_id: <int>[b] without repeats.
            observation: [b, ...].
            reward: <float>[b], raw.
            terminated, truncated: <bool>[b]; they count in valid rows only.
            lives: <int>[b], or None where there are none.
            points: <float>[b] what the step adds to the score, where that is not the reward.
            ended: <bool>[b] whether the environment's next row is no transition; None: if this row ends an episode.
        """
        env_id = np.array(env_id, np.int32)
        valid = ~self._resetting[env_id]
        terminated, truncated = np.array(terminated, bool) & valid, np.array(truncated, bool) & valid
        reward = np.where(valid, reward, 0.0).astype(np.float32)
        life_lost = np.zeros(len(env_id), bool)
        if lives is not None:
            life_lost = valid & ~terminated & (lives < self._lives[env_id])
            self._lives[env_id] = lives
        points = reward if points is None else points
        self._score[env_id] = np.where(valid, self._score[env_id] + points, 0.0)
        self._steps[env_id] = np.where(valid, self._steps[env_id] + 1, 0)
        over = terminated | truncated
        self._resetting[env_id] = over if ended is None else ended
        self._finish(env_id[over])
        return Step(env_id, observation, reward, terminated, truncated, valid, life_lost)

    def _finish(self, env_id: np.ndarray) -> None:
        for i in env_id.tolist():
            if i % self._players == 0 and not self._partial[i]:
                self._finished.append(EpisodeEnd(float(self._score[i]), int(self._steps[i]), i))
        self._partial[env_id] = False

    def pop_episodes(self) -> list[EpisodeEnd]:
        """Games finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def get_state(self) -> dict[str, np.ndarray]:
        """Copies of all fields as arrays."""
        state = {name: getattr(self, f"_{name}").copy() for name in _FIELDS}
        return {**state, "finished": np.array(self._finished, np.float64).reshape(-1, 3)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state."""
        for name in _FIELDS:
            setattr(self, f"_{name}", np.array(state[name], getattr(self, f"_{name}").dtype))
        self._finished = [EpisodeEnd(float(s), int(n), int(i)) for s, n, i in state["finished"]]


_FIELDS = ("resetting", "partial", "lives", "score", "steps")
