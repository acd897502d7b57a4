from __future__ import annotations

import dataclasses

import pytest

from ddrl.exchange.learning_rates import learning_rate
from ddrl.exchange.settings import OptimizerConfig


def test_learning_rate_schedules():
    constant = OptimizerConfig(learning_rate=0.5)
    assert learning_rate(constant, 0) == learning_rate(constant, 10**9) == 0.5
    linear = dataclasses.replace(
        constant, learning_rate_schedule="linear", learning_rate_end=0.1, learning_rate_updates=100
    )
    assert [learning_rate(linear, v) for v in (0, 50, 100, 500)] == pytest.approx([0.5, 0.3, 0.1, 0.1])


@pytest.mark.parametrize(
    "scaling, batch, rate", [("linear", 1024, 0.5 * 8), ("sqrt", 1152, 0.5 * 3), ("sqrt", 32, 0.25)]
)
def test_the_rate_grows_with_the_effective_batch(scaling, batch, rate):
    config = OptimizerConfig(learning_rate=0.5, learning_rate_scaling=scaling, learning_rate_batch=128)
    assert learning_rate(config, 7, batch) == pytest.approx(rate)
    assert learning_rate(config, 7, 128) == 0.5


def test_warm_up_is_over_after_its_updates_and_keeps_to_the_schedule():
    config = OptimizerConfig(
        learning_rate=1.0,
        warmup_updates=4,
        learning_rate_schedule="linear",
        learning_rate_end=0.0,
        learning_rate_updates=10,
    )
    rates = [learning_rate(config, version) for version in range(6)]
    assert rates == pytest.approx([0.25 * 1.0, 0.5 * 0.9, 0.75 * 0.8, 0.7, 0.6, 0.5])
