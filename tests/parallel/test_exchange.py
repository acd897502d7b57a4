"""The exchanges over real MPI: payloads to the bit, and N workers on split batches equal to one process."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.sharding import from_bitmap
from tests import references
from tests.parallel import linear_model as model
from tests.parallel.support import mpirun, needs_mpirun

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
RANKS = 6
ALLREDUCE = {"exchange": "allreduce", "servers": 0}
SCENARIOS = {
    "plain": {},
    "again": {},
    "three-shards": {"servers": 3},
    "three-workers": {"workers": 3},
    "one-worker": {"workers": 1},
    "clip": {"workers": 3, "servers": 2, "clip": 0.3},
    "quorum": {"workers": 3, "servers": 2, "quorum": 2, "slow": {"2": 0.03}},
    "quorum-clip": {"workers": 3, "servers": 2, "quorum": 2, "slow": {"2": 0.01}, "clip": 0.3},
    "deadline": {"workers": 3, "servers": 2, "deadline": 0.1, "slow": {"2": 0.4}, "steps": 10},
    "allreduce": {**ALLREDUCE, "workers": 2},
    "allreduce-three": {**ALLREDUCE, "workers": 3},
    "allreduce-six": {**ALLREDUCE, "workers": 6, "slow": {"4": 0.005}},
    "allreduce-clip": {**ALLREDUCE, "workers": 3, "clip": 0.3},
}
DEATHS = {
    "unsent": {**ALLREDUCE, "workers": 4, "dies": {"worker": 2, "step": 7, "sends": 0}},
    "sent": {**ALLREDUCE, "workers": 4, "dies": {"worker": 1, "step": 7, "sends": 1}},
    "sent-to-one-server": {"workers": 3, "servers": 2, "dies": {"worker": 1, "step": 7, "sends": 1}},
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Scenario -> rank -> what that rank saw."""
    directory = tmp_path_factory.mktemp("exchange")
    with mpirun("ranks_exchange.py", RANKS, directory, str(directory), json.dumps(SCENARIOS)) as job:
        assert job.wait() == 0, job.output
    found = {}
    for name, options in SCENARIOS.items():
        ranks = options.get("workers", 2) + options.get("servers", 1)
        found[name] = [dict(np.load(directory / f"{name}-{rank}.npz")) for rank in range(ranks)]
    return found


def replay(seen, name):
    """The parameters that the recorded members make of the start, in one process and without the protocol."""
    options = model.DEFAULTS | (SCENARIOS | DEATHS)[name]
    theta, optimizer = model.start(), make_optimizer(model.OPTIMIZER, model.SIZE)
    for bitmap, norm in zip(seen[name][0]["members"], seen[name][0]["norms"], strict=True):
        members = from_bitmap(int(bitmap))
        gradients = [model.gradient(theta, worker, options["workers"]) for worker in members]
        scale = min(1.0, options["clip"] / norm) if options["clip"] else 1.0
        if options["clip"]:
            assert norm == pytest.approx(np.linalg.norm(np.mean(gradients, axis=0)), rel=1e-4)
        optimizer.apply(theta, gradients, model.RATE, scale / len(members))
    return theta


def theta(seen, name):
    """Final parameters, which all workers agree on."""
    workers = (model.DEFAULTS | SCENARIOS[name])["workers"]
    vectors = [rank["theta"] for rank in seen[name][:workers]]
    assert all(parameters.tobytes() == vectors[0].tobytes() for parameters in vectors)
    return vectors[0]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_protocol_adds_and_loses_nothing(seen, name):
    if SCENARIOS[name].get("clip"):
        np.testing.assert_allclose(theta(seen, name), replay(seen, name), rtol=1e-4, atol=1e-6)
    else:
        assert theta(seen, name).tobytes() == replay(seen, name).tobytes()


def test_runs_and_shards_are_equal_to_the_bit(seen):
    assert theta(seen, "plain").tobytes() == theta(seen, "again").tobytes()
    assert theta(seen, "plain").tobytes() == theta(seen, "three-shards").tobytes()
    assert theta(seen, "plain").tobytes() == theta(seen, "allreduce").tobytes()
    assert theta(seen, "three-workers").tobytes() == theta(seen, "allreduce-three").tobytes()


@pytest.mark.parametrize("name", ["plain", "three-workers", "one-worker", "allreduce-six"])
def test_split_batches_equal_the_whole_batch_under_reference_adam(seen, name):
    expected = model.start().astype(np.float64)
    gradients = []
    for _ in range(model.DEFAULTS["steps"]):
        gradients.append(model.gradient(expected.astype(np.float32), 0, 1))
        expected = references.adam(model.start(), gradients, model.RATE, 0.8, 0.75, 1e-3)
    np.testing.assert_allclose(theta(seen, name), expected, rtol=1e-4, atol=1e-5)


def test_adam_on_shards_equals_keras_adam_on_the_whole_vector(seen):
    import tensorflow as tf

    variable = tf.Variable(model.start())
    keras = tf.keras.optimizers.Adam(model.RATE, beta_1=0.8, beta_2=0.75, epsilon=1e-3)  # epsilon-hat form, too
    for _ in range(model.DEFAULTS["steps"]):
        whole = model.gradient(variable.numpy(), 0, 1)
        keras.apply_gradients([(tf.constant(whole), variable)])
    np.testing.assert_allclose(theta(seen, "three-shards"), variable.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["quorum", "quorum-clip", "deadline"])
def test_a_slow_worker_is_not_waited_for_and_its_late_gradients_are_counted(seen, name):
    ranks = seen[name]
    members = [from_bitmap(int(bitmap)) for bitmap in ranks[0]["members"]]
    least = SCENARIOS[name].get("quorum", 1)
    assert min(map(len, members)) >= least
    assert (0, 1) in members, "the slow worker was waited for at every step"
    calls = sum(int(rank["calls"]) for rank in ranks[:3])
    applied = sum(map(len, members))
    dropped = sum(int(rank["dropped"]) for rank in ranks[:4])  # three workers, and the first shard
    assert dropped > 0
    assert 0 <= calls - applied - dropped <= 1  # the slow worker's last may still be on its way


def test_where_all_are_the_quorum_nothing_is_dropped(seen):
    for name in ("plain", "three-shards", "three-workers", "clip"):
        assert all(int(rank["dropped"]) == 0 for rank in seen[name])
        everyone = (1 << SCENARIOS[name].get("workers", 2)) - 1
        assert (seen[name][0]["members"] == everyone).all()


@pytest.mark.parametrize("name", DEATHS)
def test_workers_go_on_without_a_dead_one_from_the_average_of_those_who_are_left(tmp_path, name):
    options = model.DEFAULTS | DEATHS[name]
    everyone, (dead, step, _) = tuple(range(options["workers"])), options["dies"].values()
    alive = tuple(worker for worker in everyone if worker != dead)
    ranks = options["workers"] + options["servers"]
    with mpirun("ranks_exchange.py", ranks, tmp_path, str(tmp_path), json.dumps({name: DEATHS[name]})) as job:
        assert job.wait() == 0, job.output
    workers = [dict(np.load(tmp_path / f"{name}-{rank}.npz")) for rank in alive]
    members = [from_bitmap(int(bitmap)) for bitmap in workers[0]["members"]]
    assert members[:step] == [everyone] * step and members[step + 1 :] == [alive] * (options["steps"] - step - 1)
    assert members[step] == alive or (members[step] == everyone and name == "sent")
    expected = replay({name: workers}, name).tobytes()
    assert [worker["theta"].tobytes() for worker in workers] == [expected] * len(alive)


def test_the_exchange_needs_no_tensorflow(seen):
    assert not any(rank["tensorflow"] for ranks in seen.values() for rank in ranks)


def test_transport(tmp_path):
    with mpirun("ranks_transport.py", 4, tmp_path) as job:
        assert job.wait() == 0, job.output
    said = {}
    for line in job.output.splitlines():
        if line.startswith("{"):
            record = json.loads(line)
            said[record.pop("rank")] = record
    checks = ("slices", "newest_only", "words", "blobs", "death", "garbled")
    assert said == dict.fromkeys(range(3), {"tensorflow": False} | dict.fromkeys(checks, True))
