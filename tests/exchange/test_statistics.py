"""Running statistics in the flat vector: against float64 over all samples, through every exchange."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.exchange.messages import Flag, Header, Kind
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.parameter_server.server_shard import ServerShard
from ddrl.exchange.registry import NAMES
from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig
from ddrl.exchange.statistics import (
    Moments,
    Statistics,
    block_size,
    merged_moments,
    moments_of,
    packed,
    statistics_in,
    unpacked,
)
from tests.exchange.job import Job

PARAMETERS, STEPS = 40, 6
STATISTICS = Statistics(PARAMETERS, (2, 1))
SIZE = STATISTICS.stop
WAYS = {
    "parameter_server": [{"parameter_servers": 2}, {"parameter_servers": 2, "updates": "asynchronous"}],
    "central_store": [{}, {"local_steps": 2}],
    "local_sgd": [{"local_steps": 2}],
}
CASES = [(name, options) for name in NAMES for options in WAYS.get(name, [{}])]


def samples(worker, step):
    """Rows of two components and rows of one, as many as worker and step say; sometimes none."""
    random, count = np.random.default_rng((worker, step)), (3 * worker + step) % 5
    first = (1e4 + random.standard_normal((count, 2)) * [1.0, 30.0]).astype(np.float32)
    return first, random.standard_normal((count + 1, 1))


def gradient(worker, step, parameters):
    values = np.random.default_rng((worker, step)).standard_normal(PARAMETERS)
    return np.concatenate([values, *map(packed, map(moments_of, samples(worker, step)))]).astype(np.float32)


def trained(run_dir, name, options, gradient=gradient, statistics=STATISTICS, optimizer=None, rate=0.1, size=SIZE):
    config = ExchangeConfig(exchange=name, workers=2, **options)
    theta = np.zeros(size, np.float32)
    theta[:PARAMETERS] = np.linspace(-1.0, 1.0, PARAMETERS)
    optimizer = optimizer or OptimizerConfig()
    job = Job(config, optimizer, theta, run_dir, gradient, rate=rate, statistics=statistics)
    job.run(STEPS)
    state = job.stop()
    job.close()
    return state[0]


def skipped(name):
    if name == "central_store" and sys.platform != "linux":
        pytest.skip("the store's locks are Linux's")


def check(parameters, left_out=()):
    """The slow reference: mean and variance over the samples of both workers at once."""
    seen = zip(*(samples(w, s) for w in range(2) for s in range(STEPS) if (w, s) not in left_out))
    blocks = np.split(STATISTICS.of(parameters), [block_size(2)])
    for block, several in zip(blocks, seen, strict=True):
        rows = np.concatenate([np.asarray(each, np.float64) for each in several])
        moments = unpacked(block)
        assert moments.count == len(rows)
        np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments.variance, rows.var(axis=0), rtol=1e-9)


@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_every_exchange_has_the_statistics_of_all_samples_of_all_workers(tmp_path, name, options):
    skipped(name)
    check(trained(tmp_path, name, options))


@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_parameters_are_as_without_statistics(tmp_path, name, options):
    skipped(name)
    clip = OptimizerConfig(clip_global_norm=0.5)
    alone = lambda *arguments: gradient(*arguments)[:PARAMETERS]
    with_statistics = trained(tmp_path / "a", name, options, optimizer=clip)
    without = trained(tmp_path / "b", name, options, alone, None, clip, size=PARAMETERS)
    np.testing.assert_array_equal(with_statistics[:PARAMETERS], without)


@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_no_setting_of_the_optimizer_reaches_the_statistics(tmp_path, name, options):
    skipped(name)
    usual = STATISTICS.of(trained(tmp_path / "a", name, options))
    other = OptimizerConfig(beta1=0.5, beta2=0.9, adam_epsilon=0.1, clip_global_norm=1e-3)
    np.testing.assert_array_equal(
        STATISTICS.of(trained(tmp_path / "b", name, options, optimizer=other, rate=7.0)), usual
    )


def test_two_exchanges_of_synchronous_steps_have_the_same_bits(tmp_path):
    servers = trained(tmp_path / "a", "parameter_server", {"parameter_servers": 2})
    np.testing.assert_array_equal(trained(tmp_path / "b", "allreduce", {}), servers)


@pytest.mark.parametrize("name, options", CASES, ids=str)
def test_a_refused_gradient_contributes_nothing(tmp_path, name, options):
    skipped(name)
    bad = (1, 3)

    def broken(worker, step, parameters):
        vector = gradient(worker, step, parameters)
        vector[-1] += np.nan if (worker, step) == bad else 0.0
        return vector

    one_by_one = name == "central_store" or options.get("updates") == "asynchronous"
    refused = [bad] if one_by_one else [(0, 3), bad]
    if name == "local_sgd":  # the whole round, at whose beginning all go on
        refused = [(worker, step) for worker in range(2) for step in (2, 3)]
    if name == "central_store" and options:
        refused.append((1, STEPS - 1))  # taken, and not yet in the store: its worker is a step behind
    check(trained(tmp_path, name, options, broken), refused)


def test_what_is_new_still_counts_in_a_long_run_and_nothing_cancels():
    random = np.random.default_rng(1)
    start = Moments(1e9, np.array([1e6]), np.array([1e-2]))
    rows, block = 1e6 + 1.0 + 0.1 * random.standard_normal((500, 1000, 1)), packed(start)
    for part in rows:
        block = packed(merged_moments(unpacked(block), unpacked(packed(moments_of(part)))))
    exact = merged_moments(start, moments_of(rows.reshape(-1, 1)))
    found = unpacked(block)
    assert found.count == 1e9 + 5e5
    np.testing.assert_allclose(found.mean - 1e6, exact.mean - 1e6, rtol=1e-4)
    np.testing.assert_allclose(found.variance, exact.variance, rtol=1e-6)


def test_a_dropped_gradient_contributes_nothing():
    """k of n: what comes after its step was closed."""
    optimizer = make_optimizer(OptimizerConfig(), SIZE, statistics=STATISTICS)
    shard = ServerShard(0, SIZE, optimizer, {0: 1, 1: 2}, 0)
    shard.handle(0, Header(Kind.LOAD, value=0.1), np.zeros(3 * SIZE, np.float32))
    for step in range(STEPS):
        for worker in range(2):
            header = Header(Kind.GRADIENT, sender=worker, step=step, version=step, flags=Flag.FINITE, count=1)
            shard.handle(1 + worker, header, gradient(worker, step, None))
            if worker == 0:
                shard.handle(0, Header(Kind.COMMIT, step=step, version=step, value=0.1, scale=1.0, members=1), None)
    assert shard.dropped == STEPS
    check(shard.parameters, [(1, step) for step in range(STEPS)])


@pytest.mark.parametrize("name", ["parameter_server", "allreduce"])
def test_more_parts_than_the_statistics_allow_are_refused(tmp_path, name):
    config = ExchangeConfig(exchange=name, workers=8, parameter_servers=8 if name == "parameter_server" else None)
    with pytest.raises(UsageError, match="16 values of the running statistics"):
        Job(config, OptimizerConfig(), np.zeros(SIZE, np.float32), tmp_path, gradient, statistics=STATISTICS)


@pytest.mark.parametrize(
    ("ranges", "moved"),
    [
        (((0, 8), (8, 16), (16, 30)), ((0, 8), (8, 15), (15, 30))),
        (((0, 15), (15, 25), (25, 30)), ((0, 15), (15, 25), (25, 30))),
        (((0, 20), (20, 30)), ((0, 25), (25, 30))),
    ],
)
def test_a_cut_within_the_statistics_moves_to_their_nearer_end(ranges, moved):
    assert Statistics(15, (2,)).uncut(ranges) == moved


def test_the_statistics_of_a_network_are_its_last_tensors():
    tensors = [("a", (4, 10)), ("normalization/observation", (10,)), ("normalization/return", (6,))]
    assert statistics_in(tensors) == STATISTICS and statistics_in(tensors[:1]) is None
    with pytest.raises(ValueError, match="not among the last"):
        statistics_in([*tensors, ("b", ())])
