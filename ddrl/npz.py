"""Named arrays as the bytes of an uncompressed `.npz`: a checkpoint's file, and the states that ranks send."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping

import numpy as np


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Named arrays of any type and shape as the bytes of an uncompressed npz; equal input gives equal bytes.

    Raises:
        ValueError: an array holds Python objects.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def decode_arrays(data: bytes) -> dict[str, np.ndarray]:
    """Inverse of `encode_arrays`.

    Raises:
        ValueError: `data` is damaged, is no such npz, or holds Python objects; this is checked before an array is
            allocated.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                    raise ValueError(f"{member.filename} is compressed")
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"{name} is there twice")
                arrays[name] = _decode_array(archive.read(member))
    except Exception as error:  # zipfile and numpy raise a dozen kinds on damaged bytes
        raise ValueError(f"not a sound npz: {error}") from error
    return arrays


def _decode_array(data: bytes) -> np.ndarray:
    """The array that `write_array` wrote."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, _, kind = read_header(file)
    if kind.hasobject or any(length < 0 for length in shape):
        raise ValueError("object arrays and negative lengths are not read")
    if math.prod(shape) * kind.itemsize != len(data) - file.tell() or (not kind.itemsize and math.prod(shape) > 1):
        raise ValueError(f"{kind}{list(shape)} in {len(data)} bytes")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)
