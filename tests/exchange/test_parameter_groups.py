"""Learning rates by ranges of the parameters, with every exchange and every optimizer."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.parameter_groups import ParameterGroup, cut, factors_of, groups_named
from ddrl.exchange.registry import NAMES
from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig
from ddrl.kernels.updates import BLOCK
from tests.exchange.job import Job

SIZE, RATE = 11, 0.3
GROUPS = (ParameterGroup(3, 8, 0.5),)  # across the border of two shards, and of chunks of a store
HALF = slice(3, 8)
WAYS = {
    "parameter_server": [{"parameter_servers": 2}, {"parameter_servers": 2, "updates": "asynchronous"}],
    "central_store": [{}, {"local_steps": 2}],
    "local_sgd": [{"local_steps": 2}],
}
CASES = [(name, options) for name in NAMES for options in WAYS.get(name, [{}])]
RULES = ["adam", "rmsprop", "rmsprop-centered", "sgd"]


def gradient(worker, step, parameters):
    return np.random.default_rng((worker, step)).standard_normal(parameters.size).astype(np.float32)


def trained(run_dir, name, options, rule, rate, groups):
    config = ExchangeConfig(exchange=name, workers=2, **options)
    theta = np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)
    job = Job(config, OptimizerConfig(optimizer=rule), theta, run_dir, gradient, rate=rate, groups=groups)
    parameters = job.run(6)
    job.close()
    return parameters


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_half_a_factor_is_half_the_learning_rate_there(tmp_path, name, options, rule):
    if name == "central_store" and sys.platform != "linux":
        pytest.skip("the store's locks are Linux's")
    if name == "central_store" and options and rule != "adam":
        pytest.skip("local steps with a central store are Adam's")
    whole = trained(tmp_path / "a", name, options, rule, RATE, ())
    half = trained(tmp_path / "b", name, options, rule, RATE / 2, ())
    grouped = trained(tmp_path / "c", name, options, rule, RATE, GROUPS)
    expected = whole.copy()
    expected[HALF] = half[HALF]
    assert (whole != half).all()
    np.testing.assert_array_equal(grouped, expected)


@pytest.mark.parametrize("rule", RULES)
def test_an_optimizer_knows_its_groups_in_every_block_and_ahead_of_time(rule):
    config, size = OptimizerConfig(optimizer=rule), BLOCK + 5
    groups = (ParameterGroup(0, 2, 0.0), ParameterGroup(BLOCK - 1, BLOCK + 2, 0.5))
    theta, gradient = np.ones(size, np.float32), np.linspace(1.0, 2.0, size, dtype=np.float32)
    grouped, whole, half = theta.copy(), theta.copy(), theta.copy()
    make_optimizer(config, size, groups).apply(grouped, gradient, RATE)
    make_optimizer(config, size).apply(whole, gradient, RATE)
    make_optimizer(config, size).apply(half, gradient, RATE / 2)
    whole[:2], whole[BLOCK - 1 : BLOCK + 2] = 1.0, half[BLOCK - 1 : BLOCK + 2]
    np.testing.assert_array_equal(grouped, whole)
    ahead = make_optimizer(config, size, groups).prepare(theta, gradient, RATE, 1.0)
    np.testing.assert_array_equal(ahead, whole)


def test_a_slice_counts_its_groups_from_its_start():
    groups = (ParameterGroup(0, 4, 0.5), ParameterGroup(6, 20, 2.0))
    assert cut(groups, 2, 10) == (ParameterGroup(0, 2, 0.5), ParameterGroup(4, 8, 2.0))
    assert cut(groups, 4, 6) == () and cut((), 0, 10) == ()
    assert factors_of((), 3) is None
    np.testing.assert_array_equal(factors_of(cut(groups, 2, 8), 6), np.float32([0.5, 0.5, 1, 1, 2, 2]))


@pytest.mark.parametrize(
    "groups",
    [[(0, 11, 1.0)], [(3, 3, 1.0)], [(-1, 3, 1.0)], [(0, 5, 1.0), (4, 6, 1.0)], [(0, 5, -1.0)], [(0, 5, float("nan"))]],
)
def test_groups_that_make_no_sense_are_an_error(groups):
    with pytest.raises(ValueError, match="is no group of 10 parameters"):
        factors_of([ParameterGroup(*group) for group in groups], 10)


def test_groups_are_named_by_the_beginnings_of_their_tensors():
    tensors = (("policy0/kernel", (2, 3)), ("policy0/bias", (3,)), ("critic0/kernel", (2, 1)), ("temperature/log", ()))
    found = groups_named(tensors, {"policy": 0.5, "temperature": 2.0})
    assert found == (ParameterGroup(0, 6, 0.5), ParameterGroup(6, 9, 0.5), ParameterGroup(11, 12, 2.0))
    assert groups_named(tensors, {}) == ()
    with pytest.raises(ValueError, match=r"no tensor is called value...: there are policy0/kernel"):
        groups_named(tensors, {"value": 2.0})
