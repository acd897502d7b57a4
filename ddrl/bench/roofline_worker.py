"""One process of the roofline measurement: bound to a core, it runs the phases that it is told to.

Lines of JSON: it reads the core, the seconds and the settings, answers when it is ready, then answers each
phase with its rate. It ends with its standard input, so it cannot outlive the process that started it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ddrl import programs
from ddrl.bench.children import bind, serve
from ddrl.bench.roofline import group_size, inference_batch
from ddrl.config import TrainConfig
from ddrl.rundir import config_from_dict
from ddrl.types import Discrete, Replayed


def main() -> int:
    """Answers when it is ready, then with the rate of each phase."""
    return serve(rates)


def rates(first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The compute type, then a rate for each phase that is asked for."""
    bind([first["core"]])
    phases, dtype = make_phases(config_from_dict(first["config"]))
    yield {"dtype": dtype}
    for line in sys.stdin:
        yield {"rate": measure(phases[json.loads(line)["phase"]], first["seconds"])}


def measure(work: Callable[[], int], seconds: float) -> float:
    """Units per second of `work`, which does some and returns how many; two calls before do not count."""
    work(), work()
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not done:
        done += work()
    return done / elapsed


def make_phases(config: TrainConfig) -> tuple[dict[str, Callable[[], int]], str]:
    """One step of each phase, as a function that returns the agent steps or data-points that it did.

    And the compute type that the network really has.
    """
    from ddrl.algorithms import network_for
    from ddrl.builders.agent import batch_template, make_learner
    from ddrl.envs import make_environment
    from ddrl.learner import Policy, as_device_vector, configure_tensorflow

    configure_tensorflow(1)
    envs = make_environment(config.environment, group_size(config), batch_size=config.sampling.predict_batch, threads=1)
    shape, dtype, actions = envs.observation_shape, envs.observation_dtype, envs.action_space
    network = network_for(config, shape, dtype, actions)
    vector = as_device_vector(network.initial_parameters(config.run.seed))
    random = np.random.default_rng(config.run.seed)
    envs.reset(config.run.seed)
    play = _play(envs, random)
    policy = Policy(network, shape, dtype, (inference_batch(config),))
    observations = _images(random, (inference_batch(config), *shape), dtype)
    batch = _filled(batch_template(config, network, shape, dtype), random, actions)
    learner = make_learner(config, network, shape, dtype)
    phases = {
        "env": lambda: next(play),
        "inference": lambda: len(policy(vector, observations)[0]),
        "gradient": lambda: learner.batch_size if learner.gradient(vector, batch) else 0,
    }
    if config.has_replay:
        phases["target"] = _targets(config, network, vector, random, shape, dtype)
    return phases, network.compute_dtype


def _targets(
    config: TrainConfig, network: Any, vector: Any, random: np.random.Generator, shape: tuple[int, ...], dtype: Any
) -> Callable[[], int]:
    """Targets of as many transitions at once as a period computes."""
    from ddrl.builders.replay import AHEAD, target_function

    function = target_function(config, network, (shape, dtype), AHEAD)
    assert function is not None  # there is a replay
    column = np.ones(AHEAD, np.float32)
    unused = dict.fromkeys(Replayed._fields)
    drawn = {"reward": column, "discount": column, "next_observation": _images(random, (AHEAD, *shape), dtype)}
    batch = Replayed(**unused | drawn)
    return lambda: len(function(vector, batch))


def _play(envs: Any, random: np.random.Generator) -> Iterator[int]:
    while True:
        step = envs.recv()
        envs.send(_actions(envs.action_space, random, (len(step.env_id), *envs.action_space.action_shape)))
        yield int(step.valid.sum())


def _actions(space: Any, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Random ones; continuous ones in [-1, 1], which environments clip."""
    if isinstance(space, Discrete):
        return random.integers(space.count, size=shape).astype(np.int32)
    return random.uniform(-1.0, 1.0, shape).astype(np.float32)


def _images(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return random.integers(0, 256, shape).astype(dtype)


def _filled(template: Any, random: np.random.Generator, actions: Any) -> Any:
    """A batch of the template's shapes with random contents, all of it valid."""
    ones = ("valid", "weight", "continues", "discount")
    values = template._asdict()
    for name, array in values.items():
        if array is None:
            continue
        if name in ("observation", "next_observation"):
            values[name] = _images(random, array.shape, array.dtype)
        elif name == "action":
            values[name] = _actions(actions, random, array.shape)
        elif name == "behaviour_log_prob":
            values[name] = np.full_like(array, -np.log(actions.head_size))  # about as large
        elif array.dtype == np.float32:
            values[name] = np.ones_like(array) if name in ones else random.standard_normal(array.shape, np.float32)
    return type(template)(**values)


if __name__ == "__main__":
    sys.exit(programs.run(main))
