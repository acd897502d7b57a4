"""Slow NumPy transcriptions of equations, as references for the tests. float64, loops, no cleverness."""

from __future__ import annotations

import numpy as np

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


def softmax(logits):
    exponentials = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def entropy(logits):
    return np.array([-sum(p * np.log(p) for p in row) for row in softmax(logits)])


def ba3c_loss(logits, value, actions, returns, behaviour_log_probs, config):
    """(loss, policy loss, value loss, entropy, mean ratio), one data-point after the other."""
    probabilities = softmax(logits)
    policy, square, ratios = 0.0, 0.0, 0.0
    for b, action in enumerate(actions):
        advantage = float(returns[b]) - float(value[b])
        probability = probabilities[b, action]
        ratio = 1.0
        if config.importance_clip:
            ratio = min(probability / np.exp(float(behaviour_log_probs[b])), config.importance_clip)
        policy -= ratio * np.log(probability + config.log_epsilon) * advantage
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


# --- segments --------------------------------------------------------------------------------------------


class Segments:
    """What SegmentBuilder does, one environment and one transition after the other (Mnih et al. 2016, S3).

    A segment is a list of (observation, action, log_prob, version, reward); `points` collects the data-points
    (observation, action, return, log_prob, version) of each segment that ended.
    """

    def __init__(self, unroll_length, discount, clip, life_loss_terminal):
        self.n, self.discount, self.clip = unroll_length, discount, clip
        self.life_loss_terminal, self.open = life_loss_terminal, {}

    def close(self, row, value):
        """row: dict of one environment's answer; returns the data-points of its segment, if that ended."""
        segment = self.open.setdefault(row["env_id"], [])
        if not row["valid"]:
            return []
        segment[-1]["reward"] = max(-self.clip, min(self.clip, float(row["reward"])))
        terminal = row["terminated"] or (self.life_loss_terminal and row["life_lost"])
        if not (terminal or row["truncated"] or len(segment) == self.n):
            return []
        rewards = [transition["reward"] for transition in segment]
        returns = n_step_returns(rewards, [self.discount] * len(rewards), 0.0 if terminal else value)
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
