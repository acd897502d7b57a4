"""Continuous actions, and spaces that nobody handles."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.spaces import action_space_of, check_actions, observation_of, random_action
from ddrl.errors import UsageError
from ddrl.types import Continuous, Discrete

Box = gymnasium.spaces.Box


def test_pendulum_clips_to_its_bounds():
    config = EnvironmentConfig(game="Pendulum-v1")
    env, same = make_environment(config, 2), make_environment(config, 2)
    assert env.action_space == Continuous((-2.0,), (2.0,)) and env.observation_dtype == np.float32
    for one, action in ((env, [[5.0], [-0.5]]), (same, [[2.0], [-0.5]])):
        one.reset(0)
        one.recv()
        drawn = np.array(action, np.float32)
        one.send(drawn)
        assert drawn[0, 0] in (5.0, 2.0)  # what the policy drew stays as it was
    a, b = env.recv(), same.recv()
    assert np.array_equal(a.observation, b.observation) and np.array_equal(a.reward, b.reward)
    assert a.valid.all() and (a.reward < 0).all()


@pytest.mark.parametrize(
    "wrong", [np.zeros(2, np.float32), np.zeros((2, 2), np.float32), np.full((2, 1), np.nan, np.float32)]
)
def test_wrong_continuous_actions(wrong):
    with pytest.raises(ValueError, match="expected 2 actions of 1 finite numbers"):
        check_actions(wrong, Continuous((-1.0,), (1.0,)), 2)


def test_clipping_keeps_what_has_no_bound():
    space = Continuous((-np.inf, -1.0), (np.inf, np.inf))
    taken = check_actions(np.array([[1e6, -7.0], [-1e6, 7.0]], np.float32), space, 2)
    assert taken.tolist() == [[1e6, -1.0], [-1e6, 7.0]] and taken.dtype == np.float32


def test_random_actions_are_within_bounds():
    generator = np.random.default_rng(0)
    space = Continuous((-2.0, -np.inf, 0.0), (3.0, np.inf, np.inf))
    drawn = np.array([random_action(space, generator) for _ in range(400)])
    assert drawn.dtype == np.float32 and drawn.shape == (400, 3)
    assert drawn[:, 0].min() >= -2.0 and drawn[:, 0].max() <= 3.0 and abs(drawn[:, 0].mean() - 0.5) < 0.3
    assert abs(drawn[:, 1].std() - 1.0) < 0.15 and drawn[:, 2].min() >= 0.0
    assert {int(random_action(Discrete(3), generator)) for _ in range(60)} == {0, 1, 2}


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.MultiDiscrete([2, 3]),
        gymnasium.spaces.MultiBinary(2),
        gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)}),
        Box(0, 1, (2, 2)),
        Box(0, 9, (2,), np.int32),
    ],
)
def test_action_spaces_that_nobody_handles(space):
    with pytest.raises(UsageError, match=f"game has the action space {type(space).__name__}.*supported are") as error:
        action_space_of("game", space)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("space", [gymnasium.spaces.Discrete(4), Box(0, 9, (2,), np.int64)])
def test_observation_spaces_that_nobody_handles(space):
    with pytest.raises(UsageError, match="has the observation space .*supported is a Box of uint8 or of floats"):
        observation_of("game", space)


def test_mujoco():
    pytest.importorskip("mujoco")
    env = make_environment(EnvironmentConfig(game="InvertedPendulum-v5"), 2)
    env.reset(1)
    env.recv()
    env.send(np.zeros((2, 1), np.float32))
    step = env.recv()
    assert step.observation.shape == (2, 4) and step.valid.all() and env.action_space.high == (3.0,)
