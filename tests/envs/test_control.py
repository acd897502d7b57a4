"""Observations that are dictionaries, and dm_control's tasks where the extra `control` is installed."""

from __future__ import annotations

import os
import sys

import gymnasium
import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import control, make_environment
from ddrl.errors import UsageError

Box = gymnasium.spaces.Box


class Named(gymnasium.Env):
    """A dictionary of a matrix and a number, in no order."""

    observation_space = gymnasium.spaces.Dict(
        [("speed", Box(-np.inf, np.inf, ())), ("angle", Box(-1.0, 2.0, (2, 2), np.float64))]
    )
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"speed": np.float64(7.0), "angle": np.arange(4.0).reshape(2, 2)}, {}

    def step(self, action):
        return {"angle": np.full((2, 2), action[0]), "speed": 0.5}, 1.0, False, False, {}


def test_dictionaries_become_vectors_in_the_order_of_their_names():
    env = control.FlatObservation(Named())
    np.testing.assert_array_equal(env.reset(seed=0)[0], [0, 1, 2, 3, 7])
    observation, *_ = env.step(np.float32([0.25]))
    np.testing.assert_array_equal(observation, [0.25] * 4 + [0.5])
    assert observation.dtype == np.float32


def test_the_bounds_follow_the_same_order():
    space = control.FlatObservation(Named()).observation_space
    np.testing.assert_array_equal(space.low, np.float32([-1, -1, -1, -1, -np.inf]))
    np.testing.assert_array_equal(space.high, np.float32([2, 2, 2, 2, np.inf]))


def test_dictionaries_of_other_things_are_refused():
    class Words(Named):
        observation_space = gymnasium.spaces.Dict({"word": gymnasium.spaces.Text(3)})

    with pytest.raises(UsageError, match="observation word is Text.*must hold floats only"):
        control.FlatObservation(Words())


def test_a_missing_package_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(UsageError, match=r'dm_control/ games need a package .*pip install "ddrl\[control\]"') as error:
        make_environment(EnvironmentConfig(game="dm_control/cartpole-balance-v0"), 1)
    assert "\n" not in str(error.value)


def test_a_task_of_dm_control():
    pytest.importorskip("shimmy")
    pytest.importorskip("dm_control")
    env = make_environment(EnvironmentConfig(game="dm_control/humanoid-stand-v0"), 2)
    assert env.observation_shape == (67,) and len(env.action_space.low) == 21  # Horgan et al. 2018, appendix D
    env.reset(3)
    first = env.recv().observation.copy()
    env.send(np.zeros((2, 21), np.float32))
    step = env.recv()
    assert step.valid.all() and (step.reward >= 0).all() and np.isfinite(step.observation).all()
    env.reset(3)
    np.testing.assert_array_equal(env.recv().observation, first)
    env.close()


@pytest.mark.parametrize(
    ("environment", "libraries", "chosen"),
    [
        ({}, {"EGL", "OSMesa"}, "egl"),
        ({}, {"OSMesa"}, "osmesa"),
        ({}, set(), None),
        ({"DISPLAY": ":0"}, {"EGL"}, None),
        ({"MUJOCO_GL": "glfw"}, {"EGL"}, "glfw"),
    ],
)
def test_mujoco_draws_without_a_display_where_it_can(monkeypatch, environment, libraries, chosen):
    for name in ("MUJOCO_GL", "DISPLAY"):
        monkeypatch.setenv(name, "")  # so that what the test sets is undone
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(control.sys, "platform", "linux")
    monkeypatch.setattr(control.ctypes.util, "find_library", lambda name: name if name in libraries else None)
    control.choose_renderer()
    assert os.environ.get("MUJOCO_GL") == chosen
