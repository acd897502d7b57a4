"""Series are thinned to what a chart can show, in the same way whoever reads them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddrl.board import series as module
from ddrl.board.series import MOST_POINTS, Series, as_json, stride_for


def filled(count, stride=1):
    series = Series(stride)
    for i in range(count):
        if series.wanted():
            series.add({"train/update": i, "train/loss": i / 7})
    return series


@given(st.integers(0, 9000))
def test_every_kth_of_the_smallest_power_of_two_that_fits(count):
    k = 1
    while -(-count // k) > MOST_POINTS:
        k *= 2
    series = filled(count)
    np.testing.assert_array_equal(series.column("train/update"), np.arange(0, count, k))
    known = stride_for(count)
    assert known <= k
    np.testing.assert_array_equal(filled(count, known).column("train/loss"), series.column("train/loss"))


def test_of_more_names_than_any_run_has_the_first_are_kept(monkeypatch):
    """Each takes memory for all points, and a line of a file of others may have any number of them."""
    monkeypatch.setattr(module, "MOST_COLUMNS", 3)
    series = Series()
    for values in ({"a": 1.0, "b": 2.0}, {"c": 3.0, "d": 4.0, "a": 5.0}, {"e": 6.0}):
        assert series.wanted()
        series.add(values)
    assert series.names == ["a", "b", "c"] and len(series) == 3
    np.testing.assert_array_equal(series.column("a"), [1, 5, math.nan])


def test_names_that_come_late_or_stay_away_are_nan_elsewhere():
    series = Series()
    for values in ({"a": 1.0}, {"a": 2.0, "b": 5.0}, {"b": 6.0}):
        assert series.wanted()
        series.add(values)
    np.testing.assert_array_equal(series.column("a"), [1, 2, math.nan])
    np.testing.assert_array_equal(series.column("b"), [math.nan, 5, 6])
    assert np.isnan(series.column("c")).all() and len(series.column("c")) == 3


def test_totals_beyond_float32_are_exact():
    series = Series()
    for steps in (16_777_217, 10**10 + 1):
        series.wanted()
        series.add({"train/agent_steps": steps})
    assert as_json(series.column("train/agent_steps")) == [16_777_217, 10**10 + 1]


def test_what_is_cut_is_gone_and_the_rest_goes_on():
    series = filled(2000)
    series.cut("train/update", 1001)
    assert series.column("train/update")[-1] == 1000
    series.cut("train/nothing", 0)
    assert len(series) == 501


def test_json_has_five_digits_and_no_nan():
    values = np.array([math.nan, math.inf, 0.0, -0.0, 1 / 3, -2 / 3e9, 123456.789, 1e300])
    assert as_json(values) == [None, None, 0, 0, 0.33333, pytest.approx(-6.6667e-10, rel=1e-9), 123457, 1e300]
    assert as_json(np.array([])) == []
