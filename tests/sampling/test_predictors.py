from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from ddrl.sampling.predictors import Predictors
from ddrl.sampling.rollouts import Ended


def doubled(parameters, observations):
    return observations * parameters, observations[:, 0]


def ask(policy, parameters, numbers, answers):
    observations = np.array(numbers, np.float32)[:, None]
    answers[numbers[0]] = policy(parameters, observations)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_query_gets_its_own_answer(threads):
    ended, asked, calls = threading.Event(), threading.Event(), []

    def policy(parameters, observations):
        calls.append(parameters)
        asked.wait(60.0)  # so that queries gather, however slowly the machine starts their threads
        return doubled(parameters, observations)

    predictors, answers = Predictors(policy, threads, 9, 2, ended), {}
    queries = [list(range(start, start + 2)) for start in range(0, 60, 2)]
    askers = [
        threading.Thread(target=ask, args=(predictors.of_group(i), 2.0 if q[0] < 30 else 3.0, q, answers))
        for i, q in enumerate(queries)
    ]
    for thread in askers:
        thread.start()
    time.sleep(0.05)  # for the last ones to ask
    asked.set()
    for thread in askers:
        thread.join(60.0)
    for numbers in queries:
        output, value = answers[numbers[0]]
        np.testing.assert_array_equal(output[:, 0], np.array(numbers) * (2.0 if numbers[0] < 30 else 3.0))
        np.testing.assert_array_equal(value, numbers)
    assert len(calls) < len(queries), "no two queries met in a call"
    ended.set()


def test_what_the_policy_raises_reaches_whoever_asked():
    ended = threading.Event()
    policy = Predictors(lambda parameters, observations: 1 / 0, 1, 4, 2, ended).of_group(0)
    with pytest.raises(ZeroDivisionError):
        policy(1.0, np.ones((2, 1)))
    with pytest.raises(ValueError, match="3 observations in a query of 2"):
        policy(1.0, np.ones((3, 1)))
    with pytest.raises(ValueError, match="queries of 5 observations for calls of 4"):
        Predictors(doubled, 1, 4, 5, ended)
    ended.set()


@pytest.mark.parametrize("batch_size, places", [(6, [0, 2, 4, 0]), (8, [0, 2, 4, 6]), (9, [0, 2, 4, 6]), (2, [0] * 4)])
def test_a_group_has_its_place_whoever_asks_beside_it(batch_size, places):
    """The last bits of a row may depend on where it stands: here its answer is its place."""
    ended, asked, calls = threading.Event(), threading.Event(), []

    def policy(parameters, observations):
        calls.append(observations[:, 0].copy())
        asked.wait(60.0)
        return np.arange(len(observations), dtype=np.float32), np.zeros(len(observations))

    predictors, answers = Predictors(policy, 1, batch_size, 2, ended), {}
    for groups in ([0], [3, 1], [2, 0, 3, 1]):
        numbers = {group: [10 * group + 1, 10 * group + 2] for group in groups}
        askers = [threading.Thread(target=ask, args=(predictors.of_group(g), 1.0, numbers[g], answers)) for g in groups]
        asked.clear()
        before, deadline = len(calls), time.monotonic() + 60.0
        for thread in askers:
            thread.start()
        while sum(map(np.count_nonzero, calls[before:])) // 2 + len(predictors._waiting) < len(groups):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        asked.set()
        for thread in askers:
            thread.join(60.0)
        for group in groups:
            np.testing.assert_array_equal(answers[10 * group + 1][0], [places[group], places[group] + 1])
    assert all(len(rows) == batch_size for rows in calls)
    assert any(np.count_nonzero(rows) > 2 for rows in calls) == (batch_size > 2), "queries meet where there is room"
    ended.set()


def test_whoever_waits_ends_with_the_schedule():
    ended, hold = threading.Event(), threading.Event()
    policy = Predictors(lambda parameters, observations: hold.wait(60.0), 1, 4, 2, ended).of_group(0)
    threading.Timer(0.2, ended.set).start()
    with pytest.raises(Ended):
        policy(1.0, np.ones((2, 1)))
    hold.set()
