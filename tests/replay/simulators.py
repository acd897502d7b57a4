"""Simulators with frame stacks and every kind of end, which write unrolls, and a slow replay that keeps all stacks."""

from __future__ import annotations

import numpy as np

from ddrl.types import Unroll

ENDS = ("goes on", "termination", "truncation", "life lost", "cut")
CHANCES = (0.68, 0.12, 0.1, 0.05, 0.05)
DISCOUNT = 0.9


class Simulators:
    """B simulators whose frames are noise. Stacks are made as an environment makes them: by moving them on.

    After a termination or truncation comes a row that is not valid, which holds the final observation, then a new
    episode. After a lost life, and after a cut (a truncation whose final observation is acted on), frames go on. With
    `idle`, a simulator shows its final observation for some more rows, which are not valid either.
    """

    def __init__(self, simulators=3, stack=4, frame=(2, 3), dtype=np.uint8, seed=0, chances=CHANCES, idle=0):
        self.random, self.chances, self.idle = np.random.default_rng(seed), chances, idle
        self.simulators, self.stack, self.frame, self.dtype = simulators, stack, frame, dtype
        self.version = 0
        self.reset()

    @property
    def observation_shape(self):
        return self.frame if self.stack == 1 else (self.stack * self.frame[0], *self.frame[1:])

    def reset(self, amid=False):
        """All begin anew; `amid`: after steps that nobody saw, so that the first stacks are full."""
        self.observations = [self._first() for _ in range(self.simulators)]
        self.idling = [-1] * self.simulators  # rows to show the final observation; -1: plays
        for _ in range(self.stack if amid else 0):
            self.observations = [self._moved_on(observation) for observation in self.observations]

    def unroll(self, steps):
        """The next steps of all, as Unroll [steps, B]."""
        shape = (steps, self.simulators)
        out = Unroll(
            observation=np.zeros((steps + 1, self.simulators, *self.observation_shape), self.dtype),
            action=self.random.integers(5, size=shape).astype(np.int32),
            reward=self.random.standard_normal(shape).astype(np.float32),
            discount=np.zeros(shape, np.float32),
            continues=np.zeros(shape, np.float32),
            valid=np.zeros(shape, np.float32),
            value=np.zeros((steps + 1, self.simulators), np.float32),
            behaviour_log_prob=np.zeros(shape, np.float32),
            behaviour_version=np.full(shape, self.version, np.int64),
        )
        self.version += 1
        for t in range(steps):
            for b in range(self.simulators):
                out.observation[t, b] = self.observations[b]
                out.discount[t, b], out.continues[t, b], out.valid[t, b] = self._step(b)
        out.observation[steps] = self.observations
        return out

    def _step(self, b):
        """Moves simulator b on; discount, continues, valid."""
        if self.idling[b] > 0:
            self.idling[b] -= 1
            return DISCOUNT, 1.0, 0.0
        if self.idling[b] == 0:
            self.idling[b], self.observations[b] = -1, self._first()
            return DISCOUNT, 1.0, 0.0
        end = self.random.choice(ENDS, p=self.chances)
        self.observations[b] = self._moved_on(self.observations[b])
        if end in ("termination", "truncation"):
            self.idling[b] = int(self.random.integers(self.idle + 1))
        return (0.0 if end in ("termination", "life lost") else DISCOUNT), float(end == "goes on"), 1.0

    def _first(self):
        observation = np.zeros(self.observation_shape, self.dtype)
        observation[-self.frame[0] :] = self._noise()
        return observation

    def _moved_on(self, observation):
        return np.concatenate([observation[self.frame[0] :], self._noise()])

    def _noise(self):
        return self.random.integers(1, 256, self.frame).astype(self.dtype)


class SlowReplay:
    """All steps of each simulator in lists, whole observations included."""

    def __init__(self, simulators, capacity, n_step):
        self.rows, self.n_step = capacity // simulators, n_step
        # each: observation, action, reward, discount, continues, valid, version
        self.steps = [[] for _ in range(simulators)]
        self.last = None

    def add(self, unroll, after_reset=False):
        for b, steps in enumerate(self.steps):
            if after_reset:  # the observation that was left counts as the final one of a truncated episode
                steps[-1] = (*steps[-1][:4], 0.0, *steps[-1][5:])
                steps.append((self.last[b], 0, 0.0, 0.0, 0.0, 0.0, 0))
            for t in range(len(unroll.reward)):
                row = (unroll.action, unroll.reward, unroll.discount, unroll.continues, unroll.valid)
                steps.append((unroll.observation[t, b], *(a[t, b] for a in row), unroll.behaviour_version[t, b]))
        self.last = unroll.observation[-1]

    def transitions(self):
        """What can be drawn, in order of row and simulator: tuples as in `Replayed`, without weight and key."""
        stop = len(self.steps[0]) - self.n_step + 1
        return [
            self._transition(steps, t, self.last[b])
            for t in range(max(0, stop - self.rows), stop)
            for b, steps in enumerate(self.steps)
            if steps[t][5]
        ]

    def _transition(self, steps, t, last):
        total, factor, k = 0.0, 1.0, 0
        while k < self.n_step:
            _, _, reward, discount, continues, _, _ = steps[t + k]
            total, factor, k = total + factor * float(reward), factor * float(discount), k + 1
            if not continues:
                break
        after = steps[t + k][0] if t + k < len(steps) else last
        return steps[t][0], steps[t][1], np.float32(total), np.float32(factor), after, steps[t][6]
