"""Google Research Football, where it is installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.game_names import football_games
from ddrl.errors import UsageError
from ddrl.evaluation.games import evaluate
from tests.envs.driving import assert_same, drive

INSTALLED = importlib.util.find_spec("gfootball") is not None
needs_football = pytest.mark.skipif(not INSTALLED, reason="the extra `football` is not installed")
KEEPER = "football/academy_3_vs_1_with_keeper"
RIGHT = 5


def make(num_envs: int, game: str = KEEPER, training: bool = True, **fields):
    return make_environment(EnvironmentConfig(game=game, **fields), num_envs, training=training)


def test_the_names():
    names = football_games()
    assert len([name for name in names if name.startswith("football/academy_")]) == 11 and len(names) == 14
    with pytest.raises(UsageError, match="unknown game 'football/academy_3_vs_2.; did you mean football/academy_"):
        make(1, "football/academy_3_vs_2")


@pytest.mark.skipif(INSTALLED, reason="it is installed")
def test_absent():
    with pytest.raises(UsageError, match="Football cannot be loaded .*docs/environments.md explains how to build"):
        make(1)


@needs_football
@pytest.mark.parametrize("game", football_games())
def test_every_scenario(game):
    env = make(1, game)
    env.reset(0)
    rows = drive(env, 3)
    assert rows[0].observation.shape == (1, 16, 72, 96) and env.action_space.count == 19
    assert env.stamp["max_agent_steps"] in (400, 3000)
    last = rows[-1].observation[0].reshape(4, 4, 72, 96)
    assert set(np.unique(last)) == {0, 255}
    assert (last[:, 2:] == 255).sum(axis=(2, 3)).tolist() == [[1, 1]] * 4  # one ball, one controlled player
    env.close()


@needs_football
def test_seeds_reproduce_in_one_process_and_in_two():
    runs = []
    for processes in (0, 0, 2):
        env = make(2, simulator_processes=processes)
        env.reset(3)
        runs.append((drive(env, 60), sorted(env.pop_episodes())))
        env.close()
    assert_same(runs[0][0], runs[1][0])
    assert_same(runs[0][0], runs[2][0])
    assert runs[0][1] == runs[1][1] == runs[2][1] != []
    env = make(2)
    env.reset(4)
    other = drive(env, 60)
    assert any(not np.array_equal(a.observation, b.observation) for a, b in zip(other, runs[0][0]))
    env.close()


@needs_football
def test_players_have_rows_of_their_own():
    env = make(2, football_players=3)
    assert (env.num_envs, env.players) == (6, 3)
    env.reset(0)
    step = drive(env, 5)[-1]
    own = step.observation[:, 15]  # the plane of the controlled player
    assert step.observation.shape == (6, 16, 72, 96) and not np.array_equal(own[0], own[1])
    assert np.array_equal(step.observation[0, 12:15], step.observation[2, 12:15])
    env.close()
    with pytest.raises(
        UsageError, match="--football-players 5: must be at most 2, the left team's players in academy_empty_goal"
    ):
        make(1, "football/academy_empty_goal", football_players=5)


@needs_football
@pytest.mark.parametrize("players", [1, 2])
def test_a_goal_is_one_point_and_checkpoints_are_none(players):
    game, score = "football/academy_empty_goal_close", []
    fields = {"football_checkpoints": True, "football_players": players}
    env = make(1, game, **fields)
    env.reset(0)
    total = np.zeros(players)
    while not score:
        total += env.recv().reward
        env.send(np.full(players, RIGHT, np.int32))
        score = env.pop_episodes()
    assert [e.score for e in score] == [1.0] and abs(total[0] - 2.0) < 1e-4
    env.close()

    def run_right(observations):
        return np.tile((np.arange(19) == RIGHT).astype(np.float32), (len(observations), 1))

    result = evaluate(EnvironmentConfig(game=game, **fields), run_right, 3, seed=1)
    assert result.scores == (1.0, 1.0, 1.0) and result.stamp["checkpoints"] is False


@needs_football
def test_pixels_in_a_process_of_each_game():
    env = make(2, football_view="pixels")
    env.reset(0)
    step = drive(env, 2)[-1]
    assert step.observation.shape == (2, 12, 72, 96) and step.observation[:, 9:].std() > 5.0
    assert env.stamp["simulator_processes"] == 2
    env.close()
