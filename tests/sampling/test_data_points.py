"""DataPointBuilder against a slow reference, over scripted and random episodes."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.envs import Step
from ddrl.sampling.data_points import DataPointBuilder
from tests import references

CLIP, VERSION = 1.0, 3


def discount(version):
    """0.9 for VERSION, more for later ones."""
    return 0.9 + 0.0003 * (version - VERSION)


def builder(environments, n, life_loss_terminal=False, gae_lambda=1.0):
    clip = lambda reward: np.clip(reward, -CLIP, CLIP)
    return DataPointBuilder(
        environments, n, (2,), np.float32, discount, clip, life_loss_terminal, gae_lambda=gae_lambda
    )


class Stream:
    """Random environments with every kind of row; answers for any subset of them."""

    def __init__(self, environments, seed):
        self.random = np.random.default_rng(seed)
        self.resetting = np.ones(environments, bool)
        self.serial = 0

    def step(self, ids):
        random, b = self.random, len(ids)
        valid = ~self.resetting[ids]
        kind = random.random(b)
        terminated, truncated = valid & (kind < 0.12), valid & (kind > 0.9)
        life_lost = valid & ~terminated & (random.random(b) < 0.2)
        self.resetting[ids] = terminated | truncated
        self.serial += b
        observation = np.stack([self.serial + np.arange(b), ids], axis=1).astype(np.float32)
        reward = np.where(valid, random.normal(0, 2, b), 0.0).astype(np.float32)
        return Step(ids.astype(np.int32), observation, reward, terminated, truncated, valid, life_lost)


def run_both(environments, n, partial, life_loss_terminal, gae_lambda, steps, seed):
    """All data-points of the builder and of the reference, each in order of environment and time."""
    built = builder(environments, n, life_loss_terminal, gae_lambda)
    slow = references.Segments(n, discount, CLIP, life_loss_terminal, gae_lambda)
    stream, random = Stream(environments, seed), np.random.default_rng(seed + 1)
    ours, theirs = [], []
    for version in range(steps):
        size = random.integers(1, environments + 1) if partial else environments
        step = stream.step(random.permutation(environments)[:size])
        value = random.normal(size=size).astype(np.float32)
        points = built.close(step, value)
        ours += [] if points is None else list(zip(*points, strict=True))
        rows = [dict(zip(Step._fields, row, strict=True)) for row in zip(*step, strict=True)]
        for row, v in zip(rows, value, strict=True):
            theirs += slow.close(row, v)
        action = random.integers(0, 5, size).astype(np.int32)
        log_prob = random.normal(size=size).astype(np.float32)
        built.store(step, action, log_prob, version)
        for row, a, p in zip(rows, action, log_prob, strict=True):
            slow.store(row, a, p, version)
    return ours, theirs


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("life_loss_terminal", [False, True])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.8, 0.0])
def test_equals_the_reference(n, partial, life_loss_terminal, gae_lambda):
    ours, theirs = run_both(7, n, partial, life_loss_terminal, gae_lambda, steps=300, seed=10 * n + partial)
    assert len(ours) == len(theirs) > 300
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our[0], their[0])
        assert (our[1], our[3], our[4]) == (their[1], their[3], their[4])
        assert our[2] == pytest.approx(their[2], rel=1e-5, abs=1e-6)


def row(reward=0.0, *, terminated=False, truncated=False, valid=True, life_lost=False, observation=0.0):
    flags = (np.array([flag]) for flag in (terminated, truncated, valid, life_lost))
    return Step(np.zeros(1, np.int32), np.full((1, 2), observation, np.float32), np.float32([reward]), *flags)


def segment_of(*rows, n=5, value=10.0, life_loss_terminal=False, gae_lambda=1.0):
    """Returns of the segment that the last row ends; rows after the reset row."""
    segments = builder(1, n, life_loss_terminal, gae_lambda)
    for step in (row(valid=False), *rows):
        points = segments.close(step, np.float32([value]))
        segments.store(step, np.int32([1]), np.float32([-0.5]), VERSION)
    return points


def test_a_termination_bootstraps_with_nothing():
    np.testing.assert_allclose(segment_of(row(0.5), row(1.0, terminated=True)).return_, [0.5 + 0.9, 1.0])


def test_a_truncation_bootstraps_with_the_value_of_the_final_observation():
    points = segment_of(row(0.5), row(1.0, truncated=True))
    np.testing.assert_allclose(points.return_, [0.5 + 0.9 * (1.0 + 0.9 * 10.0), 1.0 + 0.9 * 10.0], rtol=1e-6)


def test_a_termination_that_is_a_truncation_too_is_a_termination():
    np.testing.assert_allclose(segment_of(row(1.0, terminated=True, truncated=True)).return_, [1.0])


def test_with_a_lambda_of_0_every_step_bootstraps_with_the_value_after_it_and_the_last_one_with_nothing():
    points = segment_of(row(0.5), row(1.0, terminated=True), gae_lambda=0.0)
    np.testing.assert_allclose(points.return_, [0.5 + 0.9 * 10.0, 1.0], rtol=1e-6)


def test_a_lost_life_ends_a_segment_only_where_asked_for():
    assert segment_of(row(1.0, life_lost=True)) is None
    points = segment_of(row(1.0, life_lost=True), life_loss_terminal=True)
    np.testing.assert_allclose(points.return_, [1.0])


def test_after_a_lost_life_the_game_goes_on_with_a_new_segment():
    points = segment_of(row(1.0, life_lost=True), row(0.0, terminated=True), life_loss_terminal=True)
    np.testing.assert_allclose(points.return_, [0.0])


def test_rewards_are_clipped_and_segments_full_at_n():
    points = segment_of(row(7.0), n=1, value=2.0)
    np.testing.assert_allclose(points.return_, [1.0 + 0.9 * 2.0], rtol=1e-6)
    assert points.action.tolist() == [1] and points.behaviour_version.tolist() == [3]


def test_an_autoreset_row_opens_but_earns_nothing():
    segments = builder(1, 2)
    for step in (row(valid=False), row(1.0, terminated=True, observation=1.0), row(5.0, valid=False, observation=2.0)):
        points = segments.close(step, np.float32([10.0]))
        segments.store(step, np.int32([1]), np.float32([0.0]), 0)
    assert points is None and segments.length.tolist() == [1]
    points = segments.close(row(0.25, terminated=True, observation=3.0), np.float32([10.0]))
    np.testing.assert_allclose(points.return_, [0.25])
    np.testing.assert_array_equal(points.observation, [[2.0, 2.0]])


def test_a_game_that_ends_with_its_last_random_action_leaves_nothing_open():
    """Its end is not told, as the random actions before training are not, and the next row is a new game's."""
    points = segment_of(row(valid=False, observation=1.0), row(0.25, terminated=True, observation=2.0))
    np.testing.assert_allclose(points.return_, [0.25])
    np.testing.assert_array_equal(points.observation, [[1.0, 1.0]])


def test_state_round_trip():
    first, other, stream = builder(3, 4, gae_lambda=0.5), builder(3, 4, gae_lambda=0.5), Stream(3, 5)
    for version in range(6):
        step = stream.step(np.arange(3))
        first.close(step, np.full(3, 2.0, np.float32))
        first.store(step, np.arange(3, dtype=np.int32), np.zeros(3, np.float32), version)
    state = first.get_state()
    other.set_state(state)
    first.reward[:] = np.nan  # the state was a copy
    first.set_state(state)
    for version in range(6, 20):
        step = stream.step(np.arange(3))
        pair = [segments.close(step, np.ones(3, np.float32)) for segments in (first, other)]
        assert (pair[0] is None) == (pair[1] is None)
        if pair[0] is not None:
            for a, b in zip(*pair, strict=True):
                np.testing.assert_array_equal(a, b)
        for segments in (first, other):
            segments.store(step, np.arange(3, dtype=np.int32), np.zeros(3, np.float32), version)
