"""Spellings of games, and what a wrong one gets."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl import plugins
from ddrl.config import EnvironmentConfig
from ddrl.envs import make_environment
from ddrl.envs.game_names import atari_games, atari_rom, gymnasium_games
from ddrl.errors import UsageError
from ddrl.rom_names import of_game, rom_name


@pytest.mark.parametrize(
    ("spelling", "rom"),
    [
        ("breakout", "breakout"),
        ("Breakout", "breakout"),
        ("ALE/Breakout-v5", "breakout"),
        ("BreakoutNoFrameskip-v4", "breakout"),
        ("SpaceInvaders", "space_invaders"),
        ("space_invaders", "space_invaders"),
        ("SpaceInvaders-v0", "space_invaders"),
        ("MsPacman", "ms_pacman"),
        ("CartPole-v1", None),
        ("Blackjack-v1", None),
        ("ddrl/Catch-v0", None),
        ("brakout", None),
        ("", None),
        ("combat", None),
    ],
)
def test_spellings(spelling, rom):
    assert atari_rom(spelling) == rom


def test_settings_of_a_game_are_chosen_by_the_spellings_that_are_played():
    assert rom_name("PongNoFrameskip") == rom_name("ALE/Pong-v5") == "pong" == atari_rom("PongNoFrameskip")
    assert (rom_name("Pong-v3"), atari_rom("Pong-v3")) == ("", None)
    table = {"riverraid": 1, "space_invaders": 2}
    spellings = ("river_raid", "RiverRaid", "ALE/Riverraid-v5", "riverraid")
    assert [of_game(table, game) for game in spellings] == [1, 1, 1, 1]
    assert [of_game(table, game) for game in ("spaceinvaders", "SpaceInvaders", "pong", "Pong-v3", "")] == [
        2,
        2,
        *[None] * 3,
    ]


def test_an_environment_of_a_plugin_is_not_taken_for_the_rom_of_that_name():
    plugins.register_environment("Othello-v0", lambda **options: gymnasium.make("CartPole-v1", **options))
    try:
        assert (atari_rom("Othello-v0"), atari_rom("othello")) == (None, "othello")
        assert (rom_name("Othello-v0"), rom_name("othello")) == ("", "othello")
        environment = make_environment(EnvironmentConfig(game="Othello-v0"), 1)
        assert environment.observation_shape == (4,) and environment.stamp["backend"] == "gymnasium"
        environment.close()
    finally:
        plugins.environments.remove("Othello-v0")
    assert atari_rom("Othello-v0") == "othello"


def test_a_mistyped_name_of_an_environment_of_a_plugin_is_told_of():
    plugins.register_environment("thermostat", lambda **options: gymnasium.make("CartPole-v1", **options))
    try:
        with pytest.raises(UsageError, match=r"unknown game 'thermostatt'; did you mean thermostat\?"):
            make_environment(EnvironmentConfig(game="thermostatt"), 1)
    finally:
        plugins.environments.remove("thermostat")


def test_lists():
    assert {"breakout", "pong", "seaquest"} <= set(atari_games()) and "combat" not in atari_games()
    assert {"ddrl/Catch-v0", "CartPole-v1"} <= set(gymnasium_games())
    assert not [name for name in gymnasium_games() if "Breakout" in name]


def test_the_printed_list_has_the_games_of_this_package():
    """In a process of its own: a game that another test has registered would be in the list anyway."""
    listed = subprocess.run([sys.executable, "-m", "ddrl.envs"], capture_output=True, text=True, check=True, timeout=60)
    assert {"ddrl/Catch-v0", "ddrl/CatchPicture-v0", "ddrl/DeepSea-v0"} <= set(listed.stdout.split())


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ("brakout", "unknown game 'brakout'; did you mean breakout.*python -m ddrl.envs"),
        ("CartPole-v9", "unknown game 'CartPole-v9'; did you mean CartPole-v1"),
        ("ddrl/Cach-v0", "did you mean ddrl/Catch-v0"),
        (
            "nowhere/Nothing-v0",
            r"unknown game .*needs its module, too \(--game my_package:nowhere/Nothing-v0\), or the --plugin",
        ),
        ("a b", "cannot make the game 'a b'"),
        ("ddrl-test/Odd-v0", "ddrl-test/Odd-v0 has the action space Text.*supported are Discrete, MultiDiscrete"),
        (
            "no_such_module:Thing-v0",
            "--game no_such_module:Thing-v0: there is no module no_such_module on Python's path",
        ),
        ("tests.envs.doors:Thing-v0", "unknown game 'tests.envs.doors:Thing-v0'"),
    ],
)
def test_wrong_games(game, message):
    with pytest.raises(UsageError, match=message) as error:
        make_environment(EnvironmentConfig(game=game), 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("num_envs", "options", "message"),
    [
        (0, {}, "num_envs is 0"),
        (2, {"batch_size": 3}, "predict batch 3: must be from 0 to 2"),
        (2, {"batch_size": -1}, "predict batch -1"),
        (2, {"threads": 0}, "simulator threads 0"),
    ],
)
def test_impossible_numbers(num_envs, options, message):
    with pytest.raises(UsageError, match=message):
        make_environment(EnvironmentConfig(game="ddrl/Catch-v0"), num_envs, **options)
