from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from ddrl.algorithms import ba3c
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import NetworkConfig, OptimizerConfig
from ddrl.errors import UsageError
from ddrl.learner import Learner, Policy, Preparation, as_device_vector
from ddrl.networks import build_network
from ddrl.types import DataPoints, Discrete, LossContext, LossOutput

SPACES = {"mlp": ((1, 10, 5), 3), "a3c": ((4, 28, 28), 4)}


def make_network(name, compute="float32"):
    shape, actions = SPACES[name]
    return build_network(NetworkConfig(network=name, compute_dtype=compute), shape, np.uint8, Discrete(actions))


def make_learner(network, batch_size, clip=0.0):
    settings = OptimizerConfig(batch_size=batch_size, clip_tensor_average_norm=clip)
    return Learner(network, ba3c.loss, BA3CConfig(), settings, batch_of(network.name, batch_size))


def batch_of(name, size, seed=0):
    (shape, actions), random = SPACES[name], np.random.default_rng(seed)
    return DataPoints(
        random.integers(0, 256, (size, *shape)).astype(np.uint8),
        random.integers(actions, size=size).astype(np.int32),
        random.standard_normal(size).astype(np.float32),
        np.full(size, -np.log(actions), np.float32),
        np.zeros(size, np.int64),
    )


@pytest.mark.parametrize("name", SPACES)
def test_whole_batch_equals_the_average_of_halves(name):
    network, batch = make_network(name), batch_of(name, 16)
    parameters = as_device_vector(network.initial_parameters(1))
    whole, metrics, _ = make_learner(network, 16).gradient(parameters, batch)
    half = make_learner(network, 8)
    halves = [DataPoints(*(x[rows] for x in batch)) for rows in (slice(8), slice(8, 16))]
    parts = [half.gradient(parameters, points) for points in halves]
    average = (parts[0][0] + parts[1][0]) / 2
    np.testing.assert_allclose(whole, average, rtol=1e-3, atol=1e-5 * np.abs(whole).max())
    assert metrics["loss"] == pytest.approx((parts[0][1]["loss"] + parts[1][1]["loss"]) / 2, rel=1e-4)
    assert metrics["gradient_norm"] == pytest.approx(np.linalg.norm(whole), rel=1e-4)


def test_a_value_of_a_schedule_is_kept_nowhere():
    """TensorFlow keeps every Python number that it makes a tensor of, 750 bytes each, for as long as it runs."""
    network, value = make_network("mlp"), 1.0 / 3.0 + 1e-9
    learner, parameters = make_learner(network, 8), as_device_vector(network.initial_parameters(1))
    before = sys.getrefcount(value)
    learner.gradient(parameters, batch_of("mlp", 8), LossContext(value))
    assert sys.getrefcount(value) == before


def test_bfloat16_gradient_is_close():
    parameters, batch = make_network("a3c").initial_parameters(1), batch_of("a3c", 64)
    exact, _, _ = make_learner(make_network("a3c"), 64).gradient(parameters, batch)
    rough, _, _ = make_learner(make_network("a3c", "bfloat16"), 64).gradient(parameters, batch)
    cosine = exact @ rough / np.linalg.norm(exact) / np.linalg.norm(rough)
    assert cosine > 0.99
    assert np.linalg.norm(rough) == pytest.approx(np.linalg.norm(exact), rel=0.05)


def test_clip_per_tensor_leaves_the_reported_norm():
    network, batch = make_network("mlp"), batch_of("mlp", 8)
    parameters, limit = network.initial_parameters(1), 1e-5
    free, before, _ = make_learner(network, 8).gradient(parameters, batch)
    clipped, after, _ = make_learner(network, 8, limit).gradient(parameters, batch)
    assert before["gradient_norm"] == after["gradient_norm"] == pytest.approx(np.linalg.norm(free), rel=1e-5)
    start = 0
    for _, shape in network.parameter_shapes:
        part = slice(start, start + int(np.prod(shape)))
        allowed = min(np.linalg.norm(free[part]), limit * (part.stop - part.start))
        np.testing.assert_allclose(np.linalg.norm(clipped[part]), allowed, rtol=1e-4)
        start = part.stop


def test_a_batch_of_another_size_is_refused():
    learner = make_learner(make_network("mlp"), 8)
    with pytest.raises(UsageError, match=r"batch of actions \(7,\) for a learner of \(8,\)"):
        learner.gradient(make_network("mlp").initial_parameters(1), batch_of("mlp", 7))


def learner_of(loss):
    """A learner of 8 data-points whose loss is a function of the parameters alone; it returns a loss and metrics."""

    def of_batch(network, parameters, batch, settings, context):
        return LossOutput(*loss(parameters))

    network = make_network("mlp")
    return Learner(network, of_batch, BA3CConfig(), OptimizerConfig(batch_size=8), batch_of("mlp", 8))


@pytest.mark.parametrize(
    "loss, said",
    [
        (lambda x: (x[:8], {}), r"the loss of ba3c has shape \[8\], and must be a scalar: take its mean"),
        (lambda x: (x[0], {"loss": x[0], "error": x[:8]}), r"the metric error of ba3c has shape \[8\], and must be"),
        (lambda x: (x[0], {"error": x[:1]}), r"the metric error of ba3c has shape \[1\], and must be a scalar"),
        (lambda x: (tf.stop_gradient(x[0]), {}), "the loss of ba3c has no gradient with respect to `parameters`: "),
        (lambda x: (1.0, {}), "the loss of ba3c has no gradient with respect to `parameters`: "),
    ],
    ids=["vector", "vector-metric", "metric-of-one", "stopped", "number"],
)
def test_a_loss_that_has_no_gradient_or_is_no_scalar_is_refused(loss, said):
    with pytest.raises(UsageError, match=said) as error:
        learner_of(loss)
    assert "\n" not in str(error.value)


def test_a_loss_that_gives_a_tensor_alone_is_refused():
    network, settings = make_network("mlp"), OptimizerConfig(batch_size=8)
    with pytest.raises(UsageError, match=r"the loss of ba3c gave a \w*Tensor: have it return a ddrl.types.LossOutput"):
        Learner(network, lambda _, parameters, *rest: parameters[0], BA3CConfig(), settings, batch_of("mlp", 8))


@pytest.mark.parametrize(
    "fails, said",
    [
        (lambda batch, context: batch.returns, "AttributeError: .* no attribute 'returns'"),
        (lambda batch, context: tf.shape(context.target), "ValueError: .*None.*"),
    ],
    ids=["no-field", "not-asked-for"],
)
def test_a_loss_that_fails_is_refused_with_its_line(fails, said):
    network, settings = make_network("mlp"), OptimizerConfig(batch_size=8)
    none = "; what is None in this loss: context.target, context.key, batch.behaviour_version" if "None" in said else ""
    with pytest.raises(UsageError, match=rf"^the loss of ba3c fails: {said} \(test_learner.py, line \d+\){none}$"):
        Learner(network, lambda *given: fails(given[2], given[4]), BA3CConfig(), settings, batch_of("mlp", 8))


def test_a_loss_that_runs_out_of_memory_is_no_mistake_of_its_author():
    def full(parameters):
        raise MemoryError("full")

    with pytest.raises(MemoryError, match="^full$"):
        learner_of(full)


@pytest.mark.parametrize("metrics, logged", [({}, 3.0), ({"loss": 1.0}, 1.0)])
def test_the_loss_is_a_metric_unless_the_function_gives_one_of_that_name(metrics, logged):
    learner = learner_of(lambda x: (3.0 + 0.0 * x[0], metrics))
    _, found, _ = learner.gradient(make_network("mlp").initial_parameters(1), batch_of("mlp", 8))
    assert found["loss"] == logged


def test_a_loss_may_gather_parameters_and_have_numbers_for_metrics():
    others = {"three": 3.0, "rows": tf.constant(8), "any": tf.constant(True), "double": tf.constant(0.5, tf.float64)}
    learner = learner_of(lambda x: (tf.reduce_sum(tf.gather(x, [1, 1, 2])), others))
    parameters = make_network("mlp").initial_parameters(1)
    gradient, metrics, _ = learner.gradient(parameters, batch_of("mlp", 8))
    np.testing.assert_array_equal(gradient[:4], [0.0, 2.0, 1.0, 0.0])
    assert gradient.shape == parameters.shape
    assert {name: metrics[name] for name in others} == {"three": 3.0, "rows": 8.0, "any": 1.0, "double": 0.5}


@pytest.mark.parametrize("name", SPACES)
def test_policy_pads_and_cuts(name):
    network, observations = make_network(name), batch_of(name, 23).observation
    parameters = network.initial_parameters(1)
    policy = Policy(network, SPACES[name][0], np.uint8, (8, 2, 4))
    expected = network(tf.constant(parameters), tf.constant(observations))
    for count in (1, 2, 3, 8, 9, 23):
        logits, value = policy(parameters, observations[:count])
        assert logits.shape == (count, SPACES[name][1]) and value.shape == (count,)
        np.testing.assert_allclose(logits, expected.policy[:count], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(value, expected.value[:count], rtol=1e-4, atol=1e-5)


def test_versions_that_take_turns_are_prepared_once_each_and_forgotten_with_their_vectors():
    network = make_network("mlp")
    prepare, calls = Preparation(network), []
    graph = prepare._graph
    prepare._graph = lambda parameters: calls.append(1) or graph(parameters)
    versions = [as_device_vector(network.initial_parameters(seed)) for seed in range(3)]
    for _ in range(4):  # groups of simulators that are at different versions
        for version in versions:
            np.testing.assert_array_equal(
                sorted(np.concatenate([np.ravel(x) for x in prepare(version)])), sorted(version.numpy())
            )
    assert len(calls) == 3 and len(prepare._kept) == 3
    del version, versions[:2]
    assert len(prepare._kept) == 1
    prepare(versions[0])
    assert len(calls) == 3


def test_policy_follows_new_versions_and_changed_arrays():
    network, observations = make_network("mlp"), batch_of("mlp", 4).observation
    policy = Policy(network, (1, 10, 5), np.uint8, (4,))
    old, new = (network.initial_parameters(seed) for seed in (1, 2))
    results = [policy(as_device_vector(x), observations)[1] for x in (old, new, old)]
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.allclose(results[0], results[1])
    changing = old.copy()
    np.testing.assert_array_equal(policy(changing, observations)[1], results[0])
    changing[:] = new
    np.testing.assert_array_equal(policy(changing, observations)[1], results[1])


def test_policy_serves_threads_with_different_versions():
    network, observations = make_network("mlp"), batch_of("mlp", 4).observation
    policy = Policy(network, (1, 10, 5), np.uint8, (4,))
    vectors = [as_device_vector(network.initial_parameters(seed)) for seed in range(4)]
    expected = [policy(parameters, observations)[1] for parameters in vectors]
    wrong = []

    def ask(first):
        for i in range(first, first + 40):
            value = policy(vectors[i % 4], observations)[1]
            if not np.array_equal(value, expected[i % 4]):
                wrong.append(i)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads) and wrong == []


def test_policy_needs_a_size():
    with pytest.raises(UsageError, match="at least one size"):
        Policy(make_network("mlp"), (1, 10, 5), np.uint8, ())


def test_device_vector_is_a_copy():
    parameters = np.zeros(64, np.float32)
    tensor = as_device_vector(parameters)
    parameters[:] = 1.0
    assert not tensor.numpy().any()
    assert as_device_vector(tensor) is tensor


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("name, size", [("mlp", 4), ("a3c", 5), ("a3c", 16)])
def test_a_row_does_not_depend_on_its_companions(name, size, compute):
    """What predictors rely on that infer together what is there: to the bit, in its place, in a batch of one size."""
    network, random = make_network(name, compute), np.random.default_rng(3)
    policy = Policy(network, SPACES[name][0], np.uint8, (size,))
    parameters = as_device_vector(network.initial_parameters(1))
    observations = batch_of(name, size).observation
    logits, value = policy(parameters, observations)
    for count in range(1, size + 1):
        rows, others = random.permutation(size)[:count], random.integers(0, 256, observations.shape).astype(np.uint8)
        others[rows] = observations[rows]
        few_logits, few_value = policy(parameters, others)
        np.testing.assert_array_equal(few_logits[rows], logits[rows])
        np.testing.assert_array_equal(few_value[rows], value[rows])
        first_logits, first_value = policy(parameters, observations[:count])
        np.testing.assert_array_equal(first_logits, logits[:count])
        np.testing.assert_array_equal(first_value, value[:count])
