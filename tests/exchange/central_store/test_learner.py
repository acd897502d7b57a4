from __future__ import annotations

import sys

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.exchange.central_store.learner import make_learner
from ddrl.exchange.central_store.memory import CentralStore
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.settings import OptimizerConfig
from tests import references
from tests.exchange.central_store.test_multistep_adam import ADAM, RATE, adam_of, problem
from tests.exchange.test_optimizers import RULES, rule_id

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the store's locks are Linux's")


def store_with(path, theta, config=ADAM, **arguments):
    return CentralStore.create(path / "store", theta, make_optimizer(config, theta.size).slots, **arguments)


@pytest.mark.parametrize("config", RULES, ids=rule_id)
def test_one_learner_with_shared_statistics_is_the_optimizer_to_the_bit(tmp_path, config):
    theta, gradients = problem(70_001, 4)
    store = store_with(tmp_path, theta, config)
    learner = make_learner(store, config)
    np.testing.assert_array_equal(learner.parameters, theta)
    expected, optimizer = theta.copy(), make_optimizer(config, theta.size)
    for gradient in gradients:
        optimizer.apply(expected, gradient, RATE)
        np.testing.assert_array_equal(learner.submit(gradient, RATE), expected)
    slots = {name: np.empty_like(theta) for name in optimizer.slots}
    store.read(theta, slots)
    np.testing.assert_array_equal(theta, expected)
    for name, slot in optimizer.slots.items():
        np.testing.assert_array_equal(slots[name], slot)
    assert learner.version == store.version == store.count == 4 and learner.staleness == 0


def test_a_resumed_store_goes_on_where_the_optimizer_was(tmp_path):
    theta, gradients = problem(100, 6)
    expected, _ = adam_of(ADAM, theta, gradients)
    middle, optimizer = adam_of(ADAM, theta, gradients[:3])
    for name, every in (("shared", 0), ("local", 1)):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "store"
        store = CentralStore.create(path, middle, optimizer.slots, version=13, count=optimizer.count)
        learner = make_learner(store, ADAM, every)
        for gradient in gradients[3:]:
            learner.submit(gradient, RATE)
        np.testing.assert_array_equal(learner.parameters, expected)
        assert learner.version == 16 and store.count == 6


def test_two_learners_share_the_statistics(tmp_path):
    theta, gradients = problem(50, 6)
    store = store_with(tmp_path, theta)
    learners = [make_learner(store, ADAM), make_learner(CentralStore.open(store.path), ADAM)]
    for i, gradient in enumerate(gradients):
        learners[i % 2].submit(gradient, RATE)
    expected, _ = adam_of(ADAM, theta, gradients)
    np.testing.assert_array_equal(learners[1].parameters, expected)
    assert [learner.staleness for learner in learners] == [1, 1]
    assert learners[0].version == 5 and learners[0].newest_version == 6
    np.testing.assert_array_equal(learners[0].pull(), expected)
    assert learners[0].version == 6


@pytest.mark.parametrize("order", ["abababab", "aaabaabb", "aaaabbbbaaab"])
def test_two_learners_with_local_steps_equal_the_reference(tmp_path, order):
    every = 2
    theta, gradients = problem(50, len(order))
    store = store_with(tmp_path, theta)
    learners = {"a": make_learner(store, ADAM, every), "b": make_learner(CentralStore.open(store.path), ADAM, every)}
    events, steps = [("a", None), ("b", None)], dict.fromkeys("ab", 0)
    for name, gradient in zip(order, gradients):
        learners[name].submit(gradient, RATE)
        steps[name] += 1
        events.append((name, gradient))
        if steps[name] % every == 0:
            events.append((name, None))
    central, own = references.multistep_adam(theta, events, RATE, 0.8, 0.9, 1e-4)
    slots = {"m": np.empty_like(theta), "v": np.empty_like(theta)}
    store.read(theta, slots)
    np.testing.assert_allclose(theta, central["theta"], rtol=1e-5, atol=1e-6)
    for name, slot in slots.items():
        np.testing.assert_allclose(slot, central[name], rtol=1e-5, atol=1e-6)
    for name, learner in learners.items():
        np.testing.assert_allclose(learner.parameters, own[name], rtol=1e-5, atol=1e-6)
        assert learner.local_steps == steps[name] % every
    assert store.count == central["t"]


def test_a_pull_keeps_the_local_steps_and_adds_what_others_did(tmp_path):
    theta, gradients = problem(50, 4)
    store = store_with(tmp_path, theta)
    learner, other = make_learner(store, ADAM, 3), make_learner(CentralStore.open(store.path), ADAM, 2)
    own = learner.submit(gradients[0], RATE)
    np.testing.assert_array_equal(learner.pull(), own)  # nobody else did anything
    others = other.submit(gradients[1], RATE)
    np.testing.assert_array_equal(learner.pull(), own)  # nor is anything of it in the store
    others = other.submit(gradients[2], RATE)
    np.testing.assert_allclose(learner.pull() - theta, (own - theta) + (others - theta), rtol=1e-4, atol=1e-6)
    assert learner.version == 3 and learner.local_steps == 1 and store.version == 2
    before = learner.parameters
    np.testing.assert_array_equal(learner.synchronize(), before)
    assert learner.version == store.version == 3 and learner.local_steps == 0


def test_staleness_counts_what_others_applied_since_the_last_read(tmp_path):
    theta, gradients = problem(50, 1)
    store = store_with(tmp_path, theta)
    learner, other = make_learner(store, ADAM, 2), make_learner(CentralStore.open(store.path), ADAM)
    for _ in range(5):
        other.submit(gradients[0], RATE)
    learner.submit(gradients[0], RATE)
    assert learner.staleness == 0  # it has not been to the store
    learner.submit(gradients[0], RATE)
    assert learner.staleness == 5 and learner.version == 7
    other.submit(gradients[0], RATE)
    learner.pull()
    learner.synchronize()
    assert learner.staleness == 0


@pytest.mark.parametrize("every", [0, 1, 3])
def test_vectors_are_new_and_read_only(tmp_path, every):
    theta, gradients = problem(50, 4)
    learner = make_learner(store_with(tmp_path, theta), ADAM, every)
    vectors = [learner.parameters, *(learner.submit(g, RATE) for g in gradients), learner.pull()]
    copies = [parameters.copy() for parameters in vectors]
    learner.submit(gradients[0], RATE)
    learner.synchronize()
    for parameters, copy in zip(vectors, copies):
        np.testing.assert_array_equal(parameters, copy)
        assert not parameters.flags.writeable


def test_what_does_not_go_together_is_refused(tmp_path):
    theta, _ = problem(10, 1)
    rmsprop = OptimizerConfig(optimizer="rmsprop")
    store = store_with(tmp_path, theta, rmsprop)
    with pytest.raises(UsageError, match="--optimizer rmsprop has no local steps"):
        make_learner(store, rmsprop, 4)
    with pytest.raises(UsageError, match="has the slots mean_square, not m, v"):
        make_learner(store, ADAM)
