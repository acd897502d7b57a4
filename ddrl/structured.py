"""Observations of several fields: structured NumPy arrays on the host, a dict of tensors for networks.

A field has its own type and shape, and an array [B] has one element for each observation, so that code which stores,
sends or draws observations need not know about fields. The field `action_mask` says which actions are legal. This
module also converts action spaces and types to JSON, for processes that have no environment.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from typing import Any, NamedTuple

import numpy as np

from ddrl.lazy import tf
from ddrl.types import ActionSpace, Continuous, Discrete, MultiDiscrete

ACTION_MASK = "action_mask"
"""The field <bool>[A] of legal actions, for the A outputs of the policy head. Several components follow each other."""


def field_types(dtype: Any) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Name -> shape and type of each field of a structured type, in its order; empty for another type."""
    dtype = np.dtype(dtype)
    fields = {name: dtype[name] for name in dtype.names or ()}
    return {name: (field.shape, field.base) for name, field in fields.items()}


def has_mask(dtype: Any) -> bool:
    """Whether observations of this type say which actions are legal."""
    return ACTION_MASK in (np.dtype(dtype).names or ())


def legal_actions(observations: np.ndarray) -> np.ndarray | None:
    """The masks <bool>[..., A] of an array of observations; None if all actions are legal."""
    return observations[ACTION_MASK] if has_mask(observations.dtype) else None


def split_components(space: ActionSpace, values: Any) -> list[Any]:
    """The part [..., count] for each component of an action, of a mask or of outputs of a policy head [..., A]."""
    counts = space.counts if isinstance(space, MultiDiscrete) else (space.head_size,)
    return [values[..., start:stop] for start, stop in itertools.pairwise(itertools.accumulate(counts, initial=0))]


def inputs_of(shape: tuple[int, ...], dtype: Any) -> int:
    """How many numbers of an observation a network reads: all but those of the mask."""
    fields = field_types(dtype)
    if not fields:
        return math.prod(shape)
    return sum(math.prod(inner) for name, (inner, _) in fields.items() if name != ACTION_MASK)


def float_parts(array: np.ndarray) -> list[np.ndarray]:
    """Views of the floating-point parts of an array: the array itself, fields of it, or none."""
    if array.dtype.names is None:
        return [array] if array.dtype.kind == "f" else []
    return [array[name] for name, (_, base) in field_types(array.dtype).items() if base.kind == "f"]


def float_fields(shape: tuple[int, ...], dtype: Any) -> dict[str, int]:
    """Field of floats -> how many numbers it has, in order; an observation that is one array of floats is field ''."""
    fields = field_types(dtype) or {"": (shape, np.dtype(dtype))}
    return {name: math.prod(inner) for name, (inner, base) in fields.items() if base.kind == "f"}


def float_rows(array: np.ndarray) -> np.ndarray:
    """<float32>[B, D] of observations [B, ...]: all floating-point numbers of each, field after field."""
    parts = [part.reshape(len(array), math.prod(part.shape[1:])) for part in float_parts(array)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


class Packed(NamedTuple):
    """Fields of one type as one tensor, which is handed over once instead of field by field.

    Attributes:
        spec: spec of the tensor [..., numbers of all fields together].
        shapes: name -> shape of each field, in order.
    """

    spec: Any
    shapes: dict[str, tuple[int, ...]]

    def unpack(self, tensor: Any) -> dict[str, Any]:
        """The tensors of the fields by name; for use inside a graph."""
        parts = tf.split(tensor, [math.prod(shape) for shape in self.shapes.values()], axis=-1)
        outer = tensor.shape[:-1]
        return {name: tf.reshape(part, [*outer, *inner]) for (name, inner), part in zip(self.shapes.items(), parts)}


@functools.lru_cache
def common_type(dtype: np.dtype) -> np.dtype | None:
    """The type that all fields of a structured type have; None if they have several, or there are gaps between them."""
    fields = field_types(dtype)
    types = {base for _, base in fields.values()}
    if len(types) != 1:
        return None
    (base,) = types
    return base if dtype.itemsize == base.itemsize * sum(math.prod(shape) for shape, _ in fields.values()) else None


def spec_of(shape: Any, dtype: Any) -> Any:
    """The TensorSpec of an array; for a structured one a Packed, or a dict with the spec of each field.

    Args:
        shape: shape of the array, without those of fields.
        dtype: type of the array.
    """
    fields = field_types(dtype)
    if not fields:
        return tf.TensorSpec(shape, tf.as_dtype(np.dtype(dtype)))
    if (common := common_type(np.dtype(dtype))) is not None:
        shapes = {name: inner for name, (inner, _) in fields.items()}
        return Packed(tf.TensorSpec([*shape, sum(map(math.prod, shapes.values()))], tf.as_dtype(common)), shapes)
    return {name: tf.TensorSpec([*shape, *inner], tf.as_dtype(base)) for name, (inner, base) in fields.items()}


def tensors_of(array: Any) -> list[Any]:
    """The tensors of an array that its `spec_of` describes: one, or one per field in the order of `tf.nest.flatten`."""
    names = array.dtype.names if isinstance(array, np.ndarray) else None
    if names is None:
        return [tf.convert_to_tensor(array)]
    if (common := common_type(array.dtype)) is not None:
        return [tf.convert_to_tensor(np.ascontiguousarray(array).view(common).reshape(*array.shape, -1))]
    return [tf.convert_to_tensor(np.array(array[name], order="C")) for name in sorted(names)]


@functools.lru_cache
def _bytes_of(dtype: np.dtype) -> np.dtype:
    """A type without fields whose elements are as long."""
    return np.dtype((np.void, dtype.itemsize))


def whole(array: np.ndarray) -> np.ndarray:
    """A view whose elements NumPy copies whole. It would copy those of a structured array field by field, which is six
    times as slow."""
    return array if array.dtype.names is None else array.view(_bytes_of(array.dtype))


def type_text(dtype: Any) -> str:
    """A type as text: its name, or JSON of its fields."""
    fields = field_types(dtype)
    if not fields:
        return np.dtype(dtype).name
    return json.dumps([[name, base.name, shape] for name, (shape, base) in fields.items()])


def type_of(text: str) -> np.dtype:
    """The inverse of `type_text`."""
    if not text.startswith("["):
        return np.dtype(text)
    return np.dtype([(name, base, tuple(shape)) for name, base, shape in json.loads(text)])


def space_facts(space: ActionSpace) -> dict[str, Any]:
    """An action space as JSON types."""
    if isinstance(space, Discrete):
        return {"count": int(space.count)}
    if isinstance(space, MultiDiscrete):
        return {"counts": list(map(int, space.counts))}
    return {"low": list(map(float, space.low)), "high": list(map(float, space.high))}


def space_from(facts: dict[str, Any]) -> ActionSpace:
    """The inverse of `space_facts`."""
    if "count" in facts:
        return Discrete(facts["count"])
    if "counts" in facts:
        return MultiDiscrete(tuple(facts["counts"]))
    return Continuous(tuple(facts["low"]), tuple(facts["high"]))
