"""A scripted environment that counts, and a policy that is a function of parameters and observation."""

from __future__ import annotations

import time

import numpy as np

from ddrl.envs.base import EpisodeTracker
from ddrl.reporting.collector import Collector
from ddrl.types import Discrete


class Counting:
    """Environment i of all counts from its seed; an episode of it has 3 + i % 4 steps, every other one truncated.

    Args:
        size: environments.
        first: number of the first among all of the worker's, so that groups differ.
        pause: seconds that a step takes.
    """

    can_save_state = True
    action_space = Discrete(2)

    def __init__(self, size: int, first: int = 0, pause: float = 0.0):
        self.batch_size = self.num_envs = size
        self.ids, self.first, self.pause = np.arange(size), first, pause
        self.received = 0

    def reset(self, seed):
        self.tracker = EpisodeTracker(self.num_envs)
        self.place = np.full(self.num_envs, 0)
        self.actions = np.zeros(self.num_envs, np.int64)

    def recv(self):
        time.sleep(self.pause)
        self.received += 1
        number = self.first + self.ids
        over = (self.place > 0) & (self.place % (3 + number % 4) == 0)
        cut = over & (self.place % 2 == 1)
        observation = np.stack([self.place, self.actions, number], axis=1).astype(np.float32)
        reward = (self.place % 5).astype(np.float64) - 2.0
        return self.tracker.step(self.ids, observation, reward, over & ~cut, cut)

    def send(self, actions):
        self.actions = self.actions * 3 % 1009 + actions
        self.place = self.place + 1

    def pop_episodes(self):
        return self.tracker.pop_episodes()

    def get_state(self):
        tracker = {f"tracker.{k}": v for k, v in self.tracker.get_state().items()}
        return {"place": self.place.copy(), "actions": self.actions.copy()} | tracker

    def set_state(self, state):
        self.reset(0)
        self.place, self.actions = state["place"].copy(), state["actions"].copy()
        self.tracker.set_state({k[8:]: v for k, v in state.items() if k.startswith("tracker.")})


def policy(parameters, observations):
    """Both the policy and the value depend on the parameters <float32>[2] and the observation."""
    scaled = observations * np.array([0.01, 0.02, 0.03], np.float32)
    value = scaled[:, 0] + scaled[:, 1] + scaled[:, 2] + parameters[0]  # a product of matrices may depend on other rows
    return np.stack([np.sin(value), parameters[1] * np.cos(value)], axis=1).astype(np.float32), value


def counted(schedule, before=None):
    """What a checkpoint has counted of a schedule now, after `before` of the part of the run before."""
    collector = Collector(state=before)
    for actor in schedule.actor_threads.actors:
        collector.add(actor.metrics.report())
    return collector.state()
