"""Slow NumPy transcriptions of equations, as references for the tests. float64, loops, no cleverness."""

from __future__ import annotations

import math

import numpy as np

from ddrl.types import Discrete

# --- returns, losses -------------------------------------------------------------------------------------


def n_step_returns(rewards, discounts, bootstrap):
    """sum_k (prod_(j<k) discount_(t+j)) r_(t+k), plus the discounted bootstrap, for one segment [T]."""
    returns = []
    for t in range(len(rewards)):
        total, factor = 0.0, 1.0
        for k in range(t, len(rewards)):
            total += factor * float(rewards[k])
            factor *= float(discounts[k])
        returns.append(total + factor * float(bootstrap))
    return np.array(returns)


def lambda_returns(rewards, discounts, next_values, lambda_):
    """(1 - lambda) sum_n lambda^(n-1) G_(t:t+n) + lambda^(T-t-1) G_(t:T) of one segment [T], where G_(t:t+n) is the
    n-step return with the value after it (Sutton and Barto 2018, equation 12.3)."""
    returns = []
    for t in range(len(rewards)):
        lengths = range(1, len(rewards) - t + 1)
        g = [n_step_returns(rewards[t : t + n], discounts[t : t + n], next_values[t + n - 1])[0] for n in lengths]
        total = sum((1.0 - lambda_) * lambda_**k * each for k, each in enumerate(g[:-1]))
        returns.append(total + lambda_ ** (len(g) - 1) * g[-1])
    return np.array(returns)


def steps_of_episode(continues, t):
    """t and the steps after it that belong to the same episode and unroll."""
    steps = [t]
    while continues[steps[-1]] and steps[-1] + 1 < len(continues):
        steps.append(steps[-1] + 1)
    return steps


def generalized_advantages(unroll, lambda_):
    """sum_l (gamma lambda)^l delta_(t+l) over the steps of the episode (Schulman et al. 2016, equation 16)."""
    advantages = np.zeros(unroll.reward.shape)
    for t, b in np.argwhere(unroll.valid):
        factor = 1.0
        for k in steps_of_episode(unroll.continues[:, b], t):
            discount, value = float(unroll.discount[k, b]), unroll.value[:, b].astype(float)
            advantages[t, b] += factor * (unroll.reward[k, b] + discount * value[k + 1] - value[k])
            factor *= discount * lambda_
    return advantages


def vtrace(log_rhos, unroll, value, clip_rho, clip_c):
    """Espeholt et al. 2018, equation 1 and section 4.2: the sum with its products, not the recursion."""
    ratios, value = np.exp(log_rhos.astype(float)), value.astype(float)
    vs, advantages = value.copy(), np.zeros(unroll.reward.shape)
    for t, b in np.argwhere(unroll.valid):
        steps = steps_of_episode(unroll.continues[:, b], t)
        for k in steps:
            trace = np.prod([float(unroll.discount[i, b]) * min(clip_c, ratios[i, b]) for i in range(t, k)])
            rho = min(clip_rho, ratios[k, b])
            error = unroll.reward[k, b] + unroll.discount[k, b] * value[k + 1, b] - value[k, b]
            vs[t, b] += trace * rho * error
    for t, b in np.argwhere(unroll.valid):
        following = vs[t + 1, b] if unroll.continues[t, b] else value[t + 1, b]
        target = unroll.reward[t, b] + unroll.discount[t, b] * following
        advantages[t, b] = min(clip_rho, ratios[t, b]) * (target - value[t, b])
    return vs[:-1], advantages


def gaussian_density(mean, log_deviation, x):
    deviation = np.exp(log_deviation)
    return np.exp(-((x - mean) ** 2) / (2 * deviation**2)) / (deviation * np.sqrt(2 * np.pi))


def log_probs(space, policy, actions):
    """log pi(a|s) of each row: a probability, or the product of the densities of the components."""
    if isinstance(space, Discrete):
        return np.log([row[action] for row, action in zip(softmax(policy), actions, strict=True)])
    rows = []
    for row, action in zip(np.asarray(policy, np.float64), actions, strict=True):
        mean, log_deviation = row[: len(action)], row[len(action) :]
        rows.append(sum(np.log(gaussian_density(m, s, a)) for m, s, a in zip(mean, log_deviation, action)))
    return np.array(rows)


def entropies(space, policy):
    """-E log pi of each row; the Gaussian's by summing -p log p over a fine grid."""
    if isinstance(space, Discrete):
        return entropy(policy)
    totals, half = [], policy.shape[1] // 2
    for row in np.asarray(policy, np.float64):
        total = 0.0
        for mean, log_deviation in zip(row[:half], row[half:]):
            reach = 8 * np.exp(log_deviation)
            grid, width = np.linspace(mean - reach, mean + reach, 4001, retstep=True)
            density = gaussian_density(mean, log_deviation, grid)
            total -= np.sum(density * np.log(density)) * width
        totals.append(total)
    return np.array(totals)


def clipped_surrogate(ratio, advantage, clip):
    """Schulman et al. 2017, figure 1: a good action gains up to 1 + clip, a bad one loses from 1 - clip on."""
    if advantage > 0:
        return min(ratio, 1 + clip) * advantage
    return max(ratio, 1 - clip) * advantage


def actor_critic_loss(space, policy, value, policy_losses, targets, weights, config):
    """(loss, policy loss, value loss, entropy): sums over the rows that count, over the number of all rows."""
    totals, count = np.zeros(3), len(weights)
    row_entropies = entropies(space, policy)
    for row in range(count):
        if weights[row]:
            totals += policy_losses[row], (float(targets[row]) - float(value[row])) ** 2, row_entropies[row]
    policy_loss, value_loss, mean_entropy = totals / count
    total = policy_loss + config.value_cost * value_loss - config.entropy_cost * mean_entropy
    return total, policy_loss, value_loss, mean_entropy


def a2c_loss(space, policy, value, batch, config):
    losses = -log_probs(space, policy, batch.action) * batch.advantage
    return actor_critic_loss(space, policy, value, losses, batch.return_, batch.weight, config)


def ppo_loss(space, policy, value, batch, config):
    losses = []
    for row, log_prob in enumerate(log_probs(space, policy, batch.action)):
        ratio = np.exp(log_prob - float(batch.behaviour_log_prob[row]))
        losses.append(-clipped_surrogate(ratio, float(batch.advantage[row]), config.clip_range))
    return actor_critic_loss(space, policy, value, losses, batch.return_, batch.weight, config)


def impala_loss(space, policy, value, batch, config):
    steps, environments = batch.reward.shape
    rows = steps * environments
    actions = batch.action.reshape(rows, *batch.action.shape[2:])
    log_pi = log_probs(space, policy[:rows], actions)
    log_rhos = log_pi.reshape(steps, environments) - batch.behaviour_log_prob
    vs, advantages = vtrace(log_rhos, batch, value.reshape(steps + 1, environments), config.rho_clip, config.c_clip)
    return actor_critic_loss(
        space, policy[:rows], value[:rows], -log_pi * advantages.ravel(), vs.ravel(), batch.valid.ravel(), config
    )


def softmax(logits):
    exponentials = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def entropy(logits):
    return np.array([-sum(p * np.log(p) for p in row) for row in softmax(logits)])


def ba3c_loss(logits, value, actions, returns, behaviour_log_probs, config):
    """(loss, policy loss, value loss, entropy, mean ratio), one data-point after the other."""
    probabilities = softmax(logits)
    gains = [float(r) - float(v) for r, v in zip(returns, value)]
    if config.normalize_advantages:
        mean = sum(gains) / len(gains)
        deviation = (sum((gain - mean) ** 2 for gain in gains) / len(gains)) ** 0.5
        gains = [(gain - mean) / deviation for gain in gains]
    policy, square, ratios = 0.0, 0.0, 0.0
    for b, action in enumerate(actions):
        advantage = float(returns[b]) - float(value[b])
        probability = probabilities[b, action]
        ratio = 1.0
        if config.importance_clip or config.clip_range:
            ratio = probability / np.exp(float(behaviour_log_probs[b]))
        if config.importance_clip:
            ratio = min(ratio, config.importance_clip)
        if config.clip_range:
            policy -= clipped_surrogate(ratio, gains[b], config.clip_range)
        else:
            policy -= ratio * np.log(probability + config.log_epsilon) * gains[b]
        square += advantage**2
        ratios += ratio
    count = len(actions)
    policy, square, mean_entropy = policy / count, square / count, entropy(logits).mean()
    total = policy + config.value_cost * square - config.entropy_cost * mean_entropy
    return total, policy, square, mean_entropy, ratios / count


# --- networks --------------------------------------------------------------------------------------------


def convolution(x, kernel, stride):
    """Valid convolution of one image [H, W, C] with [k, k, C, F]."""
    side = kernel.shape[0]
    rows, columns = (x.shape[0] - side) // stride + 1, (x.shape[1] - side) // stride + 1
    out = np.empty((rows, columns, kernel.shape[3]))
    for i in range(rows):
        for j in range(columns):
            patch = x[i * stride : i * stride + side, j * stride : j * stride + side]
            out[i, j] = np.tensordot(patch, kernel, 3)
    return out


def max_pool(x, size):
    rows, columns = x.shape[0] // size, x.shape[1] // size
    cut = x[: rows * size, : columns * size]
    return cut.reshape(rows, size, columns, size, -1).max(axis=(1, 3))


def convolutional_network(tensors, layers, image, *, dense_relu=True):
    """(logits, value) of one scaled image [C, H, W]; layers: (stride, padding, pool) of each convolution."""
    x = np.transpose(image, (1, 2, 0)).astype(np.float64)
    x = np.pad(x, ((0, 0), (0, 0), (0, tensors["conv0/kernel"].shape[2] - x.shape[2])))
    for i, (stride, padding, pool) in enumerate(layers):
        x = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
        x = convolution(x, tensors[f"conv{i}/kernel"], stride) + tensors.get(f"conv{i}/bias", 0.0)
        x = max_pool(np.maximum(x, 0.0), pool)
    x = x.reshape(-1) @ tensors["dense/kernel"] + tensors["dense/bias"]
    x = np.maximum(x, 0.0) if dense_relu else x
    logits = x @ tensors["policy/kernel"] + tensors["policy/bias"]
    return logits, (x @ tensors["value/kernel"] + tensors["value/bias"])[0]


# --- optimizers ------------------------------------------------------------------------------------------


def adam(theta, gradients, rate, beta1, beta2, epsilon):
    """Adamski et al. 2018, equations 2, 3, 5 and 6, one number after the other."""
    theta = np.array(theta, np.float64)
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for t, gradient in enumerate(gradients, start=1):
        for i, g in enumerate(gradient):
            m[i] = beta1 * m[i] + (1 - beta1) * float(g)
            v[i] = beta2 * v[i] + (1 - beta2) * float(g) ** 2
            theta[i] -= rate * np.sqrt(1 - beta2**t) / (1 - beta1**t) * m[i] / (np.sqrt(v[i]) + epsilon)
    return theta


def rmsprop(theta, gradients, rate, decay, epsilon, *, inside, centered):
    theta = np.array(theta, np.float64)
    square, mean = np.zeros_like(theta), np.zeros_like(theta)
    for gradient in gradients:
        for i, g in enumerate(gradient):
            square[i] = decay * square[i] + (1 - decay) * float(g) ** 2
            mean[i] = decay * mean[i] + (1 - decay) * float(g)
            spread = square[i] - mean[i] ** 2 if centered else square[i]
            root = np.sqrt(spread + epsilon) if inside else np.sqrt(spread) + epsilon
            theta[i] -= rate * float(g) / root
    return theta


def multistep_adam(theta, events, rate, beta1, beta2, epsilon):
    """Stooke and Abbeel 2018, appendix A, with s = a m / (sqrt(v) + epsilon); t grows by n per synchronization.

    events: (learner, gradient) for a local step, (learner, None) for a synchronization; a learner adopts the central
    values before its first event. Returns (central theta, m, v, t) and each learner's theta.
    """
    theta = np.array(theta, np.float64)
    central = {"theta": theta, "m": np.zeros_like(theta), "v": np.zeros_like(theta), "t": 0}
    learners = {}
    for name, gradient in events:
        own = learners.setdefault(name, central | dict.fromkeys(("a_g", "a_g2", "a_s", "n"), 0))
        if gradient is not None:
            g = np.array(gradient, np.float64)
            own["t"], own["n"] = own["t"] + 1, own["n"] + 1
            a = rate * np.sqrt(1 - beta2 ** own["t"]) / (1 - beta1 ** own["t"])
            own["m"] = beta1 * own["m"] + (1 - beta1) * g
            own["v"] = beta2 * own["v"] + (1 - beta2) * g**2
            s = a * own["m"] / (np.sqrt(own["v"]) + epsilon)
            own["theta"] = own["theta"] - s
            own["a_g"], own["a_g2"] = beta1 * own["a_g"] + g, beta2 * own["a_g2"] + g**2
            own["a_s"] = own["a_s"] + s
        else:
            central = {
                "theta": central["theta"] - own["a_s"],
                "m": beta1 ** own["n"] * central["m"] + (1 - beta1) * own["a_g"],
                "v": beta2 ** own["n"] * central["v"] + (1 - beta2) * own["a_g2"],
                "t": central["t"] + own["n"],
            }
            learners[name] = central | dict.fromkeys(("a_g", "a_g2", "a_s", "n"), 0)
    return central, {name: own["theta"] for name, own in learners.items()}


# --- segments --------------------------------------------------------------------------------------------


class Segments:
    """What DataPointBuilder does, one environment and one transition after the other (Mnih et al. 2016, S3).

    A segment is a list of (observation, action, log_prob, version, reward); `points` collects the data-points
    (observation, action, return, log_prob, version) of each segment that ended. `discount` is that of a version.
    """

    def __init__(self, unroll_length, discount, clip, life_loss_terminal, gae_lambda=1.0):
        self.n, self.discount, self.clip, self.gae_lambda = unroll_length, discount, clip, gae_lambda
        self.life_loss_terminal, self.open = life_loss_terminal, {}

    def close(self, row, value):
        """row: dict of one environment's answer; returns the data-points of its segment, if that ended."""
        segment = self.open.setdefault(row["env_id"], [])
        if not row["valid"]:
            return []
        segment[-1]["reward"] = max(-self.clip, min(self.clip, float(row["reward"])))
        terminal = row["terminated"] or (self.life_loss_terminal and row["life_lost"])
        segment[-1]["next_value"] = 0.0 if terminal else float(value)
        if not (terminal or row["truncated"] or len(segment) == self.n):
            return []
        rewards = [transition["reward"] for transition in segment]
        discounts = [self.discount(transition["version"]) for transition in segment]
        values = [transition["next_value"] for transition in segment]
        returns = lambda_returns(rewards, discounts, values, self.gae_lambda)
        self.open[row["env_id"]] = []
        return [
            (t["observation"], t["action"], r, t["log_prob"], t["version"])
            for t, r in zip(segment, returns, strict=True)
        ]

    def store(self, row, action, log_prob, version):
        if row["terminated"] or row["truncated"]:
            return  # a final observation: the action on it is ignored
        transition = {"observation": row["observation"], "action": action, "log_prob": log_prob}
        self.open[row["env_id"]].append(transition | {"version": version, "reward": 0.0})


# --- networks and their gradients ------------------------------------------------------------------------


def named_tensors(network, parameters):
    """The named tensors of a vector, in float64."""
    parts, start = {}, 0
    for name, shape in network.parameter_shapes:
        size = math.prod(shape)
        parts[name] = np.asarray(parameters[start : start + size], np.float64).reshape(shape)
        start += size
    return parts


def numerical_gradient(function, point, step=1e-6):
    """The gradient of a scalar function of an array, by differences."""
    gradient = np.zeros(point.shape)
    for at in np.ndindex(point.shape):
        ends = []
        for sign in (1.0, -1.0):
            moved = point.astype(np.float64)
            moved[at] += sign * step
            ends.append(function(moved))
        gradient[at] = (ends[0] - ends[1]) / (2 * step)
    return gradient
