"""Ranks without TensorFlow, whose import and tracing take most of the time of a short job.

For tests of processes: roles, schedule, exchange and environments are real; the gradient and the policy are numbers.
TEST_LIGHT in the environment asks for it.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import numpy as np

LIGHT = "TEST_LIGHT"
TESTS = Path(__file__).parents[1]
EVERYWHERE = {LIGHT: "1", "PYTHONPATH": f"{TESTS / 'slurm' / 'light'}:{TESTS.parent}"}
"""Variables with which every program of a job does so, such as the processes of Ape-X's actors."""
NO_CURVE = {"TEST_NO_CURVE": "1"}
"""Beside those: no learning curve is drawn, for which a process of its own would import Matplotlib."""
GRADIENT_SECONDS = 0.01


class Learner:
    """Draws the parameters toward a number that depends on what was played; see `ddrl.learner.Learner`."""

    context = ()

    def __init__(self, network, loss, settings, optimizer, template, scale=1.0, context=()):
        self.batch_size = template.action.size // math.prod(network.action_space.action_shape)

    def gradient(self, parameters, batch, context=None):
        time.sleep(GRADIENT_SECONDS)
        played = batch.action.mean(dtype=np.float32) + batch.observation.mean(dtype=np.float32)
        gradient = np.float32(0.01) * (np.asarray(parameters) - played)
        return gradient, {"loss": 0.0, "gradient_norm": float(np.linalg.norm(gradient))}, None


class Policy:
    """In every state the same, by the first parameters; see `ddrl.learner.Policy`."""

    def __init__(self, network, observation_shape, observation_dtype, batch_sizes):
        self._size = network.action_space.head_size

    def __call__(self, parameters, observations):
        policy = np.tile(parameters[: self._size], (len(observations), 1))
        return policy, np.zeros(len(observations), np.float32)


def install() -> None:
    """Before the roles are imported."""
    if LIGHT in os.environ:
        from ddrl import lazy, learner

        lazy.import_tensorflow = lambda: None
        learner.configure_tensorflow = lambda *threads: None
        learner.as_device_vector = np.array  # a copy
        learner.Learner, learner.Policy = Learner, Policy
