"""TensorFlow, imported when it is first used: an algorithm's module holds its settings and its loss, and `--help` needs
the settings alone."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf
else:

    class _TensorFlow:
        """`import tensorflow as tf`, put off to the first `tf.NAME`."""

        def __getattr__(self, name: str) -> Any:
            return getattr(sys.modules.get("tensorflow") or import_tensorflow(), name)

    tf = _TensorFlow()

__all__ = ["import_tensorflow", "tf"]


def import_tensorflow() -> ModuleType:
    """TensorFlow without Keras, which it imports at once otherwise, and Keras matplotlib: a quarter of its processor
    time, in every rank. Who uses `tf.keras` has it, since TensorFlow looks for Keras again then."""
    if "keras" in sys.modules:
        return importlib.import_module("tensorflow")
    sys.modules["keras"] = None  # type: ignore[assignment]  # Python's own mark of what cannot be imported
    try:
        return importlib.import_module("tensorflow")
    finally:
        del sys.modules["keras"]
