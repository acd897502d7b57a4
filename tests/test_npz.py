"""Named arrays as bytes: round trip, damage is found, and nothing is pickled."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from ddrl import npz


def test_arrays_as_bytes_round_trip():
    backwards = np.arange(6).reshape(2, 3)[:, ::-1]
    arrays = {"file": backwards, "a/b.npy": np.array(2.5), "": np.zeros((0, 3), "S4")}
    found = npz.decode_arrays(npz.encode_arrays(arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert npz.encode_arrays(arrays) == npz.encode_arrays(arrays)
    assert npz.decode_arrays(npz.encode_arrays({})) == {}


def test_damaged_array_bytes_are_a_value_error():
    data = npz.encode_arrays({"x": np.arange(1000)})
    middle = bytearray(data)
    middle[4000] ^= 1
    for damaged in (b"", data[:500], bytes(middle)):
        with pytest.raises(ValueError):
            npz.decode_arrays(damaged)
    assert zipfile.is_zipfile(io.BytesIO(data))


def test_python_objects_are_refused():
    with pytest.raises(ValueError, match="[Oo]bject"):
        npz.encode_arrays({"x": np.array([object()])})
