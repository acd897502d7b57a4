"""Step times drawn from a Gamma distribution, around any vector environment.

They are for the question of Liu, Yeh and Schwing, High-Throughput Synchronous Deep RL, 2020, section 4: what does the
variance of step times cost a schedule?
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.envs.base import Step, VectorEnvironment

_BLOCK = 64


class GammaTimes:
    """Random step times in seconds, from a stream for each environment.

    Draw k of environment i depends on (seed, i, k) alone.

    Args:
        mean_seconds: mean time of a step.
        variation: standard deviation / mean; 1: exponential; 0: every step takes the mean.
        num_envs: environments.
    """

    def __init__(self, mean_seconds: float, variation: float, num_envs: int) -> None:
        self._mean, self._variation = mean_seconds, variation
        self.seed = 0
        self.count = np.zeros(num_envs, np.int64)  # draws so far
        self._block = np.zeros((num_envs, _BLOCK))
        self._number = np.full(num_envs, -1, np.int64)  # number of the block that is in `_block`

    def restart(self, seed: int) -> None:
        """Starts all streams from their beginning."""
        self.seed, self.count[:], self._number[:] = seed, 0, -1

    def go_on(self, seed: int, count: np.ndarray) -> None:
        """Continues all streams from draw `count` <int64>[num_envs] on."""
        self.restart(seed)
        self.count[:] = count

    def draw(self, env_id: np.ndarray) -> np.ndarray:
        """The next step time of each environment env_id <int>[b], <float64>[b] in seconds."""
        if self._variation == 0.0:
            return np.full(len(env_id), self._mean)
        number = self.count[env_id] // _BLOCK
        for k in np.flatnonzero(number != self._number[env_id]):
            self._fill(int(env_id[k]), int(number[k]))
        seconds = self._block[env_id, self.count[env_id] % _BLOCK]
        self.count[env_id] += 1
        return seconds

    def _fill(self, i: int, number: int) -> None:
        key = np.random.SeedSequence([self.seed, i, 0x57E9, number])
        shape = self._variation**-2
        self._block[i] = np.random.Generator(np.random.Philox(key)).gamma(shape, self._mean / shape, _BLOCK)
        self._number[i] = number


class StepTime:
    """`environment`, with a step time drawn for every environment at each send.

    The num_envs environments stand for as many simulators that step at once: recv waits until the drawn time of the
    slowest of its rows has passed since its send; the real time of the step runs meanwhile. Where the environment
    lets its rows be chosen (the Gymnasium path), they are those that are done first.

    Args:
        environment: any vector environment; attributes that are not defined here are its own.
        times: step times, with a stream for each of its games.
    """

    def __init__(self, environment: VectorEnvironment, times: GammaTimes) -> None:
        self._environment, self._times = environment, times
        self._end = np.zeros(environment.num_envs)
        self._rows = np.zeros(0, np.int32)
        chooses = getattr(environment, "chooses_rows", False) and environment.batch_size < environment.num_envs
        self._recv: Callable[..., Step] = environment.recv
        self._order = {"order": self._end} if chooses else {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def reset(self, seed: int) -> None:
        """Starts new games; resets take no drawn time."""
        self._environment.reset(seed)
        self._times.restart(seed)
        self._end[:] = 0.0

    def recv(self) -> Step:
        """The environment's rows, once the slowest of them is done."""
        step = self._recv(**self._order)
        self._rows = step.env_id
        rest = self._end[step.env_id].max() - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        return step

    def send(self, actions: np.ndarray) -> None:
        """Sends the actions and draws the times of the steps, which begin now."""
        self._environment.send(actions)
        players = self._environment.players
        seconds = self._times.draw(self._rows[::players] // players)
        self._end[self._rows] = time.monotonic() + np.repeat(seconds, players)

    def get_state(self) -> dict[str, np.ndarray]:
        """The environment's, and how many times each stream was drawn from."""
        drawn = {"step_time/count": self._times.count.copy(), "step_time/seed": np.array(self._times.seed)}
        return {**self._environment.get_state(), **drawn, "step_time/rows": self._rows.copy()}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of get_state; a step under way then takes no drawn time."""
        own = {name: value for name, value in state.items() if name.startswith("step_time/")}
        self._environment.set_state({name: value for name, value in state.items() if name not in own})
        if own:
            self._times.go_on(int(own["step_time/seed"]), own["step_time/count"])
            self._rows = np.array(own["step_time/rows"], np.int32)
        self._end[:] = 0.0
