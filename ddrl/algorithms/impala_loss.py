"""The loss of IMPALA, a pure function of tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddrl.algorithms.actor_critic_loss import actor_critic_loss
from ddrl.algorithms.impala import ImpalaConfig
from ddrl.ops import distributions, policy_gradient
from ddrl.ops.vtrace import vtrace
from ddrl.types import LossOutput, Unroll


def loss(network: Any, vector: Any, anneal: Any, batch: Unroll, config: ImpalaConfig) -> LossOutput:
    """Actor-critic loss with V-trace (Espeholt et al. 2018, section 4.2).

    -mean(valid A log pi(a|s)) + value_cost mean(valid (vs - V)^2) - entropy_cost mean(valid H), with vs and A of
    V-trace; means over all T B rows, where the paper sums. One forward pass over all (T+1) B observations, flattened
    time first.

    Args:
        network: (vector, observations) -> PolicyValue, with its `action_space`.
        vector: <float32>[N], or whatever else the network takes as its parameters.
        anneal: unused; nothing here follows a schedule.
        batch: tensors with the fields of Unroll; `value` and `behaviour_version` may be None.
        config: weights of the parts, clips of the ratios.

    Returns:
        LossOutput with the metrics of `actor_critic_loss` and `importance_ratio_mean`, of the ratios clipped at
        rho_clip.
    """
    del anneal
    steps, environments = batch.reward.shape
    rows = steps * environments
    policy, value = network(vector, _rows(batch.observation))
    policy, value = policy[:rows], tf.reshape(value, [steps + 1, environments])
    log_probs = distributions.log_prob(network.action_space, policy, _rows(batch.action))
    log_rhos = tf.reshape(log_probs, [steps, environments]) - batch.behaviour_log_prob
    vs, advantages = vtrace(
        tf.stop_gradient(log_rhos),
        batch.discount,
        batch.continues,
        batch.valid,
        batch.reward,
        tf.stop_gradient(value),
        config.rho_clip,
        config.c_clip,
    )
    advantages, weights, value = _rows(advantages), _rows(batch.valid), value[:-1]
    ratios = policy_gradient.importance_ratios(log_probs, _rows(batch.behaviour_log_prob), config.rho_clip)
    return actor_critic_loss(
        policy_gradient.policy_gradient_loss(log_probs, advantages, weights),
        _rows(tf.square(vs - value)),
        distributions.entropy(network.action_space, policy),
        advantages,
        _rows(value),
        weights,
        config,
        {"importance_ratio_mean": policy_gradient.mean_of_counted(ratios, weights)},
    )


def _rows(x: tf.Tensor) -> tf.Tensor:
    """[T, B, ...] as [T B, ...]."""
    return tf.reshape(x, [-1, *x.shape[2:]])
