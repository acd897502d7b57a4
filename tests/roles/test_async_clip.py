"""A gradient that is applied by itself is clipped by the worker that sends it; others by those who average them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from cluster.roles import Sizes, assign_roles
from ddrl.exchange.messages import Header, Kind, Message
from ddrl.exchange.sharding import shard_ranges
from ddrl.job.layout import JobContext, JobLayout
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.trainer import Gradient
from ddrl.roles.worker import WorkerRole
from ddrl.types import Snapshot
from tests.roles.chief_play import Sent
from tests.test_combinations import config_of

SIZE, LIMIT = 7, 0.5
LARGE = np.float32([3.0, -1.0, 2.0, 0.5, -4.0, 0.0, 1.0])
SERVERS = {"workers": 2, "exchange": "parameter_server", "parameter_servers": 2}
ASYNCHRONOUS = {
    "servers": ("ba3c", SERVERS | {"updates": "asynchronous"}),
    "a3c": ("a3c", {"workers": 2}),
    "appo": ("appo", {"workers": 2}),
}
SYNCHRONOUS = {
    "servers": ("ba3c", SERVERS),
    "allreduce": ("a2c", {"workers": 2, "exchange": "allreduce", "parameter_servers": None}),
}


def cast_of(config):
    """Two workers, and their servers: in ranks of their own, or in the workers' processes."""
    exchange = config.exchange
    layout = JobLayout.from_assignments(assign_roles(Sizes(exchange.workers, exchange.servers, evaluator=False)))
    return layout if exchange.servers else layout.with_hosted_servers(layout.workers[1])


def sent(run_dir, exchange, gradient, limit=LIMIT):
    """What worker 1 sends of a gradient, by shard."""
    name, changes = exchange
    config = config_of(name, "smoke", **changes)
    optimizer = dataclasses.replace(config.optimizer, clip_global_norm=limit)
    context = JobContext(dataclasses.replace(config, optimizer=optimizer), run_dir, cast_of(config))
    schedule = SimpleNamespace(update=lambda snapshot: None, stop=lambda: None)
    network, transport = SimpleNamespace(size=SIZE, parameter_shapes=()), Sent()
    role = WorkerRole(context, transport, 1, network, schedule, None, RankMetrics("worker", 1), lambda: None)
    servers = context.layout.servers
    for shard, (start, stop) in enumerate(shard_ranges(SIZE, len(servers))):
        header = Header(Kind.PARAMETERS, sender=shard, step=3, version=3)
        role.handle(Message(servers[shard], header, np.zeros(stop - start, np.float32)))
    role.trainer.gradients.put(Gradient(gradient, Snapshot(3, 3, None), 64, True))
    role.advance()
    messages = transport.take(Kind.GRADIENT)
    assert tuple(message.peer for message in messages) == servers
    return [message.payload for message in messages]


def of(exchanges):
    return pytest.mark.parametrize("exchange", exchanges.values(), ids=exchanges)


@of(ASYNCHRONOUS)
def test_a_large_gradient_is_sent_with_the_norm_of_the_limit(exchange, tmp_path):
    before = LARGE.copy()
    whole = np.concatenate(sent(tmp_path, exchange, LARGE))
    assert whole.dtype == np.float32 and np.linalg.norm(whole) == pytest.approx(LIMIT, rel=1e-6)
    np.testing.assert_allclose(whole, LARGE * LIMIT / np.linalg.norm(LARGE), rtol=1e-6)
    np.testing.assert_array_equal(LARGE, before)


def test_a_gradient_whose_squares_leave_float32_keeps_its_direction(tmp_path):
    gradient = np.zeros(SIZE, np.float32)
    gradient[:2] = 3e20, -4e20
    whole = np.concatenate(sent(tmp_path, ASYNCHRONOUS["a3c"], gradient))
    np.testing.assert_allclose(whole[:2], [0.6 * LIMIT, -0.8 * LIMIT], rtol=1e-6)


def test_it_is_the_norm_of_all_shards_together(tmp_path):
    """Each of two shards is below the limit, and the whole is not."""
    gradient = np.full(SIZE, 0.2, np.float32)
    shards = sent(tmp_path, ASYNCHRONOUS["servers"], gradient)
    assert [len(shard) for shard in shards] == [4, 3] and np.linalg.norm(gradient[:4]) < LIMIT
    np.testing.assert_allclose(np.concatenate(shards), LIMIT / np.sqrt(SIZE), rtol=1e-6)


@of(ASYNCHRONOUS)
def test_a_gradient_within_the_limit_is_sent_to_the_bit(exchange, tmp_path):
    for norm in (0.0, 0.1, 0.999 * LIMIT):
        gradient = (LARGE * norm / np.linalg.norm(LARGE)).astype(np.float32)
        np.testing.assert_array_equal(np.concatenate(sent(tmp_path, exchange, gradient)), gradient, strict=True)


@of(ASYNCHRONOUS)
def test_without_a_limit_every_gradient_is_sent_to_the_bit(exchange, tmp_path):
    np.testing.assert_array_equal(np.concatenate(sent(tmp_path, exchange, LARGE, limit=0.0)), LARGE, strict=True)


@of(SYNCHRONOUS)
def test_a_gradient_that_will_be_averaged_is_sent_as_it_is(exchange, tmp_path):
    """The clip is of the mean, which no worker knows."""
    np.testing.assert_array_equal(np.concatenate(sent(tmp_path, exchange, LARGE)), LARGE, strict=True)
