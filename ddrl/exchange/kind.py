"""What settings and the command line need to know of an exchange, without loading its servers and coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ddrl import checks

if TYPE_CHECKING:
    from ddrl.exchange.interface import Coordinator, Server, Setup
    from ddrl.exchange.settings import ExchangeConfig

FLOAT_BYTES = 4


class Exchange(ABC):
    """One way in which gradients become parameters.

    Attributes:
        name: on the command line.
        summary: what it does, for --help.
        has_servers: some ranks do nothing but serve parameters; else every worker's process hosts a server.
        one_host: all workers must be on one host.
        refreshes: acting can have newer parameters between two gradients.
        local_steps: workers may take steps of their own between two synchronizations.
    """

    name: str
    summary: str
    has_servers = False
    one_host = False
    refreshes = False
    local_steps = False

    def check(self, config: ExchangeConfig) -> None:
        """Refuses settings that it cannot keep.

        Raises:
            UsageError: one that names the setting and the remedy.
        """
        if not self.local_steps:
            why = f"--exchange {self.name} has no steps between synchronizations; leave it 0"
            checks.unused(config, why, "local_steps")

    def servers(self, config: ExchangeConfig) -> int:
        """Ranks that do nothing but serve parameters."""
        return 0

    def asynchronous(self, config: ExchangeConfig) -> bool:
        """Whether each gradient is applied as it comes, so that updates have no boundary that all ranks share."""
        return False

    def averages_gradients(self, config: ExchangeConfig) -> bool:
        """Whether gradients are averaged before they are applied; else a worker's norm is clipped by itself."""
        return True

    def bytes_per_update(self, config: ExchangeConfig, parameters: int, slots: int) -> int:
        """What crosses process boundaries for one update, both ways together.

        Args:
            config: settings of the exchange.
            parameters: float32 values of the vector.
            slots: vectors of that length that the optimizer keeps.
        """
        return 0

    @abstractmethod
    def server(self, setup: Setup, index: int, size: int) -> Server:
        """The server that a process hosts.

        Args:
            setup: of the job, as this process sees it.
            index: of the server, or of the worker in this process where every worker's process hosts one.
            size: float32 values of the whole parameter vector.

        Raises:
            UsageError: if the vector is too small for so many ranks.
        """

    @abstractmethod
    def coordinator(self, setup: Setup, step: int, version: int) -> Coordinator:
        """The chief's part, at the step and version that the run begins or goes on with."""


class WithoutServers(Exchange):
    """An exchange among the workers: each one's process hosts a server.

    Attributes:
        members: what it does with the gradients of a step, to say why there is no quorum.
    """

    members: str

    def check(self, config: ExchangeConfig) -> None:
        super().check(config)
        if config.parameter_servers:
            checks.refuse(config, "parameter_servers", f"--exchange {self.name} has none; leave it out, or use 0")
        if config.chief == "dedicated":
            checks.refuse(config, "chief", f"with --exchange {self.name}, the chief is worker 0; use --chief trains")
        why = f"--exchange {self.name} {self.members}; leave it 0, or use --exchange parameter_server"
        checks.unused(config, why, "quorum", "quorum_deadline_seconds")
        if config.updates == "asynchronous" and not self.asynchronous(config):
            why = f"--exchange {self.name} {self.members}; use --exchange parameter_server or central_store"
            checks.refuse(config, "updates", why)
