"""What the option --json of several commands does: it writes one JSON object to a file or to standard output."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddrl.errors import UsageError


def check_json_output(target: str) -> None:
    """Refuses a file that `write_json_output` could not write, before the work whose result it would take.

    Raises:
        UsageError: the file cannot be written.
    """
    path = Path(target)
    if path.exists():
        possible = os.access(path, os.W_OK) and not path.is_dir()
    else:
        possible = os.access(path.parent, os.W_OK) and path.parent.is_dir()
    if target != "-" and not possible:
        raise UsageError(f"--json {target}: it cannot be written; name a file that can be written, or -")


def write_json_output(target: str, values: Mapping[str, Any]) -> None:
    """Writes one JSON object to the file `target`, or to standard output for '-'.

    Numbers that are not finite become null, since JSON has none.

    Raises:
        UsageError: when the file cannot be written.
    """
    text = json.dumps(_finite(values), allow_nan=False)
    if target == "-":
        print(text, flush=True)
        return
    try:
        with open(target, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(f"--json {target}: {error.strerror}; name a file that can be written, or -") from error


def _finite(value: Any) -> Any:
    """A JSON value with None in the place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
