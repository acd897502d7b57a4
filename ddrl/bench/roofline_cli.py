"""`ddrl bench roofline`: what emulation, inference and gradient allow when nothing else costs anything."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Literal

import tyro

from ddrl import checks
from ddrl.algorithms import preset
from ddrl.bench.output import emit
from ddrl.placement.resources import this_machine

UNITS = {
    "env": "agent steps/s per core",
    "inference": "agent steps/s per core",
    "gradient": "data-points/s per core",
    "target": "transitions/s per core",
    "roofline": "agent steps/s, all cores",
    "uses": "gradients per data-point",
}


@dataclasses.dataclass(frozen=True)
class RooflineArguments:
    """Measure the parts of a configuration alone, and what they allow together: agent steps per second."""

    preset: Literal["default", "laptop", "ba3c-paper", "smoke"] = "laptop"
    """Settings to measure."""
    game: str = ""
    """Game (default: the preset's)."""
    network: Literal["", "a3c", "nature", "ba3c", "mlp"] = ""
    """Network (default: the preset's)."""
    compute_dtype: Literal["", "float32", "bfloat16"] = ""
    """Type of activations and kernels (default: the preset's)."""
    batch_size: int = 0
    """Data-points per gradient (0: the preset's)."""
    seconds: float = 3.0
    """Time for each of the parts."""
    cores: int = 0
    """Cores to measure with at once (0: all)."""
    json: str = ""
    """Write one JSON object to this file (-: standard output) instead of a table."""

    def __post_init__(self) -> None:
        checks.above(self, 0.0, "seconds")
        checks.at_least(self, 0, "cores", "batch_size")


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit status."""
    arguments = tyro.cli(RooflineArguments, args=list(argv), prog="ddrl bench roofline")
    config = settings(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from ddrl.bench.roofline import measure_roofline

    result = measure_roofline(config, arguments.seconds, arguments.cores or this_machine().cores)
    emit("roofline", result, arguments.json, UNITS)
    return 0


def settings(arguments: RooflineArguments) -> Any:
    """The TrainConfig to measure."""
    config = preset(arguments.preset, arguments.game or None, this_machine())
    network = dataclasses.replace(
        config.network,
        network=arguments.network or config.network.network,
        compute_dtype=arguments.compute_dtype or config.network.compute_dtype,
    )
    batch_size = arguments.batch_size or config.optimizer.batch_size
    optimizer = dataclasses.replace(config.optimizer, batch_size=batch_size)
    return dataclasses.replace(config, network=network, optimizer=optimizer)
