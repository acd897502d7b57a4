"""Structured observations as tensors: one for all fields where they have one type, else one for each field."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.graph import Graph
from ddrl.structured import Packed, common_type, spec_of, tensors_of

FLOATS = np.dtype([("speed", "f4", (3,)), ("goal", "f4", (2, 2)), ("height", "f4")])
MIXED = np.dtype([("speed", "f4", (3,)), ("image", "u1", (2, 2))])


def test_fields_of_one_type_without_gaps_are_one_tensor():
    assert common_type(FLOATS) == np.float32 and isinstance(spec_of([5], FLOATS), Packed)
    assert common_type(MIXED) is None and common_type(np.dtype("f4")) is None
    assert common_type(np.dtype([("a", "u1"), ("b", "u1")])) == np.uint8
    assert common_type(np.dtype({"names": ["a", "b"], "formats": ["f4", "f4"], "offsets": [0, 8]})) is None


@pytest.mark.parametrize("dtype", [FLOATS, MIXED])
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_a_graph_gets_each_field_as_it_is_in_the_array(dtype, shape):
    random = np.random.default_rng(0)
    array = np.zeros((2, *shape), dtype)
    for name in dtype.names:
        array[name] = random.integers(0, 200, array[name].shape)
    array = array[::-1][0]  # not the whole of its memory
    graph = Graph(lambda fields: [fields[name] for name in dtype.names], [spec_of(shape, dtype)])
    tensors = tensors_of(array)
    assert len(tensors) == (1 if dtype is FLOATS else 2)
    for name, tensor in zip(dtype.names, graph(*tensors), strict=True):
        np.testing.assert_array_equal(tensor, array[name])
    strided = np.repeat(array, 2, axis=0)[::2]
    for tensor, same in zip(tensors_of(strided), tensors, strict=True):
        np.testing.assert_array_equal(tensor, same)
