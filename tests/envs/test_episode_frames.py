from __future__ import annotations

import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment


@pytest.mark.parametrize("protocol, steps", [("nature", 30), ("ba3c", 30)])  # natively, and through Gymnasium
def test_training_episodes_are_cut_off_and_evaluation_is_not(protocol, steps):
    config = EnvironmentConfig(game="pong", protocol=protocol, episode_frames=120)
    environment = make_environment(config, 1)
    environment.reset(1)
    truncated = []
    for _ in range(70):
        step = environment.recv()
        truncated.append(bool(step.truncated[0]))
        environment.send(np.zeros(1, np.int32))
    environment.close()
    assert environment.stamp["max_agent_steps"] == steps and any(truncated[20:40])
    evaluation = make_environment(config, 1, training=False)
    evaluation.close()
    assert evaluation.stamp["max_agent_steps"] > 9_000
