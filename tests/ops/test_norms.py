from __future__ import annotations

import numpy as np
import pytest

from ddrl.config import NetworkConfig
from ddrl.networks import build_network
from ddrl.ops.norms import layer_norms
from ddrl.types import Continuous

SHAPES = (("conv0/kernel", (2, 1)), ("policy/kernel", (1, 2)), ("conv0/bias", (1,)), ("scale", ()))


def test_each_layer_by_hand():
    norms = layer_norms(SHAPES, np.array([1.0, 2.0, 3.0, 4.0, 2.0, 7.0], np.float32))
    assert list(norms) == ["conv0", "policy", "scale", "all"]
    assert norms == pytest.approx({"conv0": 3.0, "policy": 5.0, "scale": 7.0, "all": np.sqrt(83.0)})


def test_layers_of_a_network():
    network = build_network(NetworkConfig(network="mlp"), (5,), np.float32, Continuous((-1.0,), (1.0,)))
    vector = np.random.default_rng(0).standard_normal(network.size).astype(np.float32)
    norms = layer_norms(network.parameter_shapes, vector)
    tensors = {name: part.numpy() for name, part in network.unflatten(vector).items()}
    for layer in norms.keys() - {"all"}:
        together = np.concatenate([part.ravel() for name, part in tensors.items() if name.split("/")[0] == layer])
        assert norms[layer] == pytest.approx(np.linalg.norm(together), rel=1e-5)
    assert norms["all"] == pytest.approx(np.linalg.norm(vector), rel=1e-5)
    assert {name.split("/")[0] for name in tensors} == norms.keys() - {"all"}


def test_length_must_agree():
    with pytest.raises(ValueError, match="6 numbers"):
        layer_norms(SHAPES, np.zeros(5, np.float32))
