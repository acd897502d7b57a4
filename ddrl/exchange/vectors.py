"""Parameter vectors in aligned memory, which TensorFlow can use without a copy."""

from __future__ import annotations

import numpy as np

ALIGNMENT = 64  # bytes; TensorFlow takes memory with this alignment without a copy


def empty_vector(size: int) -> np.ndarray:
    """Allocates a vector <float32>[size], not initialized, at an address that is a multiple of ALIGNMENT."""
    memory = np.empty(4 * size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + 4 * size].view(np.float32)


def lasting_memory(vector: np.ndarray) -> np.ndarray | None:
    """A writable view of a read-only vector from `empty_vector`, for a library that takes no read-only memory.

    It is None for any other array. Nobody may write to the vector any more, not even through this view.
    """
    memory = vector.base
    if vector.flags.writeable or vector.ctypes.data % ALIGNMENT or not vector.flags.c_contiguous:
        return None
    if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8 or not memory.flags.writeable:
        return None
    start = vector.ctypes.data - memory.ctypes.data
    return memory[start : start + vector.nbytes].view(vector.dtype)
