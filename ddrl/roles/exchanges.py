"""What a job tells its exchange, which knows no setting of learning."""

from __future__ import annotations

from ddrl.exchange.interface import Coordinator, Server, Setup
from ddrl.exchange.kind import Exchange
from ddrl.exchange.optimizers import rate_of
from ddrl.exchange.parameter_groups import ParameterGroup
from ddrl.exchange.registry import OF_ONE_PROCESS, exchange_named
from ddrl.roles.job import JobContext


def setup_of(context: JobContext) -> Setup:
    """The exchange's part of the settings, and who is who in it."""
    config, layout = context.config, context.layout
    evaluator = () if layout.evaluator is None else (layout.evaluator,)
    return Setup(
        config.exchange,
        config.optimizer,
        rate_of(config.optimizer, config.effective_batch, config.agent_steps_per_update),
        context.run_dir,
        layout.chief,
        layout.workers,
        layout.servers,
        readers=(*evaluator, *layout.actors),
        refreshes=config.sampling.refresh_every_steps > 0,
        groups=parameter_groups_of(context),
    )


def parameter_groups_of(context: JobContext) -> tuple[ParameterGroup, ...]:
    """Ranges of the parameters with a learning rate of their own; no algorithm asks for any."""
    return ()


def make_server(context: JobContext, index: int, size: int) -> Server:
    """The server of this process, for `size` parameters; see `Exchange.server`."""
    return _exchange(context).server(setup_of(context), index, size)


def make_coordinator(context: JobContext, step: int, version: int) -> Coordinator:
    """The chief's coordinator; see `Exchange.coordinator`."""
    return _exchange(context).coordinator(setup_of(context), step, version)


def _exchange(context: JobContext) -> Exchange:
    alone = context.config.single_process
    return exchange_named(OF_ONE_PROCESS) if alone else context.config.exchange.kind
