"""Scores of several games as one, against cases made by hand."""

from __future__ import annotations

import pytest

from ddrl.studies import across_games
from ddrl.studies.measures import EVALUATION, last_score
from ddrl.studies.points import Group
from tests.studies.support import outcome


def runs(game, *scores):
    return [
        outcome({"game": game}, [{"kind": "evaluation", EVALUATION: score, "games": 50, "wall_seconds": 1.0}])
        for score in scores
    ]


score = last_score(EVALUATION)


def test_scores_are_in_percent_between_random_play_and_people():
    played = [
        *runs("pong", -20.7, 14.6),
        *runs("breakout", 30.5),
        *runs("ddrl/Catch-v0", 1.0),
        outcome({"game": "pong"}, []),
    ]
    assert across_games.normalized(played, score) == {
        "pong": pytest.approx([0.0, 100.0]), "breakout": pytest.approx([100.0])
    }  # fmt: skip


def test_the_profile_falls_from_all_runs_to_none():
    played = [*runs("pong", -20.7, 14.6, 14.6), *runs("breakout", 1.7, 30.5, 59.3)]
    (of_all,), (panel,), *_ = across_games.together([("A", Group({}, played)), ("B", Group({}, played))], score)
    assert [row[:3] for row in of_all.rows] == [["A", 2, 6], ["B", 2, 6]]
    assert of_all.rows[0][3].mean == pytest.approx((0 + 100 + 100 + 100) / 4)
    first, second = panel.curves
    assert (first.x[0], first.x[-1]) == pytest.approx((0.0, 200.0)) and len(first.low) == len(first.x)
    assert first.y[0] == pytest.approx(4 / 6) and first.y[-1] == 0.0 and second.y == first.y


def test_a_report_is_careful_where_games_have_unequal_numbers_of_runs():
    half = Group({}, [*runs("pong", 1.0, 2.0), *runs("breakout", 2.0)])
    whole = Group({}, [*runs("pong", 1.0), *runs("breakout", 2.0)])
    (line,) = across_games.together([("A", half), ("B", half)], score).careful
    assert line.endswith("so games with more runs count more (runs: breakout 1, pong 2)")
    assert across_games.together([("A", whole), ("B", whole)], score).careful == []


def test_systems_are_compared_on_the_same_games_only():
    all_of, one = Group({}, [*runs("pong", 1.0), *runs("breakout", 2.0)]), Group({}, runs("pong", 3.0))
    assert not any(across_games.together([("A", all_of), ("B", one)], score))
    other = Group({}, [*runs("pong", 1.0), *runs("boxing", 2.0)])
    assert not any(across_games.together([("A", all_of), ("B", other)], score)), "as many games, but others"
    more = Group({}, [*runs("pong", 1.0, 2.0), *runs("breakout", 2.0)])
    assert not any(across_games.together([("A", all_of), ("B", more)], score)), "more runs of one game"
    assert not any(across_games.together([("A", one)], score)), "one game"
    assert not any(across_games.together([], score))
