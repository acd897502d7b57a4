"""An actor: one vector environment, the policy that plays in it, and the data-points that come out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddrl.envs import Step, VectorEnvironment
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actions import draw_actions, uniforms
from ddrl.sampling.segments import SegmentBuilder
from ddrl.types import DataPoints, Snapshot

PolicyFunction = Callable[[object, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(parameters <float32>[N], observations [b, ...]) -> (logits <float32>[b, A], value <float32>[b])."""


class Actor:
    """Steps one group of environments; whoever drives it decides with which parameters.

    The order is: receive, close, then act (perhaps after `infer` with newer parameters), store; and again.

    Args:
        environment: strictly receive, send, receive, ...
        first_id: number of its first environment among all of the job's, for the action streams.
        seed: of the action streams.
        frames_per_step: emulator frames per agent step, for the count of frames.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        policy: PolicyFunction,
        segments: SegmentBuilder,
        metrics: RankMetrics,
        *,
        first_id: int,
        seed: int,
        frames_per_step: float = 1.0,
    ):
        self.environment, self.policy, self.segments, self.metrics = environment, policy, segments, metrics
        self.seed, self.frames_per_step = seed, frames_per_step
        self._ids = first_id + np.arange(environment.num_envs)
        self._draws = np.zeros(environment.num_envs, np.int64)
        self.step: Step | None = None
        self._logits = self._value = self._action = self._log_prob = None
        self._version = -1

    def reset(self, seed: int) -> None:
        """Starts new episodes in all environments and forgets the open segments."""
        self.environment.reset(seed)
        self.segments.length[:] = 0
        self.step = None

    def receive(self, snapshot: Snapshot) -> None:
        """Takes the next observations and infers logits and values for them."""
        with self.metrics.timer("simulation"):
            self.step = self.environment.recv()
        self.infer(snapshot)
        valid = int(self.step.valid.sum())
        self.metrics.count("agent_steps", valid)
        self.metrics.count("frames", valid * self.frames_per_step)
        for episode in self.environment.pop_episodes():
            self.metrics.episode(episode.score, episode.agent_steps)

    def infer(self, snapshot: Snapshot) -> None:
        """Queries the policy for the observations at hand."""
        with self.metrics.timer("inference"):
            self._logits, self._value = self.policy(snapshot.vector, self.step.observation)
        self._version = snapshot.version

    def close(self) -> DataPoints | None:
        """Data-points of the segments that ended with the last observations."""
        return self.segments.close(self.step, self._value)

    def act(self) -> None:
        """Draws an action for each environment and sends them."""
        ids = self.step.env_id
        uniform = uniforms(self.seed, self._ids[ids], self._draws[ids])
        self._draws[ids] += 1
        self._action, self._log_prob = draw_actions(self._logits, uniform)
        self.environment.send(self._action)

    def store(self) -> None:
        """Opens the transitions of the actions just sent."""
        self.segments.store(self.step, self._action, self._log_prob, self._version)

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything, between `close` and `act`; the environment's part only if it can be saved."""
        state = {"draws": self._draws.copy()}
        if self.environment.can_save_state and self.step is not None:
            state |= {f"segments.{k}": v for k, v in self.segments.get_state().items()}
            state |= {f"environment.{k}": v for k, v in self.environment.get_state().items()}
            state |= {f"step.{k}": np.asarray(v) for k, v in self.step._asdict().items()}
        return state

    def set_state(self, state: dict[str, np.ndarray]) -> bool:
        """The inverse of `get_state`; True if the environments go on where they were."""
        same_number = len(state["draws"]) == len(self._draws)
        # Other simulators than before: their streams go on where the furthest one was, so that no draw recurs.
        self._draws[:] = state["draws"] if same_number else state["draws"].max()
        if "step.env_id" not in state or not self.environment.can_save_state or not same_number:
            return False
        self.segments.set_state(_part(state, "segments."))
        self.environment.set_state(_part(state, "environment."))
        self.step = Step(**_part(state, "step."))
        return True


def _part(state: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
