"""A Keras network of one's own: convolutions for small images, with layer normalization.

    ddrl train ppo --plugin examples/normalized_convolutions.py --network normalized-convolutions --preset smoke
    ddrl train dqn --plugin examples/normalized_convolutions.py --network normalized-convolutions --preset smoke

`--hidden-layers 128 64` are its dense layers.
"""

from __future__ import annotations

from typing import Any

from ddrl import UsageError, register_network


def build(spaces: Any, settings: Any) -> Any:
    """Two convolutions of 3 x 3, then --hidden-layers (none: one of 64), then a head for each output.

    Args:
        spaces: `ddrl.networks.spaces.Spaces`, the observations, the actions and the outputs that are needed.
        settings: `ddrl.config.NetworkConfig`.
    """
    import keras

    if not spaces.is_image:
        raise UsageError(f"normalized-convolutions takes images, not observations {spaces.observation_shape}")
    x = inputs = spaces.inputs()
    for filters in (16, 32):
        x = keras.layers.Conv2D(filters, 3, padding="same")(x)
        x = keras.layers.Activation("relu")(keras.layers.LayerNormalization()(x))
    x = keras.layers.Flatten()(x)
    for neurons in settings.hidden_layers or (64,):
        x = keras.layers.Dense(neurons)(x)
        x = keras.layers.Activation("relu")(keras.layers.LayerNormalization()(x))
    return keras.Model(inputs, spaces.heads(x))


register_network("normalized-convolutions", build)
