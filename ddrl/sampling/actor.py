"""An actor steps one vector environment with a policy; its subclasses decide what becomes of the steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from ddrl.envs import Step, VectorEnvironment
from ddrl.ops.draws import Draw, draw_for
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.normalization import RunningReturns
from ddrl.types import Snapshot

if TYPE_CHECKING:
    from typing_extensions import Required  # of Python 3.11; the annotation is never evaluated

PolicyFunction = Callable[[object, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(parameters <float32>[N], observations [b, ...]) -> (policy <float32>[b, P], value <float32>[b])."""


NONE_YET = np.zeros(0, np.float32)


class ActorOptions(TypedDict, total=False):
    """Keyword arguments of `Actor`, for the constructors of its subclasses."""

    first_id: Required[int]
    seed: Required[int]
    frames_per_step: float
    draw: Draw | None
    returns: RunningReturns | None


class Actor:
    """Steps one group of simulators; whoever drives it decides with which parameters.

    `receive` and `act` are called in turn. A call of `infer` between them queries the policy again, with newer
    parameters.

    Args:
        environment: receives and sends strictly in turn.
        first_id: number of its first simulator among all of the job's, for the action streams.
        seed: of the action streams.
        frames_per_step: emulator frames per agent step, for the count of frames.
        draw: draws actions from the policy's output (None: from the distribution of the action space).
        returns: if rewards are normalized, turns those of `step` into rewards to learn from (None: they stay raw).

    Attributes:
        received: whether the simulators have answered since they were reset.
        value: <float32>[b] value of `step.observation`; empty before the first.
        action: the actions that `act` drew last; empty before the first.
        log_prob: <float32>[b] their log-probabilities.
        version: version of the parameters that gave value and action.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        policy: PolicyFunction,
        metrics: RankMetrics,
        *,
        first_id: int,
        seed: int,
        frames_per_step: float = 1.0,
        draw: Draw | None = None,
        returns: RunningReturns | None = None,
    ):
        self.environment, self.policy, self.metrics = environment, policy, metrics
        self.seed, self.frames_per_step, self.returns = seed, frames_per_step, returns
        self._draw = draw or draw_for(environment.action_space)
        self._ids = first_id + np.arange(environment.num_envs)
        self._draws = np.zeros(environment.num_envs, np.int64)
        self._ahead = False  # whether checkpoints leave out what is acted before the next `settle`
        self._step: Step | None = None
        self._policy = self.value = self.action = self.log_prob = NONE_YET
        self.version = -1

    @property
    def received(self) -> bool:
        return self._step is not None

    @property
    def step(self) -> Step:
        """What the simulators answered last.

        Raises:
            RuntimeError: they have not answered since they were reset.
        """
        if self._step is None:
            raise RuntimeError("an actor that has received nothing yet was asked to act: call receive first")
        return self._step

    def reset(self, seed: int) -> None:
        """Starts new episodes in all simulators."""
        self.environment.reset(seed)
        self._step = None
        if self.returns is not None:
            self.returns.reset()

    def begin_at(self, draws: int) -> None:
        """Continues exploration and action streams as after so many draws of each simulator."""
        self._draws[:] = draws

    def draws(self) -> np.ndarray:
        """<int64>[b] actions that were drawn for each simulator."""
        return self._draws.copy()

    def receive(self, snapshot: Snapshot) -> None:
        """Takes the next observations and infers policy and values for them."""
        self.observe()
        self.infer(snapshot)

    def observe(self) -> None:
        """Takes the next observations."""
        with self.metrics.timer("simulation"):
            step = self.environment.recv()
            self._step = step if self.returns is None else step._replace(reward=self.returns.of(step))
        valid = int(step.valid.sum())
        self.metrics.count("agent_steps", valid, self._ahead)
        self.metrics.count("frames", valid * self.frames_per_step, self._ahead)
        for episode in self.environment.pop_episodes():
            self.metrics.episode(episode.score, episode.agent_steps, self._ahead)

    def settle(self) -> None:
        """Counts what was acted up to now as part of checkpoints, and what follows until the next call as not.

        All actors of a rank settle together, since they share the counts.
        """
        self._ahead = True
        self.metrics.settle()

    def infer(self, snapshot: Snapshot) -> None:
        """Queries the policy for the observations at hand."""
        with self.metrics.timer("inference"):
            self._policy, self.value = self.policy(snapshot.parameters, self.step.observation)
        if self.returns is not None and self.version != snapshot.version:
            self.returns.use(snapshot.parameters)
        self.version = snapshot.version

    def act(self) -> None:
        """Draws an action for each simulator and sends them."""
        ids = self.step.env_id
        self.action, self.log_prob = self._draw(self._policy, self.seed, self._ids[ids], self._draws[ids])
        self._draws[ids] += 1
        self.environment.send(self.action)

    def get_state(self) -> dict[str, np.ndarray]:
        """The whole state, to be taken before `act`; the environment's part is there only if it can be saved."""
        state = {"draws": self.draws()}
        if self.returns is not None:
            state |= {f"returns.{k}": v for k, v in self.returns.get_state().items()}
        if self.environment.can_save_state and self.received:
            state |= {f"environment.{k}": v for k, v in self.environment.get_state().items()}
            state |= {f"step.{k}": np.asarray(v) for k, v in self.step._asdict().items()}
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> bool:
        """The inverse of `get_state`; True if the simulators go on where they were."""
        if self.returns is not None:
            self.returns.set_state(part(state, "returns."))
        same_number = len(state["draws"]) == len(self._draws)
        # With another number of simulators, all streams go on where the furthest one was, so that no draw recurs.
        self._draws[:] = state["draws"] if same_number else state["draws"].max()
        if "step.env_id" not in state or not self.environment.can_save_state or not same_number:
            return False
        self.environment.set_state(part(state, "environment."))
        self._step = Step(**part(state, "step."))
        return True


def furthest_draw(state: dict[str, np.ndarray]) -> int:
    """The largest count of draws in a state that any schedule saved; 0 if it has none."""
    return max((int(array.max()) for key, array in state.items() if re.fullmatch(r"actor\d*\.draws", key)), default=0)


def part(state: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The entries of a state under `prefix`, without it."""
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
