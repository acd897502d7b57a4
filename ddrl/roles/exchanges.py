"""Which parts an exchange has: its coordinator at the chief, and what a worker's process hosts."""

from __future__ import annotations

from cluster.roles import Assignment
from ddrl.checkpoint import Checkpoint
from ddrl.exchange.allreduce.coordinator import LockstepCoordinator
from ddrl.exchange.optimizers import rate_of
from ddrl.exchange.parameter_server.coordinator import Coordinator, Quorum
from ddrl.exchange.transport import Transport
from ddrl.roles.job import Role, Setting
from ddrl.roles.replica import ReplicaRole
from ddrl.roles.server import ServerRole
from ddrl.roles.store import StoreRole


def make_coordinator(setting: Setting, start: Checkpoint) -> Coordinator | LockstepCoordinator:
    """The chief's, at the state to start from."""
    config, cast = setting.config, setting.cast
    rate = rate_of(config)
    if cast.hosts_servers and config.exchange.exchange == "allreduce":
        return LockstepCoordinator(cast.chief, cast.workers, rate, step=start.step, version=start.version)
    return Coordinator(
        tuple(cast.workers.values()) if cast.hosts_servers else cast.servers,
        cast.workers,
        Quorum(config.exchange.quorum, config.exchange.quorum_deadline_seconds),
        rate,
        clip_norm=config.optimizer.clip_global_norm,
        step=start.step,
        version=start.version,
        asynchronous=config.exchange.asynchronous,
    )


def hosted_server(setting: Setting, transport: Transport, mine: Assignment, size: int) -> Role:
    """The server that a worker has in its own process, of `size` parameters."""
    if setting.config.exchange.exchange == "central_store":
        return StoreRole(setting, transport, mine.index, size)
    if setting.config.exchange.exchange == "parameter_server":
        return ServerRole(setting, transport, 0, size)
    return ReplicaRole(setting, transport, mine.index, size)
