from __future__ import annotations

import numpy as np
import pytest

from ddrl.apex.rate_limiter import RateLimiter


@pytest.mark.parametrize("ratio", [0.1, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_ratio_is_kept_and_one_of_the_two_can_always_go_on(ratio, seed):
    random, batch, segment = np.random.default_rng(seed), 32, 50
    limiter, inserted, sampled = RateLimiter(ratio, batch, segment), 700, 40
    limiter.start(inserted, sampled)
    for _ in range(3_000):
        draw, insert = limiter.may_draw(inserted, sampled), limiter.may_insert(inserted, sampled)
        assert draw or insert
        if draw and (random.random() < 0.5 or not insert):
            sampled += batch
        elif insert:
            inserted += segment
        assert abs(sampled - 40 - ratio * (inserted - 700)) <= 2 * batch + 2 * ratio * segment
    assert sampled > 40 and inserted > 700


def test_without_a_ratio_and_before_the_start_nobody_waits():
    free, early = RateLimiter(0.0, 32, 50), RateLimiter(1.0, 32, 50)
    free.start(0, 0)
    for limiter in (free, early):
        assert limiter.may_draw(0, 10**9) and limiter.may_insert(10**9, 0)
    early.start(0, 0)
    assert not early.may_draw(0, 10**9) and not early.may_insert(10**9, 0)
    early.pause()
    assert early.may_insert(10**9, 0)
