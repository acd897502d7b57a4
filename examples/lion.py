"""An optimizer and a schedule of the learning rate of one's own: Lion, and half a cosine.

    ddrl train ppo --plugin examples/lion.py --optimizer lion:weight_decay=0.01 --learning-rate 3e-4 --preset smoke
    ddrl train ppo --plugin examples/lion.py --learning-rate-schedule cosine --preset smoke

Both options may be given together.
"""

from __future__ import annotations

import math

import numpy as np

from ddrl import register_learning_rate_schedule, register_optimizer


def lion(gradient, parameter, count, momentum, beta1=0.9, beta2=0.99, weight_decay=0.0):
    """Steps of one size, in the direction of a sign (Chen et al. 2023, algorithm 2)."""
    direction = np.sign(beta1 * momentum + (1.0 - beta1) * gradient) + weight_decay * parameter
    return direction, beta2 * momentum + (1.0 - beta2) * gradient


def cosine(left, start, end):
    """Slow at both ends (Loshchilov and Hutter 2017, equation 5, without restarts)."""
    return end + (start - end) * (1.0 - math.cos(math.pi * left)) / 2.0


register_optimizer("lion", lion)
register_learning_rate_schedule("cosine", cosine)
