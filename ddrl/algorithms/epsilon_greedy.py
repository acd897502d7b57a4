"""Acting epsilon-greedily: how often a random action is taken, over time and over the simulators of a job."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from ddrl import checks
from ddrl.algorithms.record import Exploration
from ddrl.config import AlgorithmConfig
from ddrl.ops.draws import Draw, epsilon_greedy
from ddrl.types import Discrete


@dataclasses.dataclass(frozen=True)
class EpsilonGreedyConfig(AlgorithmConfig):
    """Settings of an algorithm that acts epsilon-greedily."""

    takes: ClassVar[tuple[type, ...]] = (Discrete,)

    epsilon_start: float = 1.0
    """Probability of a random action at the start."""
    epsilon_end: float = 0.1
    """Probability of a random action at the end of the decay."""
    epsilon_steps: int = 1_000_000
    """Agent steps over which epsilon decays (0: it has its final value from the start). It decays linearly; the steps
    are those of this worker, after --replay-minimum."""
    epsilon_ladder: float = 0.0
    """Spread of the simulators' final epsilons (0: all equal). Simulator i of the job's N ends at epsilon_end^(1 + x i
    / (N - 1)); Horgan et al. 2018 use 0.4 and x = 7."""
    epsilon_values: int = 0
    """Number of different epsilons on that ladder (0: one per simulator). Neighbors share them; Horgan et al. 2018,
    appendix B, use 6."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 0, "epsilon_steps", "epsilon_values")
        checks.at_least(self, 0.0, "epsilon_ladder")
        checks.between(self, 0.0, 1.0, "epsilon_start", "epsilon_end", why="a probability")
        if self.epsilon_values and (self.epsilon_values == 1 or not self.epsilon_ladder):
            checks.refuse(self, "epsilon_values", "a ladder has 2 or more values, and needs --epsilon-ladder above 0")

    def epsilon(self, agent_steps: np.ndarray, place: np.ndarray | float = 0.0) -> np.ndarray:
        """Probability of a random action.

        Args:
            agent_steps: <integer>[b] of this worker since the replay has its minimum; below 0 all actions are random.
            place: <float>[b] i / (N - 1) of the simulators, for the ladder.
        """
        left = np.maximum(0.0, 1.0 - agent_steps / self.epsilon_steps) if self.epsilon_steps else 0.0
        if self.epsilon_values:
            place = np.minimum(np.floor(place * self.epsilon_values) / (self.epsilon_values - 1), 1.0)
        end = self.epsilon_end ** (1.0 + self.epsilon_ladder * place)
        return np.where(agent_steps < 0, 1.0, end + left * (self.epsilon_start - end))


def draw(config: EpsilonGreedyConfig, exploration: Exploration) -> Draw:
    """Epsilon-greedy by the schedule, and its mean over the simulators of all workers in the metrics."""

    def epsilon(ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        probability = config.epsilon(exploration.agent_steps(counts), exploration.places(ids))
        exploration.mean("epsilon", float(probability.mean()), len(ids))
        return probability

    return epsilon_greedy(epsilon)
