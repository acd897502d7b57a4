"""Experience replay: transitions of the simulators, each frame once, drawn uniformly or by priority. NumPy only."""

from __future__ import annotations

from ddrl.replay.replay import Replay, check_memory

__all__ = ["Replay", "check_memory"]
