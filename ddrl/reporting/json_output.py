"""What the option --json of several commands does: it writes one JSON object to a file or to standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ddrl.errors import UsageError


def write_json_output(target: str, values: Mapping[str, Any]) -> None:
    """Writes one JSON object to the file `target`, or to standard output for '-'.

    Raises:
        UsageError: when the file cannot be written.
    """
    text = json.dumps(values)
    if target == "-":
        print(text, flush=True)
        return
    try:
        with open(target, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(f"--json {target}: {error.strerror}; name a file that can be written, or -") from error
