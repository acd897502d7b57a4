"""Claims 1 and 2 of Liu et al. 2020: formulas against simulation and against each other."""

from __future__ import annotations

import math

import pytest

from ddrl.simulation.hts import (
    expected_latency,
    expected_run_time,
    gamma_cdf,
    gamma_quantile,
    simulated_latency,
    simulated_run_time,
)


def test_the_gamma_cdf_of_whole_shapes_is_poisson():
    """P(Gamma(k, b) <= x) = P(Poisson(b x) >= k)."""
    below = sum(math.exp(-3.0) * 3.0**i / math.factorial(i) for i in range(4))
    assert gamma_cdf(1.5, 4, 2.0) == pytest.approx(1 - below)
    assert gamma_cdf(0.0, 4, 2.0) == 0.0


@pytest.mark.parametrize("shape", [1, 4, 100])
def test_the_quantile_is_the_inverse(shape):
    assert gamma_cdf(gamma_quantile(0.9375, shape, 2.0), shape, 2.0) == pytest.approx(0.9375)
    assert gamma_quantile(0.9375, 1, 2.0) == pytest.approx(math.log(16) / 2)


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
