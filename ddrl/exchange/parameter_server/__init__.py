"""Parameter servers: separate ranks that average gradients and update parameters, each for its slice of them.

Read `server_shard` first, then `coordinator`, the chief's part. The import rules are those of `ddrl.exchange`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddrl import checks
from ddrl.exchange.kind import FLOAT_BYTES, Exchange

if TYPE_CHECKING:
    from ddrl.exchange.interface import Coordinator, Server, Setup
    from ddrl.exchange.settings import ExchangeConfig

WORKERS_PER_SERVER = 8


class ParameterServer(Exchange):
    """The exchange `parameter_server`; with `--updates asynchronous`, servers apply each gradient as it arrives."""

    name = "parameter_server"
    summary = "ranks of their own average and update"
    has_servers = True

    def check(self, config: ExchangeConfig) -> None:
        super().check(config)
        if config.parameter_servers != 0:
            return
        if config.workers > 1:
            why = f"--workers {config.workers} need at least 1 to share parameters; use --parameter-servers 1"
            checks.refuse(config, "parameter_servers", why)
        if config.chief == "dedicated":
            checks.refuse(
                config, "chief", "a single process has no rank for a dedicated chief; use --parameter-servers 1"
            )

    def servers(self, config: ExchangeConfig) -> int:
        if config.parameter_servers is None:
            return -(-config.workers // WORKERS_PER_SERVER)
        return config.parameter_servers

    def asynchronous(self, config: ExchangeConfig) -> bool:
        return config.updates == "asynchronous"

    def averages_gradients(self, config: ExchangeConfig) -> bool:
        return not self.asynchronous(config)

    def bytes_per_update(self, config: ExchangeConfig, parameters: int, slots: int) -> int:
        gradients = 1 if self.asynchronous(config) else config.workers  # each is answered with parameters
        return 2 * FLOAT_BYTES * parameters * gradients if config.servers else 0

    def server(self, setup: Setup, index: int, size: int) -> Server:
        from ddrl.exchange.parameter_server.server_shard import ServerShard
        from ddrl.exchange.sharding import shard_ranges

        start, stop = shard_ranges(size, len(setup.servers))[index]
        return ServerShard(
            index,
            stop - start,
            setup.make_optimizer(start, stop),
            setup.workers,
            setup.chief,
            asynchronous=setup.config.asynchronous,
            needs_norm=setup.clips_averages > 0,
            max_staleness=setup.config.max_staleness,
        )

    def coordinator(self, setup: Setup, step: int, version: int) -> Coordinator:
        if setup.config.asynchronous:
            from ddrl.exchange.asynchronous import AsynchronousCoordinator

            return AsynchronousCoordinator(
                setup.servers, setup.workers, setup.learning_rate, step=step, version=version
            )
        from ddrl.exchange.parameter_server.coordinator import Quorum, QuorumCoordinator

        return QuorumCoordinator(
            setup.servers,
            setup.workers,
            Quorum(setup.config.quorum, setup.config.quorum_deadline_seconds),
            setup.learning_rate,
            clip_norm=setup.clips_averages,
            step=step,
            version=version,
        )


EXCHANGE = ParameterServer()
