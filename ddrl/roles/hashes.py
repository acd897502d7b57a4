"""A file with a hash of each version's parameters, by which two runs can be compared."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ddrl.files import append_regular
from ddrl.rundir import HASHES


class ParameterHashes:
    """Appends a line `version hash` for each version. A resumed run repeats the versions after its checkpoint.

    Args:
        run_dir: the run directory; the file in it is `parameter_hashes.txt`.
    """

    def __init__(self, run_dir: Path):
        self._file = append_regular(run_dir / HASHES)
        self._last = -1

    def add(self, version: int, parameters: np.ndarray) -> None:
        """Appends the hash of a version's parameters <float32>[N], unless this version came last, too."""
        if version != self._last:
            self._file.write(f"{version} {parameter_hash(parameters)}\n".encode())
            self._last = version


def parameter_hash(parameters: np.ndarray) -> str:
    """16 hexadecimal digits of BLAKE2b over the little-endian bytes of <float32>[N]."""
    return hashlib.blake2b(np.ascontiguousarray(parameters, "<f4").data, digest_size=8).hexdigest()
