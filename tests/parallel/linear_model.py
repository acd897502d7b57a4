"""What the ranks of ranks_exchange.py train, apart so that the tests can compute it without MPI."""

from __future__ import annotations

import numpy as np

from ddrl.config import OptimizerConfig

SIZE, ROWS, RATE = 11, 48, 0.05
DEFAULTS = {
    "workers": 2, "servers": 1, "steps": 20, "quorum": 0, "deadline": 0.0, "clip": 0.0, "slow": {},
    "jitter": 0.003, "exchange": "parameter_server", "dies": None,
}  # fmt: skip
OPTIMIZER = OptimizerConfig(learning_rate=RATE, beta1=0.8, beta2=0.75, adam_epsilon=1e-3)


def gradient(theta: np.ndarray, worker: int, workers: int) -> np.ndarray:
    """Of the mean of half the squared error over a worker's share of the rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, SIZE)).astype(np.float32)
    y = random.normal(size=ROWS).astype(np.float32)
    x, y = x[worker::workers], y[worker::workers]
    return (x * (x @ theta - y)[:, None]).mean(axis=0)


def start() -> np.ndarray:
    """Initial parameters."""
    return np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)
