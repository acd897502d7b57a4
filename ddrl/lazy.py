"""TensorFlow, imported when it is first used: an algorithm's module holds its settings and its loss, and `--help` needs
the settings alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf
else:

    class _TensorFlow:
        """`import tensorflow as tf`, put off to the first `tf.NAME`."""

        def __getattr__(self, name: str) -> Any:
            import tensorflow

            return getattr(tensorflow, name)

    tf = _TensorFlow()

__all__ = ["tf"]
