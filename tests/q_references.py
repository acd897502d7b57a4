"""Slow NumPy transcriptions of the equations of Q-learning. float64, loops, no cleverness."""

from __future__ import annotations

import math

import numpy as np

from tests.references import softmax


def support(config):
    step = (config.value_max - config.value_min) / (config.atoms - 1)
    return [config.value_min + i * step for i in range(config.atoms)]


def projection(probabilities, reward, discount, config):
    """Bellemare et al. 2017, algorithm 1, of one transition; where floor and ceiling are one atom, it takes all."""
    step = (config.value_max - config.value_min) / (config.atoms - 1)
    masses = [0.0] * config.atoms
    for z, p in zip(support(config), probabilities):
        moved = min(max(float(reward) + float(discount) * z, config.value_min), config.value_max)
        b = min(max((moved - config.value_min) / step, 0.0), config.atoms - 1.0)
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            masses[lower] += float(p)
        else:
            masses[lower] += float(p) * (upper - b)
            masses[upper] += float(p) * (b - lower)
    return masses


def expected(outputs, config):
    """Values of the actions of one state: the outputs, or the expectations of their distributions."""
    if not config.atoms:
        return [float(q) for q in outputs]
    return [sum(p * z for p, z in zip(softmax(row), support(config))) for row in outputs]


def first_maximum(values):
    return next(a for a, value in enumerate(values) if value == max(values))


def targets(target_outputs, online_outputs, reward, discount, config):
    """One row after the other: DQN, Double DQN, Categorical DQN."""
    rows = []
    for b in range(len(reward)):
        chooser = online_outputs if config.double else target_outputs
        action = first_maximum(expected(chooser[b], config))
        if config.atoms:
            rows.append(projection(softmax(target_outputs[b][action]), reward[b], discount[b], config))
        else:
            rows.append(float(reward[b]) + float(discount[b]) * float(target_outputs[b][action]))
    return np.array(rows)


def dueling(value, advantage):
    """One state's values, or logits per atom, one action after the other."""
    mean = sum(advantage) / len(advantage)
    return np.array([value[0] + a - mean for a in advantage])


def loss(outputs, batch, config):
    """(loss, priorities) of action values [M, A], or logits [M, A, atoms]."""
    total, priorities = 0.0, []
    for b, action in enumerate(batch.action):
        if config.atoms:
            m, p = np.asarray(batch.target[b], np.float64), softmax(outputs[b][action])
            row = -sum(m[i] * np.log(p[i]) for i in range(config.atoms))
            priority = sum(m[i] * np.log(m[i] / p[i]) for i in range(config.atoms) if m[i] > 0)
        else:
            priority = abs(float(batch.target[b]) - float(outputs[b][action]))
            row = priority - 0.5 if config.loss == "huber" and priority > 1 else 0.5 * priority**2
        total += float(batch.weight[b]) * row
        priorities.append(priority)
    return total / len(batch.action), np.array(priorities)
