"""Where a gradient stopped being finite, and what to do about it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.structured import float_parts
from ddrl.wording import counted


def where_not_finite(
    tensors: Sequence[tuple[str, tuple[int, ...]]],
    vector: np.ndarray,
    parameters: Any,
    batch: Any,
    values: Mapping[str, float],
) -> str:
    """What of a gradient is not finite, as a text: its first such tensor with the number of such values in it, and how
    many other tensors have some; then what was not finite before it, of the parameters, the batch, and the loss.

    Args:
        tensors: name and shape of each tensor, in the order of the flat vector.
        vector: the gradient <float32>[N], of which values or the norm are not finite.
        parameters: <float32>[N] at which it was taken.
        batch: a named tuple of host arrays; fields that are not used are None.
        values: metrics of the loss by name, with the norm of the gradient.
    """
    inputs = {"the parameters": np.asarray(parameters)}
    inputs |= {f"the batch's {name}": array for name, array in batch._asdict().items() if array is not None}
    before = [f"{count} of {name}" for name, array in inputs.items() if (count := _count(array))]
    before += [f"its {name}" for name, value in values.items() if name != "gradient_norm" and not math.isfinite(value)]
    causes = f"not finite before it: {', '.join(before)}" if before else "parameters, batch, and loss were finite"
    return f"{_of_gradient(tensors, vector)}; {causes}"


def too_many_refused(limit: int, names: str, run_dir: Path) -> str:
    """Why a run ends over gradients that are not finite, and what to do.

    Args:
        limit: steps that were refused.
        names: the workers whose gradients caused the last refusal.
        run_dir: the run directory.
    """
    refused, run = f"{counted(limit, 'step')} {'was' if limit == 1 else 'were'} refused", shlex.quote(str(run_dir))
    return (
        f"{refused} for gradients that are not finite (the last: {names}): "
        "fix the environment if its observations or rewards were not finite (event gradient_not_finite); "
        f"otherwise lower --learning-rate or clip (--clip-global-norm) with `ddrl train --resume {run} ...`, "
        f"or begin a new run from an earlier checkpoint with --init-from {run}:UPDATE"
    )


def _of_gradient(tensors: Sequence[tuple[str, tuple[int, ...]]], vector: np.ndarray) -> str:
    found, start = [], 0
    for name, shape in tensors:
        stop = start + math.prod(shape)
        if count := _count(vector[start:stop]):
            found.append(f"{count} of {name}")
        start = stop
    if not found:
        return "its values are, but its norm is not"
    return found[0] + (f", and some of {counted(len(found) - 1, 'other tensor')}" if found[1:] else "")


def _count(array: np.ndarray) -> str:
    """How many floating-point numbers of an array are not finite, such as '3 of 64 values'; empty if all are."""
    parts = float_parts(array)
    wrong = sum(part.size - int(np.isfinite(part).sum()) for part in parts)
    return f"{wrong:,} of {sum(part.size for part in parts):,} values" if wrong else ""
