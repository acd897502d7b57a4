"""What every network is: a fixed order of named tensors in one flat vector, and a pure function."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ddrl.errors import UsageError
from ddrl.exchange.statistics import block_size
from ddrl.lazy import tf
from ddrl.networks.normalization import OBSERVATION, RETURN, Normalization, normalized, prepared_blocks
from ddrl.ops.action_masks import masked
from ddrl.ops.q_learning import dueling_values, expected_values, support
from ddrl.structured import ACTION_MASK, field_types, float_fields
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
        observation_dtype: uint8 (scaled by 1/255), float32 or bool (taken as they are), or fields of these.
        action_space: whose policies `apply` gives.
        compute_dtype: name of the type of activations and kernels.
        head: of the Q-learning family, or None: policy and value, or what a network of its own gives.

    Attributes:
        parameter_shapes: (tensor name, shape) in the flat order.
        size: N, the length of the flat vector.
        initializers: by the tensors' names.
        observation_scale: what observations are multiplied with; of several fields a dict with that of each.
        normalization: what running statistics, the last tensors, are there for.

    Raises:
        UsageError: two tensors have the same name, or the actions do not suit the head.
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
        names = [tensor for tensor, _, _ in tensors]
        if len(set(names)) < len(names):  # all of one name would be the last of them
            twice = max(names, key=names.count)
            raise UsageError(f"network {name} has several tensors {twice}: give each layer a name of its own")
        self.name = name
        self.action_space, self.head = action_space, head
        self.parameter_shapes = tuple((tensor, shape) for tensor, shape, _ in tensors)
        self.size = sum(math.prod(shape) for _, shape in self.parameter_shapes)
        self.compute_dtype = compute_dtype
        fields = field_types(observation_dtype)
        scales = {field: scale_of(name, dtype) for field, (_, dtype) in fields.items()}
        self.observation_scale: Any = scales or scale_of(name, observation_dtype)
        self.initializers = {tensor: initializer for tensor, _, initializer in tensors}

    def add_scalars(self, values: Mapping[str, float]) -> None:
        """Adds tensors [] after those that are there, which the layers do not read: an algorithm's learned scalars.

        Args:
            values: name -> value at the beginning.

        Raises:
            UsageError: there is a tensor of that name.
        """
        for name, value in values.items():
            if name in self.initializers:
                raise UsageError(f"network {self.name} already has a tensor {name}: give the algorithm's another name")
            self.initializers[name] = constant(value)
        self.parameter_shapes += tuple((name, ()) for name in values)
        self.size += len(values)

    def normalize(self, observation_shape: tuple[int, ...], dtype: Any, observations: bool, rewards: bool) -> None:
        """Adds tensors of running statistics, by which observations and rewards are normalized from now on.

        Of an observation of several entries those of floats are normalized.

        Args:
            observation_shape, dtype: of one observation.
            observations: whether they are normalized.
            rewards: whether they are.

        Raises:
            UsageError: no observations are floats.
        """
        self._float_fields = float_fields(observation_shape, dtype)
        if observations and not self._float_fields:
            raise UsageError(
                "--normalize-observations: no numbers of these observations are floats; bytes are divided by 255, and "
                "bits are 0 or 1 already; leave it out"
            )
        widths = {OBSERVATION: sum(self._float_fields.values())} if observations else {}
        sizes = {name: block_size(width) for name, width in (widths | ({RETURN: 1} if rewards else {})).items()}
        self.parameter_shapes += tuple((name, (size,)) for name, size in sizes.items())
        self.initializers |= dict.fromkeys(sizes, zeros)
        self.normalization = Normalization(observations, rewards, sum(sizes.values()))
        self.size += self.normalization.size

    def initial_parameters(self, seed: int) -> np.ndarray:
        """<float32>[N] drawn from a NumPy generator of `seed`: equal for equal seeds."""
        random = np.random.default_rng(seed)
        parts = [
            np.asarray(initializer(random, shape), np.float32).reshape(-1)
            for initializer, (_, shape) in zip(self.initializers.values(), self.parameter_shapes)
        ]
        return np.concatenate(parts)

    def unflatten(self, parameters: Any) -> dict[str, Any]:
        """The named tensors of a flat tensor of length N; the gradient of this is one concatenation."""

        parts = cut_vector(parameters, [math.prod(shape) for _, shape in self.parameter_shapes])
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
            observations: <observation dtype>[B, ...], or a dict of fields, as the environment gave them.
        """
        if not self.normalization.observations:
            return observations
        if not isinstance(observations, dict):
            return normalized(prepared, observations)
        widths, start, result = self._float_fields, 0, dict(observations)
        for name, width in widths.items():
            result[name] = normalized(prepared, observations[name], start, start + width)
            start += width
        return result

    def outputs(self, prepared: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Name of each linear head -> <float32>[B, its width], of <observation dtype>[B, ...].

        Args:
            prepared: parameters, as `prepare` makes them.
            observations: <observation dtype>[B, ...].
        """
        raise NotImplementedError

    def apply(self, prepared: dict[str, Any], observations: Any) -> PolicyValue:
        """Policy <float32>[B, P] and value <float32>[B].

        With a `head`: the expected return of each action, and the largest of them. Illegal actions have logits or
        returns of `ddrl.ops.action_masks.ILLEGAL`.

        Args:
            prepared: parameters, as `prepare` makes them.
            observations: <observation dtype>[B, ...].
        """
        if self.head is not None:
            q = self.legal_returns(self.action_values(prepared, observations), observations)
            return PolicyValue(q, tf.reduce_max(q, axis=1))
        outputs = self.outputs(prepared, observations)
        policy = only_legal(outputs["policy"], observations)
        if (deviations := prepared.get(LOG_DEVIATION)) is not None:
            policy = tf.concat([policy, tf.broadcast_to(deviations, tf.shape(policy))], axis=1)
        return PolicyValue(policy, tf.squeeze(outputs["value"], axis=-1))

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

    def legal_returns(self, action_values: Any, observations: Any) -> Any:
        """`expected` of what `action_values` gives, <float32>[B, A], and `ILLEGAL` where an action is.

        Args:
            action_values: of the observations.
            observations: <observation dtype>[B, ...], with or without the field of legal actions.
        """
        return only_legal(self.expected(action_values), observations)

    def _q_head(self) -> QHead:
        if self.head is None:
            raise ValueError(f"network {self.name} was built without a head of the Q-learning family: no action values")
        return self.head

    def __call__(self, parameters: Any, observations: Any) -> PolicyValue:
        """`apply(prepare(parameters), observations)`."""
        return self.apply(self.prepare(parameters), observations)


def only_legal(outputs: Any, observations: Any) -> Any:
    """`outputs` <float32>[B, A], and `ILLEGAL` for actions that the observations, if they have that field, forbid."""
    if isinstance(observations, dict) and ACTION_MASK in observations:
        return masked(outputs, observations[ACTION_MASK])
    return outputs


def cut_vector(vector: Any, sizes: Sequence[int]) -> list[Any]:
    """Pieces of a vector, one after the other, of these sizes; the gradient of this is one concatenation."""

    @tf.custom_gradient
    def cut(whole: Any) -> tuple[list[Any], Callable[..., Any]]:
        starts = np.cumsum([0, *sizes])
        pieces = [whole[start:stop] for start, stop in itertools.pairwise(starts)]  # no copies, unlike tf.split
        return pieces, lambda *gradients: tf.concat(gradients, axis=0)

    return cut(vector)


def scale_of(name: str, dtype: Any) -> float:
    """What observations of a type are multiplied with.

    Args:
        name: of the network, for the error.
        dtype: uint8, float32 or bool.

    Raises:
        UsageError: another type.
    """
    if np.dtype(dtype) == np.uint8:
        return 1.0 / 255.0
    if np.dtype(dtype) in (np.float32, np.bool_):
        return 1.0
    raise UsageError(f"network {name} takes uint8, bool or float32 observations, not {np.dtype(dtype)}: convert them")


def zeros(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All zeros."""
    return np.zeros(shape, np.float32)


def ones(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All ones."""
    return np.ones(shape, np.float32)


def constant(value: float) -> Initializer:
    """All `value`."""
    return lambda random, shape: np.full(shape, value, np.float32)


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


def heads_of(action_space: ActionSpace, head: QHead | None) -> dict[str, int]:
    """Name and width of each linear head, of all streams: policy and value, or q, or value and advantage."""
    return {name: width for stream in streams_of(action_space, head) for name, width in stream.items()}


def deviation_tensors(action_space: ActionSpace) -> Tensors:
    """Logarithms of the standard deviations of a Gaussian policy: parameters of their own, whatever the state."""
    return [(LOG_DEVIATION, (action_space.head_size,), zeros)] if isinstance(action_space, Continuous) else []
