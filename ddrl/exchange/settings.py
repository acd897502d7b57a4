"""Settings of exchange, roles, and optimizer.

This module imports only checks, plugins, and what is registered: the records of the exchanges, optimizers, and
schedules of the learning rate. None of them imports a compiler before it is used.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from typing_extensions import Doc

from ddrl import checks, plugins
from ddrl.exchange import optimizers  # noqa: F401  # which registers them
from ddrl.exchange.kind import Exchange
from ddrl.exchange.learning_rates import check_schedule
from ddrl.exchange.registry import NAMES, exchange_named
from ddrl.exchange.step_functions import named_step_function

MOST_RANKS = 1_000_000
MOST_CHUNKS = 4_096
SUMMARIES = "; ".join(f"{name}: {exchange_named(name).summary}" for name in NAMES)
LISTED = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
ExchangeName = Annotated[
    str, Doc(f"How gradients become parameters: {LISTED}. {SUMMARIES}. Or one that a --plugin registers.")
]


@dataclasses.dataclass(frozen=True)
class ExchangeConfig:
    """Exchange and roles."""

    exchange: ExchangeName = NAMES[0]
    workers: int = 2
    """Ranks that train. Worker 0 is the chief unless --chief is dedicated."""
    parameter_servers: int | None = None
    """Ranks that each own a slice of the parameters (None: 1 per 8 workers). Where --exchange has no servers, None
    is 0. With 0 and --workers 1, the run is one process, without MPI."""
    chief: Literal["trains", "dedicated"] = "trains"
    """Whether worker 0 trains besides coordinating. dedicated: one more rank coordinates and does nothing else, as in
    the BA3C paper."""
    updates: Literal["synchronous", "asynchronous"] = "synchronous"
    """Whether servers average a step's gradients or apply each as it comes. synchronous: all servers average the same
    quorum of gradients; asynchronous: they apply each as it comes, as a central store always does."""
    quorum: int = 0
    """Gradients per synchronous update (0: those of all live workers). The other workers are what papers call backup
    workers."""
    quorum_deadline_seconds: float = 0.0
    """Close a step this long after its first gradient, with the gradients that have arrived (0: no deadline)."""
    max_staleness: int = 0
    """Drop gradients that are more than this many updates old (0: keep all). For asynchronous updates."""
    store_chunks: int = 3
    """Parts of the central store, each with a lock of its own."""
    local_steps: int = 0
    """Steps that a worker takes by itself between two synchronizations. Not every --exchange has such steps; with
    central_store they are steps of Adam (0: it applies each gradient to the store)."""
    on_worker_loss: Literal["survive", "restart"] = "survive"
    """What happens when a worker dies. survive: the others go on without it (Open MPI with ULFM); restart: as for a
    server."""
    on_server_loss: Literal["stop", "restart"] = "restart"
    """What happens when a server or the chief dies, which ends all ranks. restart: whatever started the ranks starts
    them again from the last checkpoint; stop: the run stays ended until --resume."""

    def __post_init__(self) -> None:
        checks.known(self)
        checks.registered(self, "exchange", plugins.exchanges.names())
        checks.between(self, 1, MOST_RANKS, "workers")
        checks.at_least(self, 0, "quorum", "max_staleness", "quorum_deadline_seconds", "local_steps")
        checks.between(self, 1, MOST_CHUNKS, "store_chunks")
        if self.parameter_servers is not None:
            checks.between(self, 0, MOST_RANKS, "parameter_servers")
        self.kind.check(self)
        self._check_quorum()

    @property
    def may_close_early(self) -> bool:
        """Whether a step may close without the gradients of all workers."""
        return self.quorum > 0 or self.quorum_deadline_seconds > 0

    def _check_quorum(self) -> None:
        if self.quorum > self.workers:
            checks.refuse(
                self, "quorum", f"no step could ever close with only --workers {self.workers}; lower it, or use 0"
            )
        if self.updates == "asynchronous" and self.may_close_early:
            name = "quorum" if self.quorum else "quorum_deadline_seconds"
            why = "asynchronous updates close no steps; leave it at 0, or use --updates synchronous"
            checks.refuse(self, name, why)
        if not self.asynchronous and self.max_staleness:
            checks.refuse(self, "max_staleness", "synchronous gradients are never stale; leave it at 0")

    @property
    def kind(self) -> Exchange:
        """The exchange itself."""
        return exchange_named(self.exchange)

    @property
    def servers(self) -> int:
        """Parameter servers that there are: what was asked for, or what the other settings make of None."""
        return self.kind.servers(self)

    @property
    def asynchronous(self) -> bool:
        """Whether each gradient is applied as it comes."""
        return self.kind.asynchronous(self)

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients are averaged before they are applied; else each is clipped by itself."""
        return self.kind.averages_gradients(self)

    @property
    def ranks(self) -> int:
        """Ranks that train and serve, the dedicated chief included, the evaluator not."""
        return self.workers + self.servers + (self.chief == "dedicated")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer."""

    batch_size: int = 32
    """Data-points per gradient (0: the whole rollout). A gradient is that of one worker; for PPO, this is the
    minibatch. The effective batch is this times the gradients per update."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum over the data-points of an update. Some papers take the sum; their epsilon and clipping norm then
    hold for any batch. With the sum, gradients and their norms grow, and printed losses are still means. A sum is the
    mean of the gradients that arrived times the effective batch, even where fewer workers are left."""
    optimizer: str = "adam"
    """Update rule: adam, rmsprop, rmsprop-centered, sgd, or one that a --plugin registers. NAME:KEY=VALUE,KEY=VALUE
    gives that of a plugin options."""
    learning_rate: float = 1e-3
    """Step size at the start."""
    learning_rate_schedule: str = "constant"
    """How the rate changes: constant, linear, or as a --plugin says. linear goes to --learning-rate-end, over
    --learning-rate-agent-steps or --learning-rate-updates. NAME:KEY=VALUE,KEY=VALUE gives the schedule of a plugin
    options."""
    learning_rate_end: float = 0.0
    """Learning rate at which the schedule ends and stays."""
    learning_rate_agent_steps: int = 0
    """Agent steps of all workers over which schedules run (0: by --learning-rate-updates). They count the same,
    whatever the batch, the epochs, and the number of workers. With --quorum, an update counts as the agent steps of
    that many gradients: schedules end later if more workers act."""
    learning_rate_updates: int = 100_000
    """Updates over which schedules run, unless --learning-rate-agent-steps says otherwise."""
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the learning rate grows with the ratio of the effective batch to --learning-rate-batch. none: not at all;
    linear: in proportion (Goyal et al. 2017); sqrt: with the square root (Stooke and Abbeel 2018, A2C)."""
    learning_rate_batch: int = 0
    """Effective batch at which --learning-rate holds as it is, for --learning-rate-scaling."""
    warmup_updates: int = 0
    """Updates over which the learning rate grows from nearly 0 to its schedule (0: none)."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon-hat: theta -= lr_t m / (sqrt(v) + epsilon)."""
    beta1: float = 0.9
    """Adam's decay of the mean of gradients."""
    beta2: float = 0.999
    """Adam's decay of the mean of squared gradients."""
    rmsprop_decay: float = 0.99
    """RMSProp's decay of the mean of squared gradients."""
    rmsprop_epsilon: float = 1e-5
    """RMSProp's epsilon."""
    rmsprop_epsilon_inside: bool = False
    """Put RMSProp's epsilon inside the square root, sqrt(v + eps), instead of outside, sqrt(v) + eps."""
    clip_global_norm: float = 0.0
    """Clip the gradient to this global norm (0: do not). What is clipped is the average over all workers, or each
    worker's gradient where they are applied one by one."""
    clip_tensor_average_norm: float = 0.0
    """Clip each tensor's gradient to x times its number of elements (0: do not). This bounds its norm before
    aggregation."""

    def __post_init__(self) -> None:
        checks.known(self)
        checks.at_least(self, 1, "learning_rate_updates")
        checks.at_least(self, 0, "batch_size", "learning_rate_batch", "learning_rate_agent_steps", "warmup_updates")
        if (self.learning_rate_scaling == "none") != (self.learning_rate_batch == 0):
            why = "it says how the rate grows, and --learning-rate-batch from which batch on; give both, or neither"
            checks.refuse(self, "learning_rate_scaling", why)
        checks.above(self, 0.0, "learning_rate", why="0 learns nothing, and less than 0 unlearns")
        checks.at_least(self, 0.0, "learning_rate_end")
        checks.above(self, 0.0, "adam_epsilon", "rmsprop_epsilon", why="0 divides by zero where gradients vanish")
        checks.decay(self, "beta1", "beta2", "rmsprop_decay")
        checks.at_least(self, 0.0, "clip_global_norm", "clip_tensor_average_norm")
        checks.registered(self, "optimizer", plugins.optimizers.names(), with_options=True)
        named_step_function(self.optimizer)  # which refuses options that it does not have
        schedules = plugins.learning_rate_schedules.names()
        checks.registered(self, "learning_rate_schedule", schedules, with_options=True)
        check_schedule(self)
