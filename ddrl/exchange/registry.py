"""Finds an exchange by its name.

The built-in exchanges are packages in this folder, each of which has its `Exchange` in `EXCHANGE`; plugins register
others.
"""

from __future__ import annotations

import importlib
from typing import Any

from ddrl import plugins
from ddrl.errors import UsageError
from ddrl.exchange.kind import Exchange

NAMES = ("parameter_server", "allreduce", "central_store", "local_sgd")
"""Names of the built-in exchanges, which are also the names of their packages."""
OF_ONE_PROCESS = NAMES[0]
"""Name of the exchange of a run of one process, whose worker uses a parameter server in the same process."""


def exchange_named(name: str) -> Exchange:
    """The exchange with this name.

    Raises:
        UsageError: no exchange has this name.
    """
    return plugins.exchanges.get(name)


def _check(name: str, exchange: Any) -> None:
    if not isinstance(exchange, Exchange):
        raise UsageError(f"register_exchange takes a ddrl.exchange.kind.Exchange, not {exchange!r:.80}")


plugins.exchanges.check = _check
for _name in NAMES:
    plugins.register_exchange(importlib.import_module(f"ddrl.exchange.{_name}").EXCHANGE)
