"""Random first actions: each simulator its own number of them, in no metric."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.atari_native import NativeAtari
from ddrl.envs.protocols import NATURE
from ddrl.envs.spaces import RANDOM_START
from tests.envs.driving import assert_same, by_environment, drive


def make(game: str, num_envs: int, steps: int, **options):
    return make_environment(EnvironmentConfig(game=game, random_start_steps=steps), num_envs, **options)


def test_the_game_goes_on_and_is_no_episode():
    env = make("ddrl-test/Scripted-v0", 8, 4)
    env.reset(3)
    rows = drive(env, 12)
    starts = {tuple(row[:2]) for row in rows[0].observation.tolist()}  # (episode, step)
    assert len(starts) >= 3 and starts <= {(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)}
    assert not rows[0].valid.any() and not rows[0].reward.any() and rows[1].valid.sum() >= 6
    ended = sum(int((step.terminated | step.truncated).sum()) for step in rows)
    episodes = env.pop_episodes()
    assert len(episodes) == ended - 8  # each one's game under way is left out
    assert {(e.score, e.agent_steps) for e in episodes} <= {(4.0, 3), (0.75, 2), (7.0, 1)}


@pytest.mark.parametrize("reset", ["at-once", "in-pause", "swap"])
def test_seeds_reproduce(reset):
    def run(seed):
        env = make_environment(EnvironmentConfig(game="Pendulum-v1", random_start_steps=30, reset=reset), 4)
        env.reset(seed)
        return env.recv().observation

    assert np.array_equal(run(1), run(1)) and not np.array_equal(run(1), run(2))


def test_native_takes_each_ones_own_number():
    protocol = dataclasses.replace(NATURE, noop_max=0)  # then nothing is drawn but the actions
    env = NativeAtari("breakout", protocol, 3, random_start_steps=40)
    env.reset(9)
    rows = drive(env, 30)
    numbers = []
    for i in range(3):
        generator = np.random.default_rng([9, i, RANDOM_START])
        numbers.append(int(generator.integers(41)))
        alone = NativeAtari("breakout", protocol, 1)
        alone.reset(0)
        for _ in range(numbers[-1]):
            alone.recv()
            alone.send(np.array([generator.integers(4)], np.int32))
        assert np.array_equal(alone.recv().observation[0], rows[0].observation[i]), i
    assert len(set(numbers)) == 3
    assert not rows[0].valid.any() and rows[1].valid.all()


def test_native_through_the_ends_of_games():
    protocol = dataclasses.replace(NATURE, max_agent_steps=5)
    env = NativeAtari("breakout", protocol, 6, random_start_steps=5)
    env.reset(11)
    numbers = [int(np.random.default_rng([11, i, RANDOM_START]).integers(6)) for i in range(6)]
    assert {0, 5} <= set(numbers), "the seed gives no simulator that begins last, or none that ends an episode"
    rows = by_environment(drive(env, 14))
    for i, number in enumerate(numbers):
        valid, ends = [r[4] for r in rows[i]], [k for k, r in enumerate(rows[i]) if r[3]]
        first = 5 - number or 6  # after 5 random steps the episode is over, and a reset comes first
        assert ends[:2] == [first, first + 6], (i, number)
        resets = {0, 1, 7, 13} if number == 5 else {0, first + 1, first + 7}
        assert [k for k in range(14) if not valid[k]] == sorted(k for k in resets if k < 14), (i, number)
    # Each one's first episode is in no statistic.
    assert {e.agent_steps for e in env.pop_episodes()} == {5}


def test_native_smaller_batches_take_at_least_that_many():
    env = NativeAtari(
        "breakout", dataclasses.replace(NATURE, max_agent_steps=5), 3, random_start_steps=20, batch_size=1
    )
    env.reset(1)
    rows = by_environment(drive(env, 60))
    assert {e.agent_steps for e in env.pop_episodes()} == {5}
    for row in rows.values():
        ends = [k for k, r in enumerate(row) if r[3]]
        assert not row[0][4] and np.all(np.diff(ends) == 6) and len(ends) >= 2
        assert [k for k in range(ends[0], len(row)) if not row[k][4]] == [k + 1 for k in ends if k + 1 < len(row)]


def test_native_seeds_reproduce():
    env = make("breakout", 2, 15, threads=2)
    env.reset(3)
    first = drive(env, 10)
    env.reset(3)
    assert_same(first, drive(env, 10))
    assert env.pop_episodes() == []
