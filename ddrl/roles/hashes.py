"""The hash of each version's parameters, by which two runs can be compared."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

HASHES = "parameter_hashes.txt"


class ParameterHashes:
    """Appends a line `version hash` for each version. A resumed run begins again where its checkpoint is.

    Args:
        run_dir: of the run; the file in it is `parameter_hashes.txt`.
    """

    def __init__(self, run_dir: Path):
        self._file = (run_dir / HASHES).open("a", buffering=1)
        self._last = -1

    def add(self, version: int, parameters: np.ndarray) -> None:
        """Notes the parameters <float32>[N] of a version, once."""
        if version != self._last:
            self._file.write(f"{version} {parameter_hash(parameters)}\n")
            self._last = version


def parameter_hash(parameters: np.ndarray) -> str:
    """16 hexadecimal digits of BLAKE2b over the little-endian bytes of <float32>[N]."""
    return hashlib.blake2b(np.ascontiguousarray(parameters, "<f4").data, digest_size=8).hexdigest()
