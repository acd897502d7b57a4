"""Every exchange of the registry says what it is, and the command line takes its name."""

from __future__ import annotations

import pytest

from ddrl import plugins
from ddrl.errors import UsageError
from ddrl.exchange.kind import Exchange
from ddrl.exchange.registry import NAMES, exchange_named
from ddrl.exchange.settings import ExchangeConfig


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_that_of_a_package_which_says_what_it_is(name):
    exchange = exchange_named(name)
    assert isinstance(exchange, Exchange) and exchange.name == name and exchange.summary
    config = ExchangeConfig(exchange=name, local_steps=int(name == "local_sgd"), workers=3)
    assert config.kind is exchange and bool(config.servers) == exchange.has_servers
    assert config.ranks == 3 + config.servers


def test_the_setting_takes_the_names_of_the_registry_and_no_others():
    assert tuple(plugins.exchanges.names()) == NAMES
    with pytest.raises(UsageError, match="--exchange gossip: must be one of parameter_server, allreduce"):
        ExchangeConfig(exchange="gossip")
