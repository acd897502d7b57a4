"""Observations without ddrl, for who uses an exported policy: docs/get-started/python.md says how to make them."""

from __future__ import annotations

import dataclasses

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from ddrl.envs.atari_frames import AtariFrames
from ddrl.envs.protocols import find_protocol


def test_gymnasiums_wrappers_give_the_observations_of_nature():
    gymnasium.register_envs(ale_py)
    theirs = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    theirs = FrameStackObservation(AtariPreprocessing(theirs, noop_max=0), 4, padding_type="zero")
    # Without FIRE and what is random at the start of a game.
    ours = AtariFrames("breakout", dataclasses.replace(find_protocol("nature"), noop_max=0, fire_reset=False))
    assert ours.action_space == theirs.action_space and ours.observation_space == theirs.observation_space
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    seen = 0
    for action in [1, *np.random.default_rng(3).integers(4, size=60).tolist()]:
        (observation, reward, over, *_), (same, points, *_) = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(observation, same)
        assert reward == points and not over
        seen += len(np.unique(observation)) > 1
    assert seen == 61
    ours.close()
    theirs.close()
