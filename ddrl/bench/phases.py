"""A process that measures parts (phases) of a configuration: bound to its cores, it repeats each for a given time.

It speaks lines of JSON: it reads cores, the kind of phases and the settings, and answers when it is ready; then it
reads the name of a phase and seconds, again and again, and answers with the units done and their rate.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ddrl import programs
from ddrl.algorithms import algorithm_of
from ddrl.bench.children import Children, serve
from ddrl.bench.timing import work_for
from ddrl.config import TrainConfig
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.vectors import empty_vector
from ddrl.placement.ranks import groups_of, threads_for, with_threads
from ddrl.rundir import config_from_dict, config_to_dict
from ddrl.structured import ACTION_MASK, field_types, legal_actions
from ddrl.types import ActionSpace, Discrete, LossContext, MultiDiscrete, Replayed, Snapshot

START_SECONDS = 180.0  # for imports, environments and tracing, with all cores busy
SOME = 4  # different gradients in an update: further members repeat them
RANDOM_STEPS = 16  # steps of all simulators in one unit of work with random actions

Work = Callable[[], int]
"""A function that does some work and returns how many units that was."""


def on_cores(config: TrainConfig, kind: str, cores: Sequence[Sequence[int]], seconds: float) -> Children:
    """Starts a measuring process for each set of cores.

    Args:
        config: the configuration whose parts are measured.
        kind: the kind of phases, see KINDS.
        cores: for each process, the cores that it is bound to.
        seconds: how long one phase is measured.
    """
    first = {"config": config_to_dict(config), "kind": kind}
    firsts = [first | {"cores": list(own)} for own in cores]
    return Children("ddrl.bench.phases", firsts, START_SECONDS + 10 * seconds)


def answers(first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the network's compute type once all is ready; then, for each request, the units done and their rate."""
    os.sched_setaffinity(0, first["cores"])
    phases, dtype = KINDS[first["kind"]](config_from_dict(first["config"]), len(first["cores"]))
    for work in phases.values():  # traces, and starts the simulators
        work(), work()
    yield {"dtype": dtype}
    for line in sys.stdin:
        asked = json.loads(line)
        done, seconds = work_for(phases[asked["phase"]], asked["seconds"])
        yield {"done": done, "rate": done / seconds}


# parts of a worker, alone ---------------------------------------------------------------------------------------------


def group_size(config: TrainConfig) -> int:
    """Simulators of one group."""
    return config.sampling.simulators // groups_of(config)


def inference_batch(config: TrainConfig) -> int:
    """Observations per policy query: of a group, or of all groups where predictors serve them."""
    sampling = config.sampling
    return sampling.predict_batch or (config.rows if sampling.predictors else group_size(config))


def parts(config: TrainConfig, cores: int) -> tuple[dict[str, Work], str]:
    """The parts of a worker, and the compute type that the network really has.

    The parts and the units that they return: `env` and `inference` (agent steps), `gradient` (data-points), `update` of
    the parameters and `layout` of new weights (1 for each time), and if `has_targets`, `target` (transitions).
    """
    from ddrl.algorithms import network_for
    from ddrl.builders.agent import batch_template, make_learner
    from ddrl.envs import make_environment
    from ddrl.learner import Policy, as_device_vector, configure_tensorflow

    configure_tensorflow(cores)
    received = 0 if config.sampling.predictors else config.sampling.predict_batch  # predictors take whole groups
    envs = make_environment(config.environment, group_size(config), batch_size=received, threads=1)
    shape, dtype, actions = envs.observation_shape, envs.observation_dtype, envs.action_space
    network = network_for(config, shape, dtype, actions)
    parameters = as_device_vector(network.initial_parameters(config.run.seed))
    random = np.random.default_rng(config.run.seed)
    envs.reset(config.run.seed)
    policy = Policy(network, shape, dtype, (inference_batch(config),))
    observations = _observations(random, (inference_batch(config), *shape), dtype)
    batch = _filled(batch_template(config, network, shape, dtype), random, actions)
    learner = make_learner(config, network, shape, dtype)
    context = LossContext(target=parameters, key=np.zeros(2, np.int32))  # for losses that read them
    phases: dict[str, Work] = {
        "env": lambda: _step(envs, random),
        "inference": lambda: len(policy(parameters, observations)[0]),
        "gradient": lambda: learner.batch_size if learner.gradient(parameters, batch, context) else 0,
    }
    phases |= {"update": _update(config, network.size), "layout": _layout(network, parameters)}
    if has_targets(config):
        phases["target"] = _targets(config, network, parameters, random, shape, dtype)
    return phases, network.compute_dtype


def _update(config: TrainConfig, size: int) -> Work:
    """An update of all parameters into new memory, as a server makes it from the gradients of all members.

    Replicas (see `replicas`) make it from one gradient, the average.
    """
    random = np.random.default_rng(config.run.seed)
    members = 1 if replicas(config) > 1 else config.effective_batch // config.batch_size
    some = [random.standard_normal(size, np.float32) for _ in range(min(members, SOME))]
    gradients = [some[member % len(some)] for member in range(members)]
    optimizer, parameters = make_optimizer(config.optimizer, size), random.standard_normal(size, np.float32)

    def update() -> int:
        optimizer.apply(parameters, gradients, 1e-9, 1.0 / members, out=empty_vector(size))
        return 1

    return update


def replicas(config: TrainConfig) -> int:
    """Processes that each make the same update of all parameters: workers without a server or a store."""
    exchange = config.exchange
    return exchange.workers if not (exchange.servers or exchange.asynchronous) else 1


def has_targets(config: TrainConfig) -> bool:
    """Whether targets are computed apart from the gradient: from a replay, unless the loss computes its own (SAC)."""
    return algorithm_of(config.algorithm).targets is not None


def _layout(network: Any, parameters: Any) -> Work:
    """The preparation of new weights for policy queries, which is done once for each version."""
    from ddrl.learner import Preparation

    prepare, vector = Preparation(network), empty_vector(network.size)
    vector[:] = parameters
    vector.flags.writeable = False

    def layout() -> int:
        prepare(vector)  # an array, as the layout of a tensor would be computed only once
        return 1

    return layout


def _targets(
    config: TrainConfig, network: Any, parameters: Any, random: np.random.Generator, shape: tuple[int, ...], dtype: Any
) -> Work:
    """The computation of the targets of as many transitions at once as in training."""
    from ddrl.builders.replay import batches_ahead, period_steps, target_function

    updates = period_steps(config) // config.replay_data.steps_per_update
    size = config.batch_size * batches_ahead(config, updates)
    function = target_function(config, network, (shape, dtype), size)
    assert function is not None  # has_targets
    column = np.ones(size, np.float32)
    unused = dict.fromkeys(Replayed._fields)
    drawn = {"reward": column, "discount": column, "next_observation": _observations(random, (size, *shape), dtype)}
    batch = Replayed(**unused | drawn)
    return lambda: len(function(parameters, batch))


def _step(environment: Any, random: np.random.Generator) -> int:
    """Receives rows and sends random legal actions; returns the agent steps in these rows."""
    from ddrl.envs.spaces import random_action

    step = environment.recv()
    space, mask = environment.action_space, legal_actions(step.observation)
    if mask is None:
        actions = random_actions(space, (len(step.env_id),), random)
    else:
        actions = np.stack([random_action(space, random, row) for row in mask])
    environment.send(actions)
    return int(step.valid.sum())


def random_actions(space: ActionSpace, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Uniformly random actions: <int32>[*shape] or [*shape, K], or <float32>[*shape, A].

    An unbounded component of a continuous action is drawn from -1 to 1.
    """
    if isinstance(space, Discrete):
        return random.integers(space.count, size=shape).astype(np.int32)
    if isinstance(space, MultiDiscrete):
        return random.integers(space.counts, size=(*shape, len(space.counts))).astype(np.int32)
    low, high = np.array(space.low), np.array(space.high)
    unbounded = (low <= -1e3) | (high >= 1e3)
    low, high = np.where(unbounded, -1.0, low), np.where(unbounded, 1.0, high)
    return random.uniform(low, high, (*shape, len(low))).astype(np.float32)


def _observations(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Random observations [*shape]; their action mask, if any, makes all actions legal."""
    fields = field_types(dtype)
    if not fields:
        return random.integers(0, 256, shape).astype(dtype)
    array = np.ones(shape, dtype)
    for name, (inner, base) in fields.items():
        if name != ACTION_MASK:
            array[name] = _observations(random, (*shape, *inner), base)
    return array


def _filled(template: Any, random: np.random.Generator, actions: ActionSpace) -> Any:
    """A batch of the template's shapes with random contents, all of it valid."""
    ones = ("valid", "weight", "continues", "discount")
    values = template._asdict()
    for name, array in values.items():
        if array is None:
            continue
        if name in ("observation", "next_observation"):
            values[name] = _observations(random, array.shape, array.dtype)
        elif name == "action":
            values[name] = random_actions(actions, array.shape[: array.ndim - len(actions.action_shape)], random)
        elif name == "behaviour_log_prob":
            values[name] = np.full_like(array, -np.log(actions.head_size))  # about the real size
        elif array.dtype == np.float32:
            values[name] = np.ones_like(array) if name in ones else random.standard_normal(array.shape, np.float32)
    return type(template)(**values)


# acting, with all its simulators --------------------------------------------------------------------------------------


def acting(config: TrainConfig, cores: int) -> tuple[dict[str, Work], str]:
    """Acting with the network's policy, as in training: a unit of work fills one rollout, counted in agent steps.

    Also returns the network's compute type.
    """
    from ddrl.builders.agent import make_environments, make_schedule, network_for
    from ddrl.envs import make_environment
    from ddrl.learner import as_device_vector, configure_tensorflow
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

    return {"act": rollout}, network.compute_dtype


def acting_at_random(config: TrainConfig, cores: int) -> tuple[dict[str, Work], str]:
    """Acting with random actions and no network, with one thread for each group of simulators, in agent steps."""
    from ddrl.builders.agent import make_environments

    environments = make_environments(with_threads(config, threads_for(config, cores)))
    groups = [(each, np.random.default_rng([config.run.seed, i])) for i, each in enumerate(environments)]
    for i, environment in enumerate(environments):
        environment.reset(config.run.seed + i)
    pool = ThreadPoolExecutor(len(groups))

    def play(group: tuple[Any, np.random.Generator]) -> int:
        return sum(_step(*group) for _ in range(RANDOM_STEPS))

    return {"act": lambda: sum(pool.map(play, groups))}, ""


KINDS = {"parts": parts, "acting": acting, "acting at random": acting_at_random}

if __name__ == "__main__":
    sys.exit(programs.run(lambda: serve(answers)))
