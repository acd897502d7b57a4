"""The Nature network as a Keras model, to compare with our own; also an example of a user's network function."""

from __future__ import annotations

from typing import Any

from ddrl.config import NetworkConfig
from ddrl.networks.spaces import Spaces

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, kernel, stride


def build(spaces: Spaces, settings: NetworkConfig) -> Any:
    """Three convolutions and a dense layer of 512 (Mnih et al. 2015)."""
    import keras

    x = inputs = spaces.inputs()
    for filters, kernel, stride in CONVOLUTIONS:
        x = keras.layers.Conv2D(filters, kernel, stride, activation="relu")(x)
    x = keras.layers.Dense(512, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(inputs, spaces.heads(x))
