"""The exchanges that there are: each is a package in this folder whose `EXCHANGE` says what it is."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddrl.exchange.kind import Exchange

NAMES = ("parameter_server", "allreduce", "central_store", "local_sgd")
"""Names on the command line, which are those of the packages."""
OF_ONE_PROCESS = NAMES[0]
"""A single process has nobody to exchange with: its worker turns to a server in the same process."""


@functools.cache
def exchange_named(name: str) -> Exchange:
    """The exchange of this name, one of `NAMES`."""
    exchange: Exchange = importlib.import_module(f"ddrl.exchange.{name}").EXCHANGE
    return exchange
