"""A central store: the workers of one host update parameters in shared memory, each on its own.

Read `learner` first, then `memory`, the shared memory; a worker uses both through `server`. The import rules are those
of `ddrl.exchange`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddrl.exchange.kind import WithoutServers

if TYPE_CHECKING:
    from ddrl.exchange.interface import Coordinator, Server, Setup
    from ddrl.exchange.settings import ExchangeConfig


class CentralStoreExchange(WithoutServers):
    """The exchange `central_store`; see the module."""

    name = "central_store"
    summary = "the workers of one host update parameters in shared memory, each on its own"
    one_host = True
    refreshes = True
    local_steps = True
    chunked = True

    def asynchronous(self, config: ExchangeConfig) -> bool:
        return True

    def averages_gradients(self, config: ExchangeConfig) -> bool:
        return False

    def server(self, setup: Setup, index: int, size: int) -> Server:
        from ddrl.exchange.central_store.file import store_path
        from ddrl.exchange.central_store.server import StoreServer

        return StoreServer(setup, index, size, store_path(setup.run_dir))

    def coordinator(self, setup: Setup, step: int, version: int) -> Coordinator:
        from ddrl.exchange.asynchronous import AsynchronousCoordinator

        processes = tuple(setup.workers.values())
        return AsynchronousCoordinator(
            processes, setup.workers, setup.learning_rate, holders=(setup.chief,), step=step, version=version
        )


EXCHANGE = CentralStoreExchange()
