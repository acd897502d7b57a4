"""The sparse all-reduce against a slow transcription, over a fake network with deaths, over MPI, and in a whole run."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from ddrl.exchange.messages import Kind
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig
from ddrl.exchange.statistics import Moments, Statistics, packed, unpacked
from tests.examples.conftest import EXAMPLES
from tests.exchange.allreduce import fake_replicas
from tests.exchange.allreduce.test_replica import check, living
from tests.exchange.fake import RATE
from tests.exchange.job import Job
from tests.exchange.local_sgd.world import gradient
from tests.parallel import linear_model as model
from tests.parallel.support import finish, mpirun, needs_mpirun, newest, result

SIZE, WORKERS, STEPS = 24, 3, 12
SGD = OptimizerConfig(optimizer="sgd")
ADAM = OptimizerConfig(beta1=0.8, beta2=0.75, adam_epsilon=1e-3, clip_global_norm=0.5)
BAD = (1, 4)  # worker and step whose gradient is not finite
FILE = EXAMPLES / "sparse_allreduce.py"
RANKS = Path(__file__).with_name("ranks_sparse_allreduce.py")


class CountingJob(Job):
    """Counts the bytes that go from one process to another with gradients and averages."""

    sent = 0

    def _send(self, sender, messages):
        messages = list(messages)
        parts = [m for m in messages if m.peer != sender and m.header.kind in (Kind.SLICE, Kind.AVERAGE)]
        self.sent += sum(m.payload.nbytes for m in parts)
        super()._send(sender, messages)


@pytest.fixture
def sparse(example, monkeypatch):
    """Share -> the module, whose exchange sends that share."""

    def load(share):
        module = example("sparse_allreduce")
        monkeypatch.setattr(module.SparseAllreduce, "share", share)
        return module

    return load


def start():
    return np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)


def mostly_finite(worker, step, theta):
    vector = gradient(worker, theta).astype(np.float32)
    return np.full_like(vector, np.nan) if (worker, step) == BAD else vector


def job_of(name, optimizer, run_dir, gradients, workers=WORKERS, theta=None, **options):
    config = ExchangeConfig(exchange=name, workers=workers)
    return CountingJob(config, optimizer, start() if theta is None else theta, run_dir, gradients, **options)


def transcription(theta, gradients, members_of_steps, share, rate):
    """Parameters <float64>[N] after these steps of SGD, and worker -> error; a step without members is refused."""
    errors = {}
    for step, members in enumerate(members_of_steps):
        if not members:
            continue
        total_sent = np.zeros(theta.size)
        for worker in members:
            total = errors.get(worker, np.zeros(theta.size)) + gradients(worker, step, theta)
            first = sorted(range(theta.size), key=lambda i: (-abs(total[i]), i))[: max(1, round(share * theta.size))]
            sent = np.zeros(theta.size)
            for i in first:
                sent[i] = total[i]
            errors[worker] = total - sent
            total_sent += sent
        theta = theta - rate * total_sent / len(members)
    return theta, errors


@pytest.mark.parametrize("share", [1.0, 0.3, 0.01])
def test_parameters_and_errors_equal_the_transcription(sparse, tmp_path, share):
    sparse(share)
    job = job_of("sparse_allreduce", SGD, tmp_path, mostly_finite)
    job.run(STEPS)
    assert [closed.refused for closed in job.closed] == [(1,) if step == BAD[1] else () for step in range(STEPS)]
    everyone = tuple(range(WORKERS))
    members = [() if step == BAD[1] else everyone for step in range(STEPS)]
    exact = lambda worker, step, theta: gradient(worker, theta)
    theta, errors = transcription(start().astype(np.float64), exact, members, share, 0.1)
    for worker in everyone:
        np.testing.assert_allclose(job.clients[worker].snapshot.parameters, theta, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(job.servers[worker].feedback.error, errors[worker], rtol=1e-4, atol=1e-5)
        assert job.clients[worker].snapshot.parameters.tobytes() == job.clients[0].snapshot.parameters.tobytes()
        assert np.count_nonzero(errors[worker]) >= (0 if share == 1.0 else SIZE // 2)


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_with_all_values_it_is_the_all_reduce(sparse, tmp_path, optimizer):
    sparse(1.0)
    jobs = [job_of(name, optimizer, tmp_path, mostly_finite) for name in ("sparse_allreduce", "allreduce")]
    np.testing.assert_array_equal(*(job.run(STEPS) for job in jobs))
    np.testing.assert_array_equal(*(job.stop() for job in jobs))
    assert jobs[1].sent == (STEPS - 1) * 2 * 4 * SIZE * (WORKERS - 1) + 4 * SIZE * (WORKERS - 1), "one step is refused"
    number = 4 * WORKERS * (WORKERS - 1)  # bytes of one word in each message of a phase
    assert jobs[0].sent == jobs[1].sent + (2 * STEPS - 1) * number


def test_what_was_sent_and_the_error_are_the_sum_of_the_gradients(example):
    feedback = example("sparse_allreduce").ErrorFeedback(make_optimizer(SGD, SIZE), SIZE, 0.25)
    chance, theta = np.random.default_rng(0), start()
    gradients, all_sent = chance.integers(-50, 50, (30, SIZE)).astype(np.float32), np.zeros(SIZE)
    for vector in gradients:  # small integers: float32 adds them exactly
        feedback.sent(np.full(SIZE, 1e6, np.float32))  # of a step that is refused: it is never applied
        sent = feedback.sent(vector)
        assert np.count_nonzero(sent) <= SIZE // 4
        feedback.apply(theta, [sent], 0.0, 1.0, theta)
        all_sent += sent
    np.testing.assert_array_equal(all_sent + feedback.error, gradients.sum(axis=0))
    assert np.count_nonzero(feedback.error) > SIZE // 4 and feedback.count == 30


def test_the_largest_are_the_first_of_equal_ones(example):
    largest = example("sparse_allreduce").largest
    assert sorted(largest(np.array([1, -3, 3, 2, -3], np.float32), 2)) == [1, 2]
    assert sorted(largest(np.zeros(4, np.float32), 3)) == [0, 1, 2]
    assert sorted(largest(np.array([5, 0, -7], np.float32), 3)) == [0, 1, 2]


@pytest.mark.parametrize("values", [[], [0], [0, 8], [1, 3, 6], list(range(5)), list(range(9))], ids=str)
def test_indices_and_values_become_the_part_again(example, values):
    module = example("sparse_allreduce")
    replica = module.SparseReplica(0, {0: 0, 1: 1}, 0, 9, make_optimizer(SGD, 9), lambda version: 0.1, share=0.5)
    part = np.zeros(9, np.float32)
    part[values] = np.arange(1, len(values) + 1)
    payload = replica.encoded(part)
    assert payload.dtype == np.float32 and payload.size == 1 + min(2 * len(values), 9) <= replica.most_floats(9)
    received = np.full(replica.most_floats(9), np.nan, np.float32)  # as long as the receive that is posted
    received[: payload.size] = payload
    np.testing.assert_array_equal(replica.decoded(received, 9), part)


@pytest.mark.parametrize("workers", [2, 3])
def test_few_bytes_are_sent_and_no_more_than_it_says(sparse, tmp_path, workers):
    sparse(0.02)
    size, draw = 600, lambda worker, step, theta: np.random.default_rng((worker, step)).normal(size=theta.size)
    vector = lambda *where: draw(*where).astype(np.float32)
    theta = np.zeros(size, np.float32)
    jobs = [job_of(name, SGD, tmp_path, vector, workers, theta) for name in ("sparse_allreduce", "allreduce")]
    for job in jobs:
        job.run(STEPS)
    config = ExchangeConfig(exchange="sparse_allreduce", workers=workers)
    says = config.kind.bytes_per_update(config, size, 0)
    number, others = 12, workers - 1  # 12 = 0.02 x 600
    assert says == 4 * (2 * workers * number * (1 + others) + 2 * workers * others)
    assert says / 2 < jobs[0].sent / STEPS <= says
    assert jobs[0].sent < jobs[1].sent / 5


def test_running_statistics_are_sent_whole(sparse, tmp_path):
    sparse(0.01)
    statistics = Statistics(SIZE, (1,))
    theta = np.concatenate([start(), np.zeros(statistics.size, np.float32)])

    def with_statistics(worker, step, theta):
        seen = packed(Moments(1.0, np.array([float(worker)]), np.zeros(1)))
        return np.concatenate([gradient(worker, theta[:SIZE]).astype(np.float32), seen])

    job = job_of("sparse_allreduce", SGD, tmp_path, with_statistics, 2, theta, statistics=statistics)
    moments = unpacked(statistics.of(job.run(STEPS)))
    assert moments.count == 2 * STEPS
    np.testing.assert_allclose((moments.mean[0], moments.variance[0]), (0.5, 0.25), rtol=1e-9)
    assert job.servers[0].feedback.error.size == SIZE


def test_the_others_go_on_without_dead_workers_wherever_they_die(example, monkeypatch):
    module, size = example("sparse_allreduce"), 9
    monkeypatch.setattr(fake_replicas, "Replica", functools.partial(module.SparseReplica, share=0.25))
    drawn = lambda worker, step: np.random.default_rng((worker, step)).normal(size=size).astype(np.float32)
    deaths = 0
    for seed in range(100):
        rng, remaining = random.Random(seed), 2
        world = fake_replicas.Replicas(workers=4, steps=5, size=size)
        world.gradient = drawn
        while events := world.events(range(1, 4) if remaining and rng.random() < 0.1 else ()):
            event = rng.choice(events)
            remaining -= event[0] == "die"
            world.do(event)
            check(world)
        replicas = [world.replicas[w] for w in living(world)]
        assert all(replica.stopped and replica.step == 5 for replica in replicas), "the job hangs"
        assert len({replica.parameters.tobytes() for replica in replicas}) == 1
        members = [closed.members for closed in world.closed]
        at_start, exact = np.arange(size, dtype=np.float64), lambda worker, step, theta: drawn(worker, step)
        theta, errors = transcription(at_start, exact, members, 0.25, RATE)
        np.testing.assert_allclose(replicas[0].parameters, theta, rtol=1e-4, atol=1e-5)
        for replica in replicas:
            np.testing.assert_allclose(replica.feedback.error, errors[replica.worker], rtol=1e-4, atol=1e-5)
        deaths += len(world.dead)
    assert deaths > 50


@needs_mpirun
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_over_mpi_it_is_what_it_is_in_one_process_and_survivors_of_a_death_agree(example, tmp_path):
    alike = {"exchange": "sparse_allreduce", "servers": 0, "workers": 3}
    scenarios = {"whole": alike, "death": {**alike, "dies": {"worker": 1, "step": 7, "sends": 1}}}
    with mpirun(str(RANKS), 3, tmp_path, str(tmp_path), json.dumps(scenarios)) as mpi:
        assert mpi.wait(90.0) == 0, mpi.output
    example("sparse_allreduce")
    of_worker = lambda worker, step, theta: model.gradient(theta, worker, 3)
    job = job_of("sparse_allreduce", model.OPTIMIZER, tmp_path, of_worker, 3, model.start(), rate=model.RATE)
    expected = job.run(model.DEFAULTS["steps"]).tobytes()
    thetas = {
        name: [np.load(tmp_path / f"{name}-{rank}.npz")["theta"].tobytes() for rank in ranks]
        for name, ranks in (("whole", (0, 1, 2)), ("death", (0, 2)))
    }
    assert thetas["whole"] == [expected] * 3
    assert thetas["death"][0] == thetas["death"][1] != expected


@needs_mpirun
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_workers_train_with_it_and_go_on(tmp_path):
    run = tmp_path / "run"
    options = ("--plugin", str(FILE), "--exchange", "sparse_allreduce", "--preset", "smoke", "--workers", "2")
    finish(run, "ba3c", *options, "--minutes", "0", "--eval-every-updates", "20", "--max-updates", "40")
    first = newest(run)
    assert result(run)["status"] == "finished" and first.version == 40
    finish(run, "--resume", str(run), "--max-updates", "60")
    last = newest(run)
    assert last.version == 60 and np.isfinite(last.parameters).all()
    assert (last.parameters != first.parameters).any()
