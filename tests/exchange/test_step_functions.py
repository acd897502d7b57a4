"""Optimizers of plugins: step functions keep every promise of the built-in optimizers, on any exchange, to the bit."""

from __future__ import annotations

import functools

import numba
import numpy as np
import pytest

from ddrl import plugins
from ddrl.errors import UsageError
from ddrl.exchange import optimizers
from ddrl.exchange.central_store.learner import make_learner
from ddrl.exchange.central_store.memory import CentralStore
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.parameter_groups import ParameterGroup
from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig
from ddrl.exchange.statistics import Moments, Statistics, packed
from ddrl.kernels.updates import BLOCK
from tests.exchange import test_optimizers as built_in
from tests.exchange.job import Job
from tests.exchange.local_sgd.world import gradient

SIZE, WORKERS, STEPS, RATE = 2 * BLOCK + 5, 3, 6, 1e-2
TESTED = ("lion:weight_decay=0.1", "corrected:epsilon=1e-3", "plain")


def lion(gradient, parameter, count, momentum, beta1=0.9, beta2=0.99, weight_decay=0.0):
    direction = np.sign(beta1 * momentum + (1.0 - beta1) * gradient) + weight_decay * parameter
    return direction, beta2 * momentum + (1.0 - beta2) * gradient


def corrected(gradient, parameter, count, m, v, beta1=0.8, beta2=0.75, epsilon=1e-8):
    """Adam with the epsilon of its algorithm 1, which is not the epsilon-hat of the built-in one."""
    m = beta1 * m + (1.0 - beta1) * gradient
    v = beta2 * v + (1.0 - beta2) * gradient * gradient
    return m / (1.0 - beta1**count) / (np.sqrt(v / (1.0 - beta2**count)) + epsilon), m, v


def plain(gradient, parameter, count):
    return gradient


@pytest.fixture(autouse=True)
def registered():
    for function in (lion, corrected, plain):
        plugins.register_optimizer(function.__name__, function)


@pytest.mark.parametrize("text", TESTED)
@pytest.mark.parametrize(
    "promise",
    [
        built_in.test_slices_equal_the_whole_to_the_bit,
        built_in.test_scale_multiplies_the_gradient,
        built_in.test_slots_and_count_are_the_whole_state,
        built_in.test_several_gradients_and_another_target_equal_their_sum_in_place,
        built_in.test_updates_made_ahead_equal_those_made_at_once,
        built_in.test_a_trail_takes_several_steps_at_once,
    ],
    ids=lambda test: test.__name__.removeprefix("test_"),
)
def test_the_promises_of_the_built_in_optimizers_hold(promise, text):
    promise(OptimizerConfig(optimizer=text))


def test_lion_equals_its_transcription():
    theta, gradients = built_in.problem(BLOCK + 3)
    result, optimizer = built_in.run(OptimizerConfig(optimizer="lion:beta1=0.5,weight_decay=0.1"), theta, gradients)
    expected, momentum = theta.astype(np.float64), np.zeros(theta.size)
    for each in gradients.astype(np.float64):
        expected -= 1e-2 * (np.sign(0.5 * momentum + 0.5 * each) + 0.1 * expected)
        momentum = 0.99 * momentum + 0.01 * each
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(optimizer.slots["momentum"], momentum, rtol=1e-3)
    assert list(optimizer.slots) == ["momentum"] and optimizer.count == 5


def test_the_count_corrects_the_bias_as_the_built_in_adam_does():
    theta, gradients = built_in.problem(100)
    own, _ = built_in.run(OptimizerConfig(optimizer="corrected:epsilon=1e-12"), theta, gradients)
    adam = OptimizerConfig(beta1=0.8, beta2=0.75, adam_epsilon=1e-12)
    np.testing.assert_allclose(own, built_in.run(adam, theta, gradients)[0], rtol=1e-4, atol=1e-5)


def test_without_slots_it_is_sgd_to_the_bit_with_groups_statistics_and_a_second_thread(monkeypatch):
    monkeypatch.setattr(optimizers, "SHARED_SIZE", SIZE)
    theta, (gradient, _) = built_in.problem(SIZE, updates=2)
    at_end = Statistics(SIZE - 6, (1,))
    for vector in (theta, gradient):
        at_end.of(vector)[:] = packed(Moments(3.0, np.ones(1), np.ones(1)))
    found = {}
    for text in ("plain", "sgd"):
        for threads in (1, 2):
            groups, now = (ParameterGroup(2, BLOCK + 9, 0.5),), theta.copy()
            optimizer = make_optimizer(OptimizerConfig(optimizer=text), SIZE, groups, threads, at_end)
            assert (optimizer._second is not None) == (threads == 2)
            optimizer.apply(now, gradient, RATE)
            found[text, threads] = now.tobytes()
    assert len(set(found.values())) == 1 and found["plain", 1] != theta.tobytes()


def one_process(config):
    """Parameters and slots <float32>[1 + slots, SIZE] after the steps with the workers' gradients."""
    theta = np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)
    optimizer = make_optimizer(config, SIZE)
    for _ in range(STEPS):
        gradients = [gradients_of(worker, 0, theta) for worker in range(WORKERS)]
        optimizer.apply(theta, gradients, RATE, 1.0 / WORKERS)
    return np.stack([theta, *optimizer.slots.values()])


def gradients_of(worker, step, theta):
    return np.tanh(3.0 * theta - np.float32(worker)).astype(np.float32)


@pytest.mark.parametrize("text", TESTED)
@pytest.mark.parametrize(
    "exchange", [{"parameter_servers": 2}, {"parameter_servers": 3}, {"exchange": "allreduce"}],
    ids=["two-servers", "three-servers", "all-reduce"],
)  # fmt: skip
def test_several_processes_give_what_one_gives_in_parameters_and_checkpoint(tmp_path, exchange, text):
    optimizer, config = OptimizerConfig(optimizer=text), ExchangeConfig(workers=WORKERS, **exchange)
    theta = np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)
    job = Job(config, optimizer, theta, tmp_path, gradients_of, rate=RATE)
    expected = one_process(optimizer)
    assert job.run(STEPS).tobytes() == expected[0].tobytes()
    assert job.stop().tobytes() == expected.tobytes()


def test_a_central_store_applies_it(tmp_path):
    config, (theta, gradients) = OptimizerConfig(optimizer=TESTED[1]), built_in.problem(70_001, updates=4)
    store = CentralStore.create(tmp_path / "store", theta, make_optimizer(config, theta.size).slots)
    learner, expected, optimizer = make_learner(store, config), theta.copy(), make_optimizer(config, theta.size)
    for each in gradients:
        optimizer.apply(expected, each, RATE)
        np.testing.assert_array_equal(learner.submit(each, RATE), expected)
    with pytest.raises(UsageError, match="has no local steps between synchronizations, which are defined for adam"):
        make_learner(store, config, synchronize_every=2)


def test_local_steps_average_its_slots(tmp_path):
    config = OptimizerConfig(optimizer="lion:weight_decay=0.1")
    exchange = ExchangeConfig(exchange="local_sgd", workers=1, local_steps=2)
    theta = np.linspace(-1.0, 1.0, 24, dtype=np.float32)
    job = Job(exchange, config, theta, tmp_path, lambda worker, step, now: gradient(worker, now).astype(np.float32))
    expected, optimizer = theta.copy(), make_optimizer(config, theta.size)
    for _ in range(4):
        optimizer.apply(expected, gradient(0, expected).astype(np.float32), 0.1)
    np.testing.assert_allclose(job.run(4), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "text, said",
    [
        ("lio", "--optimizer lio: must be one of adam, .* or what a --plugin registers; did you mean lion"),
        ("lio:weight_decay=0.01", "--optimizer lio:weight_decay=0.01: must be one of .*; did you mean lion"),
        ("adam:", "--optimizer adam:: it is not KEY=VALUE; write adam:KEY=VALUE"),
        ("lion:beta3=1", "lion has no option beta3; it has beta1, beta2, weight_decay; did you mean beta2 or beta1"),
        ("lion:beta1=much", "--optimizer lion:beta1=much: beta1 must be a finite number"),
        ("lion:beta1=1e999", "beta1 must be a finite number"),
        ("lion:beta1", r"--optimizer lion:beta1: it is not KEY=VALUE; write lion:KEY=VALUE"),
        ("plain:beta=1", "plain has no option beta; it has none"),
        ("adam:beta1=0.5", "adam has no option beta1; its settings are options of their own"),
    ],
)
def test_names_and_options_that_do_not_exist_are_refused(text, said):
    with pytest.raises(UsageError, match=said) as error:
        OptimizerConfig(optimizer=text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda gradient, parameter: gradient,
        lambda gradient, parameter, count, *slots: gradient,
        lambda gradient, parameter, count, *, beta=0.9: gradient,
        lambda gradient, parameter, count, kind="fast": gradient,
        lambda gradient, parameter, count, beta=float("nan"): gradient,
    ],
)
def test_other_functions_are_no_step_functions(function):
    with pytest.raises(UsageError, match=r"optimizer odd: its step function takes .* must be step\(gradient, param"):
        plugins.register_optimizer("odd", function)
    assert "odd" not in plugins.optimizers.names()


class Scaled:
    def __call__(self, gradient, parameter, count, factor=2.0):
        return factor * gradient


@pytest.mark.parametrize("value", [np.sign, functools.partial(plain), Scaled(), Scaled().__call__])
def test_what_numba_cannot_compile_is_no_step_function(value):
    with pytest.raises(UsageError, match=r"^optimizer odd: .* is no step function; write one with def, as step\(grad"):
        plugins.register_optimizer("odd", value)
    assert "odd" not in plugins.optimizers.names()


def test_a_function_that_numba_has_is_compiled_from_its_source():
    """With its own options, Numba would raise ZeroDivisionError in the middle of a run."""
    divided = numba.njit(lambda gradient, parameter, count, divisor=1.0: gradient / divisor)
    plugins.register_optimizer("divided", divided)
    theta = np.zeros(2, np.float32)
    make_optimizer(OptimizerConfig(optimizer="divided:divisor=4"), 2).apply(theta, np.float32([2.0, -1.0]), 1.0)
    assert theta.tolist() == [-0.5, 0.25]


def uncompiled(number):
    return number


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda gradient, parameter, count, m: gradient, "its step function gave .*; have it return the direction, "),
        (lambda gradient, parameter, count: "up", "gave 'up'; have it return the direction$"),
        (lambda gradient, parameter, count: gradient / {}["x"], r"fails: KeyError: 'x' \(test_step_functions.py, "),
        (lambda gradient, parameter, count: uncompiled(gradient), "Numba cannot compile .*'uncompiled'.*; use arith"),
        (
            lambda gradient, parameter, count: np.linalg.norm(np.ones(2)) * gradient,
            "Numba cannot compile its step function",
        ),
    ],
)
def test_mistakes_in_a_step_function_are_told_in_one_line(function, said):
    plugins.register_optimizer("wrong", function)
    with pytest.raises(UsageError, match=f"^--optimizer wrong: .*{said}") as error:
        make_optimizer(OptimizerConfig(optimizer="wrong"), 3)
    assert "\n" not in str(error.value) and "\x1b" not in str(error.value)


def test_a_class_that_is_no_optimizer_is_refused():
    with pytest.raises(UsageError, match="register_optimizer takes a step function, not <class 'int'>"):
        plugins.register_optimizer("odd", int)
