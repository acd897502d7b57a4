"""Claims 1 and 2 of HTS-RL (Liu et al. 2020, section 4.2): formula and simulation."""

from __future__ import annotations

import math

import numpy as np

EULER = 0.5772156649015329
SERIES = 10_000  # terms at most; it converges long before


def gamma_cdf(x: float, shape: float, rate: float) -> float:
    """P(X <= x) of Gamma(shape, rate): the lower incomplete gamma function's series."""
    if x <= 0.0:
        return 0.0
    z = rate * x
    term = total = 1.0 / shape
    for k in range(1, SERIES):
        term *= z / (shape + k)
        total += term
        if term < 1e-15 * total:
            break
    return min(1.0, math.exp(shape * math.log(z) - z - math.lgamma(shape)) * total)


def gamma_quantile(probability: float, shape: float, rate: float) -> float:
    """The x with P(X <= x) = probability, by bisection; probability in [0, 1)."""
    low, high = 0.0, shape / rate
    while gamma_cdf(high, shape, rate) < probability:
        high *= 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gamma_cdf(middle, shape, rate) < probability else (low, middle)
    return 0.5 * (low + high)


def expected_run_time(states: float, environments: int, alpha: float, rate: float, actor_seconds: float = 0.0) -> float:
    """Seconds to collect K states: claim 1, equation 7.

    K/(n alpha) [gamma/beta (1 + (alpha - 1)/(beta q)) + q] + K c/n, with q = F^-1(1 - 1/n), F the CDF of
    Gamma(alpha, beta): the expected maximum of n such variables is near q + gamma/(hazard at q), and the hazard near
    beta/(1 + (alpha - 1)/(beta q)). (The equation is reconstructed: the text of the paper that was at hand had lost
    parts of it. The tests compare it with simulation.)

    Args:
        states: K.
        environments: n, at least 2.
        alpha: steps of each environment between two synchronizations.
        rate: beta of the exponential step times, 1/s.
        actor_seconds: c, of a step's policy query.
    """
    quantile = gamma_quantile(1.0 - 1.0 / environments, alpha, rate)
    spread = EULER / rate * (1.0 + (alpha - 1.0) / (rate * quantile))
    return states / (environments * alpha) * (spread + quantile) + states * actor_seconds / environments


def simulated_run_time(
    states: int, environments: int, alpha: int, rate: float, actor_seconds: float = 0.0, seed: int = 0
) -> float:
    """Seconds to collect K states in rounds of alpha steps that end with the slowest of n environments."""
    generator = np.random.default_rng(seed)
    rounds = max(1, round(states / (environments * alpha)))
    slowest = generator.gamma(alpha, 1.0 / rate, (rounds, environments)).max(axis=1)
    return float(slowest.sum() + rounds * alpha * actor_seconds) * states / (rounds * environments * alpha)


def expected_latency(actors: float, actor_rate: float, learner_rate: float) -> float:
    """Updates between the behaviour and the target policy of GA3C or IMPALA: n rho/(1 - n rho), claim 2.

    The mean number in an M/M/1 queue; infinite from n rho = 1 on, where the queue grows for ever.
    """
    load = actors * actor_rate / learner_rate
    return load / (1.0 - load) if load < 1.0 else math.inf


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
