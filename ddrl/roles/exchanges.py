"""What a job tells its exchange, which knows no setting of learning."""

from __future__ import annotations

from ddrl.exchange.interface import Coordinator, Server, Setup
from ddrl.exchange.kind import Exchange
from ddrl.exchange.optimizers import rate_of
from ddrl.exchange.parameter_groups import ParameterGroup
from ddrl.exchange.registry import OF_ONE_PROCESS, exchange_named
from ddrl.roles.job import Setting


def setup_of(setting: Setting) -> Setup:
    """The exchange's part of the settings, and who is who in it."""
    config, cast = setting.config, setting.cast
    evaluator = () if cast.evaluator is None else (cast.evaluator,)
    return Setup(
        config.exchange,
        config.optimizer,
        rate_of(config.optimizer, config.effective_batch, config.agent_steps_per_update),
        setting.run_dir,
        cast.chief,
        cast.workers,
        cast.servers,
        readers=(*evaluator, *cast.actors),
        refreshes=config.sampling.refresh_every_steps > 0,
        groups=parameter_groups_of(setting),
    )


def parameter_groups_of(setting: Setting) -> tuple[ParameterGroup, ...]:
    """Ranges of the parameters with a learning rate of their own; no algorithm asks for any."""
    return ()


def make_server(setting: Setting, index: int, size: int) -> Server:
    """The server of this process, for `size` parameters; see `Exchange.server`."""
    return _exchange(setting).server(setup_of(setting), index, size)


def make_coordinator(setting: Setting, step: int, version: int) -> Coordinator:
    """The chief's coordinator; see `Exchange.coordinator`."""
    return _exchange(setting).coordinator(setup_of(setting), step, version)


def _exchange(setting: Setting) -> Exchange:
    alone = setting.config.single_process
    return exchange_named(OF_ONE_PROCESS) if alone else setting.config.exchange.kind
