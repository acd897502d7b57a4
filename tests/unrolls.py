"""Random unrolls with every kind of episode end, as the sampling makes them."""

from __future__ import annotations

import numpy as np

from ddrl.types import Unroll

KINDS = ("goes on", "termination", "truncation", "life lost", "cut")


def random_unroll(steps=12, environments=6, seed=0, discount=0.9, features=3, draw_actions=None):
    """An Unroll of float32 noise. A row after a termination or truncation is not valid; one after a lost life, or
    after a cut (a truncation whose last observation is acted on), is.

    The first environment has no end at all. `draw_actions` makes actions from (random generator, shape [T, B]).
    """
    random = np.random.default_rng(seed)
    shape = (steps, environments)
    kinds = np.full(shape, "goes on", dtype=object)
    for b in range(1, environments):
        for t in range(steps):
            after_end = t > 0 and kinds[t - 1, b] in ("termination", "truncation")
            kinds[t, b] = "ignored" if after_end else str(random.choice(KINDS, p=(0.55, 0.15, 0.1, 0.1, 0.1)))
    noise = lambda *shape: random.standard_normal(shape).astype(np.float32)
    return Unroll(
        observation=noise(steps + 1, environments, features),
        action=random.integers(3, size=shape).astype(np.int32) if draw_actions is None else draw_actions(random, shape),
        reward=noise(*shape),
        discount=(discount * np.isin(kinds, ("goes on", "truncation", "cut"))).astype(np.float32),
        continues=(kinds == "goes on").astype(np.float32),
        valid=(kinds != "ignored").astype(np.float32),
        value=noise(steps + 1, environments),
        behaviour_log_prob=-np.abs(noise(*shape)),
        behaviour_version=np.zeros(shape, np.int64),
    )
