"""Which parts an exchange has: its coordinator at the chief, and what a worker's process hosts."""

from __future__ import annotations

from ddrl.checkpoint import Checkpoint
from ddrl.exchange.coordinator import Coordinator, Quorum
from ddrl.exchange.lockstep import LockstepCoordinator
from ddrl.exchange.optimizers import learning_rate
from ddrl.roles.job import Setting


def make_coordinator(setting: Setting, start: Checkpoint) -> Coordinator | LockstepCoordinator:
    """The chief's, at the state to start from."""
    config, cast = setting.config, setting.cast
    rate = lambda version: learning_rate(config.optimizer, version)  # noqa: E731
    if cast.has_replicas and config.exchange.exchange == "allreduce":
        return LockstepCoordinator(cast.chief, cast.workers, rate, step=start.step, version=start.version)
    return Coordinator(
        cast.servers,
        cast.workers,
        Quorum(config.exchange.quorum, config.exchange.quorum_deadline_seconds),
        rate,
        clip_norm=config.optimizer.clip_global_norm,
        step=start.step,
        version=start.version,
        asynchronous=config.exchange.asynchronous,
    )
