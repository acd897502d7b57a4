from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from ddrl.sampling.predictors import Predictors
from ddrl.sampling.rollouts import Ended


def doubled(parameters, observations):
    return observations * parameters, observations[:, 0]


def ask(predictors, parameters, numbers, answers):
    observations = np.array(numbers, np.float32)[:, None]
    answers[numbers[0]] = predictors(parameters, observations)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_query_gets_its_own_answer(threads):
    ended, asked = threading.Event(), threading.Event()

    def policy(parameters, observations):
        asked.wait(10.0)  # so that queries gather, however slowly the machine starts their threads
        return doubled(parameters, observations)

    predictors, answers = Predictors(policy, threads, 8, ended), {}
    queries = [list(range(start, start + 2)) for start in range(0, 60, 2)]
    askers = [threading.Thread(target=ask, args=(predictors, 2.0 if q[0] < 30 else 3.0, q, answers)) for q in queries]
    for thread in askers:
        thread.start()
    time.sleep(0.05)  # for the last ones to ask
    asked.set()
    for thread in askers:
        thread.join(10.0)
    for numbers in queries:
        output, value = answers[numbers[0]]
        np.testing.assert_array_equal(output[:, 0], np.array(numbers) * (2.0 if numbers[0] < 30 else 3.0))
        np.testing.assert_array_equal(value, numbers)
    assert predictors.calls < len(queries), "no two queries met in a call"
    ended.set()


def test_what_the_policy_raises_reaches_whoever_asked():
    ended = threading.Event()
    predictors = Predictors(lambda parameters, observations: 1 / 0, 1, 4, ended)
    with pytest.raises(ZeroDivisionError):
        predictors(1.0, np.ones((2, 1)))
    with pytest.raises(ValueError, match="5 observations in one query of at most 4"):
        predictors(1.0, np.ones((5, 1)))
    ended.set()


def test_whoever_waits_ends_with_the_schedule():
    ended, hold = threading.Event(), threading.Event()
    predictors = Predictors(lambda parameters, observations: hold.wait(5.0), 1, 4, ended)
    threading.Timer(0.2, ended.set).start()
    with pytest.raises(Ended):
        predictors(1.0, np.ones((2, 1)))
    hold.set()
