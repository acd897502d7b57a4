"""With which deviation a Gaussian policy begins."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.algorithms import network_for, preset
from ddrl.config import NetworkConfig
from ddrl.errors import UsageError
from ddrl.networks.mlp import MLP
from ddrl.networks.network import LOG_DEVIATION, constant
from ddrl.types import Continuous, Discrete, Machine


@pytest.mark.parametrize("value", [0.0, -2.0])
def test_a_gaussian_policy_begins_with_the_deviation_that_is_set(value):
    config = preset("mujoco", "HalfCheetah-v5", Machine(2, 1 << 34), "ppo")
    config = config.changed(network={"initial_log_deviation": value})
    network = network_for(config, (3,), np.float32, Continuous((-1.0, -2.0), (1.0, 2.0)))
    (start,) = (place for place, (name, _) in enumerate(network.parameter_shapes) if name == LOG_DEVIATION)
    sizes = [int(np.prod(shape)) for _, shape in network.parameter_shapes]
    begin = sum(sizes[:start])
    parameters = network.initial_parameters(1)
    np.testing.assert_array_equal(parameters[begin : begin + 2], np.float32(value))
    assert np.abs(parameters[:begin]).sum() > 1.0, "all else is as it was"
    assert LOG_DEVIATION not in network_for(config, (3,), np.float32, Discrete(2)).initializers


def narrow(spaces, settings):
    """A network of a user, whose policy begins with a deviation of its own."""
    network = MLP(settings, *spaces)
    network.initializers[LOG_DEVIATION] = constant(-1.0)
    return network


@pytest.mark.parametrize("setting, begins", [(0.0, -1.0), (-2.0, -2.0)])
def test_a_network_of_a_user_keeps_its_own_deviation_unless_another_is_set(setting, begins):
    config = preset("mujoco", "Hopper-v5", Machine(2, 1 << 34), "ppo")
    config = config.changed(network={"network": f"{__name__}:narrow", "initial_log_deviation": setting})
    network = network_for(config, (3,), np.float32, Continuous((-1.0, -2.0), (1.0, 2.0)))
    begun = network.initializers[LOG_DEVIATION](np.random.default_rng(0), (2,))
    np.testing.assert_array_equal(begun, np.float32(begins))


def test_a_deviation_beyond_reason_is_refused():
    with pytest.raises(UsageError, match="--initial-log-deviation 3.0: must be between -20.0 and 2.0"):
        NetworkConfig(initial_log_deviation=3.0)
