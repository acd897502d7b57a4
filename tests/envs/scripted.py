"""A Gymnasium environment whose every reward, life and episode end is written down beforehand."""

from __future__ import annotations

import gymnasium
import numpy as np

# (reward, lives after it, terminated, truncated), one list per episode; the episodes repeat.
EPISODES = (
    ((1.0, 3, False, False), (5.0, 2, False, False), (-2.0, 0, True, False)),
    ((0.5, 3, False, False), (0.25, 2, False, True)),
    ((7.0, 3, True, False),),
)
LIVES_AT_START = 3


class Scripted(gymnasium.Env):
    """Observation: [episode, step, last action]; the script goes on over resets."""

    metadata = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1000.0, (3,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(4, start=10)
        self._episode, self._step = -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode, self._step = (0 if seed is not None else self._episode + 1), 0
        return np.array([self._episode, 0.0, -1.0]), {"lives": LIVES_AT_START}

    def step(self, action):
        assert 10 <= action < 14
        reward, lives, terminated, truncated = EPISODES[self._episode % len(EPISODES)][self._step]
        self._step += 1
        observation = np.array([self._episode, float(self._step), float(action)])
        return observation, reward, terminated, truncated, {"lives": lives}


if "ddrl-test/Scripted-v0" not in gymnasium.registry:
    gymnasium.register("ddrl-test/Scripted-v0", entry_point=Scripted)


class Odd(gymnasium.Env):
    """An action space that nobody handles."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Text(3)


if "ddrl-test/Odd-v0" not in gymnasium.registry:
    gymnasium.register("ddrl-test/Odd-v0", entry_point=Odd)


class Pair(gymnasium.Env):
    """A game of two players: it ends after 3 steps, player p is rewarded 10 p + its action, the game scores 1."""

    players = 2
    observation_space = gymnasium.spaces.Box(0.0, 1000.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self) -> None:
        self._step = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return np.array([[0, 0], [1, 0]], np.float32), {}

    def step(self, action):
        self._step += 1
        reward = np.array([action[0], 10.0 + action[1]])
        observation = np.array([[0, self._step], [1, self._step]], np.float32)
        return observation, reward, self._step == 3, False, {"score_reward": 1}


if "ddrl-test/Pair-v0" not in gymnasium.registry:
    gymnasium.register("ddrl-test/Pair-v0", entry_point=Pair)


class Reach(gymnasium.Env):
    """Two points on lines, each to be moved to its goal in 8 steps of at most 0.5; the cost is the squared distance."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (4,), np.float32)
    action_space = gymnasium.spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 1.0]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._points, self._goals = self.np_random.uniform(-1.0, 1.0, (2, 2))
        self._left = 8
        return self._seen(), {}

    def step(self, action):
        middle, half = np.array([0.0, 0.5]), np.array([2.0, 0.5])
        self._points = self._points + 0.5 * (action - middle) / half
        self._left -= 1
        return self._seen(), -float(np.square(self._points - self._goals).sum()), False, self._left == 0, {}

    def _seen(self):
        return np.concatenate([self._points, self._goals]).astype(np.float32)


if "ddrl-test/Reach-v0" not in gymnasium.registry:
    gymnasium.register("ddrl-test/Reach-v0", entry_point=Reach)


class Unbounded(Reach):
    """The same with actions as large as one likes."""

    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))


if "ddrl-test/Unbounded-v0" not in gymnasium.registry:
    gymnasium.register("ddrl-test/Unbounded-v0", entry_point=Unbounded)


class Misshapen(gymnasium.Env):
    """The observation after its second step is one number instead of three, which would fill all three."""

    observation_space = gymnasium.spaces.Box(-1.0, 1000.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._step += 1
        observation = np.zeros(3, np.float32) if self._step < 2 else np.float32(7.0)
        return observation, 0.0, False, False, {}


class Failing(Misshapen):
    """Action 1 raises an exception of several lines; the reward of the others is no number."""

    def step(self, action):
        self._step += 1
        if action == 1:
            raise ValueError("the engine says:\n  no such level\n\n  look at the manual\n")
        return np.zeros(3, np.float32), np.nan, self._step % 3 == 0, False, {}


for _name, _entry in (("ddrl-test/Misshapen-v0", Misshapen), ("ddrl-test/Failing-v0", Failing)):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=_entry)
