"""Every setting of a run: frozen dataclasses, one default each, validated at construction. Imports no TensorFlow.

Read `settings` first; `validation` says which settings go together. Of ddrl's other packages only the settings of
`exchange` and of `replay` may be imported here.
"""

from __future__ import annotations

from ddrl.config.algorithm import (
    LONGEST_ROLLOUT,
    AlgorithmConfig,
    FromDataPoints,
    FromReplay,
    FromRollouts,
    FromUnrolls,
    LearnsFrom,
)
from ddrl.config.apex import ApexConfig
from ddrl.config.evaluation import EvaluationConfig
from ddrl.config.settings import EnvironmentConfig, NetworkConfig, RunConfig, SamplingConfig, TrainConfig
from ddrl.exchange.settings import ExchangeConfig, OptimizerConfig
from ddrl.replay.settings import ReplayConfig

__all__ = [
    "LONGEST_ROLLOUT", "AlgorithmConfig", "ApexConfig", "EnvironmentConfig", "EvaluationConfig", "ExchangeConfig",
    "FromDataPoints", "FromReplay", "FromRollouts", "FromUnrolls", "LearnsFrom", "NetworkConfig", "OptimizerConfig",
    "ReplayConfig", "RunConfig", "SamplingConfig", "TrainConfig",
]  # fmt: skip
