"""The first sentence of a report: extremes, and a verdict only where there are repeats enough."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.studies.findings import compared, extremes
from ddrl.studies.points import grouped, parted
from ddrl.studies.statistics import bootstrap
from tests.studies.support import outcome

DIFFERENCE = "the 95% interval of their difference"
EVERY = ", and every run of the one is above every run of the other."


def found(scores, **labels):
    runs = [outcome({"size": size, "mode": "fast", **labels}, [], score=s) for size, of in scores.items() for s in of]
    names = ("size", "mode", *labels)
    return extremes(grouped(runs, *names), lambda g: bootstrap([r.result["score"] for r in g.runs]), "score")


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ({1: [3.0], 2: [9.0]},
         "The score ranges from 3 (size 1) to 9 (size 2); one run of each says little about chance."),
        ({1: [3.0, 5.0], 2: [9.0, 9.0]},
         "The score ranges from 4 (size 1) to 9 (size 2); 2 runs of each say little about chance."),
        ({1: [1.0, 2.0] * 3, 2: [7.0, 8.0] * 3},
         "The score ranges from 1.5 (size 1) to 7.5 (size 2), and the 95% interval of their difference excludes 0."),
        ({1: [1.0, 9.0] * 3, 2: [2.0, 9.0] * 3},
         "The score ranges from 5 (size 1) to 5.5 (size 2), and the 95% interval of their difference includes 0."),
        ({1: [1.0, 2.0, 3.0], 2: [7.0, 8.0, 4.0]},
         "The score ranges from 2 (size 1) to 6.33 (size 2)" + EVERY),
        ({1: [1.0, 2.0, 4.0], 2: [7.0, 8.0, 4.0]},
         "The score ranges from 2.33 (size 1) to 6.33 (size 2); 3 runs of each say little about chance."),
        ({1: [1.0, 2.0, 3.0], 2: [7.0] * 5},
         "The score ranges from 2 (size 1) to 7 (size 2); 3 runs of each say little about chance."),
        ({1: [3.0], 2: [3.0]}, "The score is 3 throughout."),
        ({1: [3.0]}, "The score is 3."),
        ({1: [None]}, "No score was measured."),
    ],
)  # fmt: skip
def test_what_was_found(scores, text):
    assert found(scores) == text


def test_the_best_and_the_worst_of_many_are_no_pair():
    scores = {1: [1.0, 2.0] * 3, 2: [3.0, 4.0] * 3, 3: [7.0, 8.0] * 3}
    assert found(scores) == "The score ranges from 1.5 (size 1) to 7.5 (size 3)."
    few = {size: of[:3] for size, of in scores.items()}
    assert found(few).endswith("(size 3); 3 runs of each say little about chance.")


def test_groups_are_parted_in_the_order_of_the_first_of_each():
    runs = [outcome({"game": game, "mode": mode}, []) for game, mode in (("pong", 1), ("boxing", 1), ("pong", 2))]
    groups = grouped(runs, "game", "mode")
    assert parted(groups, "game") == [[groups[0], groups[2]], [groups[1]]]
    assert parted(groups, "size") == [groups], "none has that label"


def test_games_are_not_compared_with_each_other():
    runs = [
        outcome({"game": game, "mode": mode}, [], score=score + i)
        for game, score in (("pong", 10.0), ("breakout", 300.0))
        for mode, more in (("fast", 0.0), ("slow", 100.0))
        for i in np.arange(5) + more
    ]
    text = extremes(
        grouped(runs, "game", "mode"), lambda g: bootstrap([r.result["score"] for r in g.runs]), "last score"
    )
    assert text == (
        f"The last score on pong ranges from 12.0 (fast) to 112 (slow), and {DIFFERENCE} excludes 0. "
        f"The last score on breakout ranges from 302 (fast) to 402 (slow), and {DIFFERENCE} excludes 0."
    )


def test_not_even_where_each_has_one_group():
    runs = [outcome({"game": game}, [], score=score) for game, score in (("pong", 12.0), ("boxing", 90.0))]
    text = extremes(grouped(runs, "game"), lambda g: bootstrap([r.result["score"] for r in g.runs]), "score")
    assert text == "The score on pong is 12.0. The score on boxing is 90.0."


def test_a_group_without_a_value_leaves_no_pair():
    scores = {1: [None], 2: [3.0, 4.0] * 3, 3: [7.0, 8.0] * 3}
    assert found(scores) == "The score ranges from 3.5 (size 2) to 7.5 (size 3)."


def test_two_groups_beside_each_other():
    few, many = bootstrap([1.0, 2.0, 3.0]), bootstrap([9.0] * 5)
    assert compared("A", few, "B", bootstrap([4.0, 5.0, 6.0]), "score") == (
        "the score of A is 2, that of B 5, and every run of the one is above every run of the other"
    )
    assert compared("A", many, "B", bootstrap([1.0] * 5), "score").endswith(f"and {DIFFERENCE} excludes 0")
    assert compared("A", None, "B", few, "score") == "no score of A was measured"
