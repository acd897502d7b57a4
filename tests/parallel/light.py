"""Ranks without TensorFlow, whose import and tracing take most of the time of a short job.

For tests of processes: roles, schedule, exchange and environments are real; the gradient and the policy are numbers.
TEST_LIGHT in the environment asks for it.
"""

from __future__ import annotations

import math
import os
import time

import numpy as np

LIGHT = "TEST_LIGHT"
GRADIENT_SECONDS = 0.01


class Learner:
    """Draws the parameters towards 0; see `ddrl.learner.Learner`."""

    context = ()

    def __init__(self, network, loss, settings, optimizer, template, scale=1.0, context=()):
        self.batch_size = template.action.size // math.prod(network.action_space.action_shape)

    def gradient(self, vector, batch, context=None):
        time.sleep(GRADIENT_SECONDS)
        gradient = np.float32(0.01) * np.asarray(vector)
        return gradient, {"loss": 0.0, "gradient_norm": float(np.linalg.norm(gradient))}, None


class Policy:
    """All actions alike; see `ddrl.learner.Policy`."""

    def __init__(self, network, observation_shape, observation_dtype, batch_sizes):
        self._size = network.action_space.head_size

    def __call__(self, vector, observations):
        return np.zeros((len(observations), self._size), np.float32), np.zeros(len(observations), np.float32)


def install() -> None:
    """Before the roles are imported."""
    if LIGHT in os.environ:
        from ddrl import lazy, learner

        lazy.import_tensorflow = lambda: None
        learner.configure_tensorflow = lambda *threads: None
        learner.as_device_vector = np.array  # a copy
        learner.Learner, learner.Policy = Learner, Policy
