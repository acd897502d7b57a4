"""What the tests of the examples have in common."""

from __future__ import annotations

import math

import numpy as np

import ddrl
from tests.examples.conftest import EXAMPLES


def train(algorithm, name, directory, **settings):
    """A run of an algorithm with the plugin in a file of examples/."""
    plugin = EXAMPLES / f"{name}.py"
    return ddrl.train(algorithm, plugin=plugin, run_dir=directory / "run", video=False, progress=False, **settings)


def named_tensors(network, parameters):
    """The named tensors of a vector, in float64."""
    parts, start = {}, 0
    for name, shape in network.parameter_shapes:
        size = math.prod(shape)
        parts[name] = np.asarray(parameters[start : start + size], np.float64).reshape(shape)
        start += size
    return parts


def numerical(function, parameters, step=1e-6):
    """The gradient by differences."""
    gradient = np.zeros(len(parameters))
    for i in range(len(parameters)):
        ends = []
        for sign in (1, -1):
            moved = parameters.astype(np.float64)
            moved[i] += sign * step
            ends.append(function(moved))
        gradient[i] = (ends[0] - ends[1]) / (2 * step)
    return gradient
