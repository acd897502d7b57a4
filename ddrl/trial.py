"""`python -m ddrl.trial`: makes the network of a run and queries it once, before any rank starts.

It is a process of its own, since a program that starts ranks imports no TensorFlow. The configuration and the spaces of
the game, which is not made again, come on standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np

from ddrl import algorithms, programs
from ddrl.config import TrainConfig
from ddrl.errors import UsageError, in_one_line
from ddrl.init_from import source_of
from ddrl.programs import python_command
from ddrl.rundir import config_from_dict, config_to_dict
from ddrl.structured import space_facts, space_from, type_of, type_text

if TYPE_CHECKING:
    from ddrl.envs.base import GameFacts

ROWS = 2
REFUSAL = "ddrl: "  # with which the lines of `programs.say` begin


def try_network(config: TrainConfig, environment: GameFacts) -> None:
    """Checks a user's network in a separate process.

    Args:
        config: settings of a run.
        environment: its game, of which only the spaces are needed.

    Raises:
        UsageError: the network cannot be made, gives other outputs than its algorithm needs, or has other tensors than
            the checkpoint of --init-from.
    """
    given = {
        "config": config_to_dict(config),
        "observation_shape": environment.observation_shape,
        "observation_type": type_text(environment.observation_dtype),
        "actions": space_facts(environment.action_space),
    }
    done = subprocess.run(
        python_command("ddrl.trial"),
        input=json.dumps(given),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    refusals = [line.removeprefix(REFUSAL) for line in lines if line.startswith(REFUSAL)]
    raise UsageError((refusals or [f"network {config.network.network} cannot be tried: {lines[-1]}"])[-1])


def main() -> None:
    """Makes the network, queries it with observations of zeros, and compares its tensors with those of --init-from."""
    given = json.load(sys.stdin)
    config = config_from_dict(given["config"], "standard input")
    shape, dtype = tuple(given["observation_shape"]), type_of(given["observation_type"])
    name, space = config.network.network, space_from(given["actions"])
    from ddrl.learner import Policy

    network = algorithms.network_for(config, shape, dtype, space)
    try:
        parameters = network.initial_parameters(config.run.seed)
        policy, value = Policy(network, shape, dtype, (ROWS,))(parameters, np.zeros((ROWS, *shape), dtype))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"network {name} fails on observations {dtype} {shape}: {in_one_line(error)}") from error
    width = space.policy_size if network.head is None else space.head_size
    if (policy.shape, value.shape) != ((ROWS, width), (ROWS,)):
        raise UsageError(
            f"network {name}: for {ROWS} observations it gives a policy {list(policy.shape)} and values "
            f"{list(value.shape)}, but it must give [{ROWS}, {width}] and [{ROWS}]"
        )
    if not np.isfinite(policy).all() or not np.isfinite(value).all():
        raise UsageError(f"network {name}: its first outputs are not finite")
    if config.run.init_from:
        source_of(config.run.init_from, network.parameter_shapes)


if __name__ == "__main__":
    sys.exit(programs.run(main))
