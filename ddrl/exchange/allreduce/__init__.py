"""All-reduce: every worker has all parameters, and the workers average among themselves.

Read `replica` first, with `outcome`, the outcome of a step; then `coordinator`, the chief's part. The import
rules are those of `ddrl.exchange`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddrl.exchange.kind import FLOAT_BYTES, WithoutServers

if TYPE_CHECKING:
    from ddrl.exchange.interface import Coordinator, Server, Setup
    from ddrl.exchange.settings import ExchangeConfig


class Allreduce(WithoutServers):
    """The exchange `allreduce`; see the module."""

    name = "allreduce"
    summary = "every worker has all parameters, and the workers average among themselves"
    why_no_quorum = "averages all live workers"

    def bytes_per_update(self, config: ExchangeConfig, parameters: int, slots: int) -> int:
        return 2 * FLOAT_BYTES * parameters * (config.workers - 1)

    def server(self, setup: Setup, index: int, size: int) -> Server:
        from ddrl.exchange.allreduce.replica import Replica

        return Replica(
            index,
            setup.workers,
            setup.chief,
            size,
            setup.make_optimizer(0, size),
            setup.learning_rate,
            clip_norm=setup.clips_averages,
        )

    def coordinator(self, setup: Setup, step: int, version: int) -> Coordinator:
        from ddrl.exchange.allreduce.coordinator import LockstepCoordinator

        return LockstepCoordinator(setup.chief, setup.workers, setup.learning_rate, step=step, version=version)


EXCHANGE = Allreduce()
