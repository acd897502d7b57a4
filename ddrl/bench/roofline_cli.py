"""`ddrl bench roofline`: what emulation, inference and gradient allow when nothing else costs anything."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from ddrl import checks
from ddrl.bench import machine
from ddrl.errors import UsageError
from ddrl.presets import preset
from ddrl.resources import this_machine


UNITS = {
    "env": "agent steps/s per core",
    "inference": "agent steps/s per core",
    "gradient": "data-points/s per core",
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
    values = {**as_dict(result), "machine": machine.describe()}
    if arguments.json:
        write(arguments.json, values)
    else:
        show(values, Console(highlight=False))
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


def as_dict(result: Any) -> dict[str, Any]:
    """A result as JSON types, whether a mapping, a dataclass or a named tuple."""
    if isinstance(result, Mapping):
        return dict(result)
    return dataclasses.asdict(result) if dataclasses.is_dataclass(result) else result._asdict()


def write(target: str, values: dict[str, Any]) -> None:
    """One JSON object to a file or to standard output.

    Raises:
        UsageError: when the file cannot be written.
    """
    text = json.dumps(values)
    if target == "-":
        print(text)
        return
    try:
        with open(target, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(
            f"--json {target}: {error.strerror}; name a file that can be written, or -"
        ) from error


def show(values: Mapping[str, Any], console: Console) -> None:
    """The numbers as a table, the machine below it."""
    table = Table("what", "value", "unit", title="roofline")
    for name, value in values.items():
        if name != "machine":
            shown = f"{value:,.0f}" if isinstance(value, float) and value >= 10 else str(value)
            table.add_row(name, shown, UNITS.get(name, ""))
    console.print(table)
    console.print(f"{values['machine']['processor']}, {values['machine']['cores']} cores", markup=False)
