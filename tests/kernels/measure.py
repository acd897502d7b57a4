"""`python -m tests.kernels.measure`: compiled updates beside the same in NumPy, in turns; medians in milliseconds."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.settings import OptimizerConfig
from ddrl.floating_point import flush_denormals
from ddrl.replay.sum_tree import SumTree
from tests.kernels.numpy_updates import Rule

SIZES = (166_147, 332_295, 1_687_206)
ITEMS, BATCH = 1_000_000, 512


def milliseconds(rounds: int, *functions) -> list[float]:
    """Of each function, which take turns."""
    taken = [[] for _ in functions]
    for _ in range(rounds):
        for function, seconds in zip(functions, taken, strict=True):
            began = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - began)
    return [1000.0 * statistics.median(seconds) for seconds in taken]


def updates(rounds: int) -> None:
    """Prints a line for each rule, size and number of gradients."""
    random = np.random.default_rng(0)
    for name in ("adam", "rmsprop", "rmsprop-centered"):
        for size in SIZES:
            for count in (1, 4):
                config = OptimizerConfig(optimizer=name)
                optimizer, rule = make_optimizer(config, size), Rule(config, size)
                theta = random.standard_normal(size).astype(np.float32)
                gradients = list(random.standard_normal((count, size)).astype(np.float32))
                ours, numpys = milliseconds(
                    rounds,
                    lambda: optimizer.apply(theta, gradients, 1e-4, 1 / count),
                    lambda: rule.step(theta, gradients, 1e-4, 1 / count),
                )
                print(f"{name:<16} {size:>9,} x {count}   {ours:6.3f} compiled   {numpys:6.3f} NumPy")


def sum_tree(rounds: int) -> None:
    """Prints a line for each operation."""
    random, tree = np.random.default_rng(0), SumTree(ITEMS)
    tree.set_all(random.random(ITEMS))
    items, weights = random.integers(ITEMS, size=(rounds, BATCH)), random.random(BATCH)
    masses = random.random((rounds, BATCH)) * tree.total * 0.99
    turn = iter(range(rounds))
    (find,) = milliseconds(rounds, lambda: tree.find(masses[next(turn)]))
    turn = iter(range(rounds))
    (put,) = milliseconds(rounds, lambda: tree.set(items[next(turn)], weights))
    print(f"sum tree of {ITEMS:,}: find {BATCH} {1000 * find:.0f} us, set {BATCH} {1000 * put:.0f} us")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="of each measurement (default: 200)")
    arguments = parser.parse_args()
    flush_denormals()
    updates(arguments.rounds)
    sum_tree(arguments.rounds)
