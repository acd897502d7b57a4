"""Compiled updates equal NumPy's to the bit, whatever the numbers are."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading

import numpy as np
import pytest

from ddrl.exchange import optimizers
from ddrl.exchange.optimizers import Trail, make_optimizer
from ddrl.exchange.parameter_groups import ParameterGroup
from ddrl.exchange.settings import OptimizerConfig
from ddrl.kernels import compiled, updates
from tests.kernels.numpy_updates import Rule

RULES = [
    OptimizerConfig(beta1=0.8, beta2=0.75, adam_epsilon=1e-3),
    OptimizerConfig(optimizer="rmsprop"),
    OptimizerConfig(optimizer="rmsprop", rmsprop_epsilon_inside=True),
    OptimizerConfig(optimizer="rmsprop-centered"),
    OptimizerConfig(optimizer="rmsprop-centered", rmsprop_epsilon_inside=True, rmsprop_epsilon=1e-3),
    OptimizerConfig(optimizer="sgd"),
]
SIZES = [1, 7, updates.BLOCK, updates.BLOCK + 1, 3 * updates.BLOCK + 5]


def gradients_of(random, size, count, wild):
    """Of all magnitudes; `wild` ones have numbers that are none, infinite ones, and denormal ones."""
    gradients = (random.standard_normal((count, size)) * 10.0 ** random.uniform(-30, 10, size)).astype(np.float32)
    if wild:
        for every, value in ((5, np.nan), (7, np.inf), (11, -np.inf), (3, 1e-40), (13, -0.0)):
            gradients[random.integers(count), ::every] = value
    return list(gradients)


def equal(a, b):
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("config", RULES, ids=lambda config: config.optimizer)
def test_updates_equal_numpys_to_the_bit(config, grouped):
    for size in SIZES[2:] if grouped else SIZES:
        random = np.random.default_rng(size)
        groups = (ParameterGroup(3, size // 2, 0.3),) if grouped else ()
        optimizer = make_optimizer(config, size, groups)
        factors = np.ones(size, np.float32)
        factors[3 : size // 2] = 0.3
        rule, trail, expected_trail = Rule(config, size, factors if grouped else None), Trail(size), None
        theta = random.standard_normal(size).astype(np.float32)
        for update in range(5):
            gradients, scale = gradients_of(random, size, 1 + update % 3, wild=update == 4), 1.0 / (1 + update % 3)
            if update == 0:
                trail.begin(1.0)
                expected_trail = trail.vector.copy()
            else:
                trail.next(1.0 / (1 + update))
            out = np.empty_like(theta)
            step_size = optimizer.step_size(1e-2)
            optimizer.apply(theta, gradients, 1e-2, scale, out, trail)
            expected = rule.step(theta, gradients, step_size, scale, expected_trail, trail.weight)
            assert equal(out, expected) and equal(trail.vector, expected_trail)
            assert all(map(equal, optimizer.slots.values(), rule.slots.values()))
            theta = out


@pytest.mark.parametrize("config", RULES, ids=lambda config: config.optimizer)
def test_in_place_and_ahead_of_time_are_the_same_update(config):
    random, size = np.random.default_rng(1), updates.BLOCK + 3
    theta = random.standard_normal(size).astype(np.float32)
    ahead, straight, inside = (make_optimizer(config, size) for _ in range(3))
    theta_inside = theta.copy()
    for _ in range(3):
        gradients = gradients_of(random, size, 2, wild=False)
        before = {name: slot.copy() for name, slot in ahead.slots.items()}
        prepared = ahead.prepare(theta, gradients, 1e-3, 0.5)
        assert all(equal(ahead.slots[name], before[name]) for name in before), "nothing has happened yet"
        ahead.accept()
        new = np.empty_like(theta)
        straight.apply(theta, gradients, 1e-3, 0.5, out=new)
        inside.apply(theta_inside, gradients, 1e-3, 0.5)
        assert equal(prepared, new) and equal(theta_inside, new)
        for name in before:
            assert equal(ahead.slots[name], straight.slots[name]) and equal(inside.slots[name], straight.slots[name])
        theta = new


@pytest.mark.parametrize("size", [optimizers.SHARED_SIZE - 1, optimizers.SHARED_SIZE + 5])
@pytest.mark.parametrize("config", RULES, ids=lambda config: config.optimizer)
def test_halves_in_two_threads_are_the_same_update(config, size):
    random, groups = np.random.default_rng(1), (ParameterGroup(3, size // 2 + 9, 0.3),)
    alone, shared = (make_optimizer(config, size, groups, threads) for threads in (1, 2))
    assert (shared._second is not None) == (size > optimizers.SHARED_SIZE)
    theta = random.standard_normal(size).astype(np.float32)
    for count in (1, 3):
        gradients, outs, trails = gradients_of(random, size, count, wild=False), [], []
        for optimizer in (alone, shared):
            trail, out = Trail(size), np.empty_like(theta)
            trail.begin(1.0)
            optimizer.apply(theta, gradients, 1e-3, 1 / count, out, trail)
            outs.append(out)
            trails.append(trail.vector)
        assert equal(*outs) and equal(*trails)
        assert all(map(equal, alone.slots.values(), shared.slots.values()))
        theta = outs[0]


def test_two_threads_at_once_do_not_disturb_each_other():
    size, results = 5 * updates.BLOCK, {}
    random = np.random.default_rng(0)
    theta, gradients = random.standard_normal(size).astype(np.float32), gradients_of(random, size, 3, wild=False)

    def work(name):
        optimizer, own = make_optimizer(RULES[0], size), theta.copy()
        for _ in range(50):
            optimizer.apply(own, gradients, 1e-3, 1 / 3)
        results[name] = own

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work("alone")
    assert equal(results[0], results["alone"]) and equal(results[1], results["alone"])


@pytest.mark.parametrize(
    "gradient", [np.zeros(9, np.float32), np.zeros(10), np.zeros(20, np.float32)[::2]], ids=["size", "type", "strides"]
)
def test_what_is_no_vector_of_the_slice_is_refused(gradient):
    with pytest.raises(ValueError, match=r"must be contiguous float32 of shape \(10,\)"):
        make_optimizer(RULES[0], 10).apply(np.zeros(10, np.float32), gradient, 1.0)


@pytest.mark.parametrize("wrong", ["gradients", "slot", "trail", "read-only shape"])
def test_nothing_is_written_outside_of_a_vector(wrong):
    optimizer, theta, trail = make_optimizer(RULES[0], 10_000), np.zeros(10_000, np.float32), Trail(10_000)
    gradients = [np.ones(10_000, np.float32)]
    trail.begin(1.0)
    if wrong == "gradients":
        gradients = []
    elif wrong == "slot":
        optimizer.slots["v"] = np.zeros(10, np.float32)
    elif wrong == "trail":
        trail.vector = np.zeros(10, np.float32)
    else:
        theta = theta.reshape(100, 100)
    with pytest.raises(ValueError, match=r"no gradient|must be contiguous float32 of shape \(10000,\)"):
        optimizer.apply(theta, gradients, 1.0, out=np.zeros(10_000, np.float32), trail=trail)


@pytest.mark.parametrize("written", ["out", "slot", "trail"])
def test_what_may_not_be_written_is_not(written):
    optimizer, theta, trail = make_optimizer(RULES[0], 10), np.zeros(10, np.float32), Trail(10)
    trail.begin(1.0)
    {"out": theta, "slot": optimizer.slots["m"], "trail": trail.vector}[written].flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        optimizer.apply(theta, np.ones(10, np.float32), 1.0, trail=trail)
    assert not theta.any() and not optimizer.slots["v"].any()


def test_a_process_that_reads_an_update_from_disk_starts_no_runtime_of_numba():
    code = (
        "from ddrl.exchange.optimizers import make_optimizer; from ddrl.exchange.settings import OptimizerConfig;"
        "import numba.core.runtime as runtime;"
        "make_optimizer(OptimizerConfig(), 3);"
        "from ddrl.kernels import updates;"
        "print(sum(updates.adam.stats.cache_hits.values()), runtime.rtsys._init)"
    )
    make_optimizer(RULES[0], 3)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_a_kernel_of_addresses_takes_no_array():
    with pytest.raises(compiled.numba.TypingError, match="array"):
        compiled.compiled(lambda x: x[0:2])(np.zeros(3))


def test_parameters_may_be_read_only():
    theta, out = np.zeros(10, np.float32), np.empty(10, np.float32)
    theta.flags.writeable = False
    make_optimizer(RULES[-1], 10).apply(theta, np.ones(10, np.float32), 1.0, out=out)
    assert equal(out, theta - 1)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """compile() -> a fresh kernel of a file of its own, and where what it compiled is kept."""
    path = tmp_path / "doubling.py"
    path.write_text("def double(x):\n    return 2 * x\n")

    def compile():
        spec = importlib.util.spec_from_file_location("doubling", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "doubling", module)  # where Numba looks for it again
        spec.loader.exec_module(module)
        return compiled.compiled(module.double), tmp_path / "__pycache__"

    return compile


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"not what was written"])
def test_a_damaged_file_of_the_cache_costs_a_compilation_and_is_replaced(kernel, suffix, content):
    double, directory = kernel()
    assert double(2) == 4
    files = [path for path in directory.iterdir() if path.name.endswith(suffix)]
    assert files
    for path in files:
        path.write_bytes(content)
    assert kernel()[0](2) == 4
    again, _ = kernel()
    assert again(2) == 4 and sum(again.stats.cache_hits.values()) == 1, "it was kept once more"


def test_a_disk_that_takes_nothing_costs_a_compilation(kernel, monkeypatch):
    double, _ = kernel()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(double._cache._cache, "save_overload", full)
    assert double(2) == 4


def test_kernels_work_where_there_is_no_place_to_keep_them(kernel, monkeypatch):
    def refuse(dispatcher):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(compiled.numba.core.dispatcher.Dispatcher, "enable_caching", refuse)
    double, directory = kernel()
    assert double(2) == 4 and not list(directory.glob("*.nb*"))
