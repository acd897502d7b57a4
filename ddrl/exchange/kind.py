"""The record of an exchange: what settings and the command line need, without loading its server and coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ddrl import checks

if TYPE_CHECKING:
    from ddrl.exchange.interface import Coordinator, Server, Setup
    from ddrl.exchange.settings import ExchangeConfig

FLOAT_BYTES = 4


class Exchange(ABC):
    """One way in which gradients become the next parameters.

    Attributes:
        name: its name on the command line.
        summary: what it does, for --help.
        has_servers: whether some ranks do nothing but serve parameters; else every worker's process hosts a server.
        one_host: whether all workers must be on one host.
        refreshes: whether acting can get newer parameters between two gradients.
        local_steps: whether workers may take steps of their own between two synchronizations.
        chunked: whether the parameters are in parts, each with a lock of its own: --store-chunks.
    """

    name: str
    summary: str
    has_servers = False
    one_host = False
    refreshes = False
    local_steps = False
    chunked = False

    def check(self, config: ExchangeConfig) -> None:
        """Refuses settings that this exchange does not support.

        Raises:
            UsageError: a setting is not supported; the message names the setting and the remedy.
        """
        if not self.local_steps:
            why = f"--exchange {self.name} has no steps between synchronizations; leave it at 0"
            checks.unused(config, why, "local_steps")

    def servers(self, config: ExchangeConfig) -> int:
        """The number of ranks that do nothing but serve parameters."""
        return 0

    def asynchronous(self, config: ExchangeConfig) -> bool:
        """Whether each gradient is applied as it arrives, so that updates have no boundary that all ranks share."""
        return False

    def averages_gradients(self, config: ExchangeConfig) -> bool:
        """Whether gradients are averaged, and the average is clipped; else each worker clips its own gradients."""
        return True

    def bytes_per_update(self, config: ExchangeConfig, parameters: int, slots: int) -> int:
        """The bytes that cross process boundaries for one update, in both directions together.

        Args:
            config: settings of the exchange.
            parameters: float32 values in the parameter vector.
            slots: optimizer slots, each of which has as many values.
        """
        return 0

    @abstractmethod
    def server(self, setup: Setup, index: int, size: int) -> Server:
        """Makes the server that a process hosts.

        Args:
            setup: the job's, as this process sees it.
            index: index of the server, or id of the worker in this process if every worker's process hosts a server.
            size: float32 values in the whole parameter vector.

        Raises:
            UsageError: if the vector is too small for so many ranks.
        """

    @abstractmethod
    def coordinator(self, setup: Setup, step: int, version: int) -> Coordinator:
        """Makes the chief's coordinator, at the step and version at which the run begins or resumes."""


class WithoutServers(Exchange):
    """An exchange among the workers, without ranks that only serve: every worker's process hosts a server.

    Attributes:
        why_no_quorum: what it does with gradients instead of closing steps with some of them, for error messages.
    """

    why_no_quorum = "closes no steps"

    def check(self, config: ExchangeConfig) -> None:
        super().check(config)
        if config.parameter_servers:
            checks.refuse(config, "parameter_servers", f"--exchange {self.name} has none; leave it out, or use 0")
        if config.chief == "dedicated":
            checks.refuse(config, "chief", f"with --exchange {self.name}, the chief is worker 0; use --chief trains")
        why = f"--exchange {self.name} {self.why_no_quorum}; leave it at 0, or use --exchange parameter_server"
        checks.unused(config, why, "quorum", "quorum_deadline_seconds")
        if config.updates == "asynchronous" and not self.asynchronous(config):
            why = f"--exchange {self.name} {self.why_no_quorum}; use --exchange parameter_server or central_store"
            checks.refuse(config, "updates", why)
