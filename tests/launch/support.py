"""What tests of launchers share."""

from __future__ import annotations

import numpy as np

from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.rundir import config_to_dict


def checkpoint(config: TrainConfig, wall_seconds: float) -> Checkpoint:
    """A small checkpoint of a run that has trained for so long."""
    of_run = config_to_dict(config)
    return Checkpoint(5, 5, 80, wall_seconds, np.zeros(1, np.float32), {}, 5, (("x", (1,)),), config=of_run)
