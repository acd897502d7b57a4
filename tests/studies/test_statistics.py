"""Spread, speed-up and time to score, against cases made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.studies.measures import Interval
from ddrl.studies.statistics import (
    efficiency,
    interquartile_mean,
    interval_of,
    speed_up,
    spread,
    time_speed_up,
    time_to_score,
)


def test_the_interquartile_mean_is_of_the_middle_half():
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -50.0]) == pytest.approx(3.5)
    assert interquartile_mean([1.0, 2.0, 30.0]) == pytest.approx(11.0)  # too few to cut anything


def test_spread_of_repeats():
    found = spread([1.0, 3.0, None])
    assert found.mean.mean == found.interquartile_mean.mean == pytest.approx(2.0)
    assert found.mean.count == 2
    assert found.deviation == pytest.approx(np.sqrt(2.0))
    assert spread([None]) is None
    assert spread([4.0]).deviation is None
    assert spread([4.0]).mean == Interval(4.0)


def test_one_repeat_has_no_interval_and_equal_ones_have_an_empty_one():
    assert interval_of(np.median, [2.0]) == Interval(2.0)
    assert interval_of(np.median, [2.0, 2.0, 2.0]) == Interval(2.0, 2.0, 2.0, 3)
    assert interval_of(np.median, []) is None


def test_intervals_are_seeded_and_hold_the_true_mean_about_as_often_as_they_say():
    assert spread([1.0, 2.0, 4.0, 8.0]) == spread([1.0, 2.0, 4.0, 8.0])
    generator = np.random.default_rng(0)
    samples = generator.normal(5.0, 1.0, (200, 30))
    held = [(i := interval_of(np.mean, row, 500)).low <= 5.0 <= i.high for row in samples]
    assert 0.88 <= np.mean(held) <= 0.99


def test_speed_up_and_efficiency_of_known_rates():
    speed = speed_up([300.0, 340.0], [100.0, 100.0])
    assert speed.mean == pytest.approx(3.2)
    assert (speed.low, speed.high) == pytest.approx((3.0, 3.4))
    share = efficiency(speed, 4)
    assert (share.mean, share.low, share.high, share.count) == pytest.approx((0.8, 0.75, 0.85, 2))
    assert efficiency(speed, 8, base_workers=2).mean == pytest.approx(0.8)
    assert efficiency(speed_up([300.0], [100.0]), 4) == Interval(0.75)
    assert efficiency(speed_up([], [100.0]), 4) is None


def test_speed_up_of_times_is_the_other_way_round():
    assert time_speed_up([10.0], [80.0]).mean == pytest.approx(8.0)


def test_time_to_score_keeps_those_that_did_not_reach_it():
    found = time_to_score([600.0, None, 480.0, 1300.0], limit=1200.0)
    assert (found.reached, found.missed, found.count) == ((480.0, 600.0), 2, 4)
    assert found.mean() is None and found.median is None
    assert found.least_mean() == pytest.approx((480 + 600 + 2 * 1200) / 4)
    assert found.text() == "2 of 4 in 9 min, 2 not reached in 20 min"
    assert time_to_score([None], 1200.0).text() == "not reached in 20 min"
    assert time_to_score([], 1200.0).median is None


def test_time_to_score_of_all():
    found = time_to_score([600.0, 480.0, 660.0], limit=1200.0)
    assert found.median == 600.0
    assert found.mean().mean == pytest.approx(580.0)
    assert found.text() == "9.67 min [8, 11]"
    assert time_to_score([600.0], 1200.0).text() == "10 min"
    assert time_to_score([600.0, 480.0, None], 1200.0).median == 600.0
