"""Claims 1 and 2 of Liu et al. 2020: formulas against simulation and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddrl.simulation.hts import expected_latency, expected_run_time


def simulated_run_time(
    states: int, environments: int, alpha: int, rate: float, actor_seconds: float = 0.0, seed: int = 0
) -> float:
    """Seconds to collect K states in rounds of alpha steps that end with the slowest of n environments."""
    generator = np.random.default_rng(seed)
    rounds = max(1, round(states / (environments * alpha)))
    slowest = generator.gamma(alpha, 1.0 / rate, (rounds, environments)).max(axis=1)
    return float(slowest.sum() + rounds * alpha * actor_seconds) * states / (rounds * environments * alpha)


def simulated_latency(
    actors: int, actor_rate: float, learner_rate: float, arrivals: int = 200_000, seed: int = 0
) -> float:
    """Mean number in the queue and in service, over time: by Little's law, arrival rate times time in the system."""
    generator = np.random.default_rng(seed)
    came = np.cumsum(generator.exponential(1.0 / (actors * actor_rate), arrivals))
    work = generator.exponential(1.0 / learner_rate, arrivals)
    before = np.cumsum(work) - work
    left = np.maximum.accumulate(came - before) + before + work
    half = arrivals // 2  # the first half fills the queue
    return float((left - came)[half:].mean() * (arrivals - half) / (came[-1] - came[half - 1]))


def test_with_one_step_between_synchronizations_the_time_is_that_of_exponential_ones():
    """The quantile of Gamma(1, b) is log(n) / b, and its spread has no further term."""
    expected = (math.log(16) + 0.5772156649) / 2.0 * 1000 / 16
    assert expected_run_time(1000, 16, 1, 2.0) == pytest.approx(expected)


@pytest.mark.parametrize("alpha", [1, 4, 16, 64])
@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_claim_1_is_near_the_simulation(alpha, rate):
    found = simulated_run_time(400_000, 16, alpha, rate, actor_seconds=0.01)
    assert expected_run_time(400_000, 16, alpha, rate, actor_seconds=0.01) == pytest.approx(found, rel=0.05)


def test_claim_1_falls_with_alpha_and_rises_with_the_variance():
    alphas = [expected_run_time(1000, 16, alpha, 2.0) for alpha in (1, 4, 16, 64)]
    assert alphas == sorted(alphas, reverse=True)
    variances = [expected_run_time(1000, 16, 4, rate) for rate in (4.0, 2.0, 1.0, 0.5)]
    assert variances == sorted(variances)


@pytest.mark.parametrize("actors", [4, 20, 32])
def test_claim_2_is_the_number_in_an_m_m_1_queue(actors):
    assert simulated_latency(actors, 100, 4000, 400_000) == pytest.approx(expected_latency(actors, 100, 4000), rel=0.05)


def test_claim_2_of_the_paper_s_numbers():
    assert expected_latency(20, 100, 4000) == pytest.approx(1.0)
    assert expected_latency(40, 100, 4000) == math.inf
