"""A stand-in for a network: the parameters are its output."""

from __future__ import annotations

import tensorflow as tf

from ddrl.types import PolicyValue


class FixedNetwork:
    """Gives the same policy <float32>[B, P] and value <float32>[B] whatever it is asked.

    A vector in place of None is (policy, value), so that gradients with respect to them can be taken.
    """

    def __init__(self, action_space, policy=None, value=None):
        self.action_space, self._output = action_space, (policy, value)

    def __call__(self, parameters, observations):
        policy, value = self._output if parameters is None else parameters
        assert observations.shape[0] == policy.shape[0] == value.shape[0], "one row of observations for each output"
        return PolicyValue(tf.convert_to_tensor(policy), tf.convert_to_tensor(value))
