"""Makes the servers and the coordinator of a job's exchange.

An exchange knows nothing of learning: a `Setup` tells it what it needs, such as the learning rate of each version.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.topology import usable_cores
from ddrl.exchange.interface import Coordinator, Server, Setup
from ddrl.exchange.kind import Exchange
from ddrl.exchange.learning_rates import rate_of
from ddrl.exchange.parameter_groups import groups_named
from ddrl.exchange.registry import OF_ONE_PROCESS, exchange_named
from ddrl.exchange.statistics import statistics_in
from ddrl.job.layout import JobContext

Tensors = Sequence[tuple[str, tuple[int, ...]]]
"""Name and shape of each tensor of a network, in the flat order."""


def setup_of(context: JobContext, tensors: Tensors = ()) -> Setup:
    """Makes the `Setup`: the settings that the exchange needs, and the processes of each role.

    Args:
        context: the job's context.
        tensors: tensors of the network; needed in processes that make or apply gradients.
    """
    config, layout = context.config, context.layout
    factors = config.algorithm.learning_rate_factors
    acts_meanwhile = config.sampling.schedule in ("asynchronous", "double-buffered")
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
        groups=groups_named(tensors, factors) if tensors else (),
        threads=len(usable_cores()) if config.single_process and not acts_meanwhile else 1,
        statistics=statistics_in(tensors),
    )


def make_server(context: JobContext, index: int, size: int, tensors: Tensors = ()) -> Server:
    """Makes the server of this process for `size` parameters, those of `tensors`; see `Exchange.server`."""
    return _exchange(context).server(setup_of(context, tensors), index, size)


def make_coordinator(context: JobContext, step: int, version: int) -> Coordinator:
    """Makes the chief's coordinator; see `Exchange.coordinator`."""
    return _exchange(context).coordinator(setup_of(context), step, version)


def _exchange(context: JobContext) -> Exchange:
    alone = context.config.single_process
    return exchange_named(OF_ONE_PROCESS) if alone else context.config.exchange.kind
