"""The newest checkpoint of a run as a policy. Imports TensorFlow when it is loaded."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddrl import rundir
from ddrl.algorithms import network_for
from ddrl.checkpoint import Checkpoint, check_layout, load_latest
from ddrl.config import TrainConfig
from ddrl.resumable import AGENT, check_settings


class Agent(NamedTuple):
    """What a run has learned so far.

    Attributes:
        config: settings of the run.
        checkpoint: its newest sound checkpoint.
        policy: observations [b, ...] -> logits <float32>[b, A], for any b.
    """

    config: TrainConfig
    checkpoint: Checkpoint
    policy: Callable[[np.ndarray], np.ndarray]


def load_agent(path: Path, batch_sizes: Sequence[int]) -> Agent:
    """Loads the newest checkpoint of the run in `path`.

    Args:
        path: run directory.
        batch_sizes: padded sizes that the policy is compiled for.

    Raises:
        UsageError: when `path` is no run, or has no checkpoint that fits.
    """
    config = rundir.load_config(path)
    checkpoint = load_latest(path)
    check_settings(checkpoint, config, path, AGENT)
    with quiet_libraries():
        return Agent(config, checkpoint, _policy(config, checkpoint, batch_sizes))


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Around whatever loads TensorFlow, whose C++ greets on standard error whatever its log level is.

    What Python writes there still comes out. TF_CPP_MIN_LOG_LEVEL=0 in the environment shows all.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        yield
        return
    sys.stderr.flush()
    errors = os.fdopen(os.dup(2), "w", buffering=1)  # not closed: a logger that is made meanwhile keeps it
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(errors):
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(errors.fileno(), 2)


def _policy(
    config: TrainConfig, checkpoint: Checkpoint, batch_sizes: Sequence[int]
) -> Callable[[np.ndarray], np.ndarray]:
    from ddrl.envs import make_environment
    from ddrl.learner import Policy, as_device_vector

    with contextlib.closing(make_environment(config.environment, num_envs=1, training=False)) as env:
        shape, dtype, actions = env.observation_shape, env.observation_dtype, env.action_space
    network = network_for(config, shape, dtype, actions)
    check_layout(checkpoint, network.parameter_shapes)
    policy = Policy(network, shape, dtype, tuple(batch_sizes))
    parameters = as_device_vector(checkpoint.parameters)
    return lambda observations: policy(parameters, observations)[0]
