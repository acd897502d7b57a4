"""The blocked average against NumPy's, and its norm; one gradient is its own average, without a copy."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.exchange.averaging import BLOCK, average_of


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
@pytest.mark.parametrize("members", [1, 2, 5])
def test_average_and_norm(size, members):
    gradients = list(np.random.default_rng(size).normal(size=(members, size)).astype(np.float32))
    out = np.full(size, np.nan, np.float32)
    average, squared_norm = average_of(gradients, out)
    np.testing.assert_allclose(average, np.mean(np.float64(gradients), axis=0), atol=1e-6)
    assert squared_norm == pytest.approx(np.square(np.float64(average)).sum(), rel=1e-4)
    assert average is (gradients[0] if members == 1 else out)
