"""Functions of tensors that are compiled once and called often."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ddrl.lazy import tf
from ddrl.structured import Packed


class Graph:
    """A function of tensors of fixed shapes, traced once.

    A call runs the traced function as an operation, without checking shapes and types, for which the caller answers:
    `tf.function` binds and checks its arguments at every call, which takes longer than a small network computes
    (docs/results/speed-tried.md). With a GPU, `tf.function` makes the call, since it places the operations.

    Args:
        function: a function of tensors, or of dicts of tensors.
        specs: specs of its arguments; for one that is Packed, the function gets the fields.

    Attributes:
        specs: specs of what `function` returns, nested as it nests them.
    """

    def __init__(self, function: Callable[..., Any], specs: list[Any]) -> None:
        signature = [spec.spec if isinstance(spec, Packed) else spec for spec in specs]

        def of_fields(*tensors: Any) -> Any:
            return function(*(s.unpack(x) if isinstance(s, Packed) else x for s, x in zip(specs, tensors, strict=True)))

        traced = tf.function(of_fields, input_signature=signature, autograph=False).get_concrete_function()
        self.specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), traced.structured_outputs)
        self._function, self._arguments = traced, signature
        self._types = [spec.dtype for spec in tf.nest.flatten(self.specs)]
        self._captured = list(traced.captured_inputs)

    def __call__(self, *tensors: Any) -> list[Any]:
        """The tensors that the function returns, one after the other.

        Args:
            tensors: its arguments, with those of a dict in the order of `tf.nest.flatten`.
        """
        if computes_on_gpu():
            return tf.nest.flatten(self._function(*tf.nest.pack_sequence_as(self._arguments, tensors)))
        return tf.raw_ops.StatefulPartitionedCall(args=[*tensors, *self._captured], Tout=self._types, f=self._function)


@functools.cache
def computes_on_gpu() -> bool:
    """Whether TensorFlow computes on a GPU in this process."""
    return bool(tf.config.list_logical_devices("GPU"))
