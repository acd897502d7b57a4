"""Makes the roles that compute: worker, evaluator and chief.

Only processes with such a role import this module, and with it TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cluster.roles import Assignment
from ddrl import checkpoint as checkpoints
from ddrl.apex.agent import learner_feed
from ddrl.builders.agent import make_environments, make_learner, make_schedule, network_for
from ddrl.checkpoint import Checkpoint
from ddrl.envs import make_environment
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.transport import Transport
from ddrl.init_from import SOURCE, source_of
from ddrl.job.layout import JobContext
from ddrl.learner import Policy, configure_tensorflow
from ddrl.memory import check_replay
from ddrl.placement.ranks import threads_for, with_threads
from ddrl.placement.resources import available_memory, check_shards
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.chief import ChiefRole
from ddrl.roles.evaluator import EvaluatorRole
from ddrl.roles.resume import Start, newest_start
from ddrl.roles.worker import WorkerRole
from ddrl.rundir import config_to_dict


class ComputeRoles:
    """A factory that builds the network once for the roles of one process.

    Args:
        context: the job's context.
        assignment: the cores and the GPU of this rank; `expose_gpu` was called for it before this module was imported.
        workers_here: number of workers on this host, which share its memory.

    Raises:
        UsageError: there are more servers than parameters, or the replays do not fit into memory.
    """

    def __init__(self, context: JobContext, assignment: Assignment, workers_here: int = 1):
        self.context = context
        threads = threads_for(context.config, assignment.cores)
        self._worker_config = with_threads(context.config, threads)
        deterministic = context.config.run.deterministic
        configure_tensorflow(threads.intra_op, threads.inter_op, assignment.gpu, deterministic)
        probe = make_environment(context.config.environment, 1, threads=1, training=False)
        self._shape, self._dtype = probe.observation_shape, probe.observation_dtype
        self.network = network_for(context.config, probe)
        probe.close()
        self._probe = probe
        if assignment.role == "worker" and not context.config.apex.actors:
            check_replay(context.config, probe, workers_here, available_memory())
        check_shards(self.network.size, len(context.layout.servers))

    def worker(
        self, transport: Transport, index: int, wake: Callable[[], None], working: Callable[[], object] = lambda: None
    ) -> WorkerRole:
        """Makes worker `index` with its environments; with Ape-X, where actors act, it makes the learner."""
        if self.context.layout.actors:
            return self._learner(transport, index, wake)
        config = self.context.config
        metrics = RankMetrics("worker", index)
        environments = make_environments(self._worker_config, index)
        schedule = make_schedule(config, environments, self.network, metrics, index)
        learner = make_learner(config, self.network, self._shape, self._dtype)
        return WorkerRole(
            self.context, transport, index, self.network, schedule, learner, metrics, wake, working=working
        )

    def _learner(self, transport: Transport, index: int, wake: Callable[[], None]) -> WorkerRole:
        config, metrics = self.context.config, RankMetrics("learner", index)
        feed = learner_feed(self.context, transport, self.network, self._probe, metrics, wake)
        learner = make_learner(config, self.network, self._shape, self._dtype)
        return WorkerRole(self.context, transport, index, self.network, feed.schedule, learner, metrics, wake, feed)

    def evaluator(self, transport: Transport) -> EvaluatorRole:
        """Makes the evaluator."""
        games = self.context.config.evaluation.eval_games
        sizes = (*(n for n in (1, 4, 10, 20, 50) if n < games), games)
        return EvaluatorRole(
            self.context, transport, self.network, lambda: Policy(self.network, self._shape, self._dtype, sizes)
        )

    def chief(self, transport: Transport, resume: bool) -> ChiefRole:
        """Makes the chief, which starts from fresh parameters, those of --init-from, or the newest good checkpoint."""
        start = self._start(resume)
        return ChiefRole(self.context, transport, start.checkpoint, resume, start.notes)

    def _start(self, resume: bool) -> Start:
        config, run_dir = self.context.config, self.context.run_dir
        slots = make_optimizer(config.optimizer, self.network.size).slots
        if resume and checkpoints.list_checkpoints(run_dir):
            start = newest_start(run_dir, config)
            checkpoints.check_layout(start.checkpoint, self.network.parameter_shapes)
            return start._replace(checkpoint=checkpoints.with_slots(start.checkpoint, slots))
        return Start(self._fresh(slots))

    def _fresh(self, slots: dict[str, np.ndarray]) -> Checkpoint:
        """Version 0 of a new run; its parameters are fresh, unless --init-from names others."""
        config, counters = self.context.config, dict[str, Any]()
        if config.run.init_from:
            source = source_of(config.run.init_from, self.network.parameter_shapes)
            parameters, counters[SOURCE] = source.checkpoint.parameters, source.record
        else:
            parameters = np.asarray(self.network.initial_parameters(config.run.seed), np.float32)
        return Checkpoint(
            version=0,
            step=0,
            agent_steps=0,
            wall_seconds=0.0,
            parameters=parameters,
            slots=slots,
            optimizer_count=0,
            layout=self.network.parameter_shapes,
            counters=counters,
            config=config_to_dict(config),
        )
