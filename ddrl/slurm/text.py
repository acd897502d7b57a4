"""Makes paths short."""

from __future__ import annotations

from pathlib import Path


def as_typed(path: Path) -> str:
    """A path as one would name it here: relative where it is below this directory."""
    here, path = Path.cwd(), path.absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)
