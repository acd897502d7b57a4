from __future__ import annotations

import numpy as np
import tensorflow as tf

from ddrl.ops.clipping import clip_by_average_norm

SHAPES = (("a", (2, 3)), ("b", (4,)), ("c", (1,)))


def test_each_tensor_on_its_own():
    gradient = np.concatenate([np.full(6, 10.0), np.full(4, 1e-3), [0.0]]).astype(np.float32)
    clipped = clip_by_average_norm(tf.constant(gradient), SHAPES, 0.1).numpy()
    np.testing.assert_allclose(np.linalg.norm(clipped[:6]), 0.1 * 6, rtol=1e-5)
    np.testing.assert_allclose(clipped[:6], clipped[0])  # same direction
    np.testing.assert_array_equal(clipped[6:], gradient[6:])


def test_off_and_wide_limits_change_nothing():
    gradient = tf.constant(np.random.default_rng(0).standard_normal(11).astype(np.float32))
    np.testing.assert_array_equal(clip_by_average_norm(gradient, SHAPES, 0.0), gradient)
    np.testing.assert_array_equal(clip_by_average_norm(gradient, SHAPES, 1e3), gradient)
