"""Claims 1 and 2 of HTS-RL (Liu et al. 2020, section 4.2), which the tests compare with simulations."""

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


def expected_latency(actors: float, actor_rate: float, learner_rate: float) -> float:
    """Updates between the behavior and the target policy of GA3C or IMPALA: n rho/(1 - n rho), claim 2.

    The mean number in an M/M/1 queue; infinite from n rho = 1 on, where the queue grows for ever.
    """
    load = actors * actor_rate / learner_rate
    return load / (1.0 - load) if load < 1.0 else math.inf
