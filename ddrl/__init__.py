"""Distributed deep reinforcement learning with TensorFlow and MPI parameter servers.

    run = ddrl.train("ppo", game="CartPole-v1", preset="laptop", minutes=2)
    run.evaluate(games=50)
    agent = run.agent()

Each name is imported when it is first used: `import ddrl` takes milliseconds, and must load no TensorFlow. The code
behind these names is in `ddrl.api`; docs/design.md lists the packages, and says which may import which.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddrl.api.run import Run, load
    from ddrl.api.training import train
    from ddrl.errors import RunFailed, UsageError
    from ddrl.evaluation.agent import Agent
    from ddrl.evaluation.environment import make_environment
    from ddrl.plugins import (
        register_algorithm,
        register_callback,
        register_environment,
        register_exchange,
        register_learning_rate_schedule,
        register_logger,
        register_network,
        register_optimizer,
        register_wrapper,
    )
    from ddrl.reporting.callbacks import Callback, RunContext

_WHERE = {
    "train": "ddrl.api.training",
    "load": "ddrl.api.run",
    "Run": "ddrl.api.run",
    "Agent": "ddrl.evaluation.agent",
    "make_environment": "ddrl.evaluation.environment",
    "Callback": "ddrl.reporting.callbacks",
    "RunContext": "ddrl.reporting.callbacks",
    "register_algorithm": "ddrl.plugins",
    "register_callback": "ddrl.plugins",
    "register_environment": "ddrl.plugins",
    "register_exchange": "ddrl.plugins",
    "register_learning_rate_schedule": "ddrl.plugins",
    "register_logger": "ddrl.plugins",
    "register_network": "ddrl.plugins",
    "register_optimizer": "ddrl.plugins",
    "register_wrapper": "ddrl.plugins",
    "RunFailed": "ddrl.errors",
    "UsageError": "ddrl.errors",
}

__all__ = [
    "Agent",
    "Callback",
    "Run",
    "RunContext",
    "RunFailed",
    "UsageError",
    "load",
    "make_environment",
    "register_algorithm",
    "register_callback",
    "register_environment",
    "register_exchange",
    "register_learning_rate_schedule",
    "register_logger",
    "register_network",
    "register_optimizer",
    "register_wrapper",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ddrl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
