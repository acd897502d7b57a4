"""The exchanges: those here are packages in this folder whose `EXCHANGE` says what it is; plugins register theirs."""

from __future__ import annotations

import importlib
from typing import Any

from ddrl import plugins
from ddrl.errors import UsageError
from ddrl.exchange.kind import Exchange

NAMES = ("parameter_server", "allreduce", "central_store", "local_sgd")
"""Of the exchanges here, which are those of the packages."""
OF_ONE_PROCESS = NAMES[0]
"""A single process has nobody to exchange with: its worker turns to a server in the same process."""


def exchange_named(name: str) -> Exchange:
    """The exchange of this name.

    Raises:
        UsageError: there is none.
    """
    return plugins.exchanges.get(name)


def _check(name: str, exchange: Any) -> None:
    if not isinstance(exchange, Exchange):
        raise UsageError(f"register_exchange takes a ddrl.exchange.kind.Exchange, not {exchange!r:.80}")


plugins.exchanges.check = _check
for _name in NAMES:
    plugins.register_exchange(importlib.import_module(f"ddrl.exchange.{_name}").EXCHANGE)
