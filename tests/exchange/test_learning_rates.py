from __future__ import annotations

import dataclasses
import math

import pytest

from ddrl import plugins
from ddrl.errors import UsageError
from ddrl.exchange.learning_rates import rate_of
from ddrl.exchange.settings import OptimizerConfig


def test_learning_rate_schedules():
    constant = OptimizerConfig(learning_rate=0.5)
    assert rate_of(constant, 32)(0) == rate_of(constant, 32)(10**9) == 0.5
    linear = dataclasses.replace(
        constant, learning_rate_schedule="linear", learning_rate_end=0.1, learning_rate_updates=100
    )
    assert [rate_of(linear, 32)(v) for v in (0, 50, 100, 500)] == pytest.approx([0.5, 0.3, 0.1, 0.1])


def test_the_built_in_schedules_keep_their_arithmetic_to_the_bit():
    """A run that is resumed goes on with the same rates, to the bit."""
    config = OptimizerConfig(
        learning_rate=2.5e-4,
        learning_rate_schedule="linear",
        learning_rate_end=1e-5,
        learning_rate_updates=997,
        learning_rate_scaling="sqrt",
        learning_rate_batch=96,
        warmup_updates=77,
    )
    for version in (0, 1, 50, 76, 77, 500, 996, 997, 2_000):
        rate = 1e-5 + (2.5e-4 - 1e-5) * (1.0 - min(version / 997, 1.0))
        rate *= math.sqrt(320 / 96)
        rate *= min((version + 1) / 77, 1.0)
        assert rate_of(config, 320)(version) == rate
        constant = dataclasses.replace(config, learning_rate_schedule="constant", warmup_updates=0)
        assert rate_of(constant, 320)(version) == 2.5e-4 * math.sqrt(320 / 96)


@pytest.mark.parametrize(
    "scaling, batch, rate", [("linear", 1024, 0.5 * 8), ("sqrt", 1152, 0.5 * 3), ("sqrt", 32, 0.25)]
)
def test_the_rate_grows_with_the_effective_batch(scaling, batch, rate):
    config = OptimizerConfig(learning_rate=0.5, learning_rate_scaling=scaling, learning_rate_batch=128)
    assert rate_of(config, batch)(7) == pytest.approx(rate)
    assert rate_of(config, 128)(7) == 0.5


def test_warm_up_is_over_after_its_updates_and_keeps_to_the_schedule():
    config = OptimizerConfig(
        learning_rate=1.0,
        warmup_updates=4,
        learning_rate_schedule="linear",
        learning_rate_end=0.0,
        learning_rate_updates=10,
    )
    rates = [rate_of(config, 32)(version) for version in range(6)]
    assert rates == pytest.approx([0.25 * 1.0, 0.5 * 0.9, 0.75 * 0.8, 0.7, 0.6, 0.5])


def test_a_schedule_of_a_plugin_gets_what_is_left_both_rates_and_its_options():
    given = []

    def steps(left, start, end, factor=0.5):
        given.append((left, start, end))
        return start if left > 0.5 else max(start * factor, end)

    plugins.register_learning_rate_schedule("steps", steps)
    config = OptimizerConfig(
        learning_rate=0.8,
        learning_rate_schedule="steps:factor=0.25",
        learning_rate_end=0.1,
        learning_rate_agent_steps=1_000,
        learning_rate_scaling="linear",
        learning_rate_batch=64,
    )
    assert [rate_of(config, 128, 20.0)(version) for version in (0, 30, 100)] == pytest.approx([1.6, 0.4, 0.4])
    assert given[-3:] == [(1.0, 0.8, 0.1), (pytest.approx(0.4), 0.8, 0.1), (0.0, 0.8, 0.1)]


@pytest.mark.parametrize(
    "text, said",
    [
        ("linea", "must be one of constant, linear, .*, or what a --plugin registers; did you mean linear"),
        ("linear:power=2", "its function fails: TypeError: linear.. got an unexpected keyword argument 'power'"),
        ("broken", "its function fails: ZeroDivisionError: .*test_learning_rates.py, line"),
        ("negative", "where 0.5 of it is left, its function gave -0.5; have it return a finite number of at least 0"),
        ("nothing", "where 1 of it is left, its function gave None; have it"),
        ("infinite", "where 0 of it is left, its function gave inf; have it"),
    ],
)
def test_a_schedule_that_gives_no_rate_is_refused_with_the_settings(text, said):
    for name, schedule in {
        "broken": lambda left, start, end: start / (left - 0.5),
        "negative": lambda left, start, end: -0.5 if left == 0.5 else start,
        "nothing": lambda left, start, end: None,
        "infinite": lambda left, start, end: start if left else float("inf"),
    }.items():
        plugins.register_learning_rate_schedule(name, schedule)
    with pytest.raises(UsageError, match=f"^--learning-rate-schedule {text}: {said}"):
        OptimizerConfig(learning_rate_schedule=text)


def test_rates_between_the_points_that_were_tried_are_checked_too():
    nan = lambda left, start, end: float("nan") if 0.5 < left < 1.0 else start
    plugins.register_learning_rate_schedule("holes", nan)
    config = OptimizerConfig(learning_rate_schedule="holes", learning_rate_updates=100)
    with pytest.raises(UsageError, match="where 0.75 of it is left, its function gave nan"):
        rate_of(config, 32)(25)
