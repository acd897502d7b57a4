"""What a network is made for: the observations, the actions, and the outputs that its algorithm needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ddrl.networks.convolutional import channels_first
from ddrl.networks.network import heads_of
from ddrl.structured import ACTION_MASK, field_types
from ddrl.types import ActionSpace, QHead

IMAGE = 3  # axes of an observation that is an image


class Spaces(NamedTuple):
    """What a function that makes a network is given.

    Attributes:
        observation_shape, observation_dtype: of one observation as it is stored; images are [C, H, W] or [H, W, C]. One
            of several entries has the shape () and a structured type.
        actions: their space.
        head: of the Q-learning family (None: policy and value).
    """

    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    actions: ActionSpace
    head: QHead | None = None

    @property
    def outputs(self) -> dict[str, int]:
        """Name and width of each output: policy and value, or q, or of a dueling head value and advantage."""
        return heads_of(self.actions, self.head)

    @property
    def is_image(self) -> bool:
        """Whether an observation has three axes."""
        return len(self.observation_shape) == IMAGE

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one observation as a Keras model gets it: images [H, W, C]."""
        if not self.is_image:
            return self.observation_shape
        channels, height, width = channels_first(self.observation_shape)
        return height, width, channels

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and type of each entry of an observation, but for legal actions; {} where it is one array."""
        if not self.observation_dtype.names:
            return {}
        return {name: known for name, known in field_types(self.observation_dtype).items() if name != ACTION_MASK}

    def inputs(self) -> Any:
        """A `keras.Input` of observations: floats, those that are stored as uint8 between 0 and 1.

        Of an observation of several entries a dict of them by name (`inner.speed` of an entry within an entry), each of
        the shape in which it is stored.
        """
        import keras

        if self.fields:
            return {
                keras_name(name): keras.Input(shape, dtype="float32", name=keras_name(name))
                for name, (shape, _) in self.fields.items()
            }
        return keras.Input(self.input_shape, dtype=keras.config.dtype_policy().compute_dtype, name="observation")

    def heads(self, hidden: Any) -> dict[str, Any]:
        """A linear layer in float32 for each output, on a Keras tensor [B, features]; begins like the system's own."""
        import keras

        def head(name: str, width: int) -> Any:
            gain = 1.0 if name == "value" and self.head is None else 0.01
            kernel = keras.initializers.Orthogonal(gain)
            return keras.layers.Dense(width, kernel_initializer=kernel, dtype="float32", name=name)(hidden)

        return {name: head(name, width) for name, width in self.outputs.items()}

    def __str__(self) -> str:
        """The outputs with their shapes, for errors."""
        return " and ".join(f"{name} [B, {width}]" for name, width in self.outputs.items())


def keras_name(field: str) -> str:
    """Of a field; Keras takes no slash."""
    return field.replace("/", ".")
