"""Spread, speed-up and time to score, against cases made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.studies.statistics import (
    Interval,
    TimeToScore,
    bootstrap,
    bootstrap_paired_ratio,
    bootstrap_ratio,
    bootstrap_rows,
    difference,
    efficiency,
    interquartile_mean,
    interquartile_mean_rows,
    share_above,
    stratified_interquartile_mean,
    told_apart,
)


def test_the_interquartile_mean_is_of_the_middle_half():
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, None, 4.0, 5.0, 6.0, -50.0]).mean == pytest.approx(3.5)
    assert interquartile_mean([1.0, 2.0, 3.0, 30.0, None]) is None  # too few


@pytest.mark.parametrize("statistic", [bootstrap, interquartile_mean])
def test_equal_repeats_have_an_empty_interval_and_none_has_none(statistic):
    assert statistic([2.0] * 5) == Interval(2.0, 2.0, 2.0, 5)
    assert statistic([None]) is None


def test_fewer_than_five_repeats_have_no_interval_and_are_kept():
    assert bootstrap([None, 2.0]) == Interval(2.0)
    few = bootstrap([4.0, 1.0, 1.0, 2.0])
    assert few == Interval(2.0, None, None, 4, (4.0, 1.0, 1.0, 2.0)) and few.bounds is None
    assert bootstrap([4.0, 1.0, 1.0, 2.0, 2.0]).bounds is not None
    assert few.map(lambda x: 4.0 / x) == Interval(2.0, None, None, 4, (1.0, 4.0, 4.0, 2.0))


def test_the_interval_of_the_middle_half_is_that_of_seeded_resamples():
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    drawn = np.sort(values[np.random.default_rng(0).integers(5, size=(2000, 5))], axis=1)
    # 3.10 deviations of the normal distribution: Student's t with 4 degrees of freedom, 2.78, times the root of 5/4.
    expected = np.quantile(drawn[:, 1:4].mean(axis=1), [0.00096, 1 - 0.00096])
    assert interquartile_mean(values)[1:3] == pytest.approx(tuple(expected), rel=0.01)


@pytest.mark.parametrize(
    "of_rows, of_one, count",
    [
        *((bootstrap_rows, bootstrap, count) for count in (1, 3, 5, 12)),
        *((interquartile_mean_rows, interquartile_mean, count) for count in (5, 12)),
    ],
)
def test_rows_have_the_intervals_that_each_of_them_has(of_rows, of_one, count):
    rows = np.random.default_rng(count).normal(size=(3, count))
    for found, row in zip(of_rows(rows), rows.tolist(), strict=True):
        alone = of_one(row)
        assert (found.count, found.values) == (alone.count, alone.values)
        assert (found.mean, *(found.bounds or ())) == pytest.approx((alone.mean, *(alone.bounds or ())), rel=1e-12)


@pytest.mark.parametrize("count, least", [(5, 0.87), (10, 0.92), (20, 0.93)])
def test_how_often_an_interval_of_few_values_holds_the_true_mean(count, least):
    """Unexpanded percentile intervals of five and ten hold it 84 and 90 times of 100."""
    samples = np.random.default_rng(count).normal(size=(400, count))
    held = [found.low <= 0.0 <= found.high for found in bootstrap_rows(samples, 2_000)]
    assert least <= np.mean(held) <= 0.98


def test_the_difference_of_two_means_from_their_intervals():
    """That of two normal means is the root of the sum of squares; where intervals overlap it may exclude 0."""
    one, other = Interval(10.0, 9.0, 11.0, 8), Interval(8.3, 7.3, 9.3, 8)
    assert difference(one, other) == pytest.approx((1.7 - np.sqrt(2), 1.7 + np.sqrt(2)))
    assert one.low < other.high and told_apart(one, other) and told_apart(other, one)
    skewed = Interval(8.3, 8.2, 10.3, 8)
    assert difference(one, skewed) == pytest.approx((1.7 - np.hypot(1, 2), 1.7 + np.hypot(1, 0.1)))
    assert not told_apart(one, skewed)
    assert difference(one, Interval(8.0)) is None and not told_apart(one, Interval(0.0)) and not told_apart(None, one)


def test_several_games_are_resampled_each_by_itself():
    games = [[0.0, 1.0, 2.0], [100.0, 110.0, 120.0, 130.0, 140.0]]
    found = stratified_interquartile_mean(games)
    assert found.mean == pytest.approx(np.mean([2.0, 100.0, 110.0, 120.0])) and found.count == 3
    # Slowly, with other numbers: 3 values of the first game and 5 of the second in every resample.
    random, drawn = np.random.default_rng(1), []
    for _ in range(4000):
        sample = np.sort(np.concatenate([random.choice(game, len(game)) for game in games]))
        drawn.append(sample[2:6].mean())
    # 2.83 deviations: Student's t with 6 degrees of freedom, 2.45, times the root of 8/6.
    assert found.bounds == pytest.approx(tuple(np.quantile(drawn, [0.0024, 1 - 0.0024])), rel=0.05)
    assert stratified_interquartile_mean([[1.0, 2.0], [3.0, 4.0, 5.0]]).bounds is None, "two runs of a game"
    assert stratified_interquartile_mean([[1.0], [3.0, 4.0, None]]) is None, "too few of all"


def test_the_share_above_a_score_is_of_all_runs_of_all_games():
    games = [[0.0, 1.0, 2.0], [1.0, 5.0, 6.0, 7.0]]
    assert share_above(games, 1.0).mean == pytest.approx(4 / 7), "above, not at"
    assert share_above(games, 9.0)[:3] == (0.0, 0.0, 0.0)
    low, high = share_above(games, 1.0).bounds
    assert 0.0 <= low < 4 / 7 < high <= 1.0


def test_intervals_in_another_unit():
    assert Interval(2.0, 1.0, 4.0, 3).map(lambda x: 8.0 / x) == Interval(4.0, 2.0, 8.0, 3)
    assert Interval(2.0).map(lambda x: x / 2) == Interval(1.0)


def test_speed_up_and_efficiency_of_known_rates():
    speed = bootstrap_ratio([300.0, 340.0, 320.0, 320.0, 320.0], [100.0] * 5)
    assert speed.mean == pytest.approx(3.2) and 3.0 <= speed.low < 3.2 < speed.high <= 3.4
    share = efficiency(speed, 4)
    assert share[:4] == pytest.approx((0.8, speed.low / 4, speed.high / 4, 5))
    assert efficiency(speed, 8, base_workers=2).mean == pytest.approx(0.8)
    assert efficiency(bootstrap_ratio([300.0], [100.0]), 4) == Interval(0.75)
    assert efficiency(bootstrap_ratio([], [100.0]), 4) is None


def test_the_ratio_of_pairs_is_told_apart_where_that_of_means_is_not():
    slow = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    quick = [0.5 * value for value in slow]
    assert bootstrap_paired_ratio(quick, slow)[:4] == pytest.approx((0.5, 0.5, 0.5, 6))
    assert bootstrap_ratio(quick, slow).high > 1.0
    mixed = bootstrap_paired_ratio([2.0, 0.5, 2.0, 0.5, 1.0], [1.0] * 5)
    assert mixed.mean == pytest.approx(1.0) and mixed.low < 1.0 < mixed.high
    assert bootstrap_paired_ratio([3.0, 1.0], [1.0, 2.0]).values == pytest.approx((3.0, 0.5))


def test_time_to_score_keeps_those_that_did_not_reach_it():
    found = TimeToScore((480.0, 600.0), 2, 1200.0)
    assert found.count == 4
    assert found.mean() is None and found.median is None
    assert found.least_mean() == pytest.approx((480 + 600 + 2 * 1200) / 4)
    assert found.least_median() == 900, "half of 600 and 1200: the median is that at least"
    assert found.text() == "2 of 4 in 9 min, 2 not reached in 20.0 min"
    assert TimeToScore((), 1, 1200.0).text() == "not reached in 20.0 min"
    assert TimeToScore((), 0, 1200.0).median is None


def test_time_to_score_of_all():
    found = TimeToScore((480.0, 600.0, 660.0), 0, 1200.0)
    assert found.median == 600.0
    assert found.mean().mean == pytest.approx(580.0)
    assert found.text() == "8; 10.0; 11.0 min"
    assert TimeToScore((600.0,) * 5, 0, 1200.0).text() == "10.0 min [10.0, 10.0]"
    assert TimeToScore((600.0,), 0, 1200.0).text() == "10.0 min"
    assert TimeToScore((480.0, 600.0), 1, 1200.0).median == 600.0


def test_times_to_score_are_written_as_other_numbers_of_tables_however_long_they_are():
    """75.0, and not 75, stands beside 75.0; 1,234 is neither 1.23e+03 nor 1,230."""
    long, most = 60.0 * 1234.0, 60.0 * 12345.0
    assert TimeToScore((long, 60.0 * 75.0), 0, most).text() == "1,234; 75.0 min"
    assert TimeToScore((long,) * 5, 0, most).text() == "1,234 min [1,234, 1,234]"
    assert TimeToScore((long,), 1, most).text() == "1 of 2 in 1,234 min, 1 not reached in 12,345 min"
    assert TimeToScore((60.0 * 4.567,), 0, most).text() == "4.57 min"
