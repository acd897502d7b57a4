"""Claims 1 and 2 of HTS-RL (Liu et al. 2020, section 4.2): formula and simulation."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaincinv


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
    quantile = float(gammaincinv(alpha, 1.0 - 1.0 / environments)) / rate
    spread = np.euler_gamma / rate * (1.0 + (alpha - 1.0) / (rate * quantile))
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
