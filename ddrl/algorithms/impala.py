"""IMPALA: actor-critic with V-trace over whole unrolls (Espeholt et al. 2018).

Settings only; the loss is in `ddrl.algorithms.impala_loss`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ddrl import checks
from ddrl.algorithms.settings import ActorCriticConfig


@dataclasses.dataclass(frozen=True)
class ImpalaConfig(ActorCriticConfig):
    """Loss of IMPALA."""

    name: ClassVar[str] = "impala"

    unroll_length: int = 20
    """Agent steps of an unroll, to which V-trace reaches; then the value bootstraps."""
    rho_clip: float = 1.0
    """Upper clip of the importance ratio in the temporal differences and the policy gradient (rho-bar)."""
    c_clip: float = 1.0
    """Upper clip of the importance ratio in the traces (c-bar)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.above(self, 0.0, "rho_clip", "c_clip", why="0 would stop learning")
        if self.c_clip > self.rho_clip:
            checks.refuse(
                self, "c_clip", f"must not be above --rho-clip {self.rho_clip} (Espeholt et al., section 4.1)"
            )
