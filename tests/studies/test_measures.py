"""Metrics of Liu et al. 2020 and bootstrap intervals, against cases made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.reporting.metrics import without_undone
from ddrl.studies.collect import runs_table
from ddrl.studies.measures import (
    AGENT_STEP_RATE,
    EVALUATION,
    ONLINE,
    final_metric,
    final_time_metric,
    given_seconds,
    last_score,
    rate_per_second,
    required_time,
    steps_to,
    times_to,
)
from ddrl.studies.statistics import Interval, TimeToScore, bootstrap, bootstrap_ratio, bootstrap_rows
from tests.studies import support


def evaluations(means, games=10, every=60.0, timed_out=()):
    return [
        {
            "kind": "evaluation",
            "mean": mean,
            "games": games,
            "wall_seconds": every * i,
            "timed_out": int(i in timed_out),
        }
        for i, mean in enumerate(means, 1)
    ]


def test_the_final_metric_is_the_mean_of_the_last_ten_policies():
    assert final_metric(evaluations([0.0] * 5 + [1.0] * 5 + [3.0] * 5)) == pytest.approx(2.0)


def test_the_final_metric_of_fewer_policies_is_that_of_all():
    assert final_metric(evaluations([1.0, 2.0])) == pytest.approx(1.5)
    assert final_metric([]) is None


def test_policies_count_by_their_games():
    assert final_metric([*evaluations([1.0], games=30), *evaluations([5.0], games=10)]) == pytest.approx(2.0)


def test_an_evaluation_that_time_cut_off_does_not_count():
    records = evaluations([1.0] * 10 + [9.0], timed_out=(11,))
    assert final_metric(records) == 1.0
    assert final_metric(evaluations([9.0], timed_out=(1,))) is None


def test_the_final_time_metric_sees_what_was_there_at_the_limit():
    records = evaluations([1.0, 2.0, 30.0])
    assert final_time_metric(records, 120.0) == pytest.approx(1.5)
    assert final_time_metric(records, 119.9) == 1.0
    assert final_time_metric(records, 10.0) is None


def test_the_required_time_is_when_the_running_mean_first_reaches_the_score():
    records = evaluations([0.0] * 10 + [1.0] * 10 + [0.0] * 10)
    assert required_time(records, 0.4) == 60.0 * 14
    assert required_time(records, 0.8) == 60.0 * 18
    assert required_time(records, 1.01) is None


def test_nine_policies_reach_nothing_however_good():
    assert required_time(evaluations([1.0] * 9), 0.4) is None
    assert required_time(evaluations([1.0] * 10), 0.4) == 600.0


def test_evaluations_that_had_no_time_for_all_their_games_reach_nothing():
    few = [record | {"games": 4, "of_games": 10} for record in evaluations([1.0] * 2)]
    assert required_time(few, 0.4, policies=1) is None
    assert required_time([*few, *evaluations([1.0], every=500.0)], 0.4, policies=1) == 500.0


def train(seconds, steps):
    return {"kind": "train", "wall_seconds": seconds, "agent_steps": steps}


def test_the_time_of_a_run_has_nothing_that_a_resume_took_back():
    """A start that died after 90 s, and went on from 60 s; the event of its lost worker is still there."""
    lost = {"kind": "event", "name": "worker_lost", "text": "", "wall_seconds": 89.0}
    resumed = {"kind": "event", "name": "resumed", "text": "", "wall_seconds": 60.0}
    records = without_undone([train(30, 300), train(60, 600), lost, train(90, 900), resumed, train(80, 800)])
    assert lost in records and given_seconds(support.outcome({}, records)) == 80.0


@pytest.mark.parametrize(
    ("reached", "text"),
    [
        ((3,), "3,000"),
        ((3, 1, 9), "3,000; 1,000; never"),
        ((9, 1), "never; 1,000"),
        ((9, 9), "never; never"),
        ((1, 2, 3, 9, 9), "3 of 5 in 2,000, 2 never"),
        ((9, 9, 9, 9, 9), "never"),
        ((1, 2, 3, 4, 5), "3,000"),
    ],
)
def test_agent_steps_to_an_online_score(reached, text):
    """Each run has 0 before the score, 1 after it; the first mean is of too few games to count."""
    runs = []
    for steps in reached:
        early = {"kind": "train", ONLINE: 1.0, "episodes": 20, "wall_seconds": 0.5, "agent_steps": 500}
        later = [train(second, 1000 * second) | {ONLINE: float(second >= steps)} for second in range(1, 8)]
        runs.append(support.outcome({"seed": steps}, [early, *later]))
    found = steps_to(runs, ONLINE, 0.5)
    assert (found if isinstance(found, str) else f"{found.mean:,.0f}") == text


def test_the_agent_steps_of_a_run_are_not_those_of_its_last_evaluation():
    """Whose parameters are older, where it was still playing when the run went on."""
    older = {"kind": "evaluation", EVALUATION: 1.0, "games": 5, "wall_seconds": 6.0, "agent_steps": 600}
    runs = runs_table(support.FakeSettings(), [support.outcome({"size": 1}, [train(6, 600), train(10, 1000), older])])
    assert dict(zip(runs.columns, runs.rows[0]))["agent steps"] == 1000


def test_the_rate_leaves_out_the_warm_up_and_the_end():
    records = [train(1, 10), train(5, 100), {"kind": "event", "wall_seconds": 6}, train(9, 500), train(13, 501)]
    assert rate_per_second(records, AGENT_STEP_RATE, 4.0) == pytest.approx(100.0)
    assert rate_per_second(records, AGENT_STEP_RATE, 6.0) is None
    assert rate_per_second([], AGENT_STEP_RATE, 0.0) is None


def test_the_rate_is_that_of_training_without_the_final_evaluation():
    lines = [train(5 * i, 500 * i) | {"update": i} for i in range(1, 13)]
    lines += [train(60 + 5 * i, 6_000) | {"update": 12} for i in range(1, 5)]
    assert rate_per_second(lines, AGENT_STEP_RATE, 10.0) == pytest.approx(100.0)


def test_the_limit_of_a_run_that_missed_a_score_is_the_time_that_it_trained():
    """20 s of its 80 s were the final evaluation, whose parameters are those after 60 s."""
    lines = [train(5 * i, 500 * i) | {"update": i} for i in range(1, 13)]
    lines += [train(60 + 5 * i, 6_000) | {"update": 12} for i in range(1, 5)]
    run = support.outcome({}, [*lines, *evaluations([1.0])])
    assert given_seconds(run) == 80.0
    assert times_to([run], EVALUATION, 2.0) == TimeToScore((), 1, 60.0)
    assert times_to([run], EVALUATION, 1.0) == TimeToScore((60.0,), 0, 60.0)


def test_each_start_of_a_run_has_a_warm_up_that_the_rate_leaves_out():
    """100 agent steps/s, stopped after 10 s; the second start takes 5 s before it trains as fast."""
    first = [train(second, 100 * second) | {"datapoints_per_s": 100.0} for second in range(1, 11)]
    resumed = {"kind": "event", "name": "resumed", "text": "from update 10", "wall_seconds": 10.0}
    starting = [train(10 + second, 1000) | {"datapoints_per_s": 0.0} for second in range(1, 6)]
    second = [train(15 + second, 1000 + 100 * second) | {"datapoints_per_s": 100.0} for second in range(1, 11)]
    whole = [*first, resumed, *starting, *second]
    for name in (AGENT_STEP_RATE, "datapoints_per_s"):
        assert rate_per_second(whole, name, 5.0) == pytest.approx(100.0)
        assert rate_per_second([*first, resumed, *starting], name, 5.0) == pytest.approx(100.0)
        assert rate_per_second([*first[:3], resumed, *starting], name, 5.0) is None


def test_the_bootstrap_is_that_of_a_slow_reference():
    values, random = [1.0, 2.0, 4.0, 8.0, 16.0], np.random.default_rng(0)
    means = sorted(np.mean([values[i] for i in row]) for row in random.integers(5, size=(2000, 5)))
    (found,) = bootstrap_rows(np.array([values]), 2000)
    assert found.mean == pytest.approx(6.2)
    # 3.10 deviations, of Student's t with 4 degrees of freedom: see the module.
    assert found.low == pytest.approx(np.quantile(means, 0.000954), rel=1e-3)
    assert found.high == pytest.approx(np.quantile(means, 1 - 0.000954), rel=1e-3)
    assert [found] == bootstrap_rows(np.array([values]), 2000)


def test_one_value_has_no_spread_and_none_has_no_mean():
    assert bootstrap([3.0, None]) == Interval(3.0)
    assert bootstrap([None]) is None


def test_the_interval_covers_the_mean_about_as_often_as_it_says():
    intervals = bootstrap_rows(np.random.default_rng(0).normal(1.0, 1.0, (200, 30)), 400)
    assert 0.88 < np.mean([i.low <= 1.0 <= i.high for i in intervals]) < 0.99


def test_a_ratio_is_that_of_the_means_and_its_interval_holds_it():
    found = bootstrap_ratio([2.0, 4.0, 3.0, 3.0, 3.0], [1.0, 2.0, 1.5, 1.5, 1.5])
    assert found.mean == pytest.approx(2.0)
    assert 1.0 <= found.low < 2.0 < found.high <= 4.0
    assert bootstrap_ratio([2.0, 4.0], [1.0, 2.0]) == Interval(2.0, None, None, 2)
    assert bootstrap_ratio([2.0], [1.0]) == Interval(2.0)
    assert bootstrap_ratio([], [1.0]) is None and bootstrap_ratio([1.0], [None]) is None


def test_the_last_score_is_of_all_games_of_an_evaluation():
    whole = {"kind": "evaluation", EVALUATION: 12.0, "games": 50, "of_games": 50, "wall_seconds": 60.0}
    one_game = whole | {EVALUATION: -3.0, "games": 1, "wall_seconds": 120.0}
    assert last_score(EVALUATION)(support.outcome({}, [whole, one_game])) == 12.0
    assert last_score(EVALUATION)(support.outcome({}, [one_game])) is None
