"""A program that stands in for a peer's Python."""

from __future__ import annotations

import sys
from pathlib import Path


def peer_python(folder: Path, lines: str) -> str:
    """A program in the place of a peer's Python; it sees what it was called with."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, sys, time\n{lines}\n")
    path.chmod(0o755)
    return str(path)
