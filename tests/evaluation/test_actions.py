"""Actions of evaluation games: the forced FIRE, random actions, draws from the policy."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.evaluation.actions import GreedyActions, actions_for
from ddrl.types import Continuous, Discrete, MultiDiscrete


def always_right(observations):
    """Logits of a player that always takes action 2 of 4."""
    return np.tile(np.eye(4)[2], (len(observations), 1))


def test_repeat_rule_counts_choices_and_lets_go():
    choice = [0]
    greedy = GreedyActions(lambda o: np.tile(np.eye(4)[choice[0]], (len(o), 1)), 3, repeat_fire_after=3)
    rows = np.array([0, 2])
    sent = []
    for action in (2, 2, 2, 2, 3, 2, 2, 2):
        choice[0] = action
        sent.append(greedy(np.zeros((2, 1)), rows).tolist())
    assert sent == [[a, a] for a in (2, 2, 1, 1, 3, 2, 2, 1)]
    assert greedy(np.zeros((1, 1)), np.array([1])).tolist() == [2]  # a row of its own count
    assert greedy(np.zeros((3, 1)), np.array([0, 1, 2])).tolist() == [1, 2, 1]


def test_repeat_rule_off():
    greedy = GreedyActions(always_right, 1, repeat_fire_after=0)
    assert [greedy(np.zeros((1, 1)), np.zeros(1, np.int64))[0] for _ in range(50)] == [2] * 50


def test_the_repeat_rule_forces_no_action_that_the_policy_chose_itself():
    choice = [1]
    greedy = GreedyActions(lambda o: np.tile(np.eye(4)[choice[0]], (len(o), 1)), 1, repeat_fire_after=3)
    assert [greedy(np.zeros((1, 1)), np.zeros(1, np.int64))[0] for _ in range(5)] == [1] * 5 and greedy.forced == 0
    choice[0] = 2
    assert [greedy(np.zeros((1, 1)), np.zeros(1, np.int64))[0] for _ in range(4)] == [2, 2, 1, 1] and greedy.forced == 2


def test_random_actions_come_with_their_probability_and_depend_on_the_seed_alone():
    def chosen(epsilon, seed):
        greedy = GreedyActions(always_right, 500, 0, epsilon, seed)
        return np.array([greedy(np.zeros((500, 1)), np.arange(500)) for _ in range(8)])

    assert (chosen(0.0, 1) == 2).all()
    drawn = chosen(0.4, 1)
    assert abs((drawn != 2).mean() - 0.4 * 3 / 4) < 0.03 and set(drawn.ravel()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(drawn, chosen(0.4, 1))
    assert (drawn != chosen(0.4, 2)).any() and (drawn[0] != drawn[1]).any()


def draws(space, policy, rows=2_000, steps=5, seed=0):
    """Actions [steps, rows, ...] that are drawn from one policy <float>[P]."""
    act = actions_for(space, lambda o: np.tile(policy, (len(o), 1)), rows, 30, seed=seed, drawn=True)
    return np.stack([act(np.zeros((rows, 1)), np.arange(rows)) for _ in range(steps)])


def test_drawn_actions_come_as_often_as_the_policy_says():
    """10,000 draws each: six standard deviations of a share of 0.5 are 0.03."""
    shares = np.bincount(draws(Discrete(3), np.log([0.1, 0.2, 0.7])).ravel(), minlength=3) / 10_000
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.7], atol=0.03)
    pairs = draws(MultiDiscrete((2, 3)), np.log([0.3, 0.7, 0.1, 0.2, 0.7])).reshape(-1, 2)
    both = np.mean((pairs[:, 0] == 1) & (pairs[:, 1] == 2))
    assert both == pytest.approx(0.49, abs=0.03), "components are independent"
    continuous = draws(Continuous((-9.0,), (9.0,)), np.array([1.5, np.log(0.5)]))
    assert continuous.mean() == pytest.approx(1.5, abs=0.03) and continuous.std() == pytest.approx(0.5, abs=0.03)


def test_drawn_actions_depend_on_the_seed_and_a_games_own_steps_alone():
    first, again, other = (draws(Discrete(3), np.zeros(3), 8, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and (first[0] != first[1]).any(), "each step has a draw of its own"
    act = actions_for(Discrete(3), lambda o: np.zeros((len(o), 3)), 8, 30, seed=1, drawn=True)
    alone = [act(np.zeros((1, 1)), np.array([5]))[0] for _ in range(5)]
    np.testing.assert_array_equal(alone, first[:, 5])
