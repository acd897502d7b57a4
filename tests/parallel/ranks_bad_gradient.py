"""`python -m ddrl.roles` whose worker TEST_BAD_WORKER poisons its gradients number TEST_BAD_GRADIENTS."""

from __future__ import annotations

import os
import sys

import light
import numpy as np

from ddrl.roles import __main__ as ranks


def poison() -> None:
    """Wraps the learner of this rank."""
    from ddrl.learner import Learner

    bad = {int(number) for number in os.environ["TEST_BAD_GRADIENTS"].split(",")}
    original, count = Learner.gradient, 0

    def gradient(self, *arguments):
        nonlocal count
        result, values, priorities = original(self, *arguments)
        if count in bad:
            result = result.copy()
            result[len(result) // 2] = values["gradient_norm"] = np.nan  # the norm is of the same gradient
        count += 1
        return result, values, priorities

    Learner.gradient = gradient


if __name__ == "__main__":
    light.install()
    if os.environ["OMPI_COMM_WORLD_RANK"] == os.environ["TEST_BAD_WORKER"]:
        poison()
    sys.exit(ranks.main())
