"""Local SGD (Stich 2019): workers take some steps of their own, then average parameters and optimizer slots.

    theta_w <- theta_w - r_k d_k(g)       k = 1 .. H, each worker w by itself, from equal theta, slots and counts
    theta   <- mean over w of theta_w     the slots are averaged in the same way; Adam's count grows by H

With H = 1 and plain SGD, this is the synchronous step bit for bit. A version counts the steps of one worker, so there
are H versions from one that all workers have in common to the next; only these are published, saved and evaluated. The
last round is completed even if --max-updates is no multiple of H.

Read `ddrl.exchange.allreduce` first, on which `server` builds. The import rules are those of `ddrl.exchange`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddrl import checks
from ddrl.exchange.kind import FLOAT_BYTES, WithoutServers

if TYPE_CHECKING:
    from ddrl.exchange.interface import Coordinator, Server, Setup
    from ddrl.exchange.settings import ExchangeConfig


class LocalSgd(WithoutServers):
    """The exchange `local_sgd`; see the module."""

    name = "local_sgd"
    summary = "every worker takes --local-steps of its own, then the workers average parameters and optimizer slots"
    local_steps = True
    why_no_quorum = "averages all live workers"

    def check(self, config: ExchangeConfig) -> None:
        super().check(config)
        if not config.local_steps:
            checks.refuse(
                config, "local_steps", f"--exchange {self.name} takes 1 or more steps between averages; say how many"
            )

    def averages_gradients(self, config: ExchangeConfig) -> bool:
        return False

    def bytes_per_update(self, config: ExchangeConfig, parameters: int, slots: int) -> int:
        each_round = 2 * FLOAT_BYTES * parameters * (1 + slots) * (config.workers - 1)
        return each_round // config.local_steps

    def server(self, setup: Setup, index: int, size: int) -> Server:
        from ddrl.exchange.local_sgd.server import LocalSgdServer

        optimizer = setup.make_optimizer(0, size)
        steps = setup.config.local_steps
        return LocalSgdServer(index, setup.workers, setup.chief, optimizer, setup.learning_rate, steps)

    def coordinator(self, setup: Setup, step: int, version: int) -> Coordinator:
        from ddrl.exchange.allreduce.coordinator import LockstepCoordinator

        return LockstepCoordinator(
            setup.chief,
            setup.workers,
            setup.learning_rate,
            step=step,
            version=version,
            updates_per_step=setup.config.local_steps,
        )


EXCHANGE = LocalSgd()
