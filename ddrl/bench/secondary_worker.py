"""The process that runs a point of `ddrl study secondary-learner`: two learners of one replay, only one of which acts.

It reads one line of JSON with the settings of both, answers with a line for each record of metrics.jsonl, and ends with
`{"end": true}`, or when its output is no longer read.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from cluster.topology import this_seat
from ddrl import programs
from ddrl.bench.children import serve
from ddrl.config import TrainConfig
from ddrl.placement.resources import this_machine
from ddrl.reporting.collector import Collector
from ddrl.reporting.metrics import evaluation_record
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.rundir import config_from_dict
from ddrl.types import Replayed, Snapshot

SAMPLER, SECONDARY = "sampler", "secondary"


def records(first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the records of both learners, and then `{"end": True}`."""
    yield from TwoLearners(*(config_from_dict(first[name]) for name in (SAMPLER, SECONDARY))).records()
    yield {"end": True}


class Student:
    """One of the two learners: its parameters, their optimizer, and its own minibatches.

    Args:
        config: settings of the optimizer and the batches, and the seed of the initial parameters.
        network: the network to train.
        observations: shape and type of an observation.
        batches: minibatches from the replay.
    """

    def __init__(self, config: TrainConfig, network: Any, observations: tuple[tuple[int, ...], Any], batches: Any):
        from ddrl.builders.agent import make_learner
        from ddrl.exchange.learning_rates import rate_of
        from ddrl.exchange.optimizers import make_optimizer
        from ddrl.learner import as_device_vector

        self.config, self.batches = config, batches
        self.learner = make_learner(config, network, *observations)
        self.optimizer = make_optimizer(config.optimizer, network.size)
        self.snapshot = Snapshot(0, 0, as_device_vector(network.initial_parameters(config.run.seed)))
        self.values: dict[str, float] = {}
        self._rate = rate_of(config.optimizer, config.effective_batch, config.agent_steps_per_update)

    def learn(self, batch: Replayed) -> None:
        """Makes one update with a minibatch."""
        from ddrl.learner import as_device_vector

        version = self.snapshot.version
        gradient, self.values, _ = self.learner.gradient(self.snapshot.parameters, batch)
        norm, limit = self.values["gradient_norm"], self.config.optimizer.clip_global_norm
        parameters = np.array(self.snapshot.parameters, np.float32)
        scale = limit / norm if 0.0 < limit < norm else 1.0
        self.optimizer.apply(parameters, gradient, self._rate(version), scale)
        self.snapshot = Snapshot(version + 1, version + 1, as_device_vector(parameters))

    def told(self) -> dict[str, float]:
        """The learner's newest values for a record."""
        norm = float(np.linalg.norm(np.asarray(self.snapshot.parameters)))
        return {**self.values, "update": self.snapshot.version, "parameter_norm/all": norm}


class TwoLearners:
    """Two learners that share a replay, of which only the first acts (Stooke and Abbeel 2018, section 5.4.2).

    Both begin with equal parameters, and train at once and at the same rate of transitions; each draws its own
    minibatches and has its own target network.

    Args:
        config: settings of the learner that acts, with the concurrent schedule.
        second: settings of the other one; batch size, optimizer and agent steps per update may differ.
    """

    def __init__(self, config: TrainConfig, second: TrainConfig):
        from ddrl.placement.ranks import expose_gpu, place_ranks, threads_for, with_threads

        (seat,) = place_ranks(config, (this_seat(os.environ),))
        expose_gpu(seat.gpu)
        from ddrl.builders.agent import make_environments, make_schedule, network_for
        from ddrl.builders.replay import make_batches
        from ddrl.envs import make_environment
        from ddrl.learner import configure_tensorflow

        self.config, self.metrics = config, RankMetrics("worker", 0)
        threads = threads_for(config, seat.cores)
        configure_tensorflow(threads.intra_op, threads.inter_op, seat.gpu)
        probe = make_environment(config.environment, 1, training=False)
        observations = probe.observation_shape, probe.observation_dtype
        self.network = network_for(config, probe)
        probe.close()
        environments = make_environments(with_threads(config, threads))
        self.schedule = cast(Any, make_schedule(config, environments, self.network, self.metrics, 0))
        self.sampler = Student(config, self.network, observations, self.schedule.batches)
        updates = second.replay_data.target_period // second.replay_data.steps_per_update
        batches = make_batches(second, self.schedule.replay, self.network, observations, updates, (0, 1))
        self.secondary = Student(second, self.network, observations, batches)
        self._observations = observations

    def records(self) -> Iterator[dict[str, Any]]:
        """Trains until the budget is used up; yields the train records of both learners, and their evaluations."""
        from ddrl.builders.agent import seed_of

        config, evaluations = self.config, 0
        self._collector, self._began = Collector(), time.monotonic()
        self.schedule.set_state({}, seed_of(config.run.seed, 0, 0))
        last = self._began
        try:
            while not self._over():
                for _ in self._period():
                    if time.monotonic() - last >= config.run.log_every_seconds:
                        last = time.monotonic()
                        yield from self._train_records()
                yield from self._train_records()
                due = self.sampler.snapshot.version // config.evaluation.eval_every_updates
                if config.evaluation.evaluator and (due > evaluations or self._over()):
                    evaluations = due
                    yield from self._evaluations()
        finally:
            self.schedule.stop()

    def _over(self) -> bool:
        run = self.config.run
        late = run.minutes and time.monotonic() - self._began >= 60.0 * run.minutes
        return bool(late or (run.agent_steps and self._collector.agent_steps >= run.agent_steps))

    def _period(self) -> Iterator[None]:
        """A target period of both learners: the secondary one updates whenever it is behind in transitions."""
        sampler, secondary = self.sampler, self.secondary
        updates = sampler.batches.updates
        for done in range(1, updates + 1):
            _, batch = self.schedule.next_batch(lambda: sampler.snapshot)
            if done == 1:
                secondary.batches.start(self.schedule.period, secondary.snapshot, secondary.snapshot.version)
            sampler.learn(batch)
            while secondary.batches.taken * updates < done * secondary.batches.updates:
                secondary.learn(secondary.batches.take())
            yield

    def _train_records(self) -> Iterator[dict[str, Any]]:
        self._collector.add(self.metrics.report())
        line = self._collector.line(self.sampler.snapshot.version, time.monotonic() - self._began)
        yield line | self.sampler.told() | {"learner": SAMPLER}
        common = {name: line[name] for name in ("kind", "wall_seconds", "agent_steps") if name in line}
        yield common | self.secondary.told() | {"learner": SECONDARY}

    def _evaluations(self) -> Iterator[dict[str, Any]]:
        """Evaluates both learners."""
        from ddrl.learner import Policy

        games, wall = self.config.evaluation.eval_games, time.monotonic() - self._began
        policy = Policy(self.network, *self._observations, (*(n for n in (1, 4, 10, 20) if n < games), games))
        for learner, student in ((SAMPLER, self.sampler), (SECONDARY, self.secondary)):
            record = self._evaluation(policy, student.snapshot, wall)
            if record is not None:
                yield record | {"learner": learner}

    def _evaluation(self, policy: Any, snapshot: Snapshot, wall_seconds: float) -> dict[str, Any] | None:
        """The evaluation record of one learner; None if no game ended within the time limit."""
        from ddrl.evaluation.games import evaluate

        config, start = self.config, time.monotonic()
        result = evaluate(
            config.environment,
            lambda observations: policy(snapshot.parameters, observations)[0],
            config.evaluation.eval_games,
            config.run.seed + 7919 * (snapshot.version + 1),
            epsilon=config.evaluation.eval_epsilon,
            ahead=this_machine().cores,
            stop=lambda: time.monotonic() > start + config.evaluation.longest_seconds,
        )
        if not result.scores:
            return None
        counted = {name: getattr(result, name) for name in ("mean", "maximum", "unfinished", "timed_out", "not_finite")}
        return evaluation_record(
            **counted,
            games=len(result.scores),
            of_games=config.evaluation.eval_games,
            version=snapshot.version,
            agent_steps=self._collector.agent_steps,
            wall_seconds=wall_seconds,
            seconds=time.monotonic() - start,
            protocol=result.stamp,
        )


if __name__ == "__main__":
    sys.exit(programs.run(lambda: serve(records)))
