"""The table of 49 games is that of the papers: their own percentages and counts follow from it."""

from __future__ import annotations

import pytest

from ddrl.envs.game_names import atari_games
from ddrl.errors import UsageError
from ddrl.studies.human_normalized import scores_by_game, scores_of, summary

# Game, percentages of DQN and of fast DQN, as table 4 of the fast DQN paper prints them.
PRINTED = """
alien 42.7 16.4; amidar 43.9 76.1; assault 246.3 282.3; asterix 70.0 131.7;
asteroids 7.3 6.1; atlantis 449.9 624.8; bank_heist 57.7 90.9; battle_zone 67.6 67.6;
beam_rider 119.8 114.1; bowling 14.7 25.8; boxing 1707.1 2285.7; breakout 1327.2 1234.9;
centipede 63.0 30.9; chopper_command 64.8 12.8; crazy_climber 419.5 444.7; demon_attack 294.2 310.7;
double_dunk 16.1 96.8; enduro 97.5 111.0; fishing_derby 93.5 122.0; freeway 102.4 99.7;
frostbite 6.2 59.5; gopher 400.4 548.1; gravitar 5.4 9.8; hero 76.5 88.4;
ice_hockey 79.3 90.1; jamesbond 145.0 135.3; kangaroo 224.2 324.1; krull 276.9 844.4;
kung_fu_master 102.4 149.4; montezuma_revenge 0.0 0.0; ms_pacman 13.0 18.2; name_this_game 278.3 287.9;
pong 132.0 131.3; private_eye 2.5 0.1; qbert 78.5 90.8; riverraid 57.3 99.1;
road_runner 232.9 598.2; robotank 509.3 252.6; seaquest 25.9 16.6; space_invaders 121.5 64.9;
star_gunner 598.1 125.6; tennis 143.0 153.0; time_pilot 100.9 121.4; tutankham 112.2 89.8;
up_n_down 92.7 176.9; venture 32.0 15.7; video_pinball 2538.6 10847.8; wizard_of_wor 67.5 24.5;
zaxxon 54.1 36.9;
"""


def printed():
    rows = [row.split() for row in PRINTED.split(";") if row.strip()]
    return {game: (float(dqn), float(fast)) for game, dqn, fast in rows}


def test_the_percentages_are_those_of_the_paper():
    table = scores_by_game()
    assert list(table) == list(printed()) and len(table) == 49
    for game, percentages in printed().items():
        scores = table[game]
        found = [scores.normalized(scores.dqn), scores.normalized(scores.fast_dqn)]
        assert found == pytest.approx(percentages, abs=0.051), game


def test_every_game_is_a_rom():
    assert set(scores_by_game()) <= set(atari_games())


def test_games_at_human_level_are_as_many_as_the_paper_says():
    table = scores_by_game()
    dqn = summary({game: scores.dqn for game, scores in table.items()})
    fast = summary({game: scores.fast_dqn for game, scores in table.items()})
    assert (dqn.human_level, fast.human_level) == (29, 33)
    assert (dqn.above_dqn, fast.above_dqn) == (0, 29)  # the paper's text says 28
    assert dqn.median == pytest.approx(93.5, abs=0.05) and fast.median == pytest.approx(99.7, abs=0.05)


def test_the_ends_of_the_scale():
    table = scores_by_game()
    for column, percent in (("random", 0.0), ("human", 100.0)):
        found = summary({game: getattr(scores, column) for game, scores in table.items()})
        assert found.median == percent and found.human_level == (49 if percent else 0)


def test_a_median_of_an_even_number_lies_between_the_two():
    found = summary({"pong": 9.3, "breakout": 1.7})
    assert found == (2, pytest.approx(50.0), 1, 0)


def test_games_are_found_as_they_are_written_for_training():
    assert scores_of("ALE/SpaceInvaders-v5") == scores_of("space_invaders")
    assert scores_of("MsPacman").name == "Ms. Pacman"


def test_a_game_without_a_human_score_is_refused():
    with pytest.raises(UsageError, match="game ddrl/Catch-v0: there is no human score for it") as refusal:
        scores_of("ddrl/Catch-v0")
    assert "\n" not in str(refusal.value)
    with pytest.raises(UsageError, match=r"game breakot: there is no human score for it; did you mean breakout\?$"):
        scores_of("breakot")
