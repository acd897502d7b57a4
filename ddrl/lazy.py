"""Modules that take long to import, imported when they are first used: `--help` and launchers need none of them.

What TensorFlow says when it is loaded is kept from the terminal by `quiet_libraries`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

_LOCK = threading.RLock()


class _Lazy:
    """A module that is imported when its first attribute is read; other threads wait until the import is complete."""

    def __init__(self, load: Callable[[], ModuleType]):
        self._load = load
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            with _LOCK:
                self._module = self._load()
        return getattr(self._module, name)


def lazy_module(name: str) -> Any:
    """The module of this name, which is imported when its first attribute is read."""
    return _Lazy(lambda: importlib.import_module(name))


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow without Keras, and without garbage collection meanwhile.

    Otherwise TensorFlow imports Keras at once, which imports matplotlib, and the garbage collector searches objects
    that all stay. Each of the two measures saves 15 to 25% of the import's processor time, in every rank.

    oneDNN is on, unless the environment says TF_ENABLE_ONEDNN_OPTS=0. TensorFlow itself leaves it off on processors
    without AVX-512's instructions for networks, where gradients of convolutions then take up to twice as long
    (docs/results/speed.md, 'A processor without bfloat16').

    `tf.keras` still works, since TensorFlow looks for Keras again when it is used. While this function runs, another
    thread cannot import Keras.
    """
    with _LOCK:
        if "tensorflow" in sys.modules or "keras" in sys.modules:
            return importlib.import_module("tensorflow")
        if platform.machine() == "x86_64":  # others were not measured
            os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
        sys.modules["keras"] = None  # type: ignore[assignment]  # Python's own mark of what cannot be imported
        collects = gc.isenabled()
        gc.disable()
        try:
            return importlib.import_module("tensorflow")
        finally:
            del sys.modules["keras"]
            if collects:
                gc.enable()


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Around whatever loads TensorFlow, whose C++ greets on standard error whatever its log level is.

    What Python writes there still comes out. TF_CPP_MIN_LOG_LEVEL=0 in the environment shows all.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        yield
        return
    sys.stderr.flush()
    errors = os.fdopen(os.dup(2), "w", buffering=1)  # not closed: a logger that is made meanwhile keeps it
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(errors):
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(errors.fileno(), 2)


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _Lazy(import_tensorflow)

__all__ = ["import_tensorflow", "lazy_module", "quiet_libraries", "tf"]
