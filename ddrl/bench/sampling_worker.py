"""One process of the sampling measurement: fixed to its cores, it acts for as long as it is told to.

Lines of JSON: it reads cores, seconds and settings, answers when it is ready, then answers each line with the agent
steps that it made and the seconds that they took. It ends with its standard input, so it cannot outlive the process
that started it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ddrl import programs
from ddrl.bench.children import bind, serve
from ddrl.config import TrainConfig
from ddrl.rundir import config_from_dict
from ddrl.types import ActionSpace, Discrete, Snapshot

RANDOM_STEPS = 16  # of all simulators between two looks at the clock, where actions are random


def main() -> int:
    """Answers when it is ready, then each line with what was done."""
    return serve(done)


def done(first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """That it is ready, then what each stretch of acting came to."""
    bind(first["cores"])
    make = make_sampler if first["inference"] else make_random
    work = make(config_from_dict(first["config"]), len(first["cores"]))
    work(), work()  # traces, and starts the simulators
    yield {"ready": True}
    for _ in sys.stdin:
        yield act_for(work, first["seconds"])


def act_for(work: Callable[[], int], seconds: float) -> dict[str, float]:
    """Does `work`, which returns its agent steps, for so long, and once at least."""
    steps, start = 0, time.perf_counter()
    while True:
        steps += work()
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return {"agent_steps": steps, "seconds": elapsed}


def make_sampler(config: TrainConfig, cores: int) -> Callable[[], int]:
    """Fills one rollout with the network's policy, as in training; returns its agent steps."""
    from ddrl.builders.agent import make_environments, make_schedule, network_for
    from ddrl.envs import make_environment
    from ddrl.learner import as_device_vector, configure_tensorflow
    from ddrl.placement.ranks import threads_for, with_threads
    from ddrl.reporting.rank_metrics import RankMetrics

    threads = threads_for(config, cores)
    configure_tensorflow(threads.intra_op, threads.inter_op)
    probe = make_environment(config.environment, 1, training=False)
    network = network_for(config, probe)
    probe.close()
    environments = make_environments(with_threads(config, threads))
    schedule: Any = make_schedule(config, environments, network, RankMetrics("worker", 0), 0)
    snapshot = Snapshot(0, 0, as_device_vector(network.initial_parameters(config.run.seed)))
    schedule.actor_threads.reset(config.run.seed)

    def rollout() -> int:
        schedule.actor_threads.fill(schedule.learning, lambda: snapshot)
        return int(schedule.learning.valid.sum())

    return rollout


def make_random(config: TrainConfig, cores: int) -> Callable[[], int]:
    """Steps the simulators with random actions, a thread for each group; returns the agent steps."""
    from ddrl.builders.agent import make_environments
    from ddrl.placement.ranks import threads_for, with_threads

    environments = make_environments(with_threads(config, threads_for(config, cores)))
    randoms = [np.random.default_rng([config.run.seed, i]) for i in range(len(environments))]
    for i, environment in enumerate(environments):
        environment.reset(config.run.seed + i)

    def play() -> int:
        done = [0] * len(environments)

        def group(i: int) -> None:
            done[i] = _play(environments[i], randoms[i])

        others = [threading.Thread(target=group, args=(i,)) for i in range(1, len(environments))]
        for thread in others:
            thread.start()
        group(0)
        for thread in others:
            thread.join()
        return sum(done)

    return play


def _play(environment: Any, random: np.random.Generator) -> int:
    steps = 0
    for _ in range(RANDOM_STEPS):
        step = environment.recv()
        environment.send(random_actions(environment.action_space, len(step.env_id), random))
        steps += int(step.valid.sum())
    return steps


def random_actions(space: ActionSpace, count: int, random: np.random.Generator) -> np.ndarray:
    """<int32>[count] or <float32>[count, A], uniform; an unbounded component from -1 to 1."""
    if isinstance(space, Discrete):
        return random.integers(space.count, size=count).astype(np.int32)
    low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
    unbounded = (low <= -1e3) | (high >= 1e3)
    low, high = np.where(unbounded, -1.0, low), np.where(unbounded, 1.0, high)
    return random.uniform(low, high, (count, len(low))).astype(np.float32)


if __name__ == "__main__":
    sys.exit(programs.run(main))
