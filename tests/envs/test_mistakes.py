"""Environments whose making, reset, or step gives something else: refused in one line, with the name of the game."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from ddrl import plugins
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.adapted import Tried
from ddrl.envs.gymnasium_environment import GymnasiumEnvironment
from ddrl.errors import UsageError
from ddrl.structured import ACTION_MASK
from tests.envs.support import Masking, play, raising

spaces = gymnasium.spaces


class Resetting(Masking):
    """Its reset gives, or raises, what it was told to, and its step gives what it was told to."""

    def __init__(self, given, action_space=None, step=()):
        super().__init__([], action_space)
        self._given, self._step = given, step

    def reset(self, *, seed=None, options=None):
        return raising(self._given) if isinstance(self._given, BaseException) else self._given

    def step(self, action):
        return self._step


class Unseeded(Masking):
    """Its reset takes no seed."""

    def reset(self):
        return np.zeros(2, np.float32), {}


ROW = np.zeros(2, np.float32)
MISTAKEN = {
    "it raises": (
        lambda: {}["no such level"],
        r"cannot make the game 'test-wrong': KeyError: 'no such level' \(test_mistakes.py, line \d+\); fix the environ",
    ),
    "it ends the program": (
        lambda: raising(SystemExit("no license")),
        r"cannot make the game 'test-wrong': SystemExit: no license \(support.py, line \d+\); fix the environment",
    ),
    "it mistakes a type": (
        lambda: len(3),
        r"cannot make the game 'test-wrong': TypeError: .*no len.* \(test_mistakes.py, line \d+\); fix the environment",
    ),
    "it gives nothing": (lambda: None, "--game test-wrong gave None: have it return a gymnasium.Env"),
    "it has no spaces": (gymnasium.Env, "--game test-wrong has no observation_space: set it where"),
    "its reset is that of Gym": (lambda: Resetting(ROW), "test-wrong gave a ndarray from its reset: have it return"),
    "its reset gives no info": (lambda: Resetting((ROW, None)), "test-wrong gave info of NoneType from its reset: "),
    "its reset gives three": (lambda: Resetting((ROW, {}, 0)), "test-wrong gave a tuple from its reset: have it"),
    "it needs an argument": (
        lambda level: None,
        "cannot make the game 'test-wrong': TypeError: .*missing.*'level'.*; give it with --game-options NAME=VALUE",
    ),
    "its reset finds no engine": (
        lambda: Resetting(OSError("no engine")),
        r"test-wrong fails at its first reset: OSError: no engine \(support.py, line \d+\); fix the environment",
    ),
    "its reset ends the program": (
        lambda: Resetting(SystemExit("no license")),
        r"test-wrong fails at its first reset: SystemExit: no license \(support.py, line \d+\); fix the env",
    ),
    "it calls a function of its own wrongly": (
        lambda: Resetting(),
        r"cannot make the game 'test-wrong': TypeError: .*missing.*'given' \(test_mistakes.py, line \d+\); fix the env",
    ),
    "its reset calls what is not written": (
        lambda: Resetting(NotImplementedError()),
        r"test-wrong fails at its first reset: NotImplementedError \(support.py, line \d+\); fix the environment$",
    ),
    "its engine is not there": (
        lambda: raising(OSError("no engine")),
        r"cannot make the game 'test-wrong': OSError: no engine \(support.py, line \d+\); fix the environment",
    ),
    "its reset takes no seed": (
        lambda: Unseeded([]), r"test-wrong fails at its first reset: TypeError: .*seed.* \(adapted.py, line \d+\); fix"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_an_environment_with_a_mistake_is_refused_in_one_line(name):
    make, message = MISTAKEN[name]
    plugins.register_environment("test-wrong", make)
    with pytest.raises(UsageError, match=message) as error:
        make_environment(EnvironmentConfig(game="test-wrong"), 1)
    assert "\n" not in str(error.value)


def test_a_reset_that_no_trial_came_before_is_looked_at_in_the_first_row():
    for shape in ((2,), (1, 2)):  # as it is, and adapted
        name = f"test-box-{len(shape)}"
        plugins.register_environment(name, lambda shape=shape: Resetting(ROW, spaces.Box(-1, 1, shape)))
        env = make_environment(EnvironmentConfig(game=name), 1)
        env.reset(0)
        with pytest.raises(UsageError, match=f"{name} gave a ndarray from its reset"):
            env.recv()


STEPS = {
    "nothing": (None, "a NoneType from its step: have it return .observation, reward, terminated"),
    "four values": ((ROW, 0.0, False, {}), "4 values from its step: have it return .observation, reward, terminated"),
    "no reward": ((ROW, None, False, False, {}), "the reward None from its step: have it return a number"),
    "a reward as text": ((ROW, "1", False, False, {}), "the reward '1' from its step: have it return a number"),
    "two rewards": ((ROW, np.ones(2), False, False, {}), r"the reward \[1. 1.\], terminated = False, .* one of each"),
    "no end": ((ROW, 0.0, None, False, {}), "terminated = None and truncated = False from its step: have it return"),
    "an end as text": ((ROW, 0.0, False, "False", {}), "terminated = False and truncated = 'False' from its step"),
    "two ends": ((ROW, 0.0, False, np.ones(2), {}), r"terminated = False and truncated = array.* from its step: have"),
    "no info": ((ROW, 0.0, False, False, None), "info of NoneType from its step: have it return a dict"),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2)], ids=["as it is", "adapted"])
def test_a_step_that_gives_something_else_is_refused_with_the_name_of_the_game(space, name):
    step, message = STEPS[name]
    plugins.register_environment("test-gym", lambda: Resetting((ROW, {}), space, step))
    with pytest.raises(UsageError, match=f"^test-gym gave {message}") as error:
        play(make_environment(EnvironmentConfig(game="test-gym"), 1), 2)
    assert "\n" not in str(error.value)


def test_an_environment_without_a_step_of_its_own_is_told_to_write_it():
    game = type("Game", (Resetting,), {"step": gymnasium.Env.step})
    with pytest.raises(UsageError, match=r"^test-gym fails at its first step: NotImplementedError.*; write its step$"):
        Tried(game((ROW, {})), "test-gym").step(0)


@pytest.mark.parametrize("given", [None, "3", "three", [3, 3], [[3], [3, 3]], np.nan, np.inf, {}], ids=str)
@pytest.mark.parametrize("when", ["reset", "step"])
def test_lives_that_are_no_number_are_refused_with_the_name_of_the_game(given, when):
    first, then = ({"lives": given if when == each else 3} for each in ("reset", "step"))
    plugins.register_environment("test-lives", lambda: Resetting((ROW, first), step=(ROW, 0.0, False, False, then)))
    with pytest.raises(UsageError, match=r'^test-lives gave info\["lives"\] = .*: give a finite number, or') as error:
        play(make_environment(EnvironmentConfig(game="test-lives"), 1), 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", [None, "1", [1.0, 2.0]], ids=str)
def test_what_a_step_adds_to_the_score_must_be_a_number(given):
    step = (ROW, 0.0, False, False, {"score_reward": given})
    plugins.register_environment("test-score", lambda: Resetting((ROW, {}), step=step))
    with pytest.raises(UsageError, match=r'^test-score gave info\["score_reward"\] = .*: give a finite number'):
        play(make_environment(EnvironmentConfig(game="test-score"), 1), 2)


@pytest.mark.parametrize("lives", [2, 2.0, np.uint8(2), np.array([2])], ids=repr)
def test_numbers_of_any_type_count_lives_and_add_to_the_score(lives):
    step = (ROW, 0.0, True, False, {"lives": lives, "score_reward": np.float16(0.5)})
    plugins.register_environment("test-counts", lambda: Resetting((ROW, {"lives": 3}), step=step))
    env = make_environment(EnvironmentConfig(game="test-counts"), 1)
    play(env, 2)
    assert [episode.score for episode in env.pop_episodes()] == [0.5]


@pytest.mark.parametrize("given", [3, [3], [3, 3], np.array([[3], [3]])], ids=repr)
def test_each_player_may_have_lives_and_a_score(given):
    game, rows = type("Game", (Resetting,), {"players": 2}), np.stack([ROW, ROW])
    step = (rows, 0.0, True, False, {"lives": given})
    env = GymnasiumEnvironment(lambda: game((rows, {"score_reward": given}), step=step), 1, {"game": "two"})
    assert len(play(env, 2)) == 2


@pytest.mark.parametrize(
    "observation, message",
    [
        (None, "None of type object is not a number"),
        (np.array(["a", "b"]), "'a' 'b'. of type <U1 is not a number"),
        (np.array([0.5, None]), "0.5 None. of type object is not a number"),
        (ROW.astype(complex), "of type complex128 is not a number"),
        ([[0.5], [0.5, 0.5]], "inhomogeneous"),
    ],
    ids=str,
)
@pytest.mark.parametrize("entries", [0, 1, 2])
def test_observations_that_are_no_numbers_are_refused_with_the_name_of_the_game(observation, message, entries):
    names = "ab"[:entries]
    space = spaces.Dict({name: spaces.Box(0, 1, (2,)) for name in names}) if entries else spaces.Box(0, 1, (2,))
    given = dict.fromkeys(names, observation) if entries else observation
    texts = type("Texts", (Resetting,), {"observation_space": space})
    plugins.register_environment("test-text", lambda: texts((given, {})))
    env = make_environment(EnvironmentConfig(game="test-text"), 1)
    env.reset(0)
    with pytest.raises(UsageError, match=f"^test-text gave an observation {names[:1]}.*beyond its space .*{message}"):
        env.recv()


def test_a_mask_of_none_is_no_mask():
    plugins.register_environment("test-unmasked", lambda: Resetting((ROW, {ACTION_MASK: None})))
    env = make_environment(EnvironmentConfig(game="test-unmasked"), 1)
    assert env.observation_dtype == np.float32


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(2)], ids=["as it is", "adapted"])
def test_pixels_that_are_no_bytes_are_refused_and_others_are_cast(space):
    class Painted(Resetting):
        observation_space = spaces.Box(0, 255, (2,), np.uint8)

    for name, pixel in (("test-white", 255.0), ("test-gray", 0.5)):
        plugins.register_environment(name, lambda pixel=pixel: Painted((np.full(2, pixel), {}), space))
    white, gray = (make_environment(EnvironmentConfig(game=f"test-{name}"), 1) for name in ("white", "gray"))
    white.reset(0)
    assert white.recv().observation.tolist() == [[255, 255]]
    gray.reset(0)
    with pytest.raises(UsageError, match=r"test-gray gave an observation beyond its space \(float64 0.5 is no uint8\)"):
        gray.recv()


def test_a_first_reset_that_no_trial_came_before_and_that_raises_is_named():
    plugins.register_environment("test-raises", lambda: Resetting(OSError("no engine"), spaces.Box(-1, 1, (2,))))
    env = make_environment(EnvironmentConfig(game="test-raises"), 1)
    env.reset(0)
    with pytest.raises(UsageError, match="^test-raises fails at its first reset: OSError: no engine .support.py"):
        env.recv()


@pytest.mark.parametrize("players, rows", [(("white", "black"), 1), (np.int64(2), 2)])
def test_players_that_are_no_number_are_an_environments_own(players, rows):
    named = type("Named", (Resetting,), {"players": players})
    env = GymnasiumEnvironment(lambda: named((ROW, {})), 2, {"game": "named"})
    assert (env.players, env.num_envs) == (rows, 2 * rows)
