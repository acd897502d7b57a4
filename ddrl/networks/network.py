"""What every network is: a fixed order of named tensors in one flat vector, and a pure function."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.errors import UsageError
from ddrl.exchange.statistics import block_size
from ddrl.lazy import tf
from ddrl.networks.normalization import OBSERVATION, RETURN, Normalization, normalized, prepared_blocks
from ddrl.ops.q_learning import dueling_values, expected_values, support
from ddrl.types import ActionSpace, Continuous, Discrete, PolicyValue, QHead

LOG_DEVIATION = "policy/log_deviation"

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Tensors = list[tuple[str, tuple[int, ...], Initializer]]
"""Name, shape and initializer of each tensor of a network, in the flat order."""


class Network:
    """A policy and a value, or values of actions, as a function of a flat parameter vector and observations.

    The flat order is the order of `parameter_shapes`, each tensor in row-major order. A subclass gives the
    tensors to `__init__` and writes `outputs`, or an `apply` of its own.

    Args:
        name: as in NetworkConfig.network.
        tensors: in the flat order.
        observation_dtype: uint8 (scaled by 1/255) or float32 (taken as it is).
        action_space: whose policies `apply` gives.
        compute_dtype: name of the type of activations and kernels.
        head: of the Q-learning family, or None: policy and value, or what a network of its own gives.

    Attributes:
        parameter_shapes: (tensor name, shape) in the flat order.
        size: N, the length of the flat vector.
        observation_scale: what observations are multiplied with.
        normalization: what running statistics, the last tensors, are there for.
    """

    normalization = Normalization()

    def __init__(
        self,
        name: str,
        tensors: Tensors,
        observation_dtype: Any,
        action_space: ActionSpace,
        compute_dtype: str,
        head: QHead | None = None,
    ) -> None:
        if isinstance(head, QHead) and not isinstance(action_space, Discrete):
            raise UsageError("the Q-learning family takes discrete actions, not continuous ones: train a2c or ppo")
        self.name = name
        self.action_space, self.head = action_space, head
        self.parameter_shapes = tuple((tensor, shape) for tensor, shape, _ in tensors)
        self.size = sum(math.prod(shape) for _, shape in self.parameter_shapes)
        self.compute_dtype = compute_dtype
        self.observation_scale = _observation_scale(name, observation_dtype)
        self._initializers = [initializer for _, _, initializer in tensors]

    def normalize(self, observation_shape: tuple[int, ...], observations: bool, rewards: bool) -> None:
        """Adds tensors of running statistics, by which observations and rewards are normalized from now on.

        Args:
            observation_shape: of one observation.
            observations: whether they are normalized.
            rewards: whether they are.

        Raises:
            UsageError: the observations are integers.
        """
        if observations and self.observation_scale != 1.0:
            raise UsageError(
                "--normalize-observations: these are uint8, whose range is known, and divided by 255 already; leave it "
                "out"
            )
        widths = {OBSERVATION: math.prod(observation_shape)} if observations else {}
        sizes = {name: block_size(width) for name, width in (widths | ({RETURN: 1} if rewards else {})).items()}
        self.parameter_shapes += tuple((name, (size,)) for name, size in sizes.items())
        self._initializers += [zeros] * len(sizes)
        self.normalization = Normalization(observations, rewards, sum(sizes.values()))
        self.size += self.normalization.size

    def initial_parameters(self, seed: int) -> np.ndarray:
        """<float32>[N] drawn from a NumPy generator of `seed`: equal for equal seeds."""
        random = np.random.default_rng(seed)
        parts = [
            np.asarray(initializer(random, shape), np.float32).reshape(-1)
            for initializer, (_, shape) in zip(self._initializers, self.parameter_shapes)
        ]
        return np.concatenate(parts)

    def unflatten(self, parameters: Any) -> dict[str, Any]:
        """The named tensors of a flat tensor of length N; the gradient of this is one concatenation."""

        @tf.custom_gradient
        def cut(whole: Any) -> tuple[list[Any], Callable[..., Any]]:
            starts = np.cumsum([0, *(math.prod(shape) for _, shape in self.parameter_shapes)])
            pieces = [whole[start:stop] for start, stop in itertools.pairwise(starts)]  # no copies, unlike tf.split
            return pieces, lambda *gradients: tf.concat(gradients, axis=0)

        parts = cut(parameters)
        return {name: tf.reshape(part, shape) for (name, shape), part in zip(self.parameter_shapes, parts)}

    def prepare(self, parameters: Any) -> dict[str, Any]:
        """What `apply` needs of a version of the parameters: the named tensors as they are, or cast and laid out for
        fast use, differentiable.

        Inference prepares once per version; a gradient goes through it each time.
        """
        return prepared_blocks(self.unflatten(parameters))

    def observed(self, prepared: dict[str, Any], observations: Any) -> Any:
        """Observations [B, ...] as the layers take them: normalized, or as they are.

        Args:
            prepared: parameters, as `prepare` makes them.
            observations: <observation dtype>[B, ...] as the environment gave them.
        """
        return normalized(prepared, observations) if self.normalization.observations else observations

    @staticmethod
    def policy(head: Any, prepared: dict[str, Any]) -> Any:
        """<float32>[B, P]: the policy head, with the logarithms of the deviations beside it if there are any.

        Args:
            head: <float32>[B, head size of the actions].
            prepared: parameters, as `prepare` makes them.
        """
        deviations = prepared.get(LOG_DEVIATION)
        if deviations is None:
            return head
        return tf.concat([head, tf.broadcast_to(deviations, tf.shape(head))], axis=1)

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Name of each linear head -> <float32>[B, its width], of <observation dtype>[B, ...].

        Args:
            prepared: parameters, as `prepare` makes them.
            observations: <observation dtype>[B, ...].
        """
        raise NotImplementedError

    def apply(self, prepared: dict[str, Any], observations: Any) -> PolicyValue:
        """Policy <float32>[B, P] and value <float32>[B].

        With a `head`: the expected return of each action, and the largest of them.

        Args:
            prepared: parameters, as `prepare` makes them.
            observations: <observation dtype>[B, ...].
        """
        if self.head is not None:
            q = self.expected(self.action_values(prepared, observations))
            return PolicyValue(q, tf.reduce_max(q, axis=1))
        outputs = self.outputs(prepared, observations)
        return PolicyValue(self.policy(outputs["policy"], prepared), tf.squeeze(outputs["value"], axis=-1))

    def action_values(self, prepared: dict[str, Any], observations: Any) -> Any:
        """Of a network with a `head`: Q <float32>[B, A], or with atoms logits of the returns <float32>[B, A, atoms].

        Args:
            prepared: parameters, as `prepare` makes them.
            observations: <observation dtype>[B, ...].

        Raises:
            ValueError: the network has no `head`.
        """
        head = self._q_head()
        each = [head.atoms] if head.atoms else []
        outputs = self.outputs(prepared, observations)
        values = {name: tf.reshape(x, [-1, x.shape[1] // math.prod(each), *each]) for name, x in outputs.items()}
        return dueling_values(values["value"], values["advantage"]) if head.dueling else values["q"]

    def expected(self, action_values: Any) -> Any:
        """Expected returns <float32>[B, A] of what `action_values` gives.

        Raises:
            ValueError: the network has no `head`.
        """
        head = self._q_head()
        if not head.atoms:
            return action_values
        return expected_values(action_values, support(head.value_min, head.value_max, head.atoms))

    def _q_head(self) -> QHead:
        if self.head is None:
            raise ValueError(f"network {self.name} was built without a head of the Q-learning family: no action values")
        return self.head

    def __call__(self, parameters: Any, observations: Any) -> PolicyValue:
        """`apply(prepare(parameters), observations)`."""
        return self.apply(self.prepare(parameters), observations)


def _observation_scale(name: str, dtype: Any) -> float:
    if np.dtype(dtype) == np.uint8:
        return 1.0 / 255.0
    if np.dtype(dtype) == np.float32:
        return 1.0
    raise UsageError(f"network {name} takes uint8 or float32 observations, not {np.dtype(dtype)}: convert them")


def zeros(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All zeros."""
    return np.zeros(shape, np.float32)


def ones(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All ones."""
    return np.ones(shape, np.float32)


def orthogonal(gain: float) -> Initializer:
    """Orthonormal columns (or rows, if there are fewer) of the kernel as [fan in, fan out], times gain."""

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        matrix = random.standard_normal((max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(matrix)
        q *= np.sign(np.diag(r))  # makes the draw uniform over orthogonal matrices
        return gain * (q if rows >= columns else q.T).reshape(shape)

    return draw


def truncated_normal(deviation: float) -> Initializer:
    """Normal with this standard deviation, redrawn beyond two deviations."""

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        sample = random.standard_normal(shape)
        while (outside := np.abs(sample) > 2.0).any():
            sample[outside] = random.standard_normal(int(outside.sum()))
        return deviation * sample

    return draw


def uniform_unit_scaling(factor: float) -> Initializer:
    """Uniform in +-factor sqrt(3 / fan in), as TensorFlow 1's initializer of that name."""

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        limit = factor * math.sqrt(3.0 / math.prod(shape[:-1]))
        return random.uniform(-limit, limit, shape)

    return draw


def streams_of(action_space: ActionSpace, head: QHead | None) -> list[dict[str, int]]:
    """Linear heads and their widths; those of one stream read the same hidden layer, each stream has its own."""
    if head is None:
        return [{"policy": action_space.head_size, "value": 1}]
    each = head.atoms or 1
    if head.dueling:
        return [{"value": each}, {"advantage": action_space.head_size * each}]
    return [{"q": action_space.head_size * each}]


def deviation_tensors(action_space: ActionSpace) -> Tensors:
    """Logarithms of the standard deviations of a Gaussian policy: parameters of their own, whatever the state."""
    return [(LOG_DEVIATION, (action_space.head_size,), zeros)] if isinstance(action_space, Continuous) else []
