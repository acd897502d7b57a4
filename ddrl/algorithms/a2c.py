"""A2C: batched advantage actor-critic (Mnih et al. 2016; Stooke and Abbeel 2018, section 3.1).

With asynchronous updates it is A3C, with the double-buffered schedule HTS-A2C. Settings only; the loss is in
`ddrl.algorithms.a2c_loss`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ddrl import checks
from ddrl.algorithms.settings import ActorCriticConfig


@dataclasses.dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """Loss of A2C."""

    name: ClassVar[str] = "a2c"

    gae_lambda: float = 1.0
    """Lambda of the generalized advantages (1: n-step returns)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between(self, 0.0, 1.0, "gae_lambda")
