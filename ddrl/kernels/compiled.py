"""How kernels are compiled and kept on disk, and the addresses of vectors that are handed to them.

A kernel calls none of another file: what is kept on disk is compiled anew when its own file has changed, and no other.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.core.runtime.nrt import rtsys

OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}
NO_ARRAYS = OPTIONS | {"_nrt": False}  # without the runtime that counts references to them


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a kernel of numbers and addresses when it is first called, or reads it from disk. Arrays are refused.

    `error_model` lets loops that divide be vectorized; there is no fast math, so that each operation rounds.
    """
    return _kept(function, NO_ARRAYS)


def compiled_with_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `compiled`, for a kernel of arrays, too: a process that reads it from disk needs 34 MB more."""
    return _kept(function, OPTIONS)


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that kernels of the same file call: it is compiled into them."""
    return numba.njit(**NO_ARRAYS)(function)


def reassociated_part(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `part`, but sums are added in any order, so that their loops are vectorized; NaN and infinity stay."""
    return numba.njit(**NO_ARRAYS, fastmath={"reassoc"})(function)


def _kept(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    try:
        kernel: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no directory can be written
        return numba.njit(**options)(function)
    kernel._cache = Cache(kernel._cache, arrays=options is OPTIONS)  # noqa: SLF001  # Numba has no option for it
    return kernel


class Cache:
    """Numba's cache on disk, whose failures cost a compilation and nothing else: damaged files, a full disk.

    Numba's own way to read a kernel first imports all that a compiler needs (26 MB and 0.2 s of each process), and
    compiles the runtime that counts references to arrays (34 MB). A kernel of numbers and addresses does without both.

    Numba writes its index before the code that this names, under a name that the next version, or the same for another
    processor, would have too: a process between the two would run the wrong code. So names tell what they are of.

    Args:
        cache: Numba's own, of one function.
        arrays: whether it takes or makes arrays.
    """

    def __init__(self, cache: Any, arrays: bool):
        self._cache, self._arrays = cache, arrays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """What is compiled for a signature; None where it is not there, or cannot be read: that is forgotten."""
        load = getattr(self._cache, "_load_overload", self._cache.load_overload)
        try:
            self._name_code(context)
            if self._arrays:
                rtsys.initialize(context)
            return load(signature, context)
        except Exception:  # noqa: BLE001  # whatever is in a damaged file
            with contextlib.suppress(Exception):
                self._cache.flush()
            return None

    def _name_code(self, context: Any) -> None:
        """Puts source, Numba's version and processor into the names of what is kept."""
        file = self._cache._cache_file  # noqa: SLF001  # Numba has no option for it
        if "{number" in file._data_name_pattern.partition("code-")[0]:  # noqa: SLF001
            of = repr((file._source_stamp, numba.__version__, context.codegen().magic_tuple()))  # noqa: SLF001
            name = f"code-{hashlib.sha256(of.encode()).hexdigest()[:12]}-{{number"
            file._data_name_pattern = file._data_name_pattern.replace("{number", name)  # noqa: SLF001

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keeps what was compiled, if there is room."""
        with contextlib.suppress(Exception):
            self._cache.save_overload(signature, result)


def address(vector: np.ndarray, size: int, written: bool = False) -> np.uint64:
    """Where a vector <float32>[size] is in memory; it must outlive the call.

    Args:
        vector: to be read or written.
        size: that it must have.
        written: whether the kernel writes to it.

    Raises:
        ValueError: it has another shape or type, lies in memory with gaps, or may not be written.
    """
    if vector.shape != (size,) or vector.dtype != np.float32 or not vector.flags.c_contiguous:
        what = f"{vector.dtype} of shape {vector.shape}, strides {vector.strides}"
        raise ValueError(f"a vector is {what}, and must be contiguous float32 of shape ({size},)")
    if written and not vector.flags.writeable:
        raise ValueError("a vector that an update writes to is read-only")
    return np.uint64(vector.ctypes.data)


def addresses(vectors: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Where some vectors are that are read, <uint64>[K]: `address` of each."""
    return np.array([address(vector, size) for vector in vectors], np.uint64)
