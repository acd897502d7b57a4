"""How kernels are compiled, and vectors handed to them whose number is not known.

A kernel calls none of another file: what is kept on disk is compiled anew when its own file has changed, and no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.core.runtime.nrt import rtsys


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function of arrays and numbers when it is first called.

    `error_model` lets loops that divide be vectorized; there is no fast math, so that each operation rounds.
    """
    return _compiled(function, fast=set())


def reassociated(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `compiled`, but sums are added in any order, so that their loops are vectorized; NaN and infinity stay."""
    return _compiled(function, fast={"reassoc"})


def _compiled(function: Callable[..., Any], fast: set[str]) -> Any:
    options: dict[str, Any] = {"error_model": "numpy", "nogil": True, "fastmath": fast}
    try:
        kernel: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no directory can be written
        return numba.njit(**options)(function)
    kernel._cache = Cache(kernel._cache)  # noqa: SLF001  # Numba has no option for it
    return kernel


class Cache:
    """Numba's cache on disk, whose failures cost a compilation and nothing else: damaged files, a full disk.

    Args:
        cache: Numba's own, of one function.
    """

    def __init__(self, cache: Any):
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """What is compiled for a signature; None where it is not there, or cannot be read: that is forgotten.

        Numba's own method first imports all that a compiler needs, which costs a process 26 MB and 0.2 s.
        """
        load = getattr(self._cache, "_load_overload", self._cache.load_overload)
        try:
            rtsys.initialize(context)  # what kernels take memory with
            return load(signature, context)
        except Exception:  # noqa: BLE001  # whatever is in a damaged file
            with contextlib.suppress(Exception):
                self._cache.flush()
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keeps what was compiled, if there is room."""
        with contextlib.suppress(Exception):
            self._cache.save_overload(signature, result)


def addresses(vectors: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Where vectors are in memory, <uint64>[K]; they must outlive the call that reads them.

    Args:
        vectors: K of them, each <float32>[size].
        size: of each.

    Raises:
        ValueError: one has another shape or type, or lies in memory with gaps.
    """
    for vector in vectors:
        if vector.shape != (size,) or vector.dtype != np.float32 or not vector.flags.c_contiguous:
            what = f"{vector.dtype} of shape {vector.shape}, strides {vector.strides}"
            raise ValueError(f"a vector is {what}, and must be contiguous float32 of shape ({size},)")
    return np.array([vector.ctypes.data for vector in vectors], np.uint64)
