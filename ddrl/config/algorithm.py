"""What the settings of every algorithm have in common, and the kinds of data that algorithms learn from."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from ddrl import checks
from ddrl.errors import UsageError, called
from ddrl.types import Continuous, Discrete, MultiDiscrete, QHead

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddrl.config.settings import TrainConfig


LONGEST_ROLLOUT = 1_000_000
"""Agent steps of a simulator that are kept before they are learned from, at most."""


@dataclasses.dataclass(frozen=True)
class FromDataPoints:
    """States, actions and returns, one by one, of segments of at most `unroll_length` steps: BA3C.

    Attributes:
        unroll_length: agent steps of a segment.
        epochs: times that every data-point is used.
        pool_batches: batches' worth of data-points that batches are drawn from; not used with one epoch.
        gae_lambda: of the returns (1: n-step returns).
    """

    unroll_length: int
    epochs: int = 1
    pool_batches: int = 0
    gae_lambda: float = 1.0


@dataclasses.dataclass(frozen=True)
class FromRollouts:
    """Minibatches of rollouts of one shape, with generalized advantages: A2C, PPO.

    Attributes:
        unroll_length: agent steps to which an advantage reaches.
        gae_lambda: of the advantages.
        epochs: times that every step of a rollout is used.
        shuffle: whether an epoch has an order of its own; else a minibatch is so many steps of all simulators.
        normalize_advantages: whether they are normalized in each minibatch.
    """

    unroll_length: int
    gae_lambda: float
    epochs: int = 1
    shuffle: bool = False
    normalize_advantages: bool = False


@dataclasses.dataclass(frozen=True)
class FromUnrolls:
    """Whole unrolls of `unroll_length` steps, however old the policy that acted: IMPALA."""

    unroll_length: int


@dataclasses.dataclass(frozen=True)
class FromReplay:
    """Transitions of n steps, drawn from a replay: DQN, DPG, SAC.

    Attributes:
        n_step: agent steps whose rewards a target sums.
        steps_per_update: agent steps of a worker per gradient.
        target_period: agent steps of a worker from one copy of the parameters to the target networks to the next.
        target_average: part of the parameters that enters the target networks with each update, which are then not
            copied (0: they are).
    """

    n_step: int
    steps_per_update: int
    target_period: int
    target_average: float = 0.0


LearnsFrom = FromDataPoints | FromRollouts | FromUnrolls | FromReplay
KINDS_OF_DATA = "FromDataPoints(...), FromRollouts(...), FromUnrolls(...), or FromReplay(...)"


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig:
    """Settings of an algorithm."""

    name: ClassVar[str] = ""
    takes: ClassVar[tuple[type, ...]] = (Discrete, MultiDiscrete, Continuous)  # action spaces
    bounded: ClassVar[bool] = False  # whether continuous actions must have bounds
    dense_alone: ClassVar[bool] = False  # whether it has a network of its own: --policy-layers, --critic-layers

    discount: float = 0.99
    """Discount per agent step (gamma)."""
    reward_clip: float = 1.0
    """Clip rewards to [-x, x] for learning (0: do not). Scores stay raw."""
    reward_scale: float = 1.0
    """Multiply rewards by this for learning, before they are clipped."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the return. This is the standard deviation of the discounted return
    over all workers. It comes after --reward-scale and --reward-clip, and is for learning only. The result is clipped
    to +-10."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__post_init__" in vars(cls):
            cls.__post_init__ = _in_one_line(cls.__post_init__)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        checks.known(self)
        checks.between(self, 0.0, 1.0, "discount", why="above 1, returns grow without bound")
        checks.at_least(self, 0.0, "reward_clip")
        checks.above(self, 0.0, "reward_scale", why="0 would hide every reward")

    @property
    def head(self) -> QHead | None:
        """Of the network: None for policy and value."""
        return None

    @property
    def learns_from(self) -> LearnsFrom:
        """The data of a gradient. Each algorithm says what its own is.

        Raises:
            UsageError: this one does not.
        """
        raise UsageError(
            f"{self.name}: its settings say nothing of the data that it learns from; give {type(self).__name__} a "
            f"property learns_from, which returns {KINDS_OF_DATA}"
        )

    def discount_when(self, anneal: Any) -> Any:
        """Discount per agent step when `anneal`, from 1 to 0, of the linear schedules is left; arrays of them, too."""
        return self.discount

    @property
    def learning_rate_factors(self) -> dict[str, float]:
        """Beginning of a tensor's name -> factor on the learning rate of such tensors; the others have 1."""
        return {}

    def title(self, config: TrainConfig) -> str:
        """The name of algorithm, schedule and exchange of a run together, as on the command line."""
        return f"apex-{self.name}" if config.apex.actors else self.name

    def refuse(self, config: TrainConfig) -> None:
        """Refuses what the other settings must not be, beyond what follows from the data that it learns from.

        Raises:
            UsageError: with the setting to change.
        """

    def warnings(self, config: TrainConfig) -> list[str]:
        """What may be meant, and mostly is not: one line each."""
        return []

    def transform_reward(self, rewards: np.ndarray) -> np.ndarray:
        """Rewards <float32>[...] to learn from: times reward_scale, clipped to +-reward_clip (0: not clipped)."""
        rewards = np.asarray(rewards, np.float32)
        if self.reward_scale != 1.0:
            rewards = rewards * np.float32(self.reward_scale)
        return np.clip(rewards, -self.reward_clip, self.reward_clip) if self.reward_clip else rewards


def _in_one_line(check: Callable[..., None]) -> Callable[..., None]:
    """A `__post_init__`, which may be a user's; whatever it raises is a UsageError."""

    @functools.wraps(check)
    def checked(settings: AlgorithmConfig, *values: Any) -> None:
        with called(f"settings of {settings.name}"):
            check(settings, *values)

    return checked


def data_of(algorithm: AlgorithmConfig) -> LearnsFrom:
    """`learns_from` of an algorithm, whose settings may be a user's.

    Raises:
        UsageError: it is no kind of data, or lengths, periods, and counts in it are no whole numbers, or too small.
    """
    with called(f"learns_from of {algorithm.name}"):
        data: Any = algorithm.learns_from
    if not isinstance(data, LearnsFrom):
        given = "a method" if callable(data) else f"{data!r:.80}"
        raise UsageError(f"learns_from of {algorithm.name} is {given}: have it, as a property, return {KINDS_OF_DATA}")
    least = {"unroll_length": 1, "epochs": 1, "n_step": 1, "steps_per_update": 1, "pool_batches": 0}
    if not getattr(data, "target_average", 0.0):
        least["target_period"] = 1
    for name, fewest in least.items():
        value = getattr(data, name, fewest)
        if not isinstance(value, (int, np.integer)) or value < fewest:
            refuse_data(algorithm, name, f"must be a whole number of at least {fewest}")
    return data


def refuse_data(algorithm: AlgorithmConfig, name: str, why: str) -> NoReturn:
    """Refuses a number of `learns_from`, by the option that has it; a plugin's settings may have none.

    Args:
        algorithm: the settings.
        name: of the number.
        why: what it must be.

    Raises:
        UsageError: always.
    """
    if hasattr(algorithm, name):
        checks.refuse(algorithm, name, why)
    raise UsageError(f"{name}={getattr(algorithm.learns_from, name)} in learns_from of {algorithm.name}: {why}")


def refuse_single_advantages(config: TrainConfig) -> None:
    """Refuses batches of one data-point where advantages are normalized in each batch.

    Raises:
        UsageError: with the setting to change.
    """
    if config.batch_size == 1:
        why = "the advantage of a single data-point less its mean is 0, so that no policy would be learned; "
        checks.refuse(config.optimizer, "batch_size", why + "use more, or --no-normalize-advantages")
