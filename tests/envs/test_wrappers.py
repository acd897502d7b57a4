"""Wrappers and options of games."""

from __future__ import annotations

import gymnasium
import pytest

from ddrl import plugins
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.errors import UsageError
from tests.envs.support import play, raising


def linear(env, factor, offset=None):
    """A wrapper with options: rewards times a factor, and an offset if there is one."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward * factor + (0 if offset is None else offset))


@pytest.fixture
def registered():
    """Wrappers and an environment of a plugin."""
    plugins.register_wrapper("test-halved", lambda env: gymnasium.wrappers.TransformReward(env, lambda r: r / 2))
    plugins.register_wrapper("test-one-more", lambda env: gymnasium.wrappers.TransformReward(env, lambda r: r + 1))
    plugins.register_wrapper("test-linear", linear)
    plugins.register_wrapper("test-broken", lambda env: 3)
    plugins.register_wrapper("test-raising", lambda env: 1 / 0)
    plugins.register_wrapper("test-leaving", lambda env: raising(SystemExit("no license")))
    plugins.register_environment("test-own", lambda **options: gymnasium.make("CartPole-v1", **options))
    plugins.register_environment("test-bare", lambda: gymnasium.make("CartPole-v1"))
    yield
    for name in ("test-halved", "test-one-more", "test-linear", "test-broken", "test-raising", "test-leaving"):
        plugins.wrappers.remove(name)
    for name in ("test-own", "test-bare"):
        plugins.environments.remove(name)


@pytest.mark.parametrize("game", ["test-own", "CartPole-v1"])
def test_wrappers_in_their_order(registered, game):
    env = make_environment(EnvironmentConfig(game=game, wrappers=("test-halved", "test-one-more")), 1)
    assert play(env, 3)[-1].reward == [1.5] and env.stamp["wrappers"] == ["test-halved", "test-one-more"]
    other = make_environment(EnvironmentConfig(game=game, wrappers=("test-one-more", "test-halved")), 1, training=False)
    assert play(other, 3)[-1].reward == [1.0]


@pytest.mark.parametrize(
    "options, reward", [("factor=0.25", 0.25), ("factor=2,offset=1e-1", 2.1), ("factor=2,offset=None", 2.0)]
)
def test_options_of_a_wrapper(registered, options, reward):
    wrappers = (f"test-linear:{options}",)
    env = make_environment(EnvironmentConfig(game="CartPole-v1", wrappers=wrappers), 1)
    assert play(env, 3)[-1].reward == pytest.approx([reward]) and env.stamp["wrappers"] == list(wrappers)


def test_wrappers_of_atari(registered):
    env = make_environment(EnvironmentConfig(game="pong", wrappers=("test-one-more",)), 1)
    assert env.stamp["backend"] == "gymnasium" and play(env, 3)[-1].reward == [1.0]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"wrappers": ("nothing",)}, "wrapper nothing: there is none of that name"),
        ({"wrappers": ("test-broken",)}, "--wrappers test-broken gave 3: have it return a gymnasium.Env"),
        (
            {"wrappers": ("test-raising",)},
            r"--wrappers test-raising failed: ZeroDivisionError: .* \(test_wrappers.py, ",
        ),
        ({"wrappers": ("test-leaving",)}, r"--wrappers test-leaving failed: SystemExit: no license \(support.py, "),
        ({"wrappers": ("test-linear:size=2",)}, "--wrappers test-linear:size=2 failed: TypeError: .*size"),
        ({"wrappers": ("test-linear:2",)}, "--wrappers test-linear:2: it is not KEY=VALUE; write test-linear:KEY"),
        ({"wrappers": ("test-halved",), "backend": "envpool"}, "--wrappers .*not for EnvPool's; leave it out"),
    ],
)
def test_wrong_wrappers(registered, settings, message):
    with pytest.raises(UsageError, match=message) as error:
        make_environment(EnvironmentConfig(game="CartPole-v1", **settings), 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("game", ["test-own", "CartPole-v1"])
def test_options_of_a_game(registered, game, training):
    options = ("sutton_barto_reward=True",)
    config = EnvironmentConfig(game=game, game_options=options, wrappers=("test-one-more",))
    env = make_environment(config, 1, training=training)
    assert play(env, 3)[-1].reward == [1.0], "0 of the game, and 1 of the wrapper"
    assert (env.stamp["game_options"], env.stamp["wrappers"]) == (list(options), ["test-one-more"])
    assert "game_options" not in make_environment(EnvironmentConfig(game=game), 1).stamp


def test_values_among_the_options_of_a_game():
    given = []
    plugins.register_environment("test-given", lambda **options: given.append(options) or gymnasium.make("CartPole-v1"))
    texts = ("a=-1", "b=1e-3", "c=True", "d=None", "e=8x8", "f=(0.8,2.0)", "g=['SF','FG']", "h=", "i=k=v", "j={1: 2}")
    make_environment(EnvironmentConfig(game="test-given", game_options=texts), 2)
    wanted = {"a": -1, "b": 1e-3, "c": True, "d": None, "e": "8x8", "f": (0.8, 2.0), "g": ["SF", "FG"], "h": "",
              "i": "k=v", "j": "{1: 2}"}  # fmt: skip
    assert len(given) >= 2 and all(options == wanted and options["c"] is True for options in given)
    assert given[0]["g"] is not given[1]["g"], "an environment may change its own"


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"game": "CartPole-v1"},
            r"--game-options size=2 x=y: cannot make the game 'CartPole-v1': TypeError: .*'size'.* line \d+\); fix",
        ),
        ({"game": "test-own"}, r"the game 'test-own': TypeError: .*'size'.* \(test_wrappers.py, line \d+\); fix the o"),
        ({"game": "test-bare"}, r"the game 'test-bare': TypeError: .*'size'.* \(gymnasium_path.py, line \d+\); fix"),
        ({"game": "pong"}, "--game-options size=2 x=y: the rules of Atari games are those of --protocol; leave it out"),
        ({"game": "pong", "protocol": "ba3c"}, "--game-options size=2 x=y: the rules of Atari games"),
        ({"game": "pong", "wrappers": ("test-halved",)}, "--game-options size=2 x=y: the rules of Atari games"),
    ],
)
def test_wrong_options_of_a_game(registered, settings, message):
    with pytest.raises(UsageError, match=message) as error:
        make_environment(EnvironmentConfig(game_options=("size=2", "x=y"), **settings), 1)
    assert "\n" not in str(error.value)
