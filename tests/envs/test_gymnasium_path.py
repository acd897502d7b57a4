"""Masks, scores, seeds and pictures on the Gymnasium path."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

import gymnasium
import numpy as np
import pytest

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.gymnasium_path import make_atari
from ddrl.envs.protocols import BA3C, STOOKE
from ddrl.errors import UsageError
from ddrl.types import EpisodeEnd
from tests.envs.driving import assert_same, drive
from tests.envs.support import make


def test_scripted_masks_whole_value():
    env = make("ddrl-test/Scripted-v0")
    env.reset(0)
    steps = drive(env, 10)
    #          reset  1  2  end reset  1  cut reset end reset
    expected = {
        "valid": [0, 1, 1, 1, 0, 1, 1, 0, 1, 0],
        "terminated": [0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "truncated": [0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        "life_lost": [0, 0, 1, 0, 0, 0, 1, 0, 0, 0],
        "reward": [0, 1, 5, -2, 0, 0.5, 0.25, 0, 7, 0],
    }
    for name, column in expected.items():
        values = np.array([getattr(step, name) for step in steps])
        assert values.tolist() == np.repeat(np.array(column, values.dtype)[:, None], 2, axis=1).tolist(), name
    assert env.pop_episodes() == [
        EpisodeEnd(score, length, i) for score, length in ((4.0, 3), (0.75, 2), (7.0, 1)) for i in range(2)
    ]
    assert env.pop_episodes() == []


def test_scripted_observations_and_actions():
    env = make("ddrl-test/Scripted-v0", 1)
    assert (env.observation_shape, env.observation_dtype, env.action_space.count) == ((3,), np.float32, 4)
    env.reset(0)
    env.recv()
    env.send(np.array([2], np.int32))
    step = env.recv()
    assert step.observation.dtype == np.float32 and step.observation.tolist() == [[0.0, 1.0, 12.0]]


def test_rows_stay_as_received():
    env = make("ddrl/Catch-v0", 3)
    env.reset(1)
    kept = [(step, [field.copy() for field in step]) for step in drive(env, 1)]
    kept += [(step, [field.copy() for field in step]) for step in drive(env, 25)]
    for step, copies in kept:
        assert all(np.array_equal(field, copy) for field, copy in zip(step, copies))


@pytest.mark.parametrize("game", ["ddrl/Catch-v0", "breakout"])
def test_strictly_recv_then_send(game):
    env = make(game, 1)
    with pytest.raises(RuntimeError, match="reset is due"):
        env.recv()
    env.reset(0)
    with pytest.raises(RuntimeError, match="recv is due"):
        env.send(np.zeros(1, np.int32))
    env.recv()
    with pytest.raises(RuntimeError, match="send is due"):
        env.recv()
    for wrong in ([-1], [env.action_space.count], [0, 0]):
        with pytest.raises(ValueError, match=r"expected actions of shape \[1\]"):
            env.send(np.array(wrong, np.int32))
    env.send(np.zeros(1, np.int32))


@pytest.mark.parametrize("resting, living", [([1, 2], [0, 3]), ([3], [0, 1, 2]), ([], [0, 1, 2, 3])])
def test_simulators_rest_until_the_next_reset(resting, living):
    def rows(env, steps, of):
        """Rewards and observations of some rows, all of which play the same action."""
        seen = []
        for _ in range(steps):
            step = env.recv()
            there = np.isin(step.env_id, of)
            seen.append((step.reward[there].tolist(), step.observation[there].tolist()))
            env.send(np.ones(len(step.env_id), np.int32))
        return seen

    one, other = make("ddrl/Catch-v0", 4), make("ddrl/Catch-v0", 4)
    for env in (one, other):
        env.reset(5)
        rows(env, 3, living)
    other.rest(np.array(resting, np.int32))
    other.rest(np.array(resting, np.int32))
    assert other.batch_size == len(living)
    assert rows(one, 25, living) == rows(other, 25, living)
    assert other.recv().env_id.tolist() == living
    for env in (one, other):
        env.reset(6)
        assert env.batch_size == 4
    assert rows(one, 25, [0, 1, 2, 3]) == rows(other, 25, [0, 1, 2, 3])


def test_as_many_step_as_are_left_where_a_batch_is_smaller_than_the_environments():
    env = make("ddrl/Catch-v0", 4, batch_size=2)
    env.reset(0)
    for resting, rows in ([], [[0, 1], [2, 3]]), ([1], [[0, 2], [0, 3]]), ([2, 3], [[0], [0]]):
        env.rest(np.array(resting, np.int32))
        seen = []
        for _ in rows:
            seen.append(env.recv().env_id.tolist())
            env.send(np.ones(len(seen[-1]), np.int32))
        assert seen == rows and env.batch_size == len(rows[0])


def test_resting_is_told_between_send_and_recv():
    env = make("ddrl/Catch-v0", 2)
    env.reset(0)
    env.recv()
    with pytest.raises(RuntimeError, match="rest called where send is due"):
        env.rest(np.array([0], np.int32))


def test_seeds_reproduce_and_differ():
    def run(seed):
        env = make("ddrl/Catch-v0", 8)
        env.reset(seed)
        return drive(env, 40)

    assert_same(run(5), run(5))
    first = run(5)[0].observation
    assert not np.array_equal(first, run(6)[0].observation)
    assert len({row.tobytes() for row in first}) > 1  # environments have seeds of their own


def test_negative_seed():
    with pytest.raises(UsageError, match="seed -1 is negative"):
        make("ddrl/Catch-v0").reset(-1)


def test_catch_is_catch():
    env = make("ddrl/Catch-v0", 16)
    assert (env.observation_shape, env.observation_dtype, env.action_space.count) == ((1, 10, 5), np.uint8, 3)
    env.reset(0)
    for _ in range(10 * 20):
        step = env.recv()
        assert set(np.unique(step.observation)) == {0, 255}
        # The lowest lit pixel is the paddle's; the ball is above it.
        ball = step.observation[:, 0, :9].any(axis=1).argmax(axis=1)
        paddle = step.observation[:, 0, 9].argmax(axis=1)
        env.send((np.sign(ball - paddle) + 1).astype(np.int32))
    episodes = env.pop_episodes()
    assert len(episodes) == 16 * 20 and {(e.score, e.agent_steps) for e in episodes} == {(1.0, 9)}


def test_stamp_of_the_gymnasium_path():
    env = make_atari("breakout", STOOKE, 1)
    assert env.stamp["backend"] == "gymnasium" and env.stamp["protocol"] == "stooke"
    assert {"gymnasium", "ale_py"} <= set(env.stamp)
    assert make("CartPole-v1").stamp["max_agent_steps"] == 500


@pytest.mark.parametrize("asked, limit", [("7", 7), ("None", 500), ("-1", 0)])
def test_a_limit_among_the_options_of_a_game_is_stamped(asked, limit):
    config = EnvironmentConfig(game="CartPole-v1", game_options=(f"max_episode_steps={asked}",))
    env = make_environment(config, 1)
    assert env.stamp["max_agent_steps"] == limit and env.game.spec.max_episode_steps == (limit or None)


def test_random_skip_is_two_to_four_and_seeded():
    def run(seed):
        frames = []
        protocol = dataclasses.replace(BA3C, max_agent_steps=150)
        env = make_atari("breakout", protocol, 1, on_frame=lambda ale: frames.append(1))
        env.reset(seed)
        counts, rows = [], []
        for step in range(150):
            row = env.recv()
            rows.append(row)
            counts.append(len(frames))
            env.send(np.array([step % 4], np.int32))
        return np.diff(counts), rows

    skips, rows = run(3)
    assert set(skips) == {2, 3, 4}
    assert abs(skips.mean() - 3) < 0.3
    again, same_rows = run(3)
    assert skips.tolist() == again.tolist()
    assert_same(rows, same_rows)
    assert skips.tolist() != run(4)[0].tolist()


def test_gymnasium_cap_counts_agent_steps():
    env = make_atari("breakout", dataclasses.replace(BA3C, max_agent_steps=12), 1)
    env.reset(0)
    steps = drive(env, 16)
    assert [int(step.truncated[0]) for step in steps] == [0] * 12 + [1] + [0] * 3
    assert [int(step.valid[0]) for step in steps] == [0] + [1] * 12 + [0] + [1] * 2
    assert [e.agent_steps for e in env.pop_episodes()] == [12]


def test_crop_and_halving():
    env = make_atari("breakout", dataclasses.replace(STOOKE, noop_max=0), 1)
    env.reset(0)
    observation = env.recv().observation[0]
    screen = env._simulators[0].env.unwrapped.ale.getScreenGrayscale()[:208].astype(np.float64)
    halved = screen.reshape(104, 2, 80, 2).mean(axis=(1, 3))
    assert np.abs(observation[3] - halved).max() <= 0.5
    assert not observation[:3].any()


def test_color_is_frame_major():
    env = make_atari("breakout", dataclasses.replace(BA3C, height=210, width=160), 1)
    env.reset(0)
    steps = drive(env, 3)
    screen = env._simulators[0].env.unwrapped.ale.getScreenRGB()
    assert np.array_equal(steps[-1].observation[0, 9:], np.moveaxis(screen, 2, 0))
    assert np.array_equal(steps[-1].observation[0, 6:9], steps[-2].observation[0, 9:])


def test_catch_as_a_picture_is_the_same_game():
    board, picture = gymnasium.make("ddrl/Catch-v0").unwrapped, gymnasium.make("ddrl/CatchPicture-v0").unwrapped
    seen, drawn = board.reset(seed=5)[0], picture.reset(seed=5)[0]
    for action in (0, 1, 2, 2, 0, 1, 2, 0, 1):
        assert drawn.shape == (1, 84, 84) and drawn.dtype == np.uint8 and drawn in picture.observation_space
        assert np.array_equal(drawn[0, 2:82:8, 22:62:8], seen[0]) and drawn.sum() == 64 * seen.sum()
        assert np.array_equal(picture.render()[..., 0], drawn[0])
        (seen, *rest), (drawn, *same) = board.step(action), picture.step(action)
        assert rest == same
    assert rest[1], "the ball is down"


def test_one_game_of_all_finds_the_treasure_of_the_deep_sea():
    env = gymnasium.make("ddrl/DeepSea-v0").unwrapped
    scores = []
    for actions in itertools.product((0, 1), repeat=10):
        seen, _ = env.reset()
        score, ends = 0.0, []
        for row, action in enumerate(actions):
            column = int(seen[0, row].argmax())
            assert seen in env.observation_space and seen.sum() == seen[0, row, column] == 255
            seen, reward, terminated, truncated, _ = env.step(action)
            right = bool(reward)
            assert seen.sum() == 0 if terminated else seen[0, row + 1, max(column + (1 if right else -1), 0)] == 255
            score += reward
            ends.append(terminated)
        assert ends == [False] * 9 + [True] and not truncated
        scores.append(round(score, 4))
    assert sorted(scores)[-2:] == [-0.0, 0.99], "all to the left, and all to the right"
    assert scores.count(-0.005) == math.comb(10, 5)


def test_a_task_without_its_package_names_the_extra():
    def without(**options):
        raise gymnasium.error.DependencyNotInstalled('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`')

    gymnasium.register("test/Without-v0", entry_point=without)
    needs = "test/Without-v0 needs a package that is not installed: MuJoCo is not installed"
    message = f'{needs}, run `pip install "ddrl[control]"`'
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        make("test/Without-v0")
