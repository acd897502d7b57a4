"""Values that other libraries' tests expect: their inputs and outputs, put through the functions here.

The sources are rlax (github.com/google-deepmind/rlax, commit 4c5d25b2609879d321f5a432cdf88165574e57a7, files of the
folder rlax/_src) and Dopamine (github.com/google/dopamine, commit 5873f5494ee0c2d7c016d0ab2ad530354fec59d0, files of
the folder tests/dopamine). Each test names the file and the test there. These tests end an episode by a discount of 0
only, so that `continues` and `valid` are 1 everywhere here. Their sequences are [B, T]: they are transposed to [T, B],
and the results back.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ddrl.ops import distributions, policy_gradient, q_learning
from ddrl.ops.returns import generalized_advantages, n_step_returns
from ddrl.ops.vtrace import vtrace
from ddrl.types import Continuous, Discrete

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def floats(rows):
    return np.array(rows, np.float32)


def columns(rows):
    """<float32>[T, B] of [B, T]."""
    return floats(rows).T


def check(found, expected, **tolerance):
    np.testing.assert_allclose(found, floats(expected), **TOLERANCE | tolerance)


# --- sequences -------------------------------------------------------------------------------------------

# The inputs of the tests of returns in rlax's multistep_test.py; value t is that of the state after step t.
REWARDS = columns([[1.0, 0.0, -1.0, 0.0, 1.0], [0.5, 0.8, -0.7, 0.0, 2.1]])
DISCOUNTS = columns([[0.5, 0.9, 1.0, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]])
NEXT_VALUES = columns([[3.0, 1.0, 5.0, -5.0, 3.0], [-1.7, 1.2, 2.3, 2.2, 2.7]])


def advantages_and_returns(reward, discount, value, lambda_):
    ones = np.ones_like(reward)
    return generalized_advantages(reward, discount, ones, ones, value, lambda_)


def test_discounted_returns():
    """From rlax, multistep_test.py, DiscountedReturnsTest.test_discounted_returns_batch."""
    expected = [[1.315, 0.63000005, 0.70000005, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.9899998]]
    check(n_step_returns(REWARDS, DISCOUNTS, NEXT_VALUES[-1]).T, expected)


@pytest.mark.parametrize(
    "n, expected",
    [
        (3, [[2.8, -3.15, 0.7, 1.7, 3.4], [1.2155, 0.714, 0.2576, 3.192, 3.99]]),
        (5, [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]),
        (7, [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]),
    ],
)
def test_n_step_bootstrapped_returns(n, expected):
    """From rlax, multistep_test.py, NStepBootstrappedReturnsTest.test_n_step_sequence_returns_batch.

    Each return there looks n steps ahead, fewer at the end: it is the first of a segment of that many steps here.
    """
    windows = [slice(t, min(t + n, len(REWARDS))) for t in range(len(REWARDS))]
    found = [n_step_returns(REWARDS[w], DISCOUNTS[w], NEXT_VALUES[w][-1])[0] for w in windows]
    check(np.transpose(found), expected)


@pytest.mark.parametrize("first_value", [0.0, 2.0])
def test_lambda_returns(first_value):
    """From rlax, multistep_test.py, LambdaReturnsTest.test_lambda_returns_batch, with lambda 0.75.

    The lambda return of step t is the advantage plus the value of the state before it. The value of the first state is
    not part of it: any will do.
    """
    expected = [[1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4], [0.7866317, 0.9913063, 0.1101501, 2.834, 3.99]]
    value = np.concatenate([np.full_like(NEXT_VALUES[:1], first_value), NEXT_VALUES])
    check(advantages_and_returns(REWARDS, DISCOUNTS, value, 0.75)[1].T, expected)


def test_td_lambda_errors():
    """From rlax, value_learning_test.py, TDLambdaTest.test_batch_compatibility, with lambda 0.75."""
    value = columns([[1.1, -1.1, 3.1, 2.2], [2.1, -1.1, -2.1, -1.2]])
    discount = columns([[0.0, 0.89, 0.85], [0.88, 1.0, 0.83]])
    reward = columns([[-1.3, -1.3, 2.3], [1.3, 5.3, -3.3]])
    expected = [[-2.4, 3.2732253, 1.0700002], [-0.01701999, 2.6529999, -2.196]]
    check(advantages_and_returns(reward, discount, value, 0.75)[0].T, expected)


@pytest.mark.parametrize("lambda_", [0.0, 1.0])
def test_td_errors(lambda_):
    """From rlax, value_learning_test.py, TDLearningTest.test_td_learning_batch: unrolls of one step."""
    discount, next_value = floats([[0.0, 0.5, 1.0] * 3]), np.repeat([0.0, 1.0, 2.0], 3)
    value = floats([np.ones(9), next_value])
    found, _ = advantages_and_returns(np.full_like(discount, -1.0), discount, value, lambda_)
    check(found, [[-2.0, -2.0, -2.0, -2.0, -1.5, -1.0, -2.0, -1.0, 0.0]])


@pytest.mark.parametrize(
    "lambda_, expected",
    [
        (1.0, [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]]),
        (0.7, [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]]),
        (0.4, [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]]),
    ],
)
def test_generalized_advantages(lambda_, expected):
    """From rlax, multistep_test.py, TruncatedGeneralizedAdvantageEstimationTest.test_truncated_gae.

    The source gives some numbers to three or four digits, and compares with an absolute tolerance of 1e-3, as here.
    """
    reward = columns([[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 1.0]])
    discount = columns([[0.99, 0.99, 0.99, 0.99, 0.99], [0.9, 0.9, 0.9, 0.0, 0.9]])
    value = columns([[1.0, 4.0, -3.0, -2.0, -1.0, -1.0], [-3.0, -2.0, -1.0, 0.0, 5.0, -1.0]])
    advantages, returns = advantages_and_returns(reward, discount, value, lambda_)
    check(advantages.T, expected, rtol=0.0, atol=1e-3)
    check(returns.T, floats(expected) + value[:-1].T, rtol=0.0, atol=1e-3)


def vtrace_inputs():
    """Logarithms of the ratios, discounts, rewards and values of rlax, vtrace_test.py, VTraceTest.setUp."""
    behavior = [[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1], [0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]]
    target = [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4], [1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]]
    actions = tf.constant([0, 1, 0, 0, 1, 0, 0, 1])
    ours, theirs = (distributions.log_prob(Discrete(2), tf.constant(x), actions) for x in (target, behavior))
    return (
        columns(tf.reshape(ours - theirs, [2, 4])),
        columns([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]),
        columns([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]),
        columns([[2.1, 1.1, -3.1, 0.0, 8.4], [3.1, 0.1, -1.1, 7.4, -1.2]]),
    )


def test_vtrace_errors_and_advantages():
    """From rlax, vtrace_test.py, VTraceTest.test_vtrace_td_error_and_advantage; the errors are targets less values.

    All ratios are clipped at 1: the source names a clip of 5 for those of the advantages, but does not pass it on.
    """
    log_rhos, discount, reward, value = vtrace_inputs()
    ones = np.ones_like(reward)
    vs, advantages = vtrace(*map(tf.constant, (log_rhos, discount, ones, ones, reward, value)), 1.0, 1.0)
    errors = [[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.3327293e-5, -13.54]]
    check((vs - value[:-1]).numpy().T, errors)
    expected = [[-1.6155143, -3.4973226, 1.8670534, 50.316002], [1.4662433, 3.6116405, -8.3369283e-5, -13.54]]
    check(advantages.numpy().T, expected)


# --- Q-learning ------------------------------------------------------------------------------------------

# Values of the actions at s and s', actions, rewards and discounts of QLearningTest, DoubleQLearningTest and QVMaxTest
# in rlax's value_learning_test.py; those that select the action at s', where they are not those at s'; and the errors.
Q_LEARNING = {
    "QLearningTest.test_q_learning_batch": (
        [[1, 1, 0], [1, 2, 0]], [0, 1], [1, 1], [0, 1], [[0, 1, 0], [1, 2, 0]], None, [0, 1],
    ),
    "DoubleQLearningTest.test_double_q_learning_batch": (
        [[1, 1, 0], [1, 2, 0]], [0, 1], [1, 1], [0, 1], [[99, 1, 98], [91, 2, 66]], [[2, 10, 1], [11, 20, 1]], [0, 1],
    ),
    "QVMaxTest.test_qv_max_batch": (
        [[1]] * 9, [0] * 9, [-1] * 9, [0, 0.5, 1] * 3,
        [[0, -1], [-2, 0], [0, -3], [1, 0], [1, 1], [0, 1], [1, 2], [2, -2], [2, 2]], None,
        [-2, -2, -2, -2, -1.5, -1, -2, -1, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("source", Q_LEARNING)
def test_q_learning_errors(source):
    """From rlax, value_learning_test.py, the test that the parameter names."""
    values, action, reward, discount, next_values, selector, expected = Q_LEARNING[source]
    values, reward, discount, next_values = map(floats, (values, reward, discount, next_values))
    chosen = q_learning.greedy(tf.constant(next_values if selector is None else selector))
    next_value = q_learning.of_action(tf.constant(next_values), chosen)
    targets = q_learning.n_step_targets(tf.constant(reward), tf.constant(discount), next_value)
    check(targets - q_learning.of_action(tf.constant(values), tf.constant(action)), expected)


@pytest.mark.parametrize(
    "returns, weights, atoms, expected",
    [
        (
            [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75],
            [0.0, -0.75, 0.0, -0.25, 0.0, 0.25, 0.0, 0.75],
            [-1.0, -0.5, 0.0, 0.5],
            [-0.375, -0.5, 0.0, 0.875],
        ),
        (
            [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75],
            [0.0, 0.0, 0.5, 0.0, 1.0, 0.0, 1.5, 0.0],
            [0.0, 0.5, 1.0, 1.5],
            [0.0, 0.5, 1.0, 1.5],
        ),
    ],
)
def test_projection_of_rlax(returns, weights, atoms, expected):
    """From rlax, value_learning_test.py, L2ProjectTest.test_categorical_l2_project_batch, one row at a time.

    The weights are no probabilities, but the projection is linear in them.
    """
    found = q_learning.project(tf.constant([weights]), tf.constant([returns]), floats(atoms))
    check(found, [expected])


@pytest.mark.parametrize(
    "returns, weights, atoms, expected",
    [
        # testProjectSingleIdenticalDistribution
        ([0, 1, 2, 3, 4], [0.1, 0.2, 0.1, 0.3, 0.3], [0, 1, 2, 3, 4], [0.1, 0.2, 0.1, 0.3, 0.3]),
        # testProjectSingleDifferentDistribution
        ([0, 1, 2, 3, 4], [0.1, 0.2, 0.1, 0.3, 0.3], [3, 4, 5, 6, 7], [0.7, 0.3, 0.0, 0.0, 0.0]),
        # testProjectFromNonMonotonicSupport
        ([4, 3, 2, 1, 0], [0.1, 0.2, 0.1, 0.3, 0.3], [3, 4, 5, 6, 7], [0.9, 0.1, 0.0, 0.0, 0.0]),
        # testExampleFromCodeComments
        ([0, 2, 4, 6, 8], [0.1, 0.6, 0.1, 0.1, 0.1], [4, 5, 6, 7, 8], [0.8, 0.0, 0.1, 0.0, 0.1]),
        ([1, 3, 4, 5, 6], [0.1, 0.2, 0.5, 0.1, 0.1], [4, 5, 6, 7, 8], [0.8, 0.1, 0.1, 0.0, 0.0]),
        # testProjectBatchOfDifferentDistributions, whose second row is testProjectSingleDifferentDistribution
        ([0, 2, 4, 6, 8], [0.1, 0.2, 0.3, 0.2, 0.2], [3, 4, 5, 6, 7], [0.3, 0.3, 0.0, 0.2, 0.2]),
        ([3, 4, 5, 6, 7], [0.1, 0.2, 0.3, 0.2, 0.2], [3, 4, 5, 6, 7], [0.1, 0.2, 0.3, 0.2, 0.2]),
        # testProjectBatchOfDifferentDistributionsWithLargerDelta
        ([0, 2, 4, 6, 8], [0.1, 0.2, 0.2, 0.2, 0.3], [0, 4, 8, 12, 16], [0.2, 0.4, 0.4, 0.0, 0.0]),
        ([8, 9, 10, 12, 14], [0.1, 0.2, 0.4, 0.1, 0.2], [0, 4, 8, 12, 16], [0.0, 0.0, 0.45, 0.45, 0.1]),
    ],
)
def test_projection_of_dopamine(returns, weights, atoms, expected):
    """From Dopamine, tf/agents/rainbow/rainbow_agent_test.py, ProjectDistributionTest; the comments name the tests."""
    returns, weights = tf.constant([floats(returns)]), tf.constant([floats(weights)])
    check(q_learning.project(weights, returns, floats(atoms)), [expected])


# The atoms, rewards and discounts of all three Categorical...Test in rlax's value_learning_test.py, and the logits and
# actions of those that have actions.
ATOMS = floats([0.5, 1.0, 1.5])
REWARD, DISCOUNT = tf.constant([0.5, 0.0, 0.5, 0.8, -0.1]), tf.constant([0.8, 1.0, 0.8, 0.0, 1.0])
LOGITS = tf.constant(
    [
        [[1, 1, 1], [0, 9, 9], [0, 9, 0], [0, 0, 0]],
        [[9, 9, 0], [9, 0, 9], [0, 0, 0], [9, -9, 0]],
        [[1, 1, 1], [0, 9, 9], [0, 0, 0], [0, 9, 0]],
        [[9, 9, 0], [9, 0, 9], [0, 0, 0], [9, -9, 0]],
        [[9, 9, 0], [9, 0, 9], [0, 0, 0], [9, -9, 0]],
    ],
    tf.float32,
)
NEXT_LOGITS = tf.constant(
    [
        [[1, 1, 1], [9, 0, 9], [1, 0, 0], [0, 0, 9]],
        [[9, 9, 0], [9, 0, 0], [1, 1, 1], [9, -9, 0]],
        [[1, 1, 1], [9, 0, 9], [0, 0, 9], [1, 0, 0]],
        [[9, 9, 0], [9, 0, 0], [1, 1, 1], [9, -9, 0]],
        [[9, 9, 0], [9, 0, 0], [0, 9, 9], [9, -9, 0]],
    ],
    tf.float32,
)
ACTIONS = tf.constant([2, 1, 3, 0, 1])
SELECTOR = [[1, 0, 0, 9], [9, 0, 1, 1], [1, 9, 1, 1], [0, 1, 0, 9], [1, 1, 1, 9]]


def test_categorical_td_losses():
    """From rlax, value_learning_test.py, CategoricalTDLearningTest.test_categorical_td_learning_batch."""
    logits = tf.constant(floats([[0, 9, 0], [9, 0, 9], [0, 9, 0], [9, 9, 0], [9, 0, 9]]))
    next_logits = tf.constant(floats([[0, 0, 9], [1, 1, 1], [0, 0, 9], [1, 1, 1], [0, 9, 9]]))
    target = q_learning.projected_targets(REWARD, DISCOUNT, next_logits, ATOMS)
    expected = [8.998915, 3.6932087, 8.998915, 0.69320893, 5.1929307]
    check(q_learning.cross_entropies(target, logits)[0], expected)


@pytest.mark.parametrize(
    "selector, expected",
    [
        (None, [8.998915, 3.6932087, 8.998915, 0.69320893, 5.1929307]),
        (SELECTOR, [8.998915, 5.192931, 5.400247, 0.693209, 0.693431]),
    ],
)
def test_categorical_q_learning_losses(selector, expected):
    """From rlax, value_learning_test.py, CategoricalQLearningTest.test_categorical_q_learning_batch, and with a
    selector CategoricalDoubleQLearningTest.test_categorical_double_q_learning_batch."""
    selector = q_learning.expected_values(NEXT_LOGITS, ATOMS) if selector is None else tf.constant(selector)
    next_logits = q_learning.of_action(NEXT_LOGITS, q_learning.greedy(selector))
    target = q_learning.projected_targets(REWARD, DISCOUNT, next_logits, ATOMS)
    check(q_learning.cross_entropies(target, q_learning.of_action(LOGITS, ACTIONS))[0], expected)


@pytest.mark.parametrize(
    "loss, errors, expected, gradient",
    [
        (
            q_learning.huber,
            [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0],
            [1.5, 0.5, 0.125, 0.0, 0.125, 0.5, 1.5],
            [-1.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.0],
        ),
        (
            q_learning.squared,
            [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0],
            [2.0, 0.5, 0.125, 0.0, 0.125, 0.5, 2.0],
            [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0],
        ),
        (q_learning.huber, [1.0, 0.0, -1.0, -2.0, -3.0], [0.5, 0.0, 0.5, 1.5, 2.5], None),
    ],
)
def test_losses_of_errors(loss, errors, expected, gradient):
    """The first is from rlax, clipping_test.py, HuberLossTest (test_huber_loss_vector and test_gradients), the second
    from rlax, losses_test.py, L2LossTest (test_l2_loss_vector and test_gradients), the third from Dopamine,
    jax/losses_test.py, LossesTest.testHuberLoss, case MixedArraysDefaultDelta, which has no gradients."""
    errors = tf.constant(errors)
    with tf.GradientTape() as tape:
        tape.watch(errors)
        losses = loss(errors)
    check(losses, expected)
    if gradient is not None:
        check(tape.gradient(losses, errors), gradient)


# --- policies --------------------------------------------------------------------------------------------

# The logits, advantages and weights of rlax's policy_gradients_test.py.
POLICY = floats([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-1.0, -2.0, -3.0]])
ADVANTAGES = floats([0.3, 0.2, 0.1])
WEIGHTS = floats([-2.0, 2.0, 0.0])


def log_probs_of(logits, actions):
    return distributions.log_prob(Discrete(3), tf.constant(logits), tf.constant(actions))


@pytest.mark.parametrize(
    "logits, actions, advantages, weights, expected",
    [
        (POLICY, [0, 1, 2], ADVANTAGES, WEIGHTS, 0.0788835088),
        (POLICY + 1.0, [0, 0, 0], -ADVANTAGES, WEIGHTS - 1.0, 0.327200909),
    ],
)
def test_policy_gradient_loss(logits, actions, advantages, weights, expected):
    """From rlax, policy_gradients_test.py, PolicyGradientLossTest.test_policy_gradient_loss_batch."""
    log_probs = log_probs_of(logits, actions)
    check(policy_gradient.policy_gradient_loss(log_probs, tf.constant(advantages), tf.constant(weights)), expected)


@pytest.mark.parametrize(
    "logits, weights, expected", [(POLICY, WEIGHTS, 0.288693), (POLICY + 1.0, WEIGHTS - 1.0, 1.15422)]
)
def test_entropy_loss(logits, weights, expected):
    """From rlax, policy_gradients_test.py, EntropyLossTest.test_entropy_loss_batch: minus the mean of the weighted
    entropies."""
    check(-np.mean(weights * distributions.entropy(Discrete(3), tf.constant(logits))), expected)


@pytest.mark.parametrize("sign, expected", [(1.0, -0.17117467), (-1.0, 0.19333333)])
def test_clipped_surrogate_loss(sign, expected):
    """From rlax, policy_gradients_test.py, ClippedSurrogatePGLossTest.test_clipped_surrogate_pg_loss_batch.

    The first expected value is -(0.3 + 0.2 + 0.1 exp(-2)) / 3 = -0.17117784: the source's differs by 3e-6, and the
    source compares with an absolute tolerance of 1e-4.
    """
    behavior = floats([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-3.0, -2.0, -1.0]])
    log_probs, behaviour_log_probs = (log_probs_of(logits, [0, 1, 2]) for logits in (POLICY, behavior))
    advantages = tf.constant(sign * ADVANTAGES)
    loss, _ = policy_gradient.clipped_surrogate_loss(log_probs, behaviour_log_probs, advantages, tf.ones(3), 0.2)
    check(loss, expected, atol=5e-6)


def test_gaussian_policy():
    """From rlax, distributions_test.py, GaussianDiagonalTest: test_gaussian_logprob_batch, test_gaussian_entropy_batch.

    The source has its expected values from TensorFlow Probability.
    """
    mean, deviation = floats([[1.0, -1.0], [0.1, -0.1]]), floats([[0.1, 0.1], [0.2, 0.3]])
    policy, space = tf.concat([mean, np.log(deviation)], axis=1), Continuous((-1.0,) * 2, (1.0,) * 2)
    action = tf.constant([[1.2, -1.1], [-0.1, 0.0]])
    check(distributions.log_prob(space, policy, action), [0.26729202, 0.41997814])
    check(distributions.entropy(space, policy), [-1.7672932, 0.02446628])
