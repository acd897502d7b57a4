"""Evaluation: whole first games."""

from __future__ import annotations

import itertools
import math

import gymnasium
import numpy as np
import pytest

import ddrl.evaluation.games
import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.config import EnvironmentConfig
from ddrl.errors import UsageError
from ddrl.evaluation.games import evaluate, play_games
from ddrl.evaluation.turns import Turns

SCRIPTED = EnvironmentConfig(game="ddrl-test/Scripted-v0")
CATCH = EnvironmentConfig(game="ddrl/Catch-v0")


class RandomLength(gymnasium.Env):
    """The first game takes 1 to 30 steps and scores its length; every later one takes 1 and scores 1,000."""

    metadata = {"render_modes": []}

    def __init__(self, render_mode=None):
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._games = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._games += 1
        self._left = int(self.np_random.integers(1, 31)) if self._games == 1 else 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._left -= 1
        reward = 1.0 if self._games == 1 else 1000.0
        return np.zeros(1, np.float32), reward, self._left == 0, False, {}


class Endless(RandomLength):
    """Never over."""

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


for _name, _entry in (("ddrl-test/RandomLength-v0", RandomLength), ("ddrl-test/Endless-v0", Endless)):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=_entry)


def constant(action: int, actions: int):
    return lambda observations: np.tile(np.eye(actions)[action], (len(observations), 1))


def catcher(observations: np.ndarray) -> np.ndarray:
    ball = observations[:, 0, :9].any(axis=1).argmax(axis=1)
    paddle = observations[:, 0, 9].argmax(axis=1)
    return np.eye(3)[np.sign(ball - paddle) + 1]


def test_scripted_first_game_only():
    result = evaluate(SCRIPTED, constant(0, 4), games=3, seed=0, group_size=3)
    assert result.scores == (4.0,) * 3 and result.agent_steps == (3,) * 3
    assert (result.mean, result.maximum, result.unfinished) == (4.0, 4.0, 0)
    assert result.stamp["game"] == "ddrl-test/Scripted-v0" and result.stamp["games"] == 3


def test_the_options_of_a_game_apply_in_its_evaluation():
    config = EnvironmentConfig(game="ddrl/DeepSea-v0", game_options=("size=3",), random_start_steps=2)
    result = evaluate(config, constant(0, 2), games=2, seed=0)
    assert result.agent_steps == (3, 3) and result.stamp["game_options"] == ["size=3"]


def test_a_score_that_is_no_number_is_left_out_and_counted(monkeypatch):
    step, rewards = RandomLength.step, itertools.cycle([math.nan, 1.0, 1.0])

    def sometimes(self, action):
        observation, _, *rest = step(self, action)
        return observation, next(rewards) if self._left == 0 else 0.0, *rest

    monkeypatch.setattr(RandomLength, "step", sometimes)
    config = EnvironmentConfig(game="ddrl-test/RandomLength-v0")
    result = evaluate(config, constant(0, 2), games=3, seed=0)
    assert (result.mean, result.maximum, result.scores, result.not_finite) == (1.0, 1.0, (1.0, 1.0), 1)
    assert len(result.agent_steps) == 2 and result.stamp["games"] == 3
    monkeypatch.setattr(RandomLength, "step", lambda self, action: (np.zeros(1, np.float32), math.inf, True, False, {}))
    with pytest.raises(UsageError, match="no game has a finite score .2 played, the first: inf"):
        evaluate(config, constant(0, 2), games=2, seed=0)


@pytest.mark.parametrize("group_size", [1, 4, 10])
def test_short_games_are_not_counted_twice(group_size):
    config = EnvironmentConfig(game="ddrl-test/RandomLength-v0")
    result = evaluate(config, constant(0, 2), games=10, seed=1, group_size=group_size)
    assert result.scores == tuple(float(steps) for steps in result.agent_steps)
    assert len(set(result.scores)) > 3 and max(result.scores) <= 30 and len(result.scores) == 10


def test_a_game_that_is_over_steps_no_more(monkeypatch):
    step, steps = RandomLength.step, []
    monkeypatch.setattr(RandomLength, "step", lambda self, action: (steps.append(1), step(self, action))[1])
    result = evaluate(EnvironmentConfig(game="ddrl-test/RandomLength-v0"), constant(0, 2), games=10, seed=1)
    assert len(steps) == sum(result.agent_steps) and len(set(result.agent_steps)) > 3


@pytest.mark.parametrize("group_size", [1, 3])
def test_groups_that_step_at_once_change_nothing(group_size):
    config = EnvironmentConfig(game="ddrl-test/RandomLength-v0")
    one, three = (evaluate(config, constant(0, 2), 8, 2, group_size=group_size, ahead=n) for n in (1, 3))
    assert one == three
    assert evaluate(config, constant(0, 2), 8, 3).scores != one.scores


def test_greedy_player_wins_catch_and_a_bad_one_does_not():
    assert evaluate(CATCH, catcher, games=20, seed=4).mean == 1.0
    assert evaluate(CATCH, lambda o: -catcher(o), games=20, seed=4).mean < 0.0


def test_policy_sees_live_rows_only():
    sizes = []

    def policy(observations):
        sizes.append(len(observations))
        return np.zeros((len(observations), 2))

    config = EnvironmentConfig(game="ddrl-test/RandomLength-v0")
    result = evaluate(config, policy, games=6, seed=1, group_size=2)
    lengths = np.array(result.agent_steps)
    assert sizes == [int((lengths > k).sum()) for k in range(lengths.max())]


def test_yields_at_every_step_of_a_group():
    player = play_games(CATCH, catcher, 4, 0, group_size=2)
    yields = sum(1 for _ in player)
    assert yields >= 2 * 10  # two groups, nine steps and a reset each


def test_closing_in_the_middle_closes_the_environments(monkeypatch):
    closed = []
    make = ddrl.evaluation.games.make_environment

    def spy(*arguments, **options):
        env = make(*arguments, **options)
        close = env.close
        env.close = lambda: (closed.append(1), close())
        return env

    monkeypatch.setattr(ddrl.evaluation.games, "make_environment", spy)
    player = play_games(CATCH, catcher, 6, 0, group_size=2)
    for _ in range(8):
        next(player)
    player.close()
    assert len(closed) == 3


def test_players_of_one_game_are_one_score():
    seen = []

    def policy(observations):
        seen.append(len(observations))
        return np.tile(np.eye(4)[2], (len(observations), 1))

    result = evaluate(EnvironmentConfig(game="ddrl-test/Pair-v0"), policy, 3, 0)
    # The first player's rewards are what the game is scored by; all rows are asked for actions.
    assert result.scores == (6.0, 6.0, 6.0) and result.agent_steps == (3, 3, 3) and seen == [6, 6, 6]
    assert result.unfinished == 0 and result.stamp["games"] == 3


def test_games_that_draw_pictures_play_a_few_at_once(monkeypatch):
    make, is_open = ddrl.evaluation.games.make_environment, []

    def spy(config, num_envs, **options):
        env = make(CATCH, num_envs, **options)
        is_open.append(sum(1 for e in made if not e.closed) + 1)
        made.append(env)
        env.closed = False
        close = env.close
        env.close = lambda: (setattr(env, "closed", True), close())
        return env

    made: list = []
    expected = evaluate(CATCH, constant(1, 3), 10, 4, group_size=1)
    monkeypatch.setattr(ddrl.evaluation.games, "make_environment", spy)
    pixels = EnvironmentConfig(game="football/academy_corner", football_view="pixels")
    result = evaluate(pixels, constant(1, 3), 10, 4)
    assert max(is_open) == ddrl.evaluation.games.DRAWN_GROUPS and len(made) == 10 and all(env.closed for env in made)
    assert result.scores == expected.scores and len(set(result.scores)) == 2


def test_endless_game_is_cut_and_counted(monkeypatch):
    monkeypatch.setattr(ddrl.evaluation.games, "UNLIMITED_GAME_STEPS", 25)
    result = evaluate(EnvironmentConfig(game="ddrl-test/Endless-v0"), constant(0, 2), 2, 0)
    assert result.scores == (25.0, 25.0) and result.agent_steps == (25, 25) and result.unfinished == 2
    assert result.stuck == 0, "it earned something at every step"


def test_an_endless_game_is_no_next_game(monkeypatch):
    """Its environment goes on where the limit cut it off."""
    monkeypatch.setattr(ddrl.evaluation.games, "UNLIMITED_GAME_STEPS", 25)
    result = evaluate(EnvironmentConfig(game="ddrl-test/Endless-v0"), constant(0, 2), 2, 0, agent_steps=200)
    assert result.scores == (25.0, 25.0) and result.unfinished == 2


def test_a_game_without_a_reward_for_long_is_stuck(monkeypatch):
    monkeypatch.setattr(ddrl.evaluation.games, "UNLIMITED_GAME_STEPS", 25)
    monkeypatch.setattr(ddrl.evaluation.games, "STUCK_STEPS", 10)
    earned = iter([1.0] * 2 * 15)  # two games in turns
    step = lambda self, action: (np.zeros(1, np.float32), next(earned, 0.0), False, False, {})
    monkeypatch.setattr(Endless, "step", step)
    result = evaluate(EnvironmentConfig(game="ddrl-test/Endless-v0"), constant(0, 2), 2, 0)
    assert result.scores == (15.0, 15.0) and result.stuck == 2
    monkeypatch.setattr(ddrl.evaluation.games, "STUCK_STEPS", 11)
    earned = iter([1.0] * 2 * 15)
    assert evaluate(EnvironmentConfig(game="ddrl-test/Endless-v0"), constant(0, 2), 2, 0).stuck == 0


def test_a_game_that_time_cuts_off_has_no_score():
    asked = itertools.count()
    config = EnvironmentConfig(game="ddrl-test/RandomLength-v0")
    whole = evaluate(config, constant(0, 2), 10, seed=1)
    result = evaluate(config, constant(0, 2), 10, seed=1, stop=lambda: next(asked) > 8)
    over = tuple(score for score in whole.scores if score <= 8)
    assert result.scores == over and 0 < len(over) < 10 and result.mean == np.mean(over)
    assert result.timed_out == 10 - len(over) and result.unfinished == 0 and result.stamp["games"] == len(over)
    none = evaluate(config, constant(0, 2), 10, seed=1, stop=lambda: True)
    assert none.scores == () and math.isnan(none.mean) and math.isnan(none.maximum) and none.timed_out == 10


def turns(games, at_once, seconds, now, **options):
    return Turns(games, at_once, seconds, clock=lambda: now[0], **options)


def play_timed(config, policy, games, now, turns):
    """A second for each step of all groups together."""

    def slow(observations):
        now[0] += 1.0
        return policy(observations)

    return evaluate(config, slow, games, 5, turns=turns)


@pytest.mark.parametrize(("at_once", "players"), [(3, 1), (20, 1), (2, 2)])
def test_a_few_environments_play_all_games_where_there_is_time(at_once, players):
    now, open_rows = [0.0], []
    config, actions = (CATCH, 3) if players == 1 else (EnvironmentConfig(game="ddrl-test/Pair-v0"), 4)

    def policy(observations):
        open_rows.append(len(observations))
        return np.tile(np.eye(actions)[2], (len(observations), 1))

    result = play_timed(config, policy, 7, now, turns(7, at_once, 1e9, now))
    assert len(result.scores) == 7 and result.timed_out == 0 and max(open_rows) == min(at_once, 7) * players
    assert set(result.agent_steps) == {9 if players == 1 else 3}


def test_the_others_play_all_games_where_one_environment_plays_an_endless_one(monkeypatch):
    monkeypatch.setattr(ddrl.evaluation.games, "UNLIMITED_GAME_STEPS", 50)
    endless = []

    def step(self, action):
        endless.append(self)
        self._left -= 1
        return np.zeros(1, np.float32), 1.0, self is not endless[0] and self._left <= 0, False, {}

    monkeypatch.setattr(Endless, "step", step)
    now = [0.0]
    timed = turns(200, 3, 1e9, now)
    result = play_timed(EnvironmentConfig(game="ddrl-test/Endless-v0"), constant(0, 2), 200, now, timed)
    assert len(result.scores) == 200 and result.unfinished == 1 and result.timed_out == 0
    assert (timed.begun, timed.over) == (200, 200)


@pytest.mark.parametrize(("limit", "forced"), [(11, 0), (9, 5)])
def test_equal_actions_of_the_game_before_do_not_count(limit, forced, monkeypatch):
    make = ddrl.evaluation.games.make_environment

    def with_rule(*arguments, **options):
        env = make(*arguments, **options)
        env.stamp["repeat_fire_after"] = limit
        return env

    monkeypatch.setattr(ddrl.evaluation.games, "make_environment", with_rule)
    now = [0.0]
    # Three games of nine choices in one environment, and two on their last rows, which are ignored but count.
    result = play_timed(CATCH, constant(2, 3), 3, now, turns(3, 1, 1e9, now))
    assert result.agent_steps == (9, 9, 9) and result.forced_actions == forced


def test_games_begin_only_where_they_will_be_over_in_time():
    now = [0.0]
    # A game of Catch takes 9 steps, and a row lies between two: two begin at 10 s and at 20 s, and none at 30 s.
    result = play_timed(CATCH, constant(1, 3), 50, now, turns(50, 2, 35.0, now))
    assert len(result.scores) == 6 and result.timed_out == 0 and now[0] < 31.0
    now = [0.0]
    result = play_timed(CATCH, constant(1, 3), 50, now, turns(50, 2, 5.0, now))
    assert result.scores == () and result.timed_out == 2 and now[0] == 6.0


def test_games_that_always_end_at_a_limit_begin_only_where_they_will_be_over_in_time():
    now = [0.0]
    # A limit ends a game of Reach after 8 steps, and a row lies between two: two begin at 9 s and 18 s, none at 27 s.
    policy = lambda observations: np.zeros((len(observations), 4))
    result = play_timed(EnvironmentConfig(game="ddrl-test/Reach-v0"), policy, 50, now, turns(50, 2, 32.0, now))
    assert len(result.scores) == result.unfinished == 6 and result.timed_out == 0 and now[0] < 28.0


@pytest.mark.parametrize(
    ("before", "cut", "begins"), [(10.0, False, False), (10.0, True, True), (None, False, False), (None, True, False)]
)
def test_a_long_game_keeps_others_from_beginning_unless_a_limit_ended_it_and_others_end_by_themselves(
    before, cut, begins
):
    now = [0.0]
    timed = turns(50, 2, 60.0, now)
    timed.begin(0)
    timed.begin(1)
    if before is not None:  # seconds after which the other game ended by itself
        now[0] = before
        assert timed.end(1, cut=False)
    now[0] = 40.0
    assert timed.end(0, cut) is begins
    assert not timed.time_is_up()
    now[0] = 61.0
    assert timed.time_is_up()


def test_games_with_drawn_actions_say_so_and_are_not_forced_to_fire():
    result = evaluate(CATCH, lambda o: 8.0 * catcher(o), games=20, seed=4, drawn=True)
    assert result.mean > 0.9 and result.forced_actions == 0
    assert result.stamp["actions"] == "drawn" and "epsilon" not in result.stamp
    assert evaluate(CATCH, lambda o: np.zeros((len(o), 3)), games=20, seed=4, drawn=True).mean < 0.0


def test_continuous_games_are_played_with_the_means():
    def policy(observations):  # cos, sin of the angle, and its speed: a torque against the speed, and a deviation
        return np.stack([-observations[:, 2], np.zeros(len(observations))], axis=1)

    result = evaluate(EnvironmentConfig(game="Pendulum-v1"), policy, 2, 0)
    assert result.agent_steps == (200, 200) and max(result.scores) < 0.0 and result.scores[0] != result.scores[1]
    random = evaluate(EnvironmentConfig(game="Pendulum-v1"), policy, 2, 0, epsilon=0.5)
    assert random.scores == result.scores and random.stamp["epsilon"] == 0.0, "no action is random, and none is told of"


@pytest.mark.parametrize("group_size", [1, 2])
def test_by_a_budget_of_steps_all_games_count_that_are_over(group_size):
    result = evaluate(CATCH, catcher, 4, 0, agent_steps=100, group_size=group_size)
    # 4 boards, 9 steps a game and one row for the reset: 100 steps are 27 or 28 rows with a step, so 2 games each
    assert result.scores == (1.0,) * 8 and result.agent_steps == (9,) * 8 and result.stamp["games"] == 8
    short = evaluate(CATCH, catcher, 4, 0, agent_steps=8, group_size=group_size)
    assert short.scores == () and short.timed_out == 4 and math.isnan(short.mean)  # none was over


def test_games_under_way_when_time_ends_a_budget_of_steps_are_told():
    asked = itertools.count()
    config = EnvironmentConfig(game="ddrl-test/RandomLength-v0")
    result = evaluate(config, constant(0, 2), 10, seed=1, agent_steps=10**6, stop=lambda: next(asked) > 8)
    assert result.scores and result.timed_out == 10, "those that are over are the short ones"


def test_repeat_rule_ends_a_breakout_game():
    # A player that only moves right never serves a new ball: without the rule it meets the cap.
    result = evaluate(EnvironmentConfig(protocol="nature"), constant(2, 4), games=1, seed=0)
    assert result.unfinished == 0 and result.agent_steps[0] < 1000 and result.forced_actions > 0
    assert result.stamp["repeat_fire_after"] == 30 and result.stamp["backend"] == "native"


def test_bad_input():
    with pytest.raises(UsageError, match="evaluation of 0 games"):
        evaluate(CATCH, catcher, 0, 0)
    with pytest.raises(UsageError, match="not finite"):
        evaluate(CATCH, lambda o: np.full((len(o), 3), np.nan), 1, 0)
    with pytest.raises(UsageError, match="outputs of shape"):
        evaluate(CATCH, lambda o: np.zeros((len(o) + 1, 3)), 1, 0)
