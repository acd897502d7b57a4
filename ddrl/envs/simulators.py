"""Simulators, each of which steps a Gymnasium environment, and three ways to begin its next episode.

A slow reset delays all simulators that are stepped together (Stooke and Abbeel, Accelerated Methods for Deep
Reinforcement Learning, 2018, section 4.1). So a `PausingSimulator` resets while acting pauses for learning, and a
`SwappingSimulator` goes on with a second instance, which a thread has reset. A plain `Simulator` resets in its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np

from ddrl.envs.adapted import check_step, start_of

Start = tuple[Any, dict]
"""What Gymnasium's reset gives: observation and info."""


class Simulator:
    """A simulator that resets its environment when its next step is due.

    Args:
        env: the environment.
        game: its name, for errors.
    """

    def __init__(self, env: gymnasium.Env, game: str) -> None:
        self.env, self.game = env, game
        self.ended = False  # the last step ended an episode, and none has begun since

    def reset(self, seed: int) -> Start:
        """Begins a first episode from this seed."""
        self.ended = False
        return self.env.reset(seed=seed)

    def next(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """Steps as Gymnasium does; after the end of an episode, begins the next one instead, with reward 0."""
        if self.ended:
            observation, info = self._restart()
            return observation, 0.0, False, False, info
        row = self.env.step(action)
        check_step(self.game, row)
        observation, reward, terminated, truncated, info = row
        self.ended = bool(terminated or truncated)
        return observation, reward, terminated, truncated, info

    def reset_ended(self) -> None:
        """Called while acting pauses, which is the time to reset an environment that idles; here it does nothing."""

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _restart(self) -> Start:
        self.ended = False
        return start_of(self.game, self.env.reset())


class PausingSimulator(Simulator):
    """A simulator that idles after an episode, and shows its last observation, until `reset_ended`."""

    def __init__(self, env: gymnasium.Env, game: str) -> None:
        super().__init__(env, game)
        self.final: Any = None  # the observation shown while it idles
        self.fresh: Start | None = None  # the episode that begins with the next step

    def reset(self, seed: int) -> Start:
        """As Simulator.reset."""
        self.final = self.fresh = None
        return super().reset(seed)

    def next(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """As Simulator.next; an idle step gives the last observation again."""
        row = super().next(action)
        self.final = np.array(row[0]) if self.ended else None
        return row

    def reset_ended(self) -> None:
        """Reset now, if the episode is over."""
        if self.ended and self.fresh is None:
            self.fresh = start_of(self.game, self.env.reset())

    def _restart(self) -> Start:
        if self.fresh is None and self.final is None:  # resumed from the state of one that resets at once
            return super()._restart()
        if self.fresh is None:
            return self.final, {}
        fresh, self.fresh, self.ended = self.fresh, None, False
        return fresh


class SwappingSimulator(Simulator):
    """A simulator with two instances that play in turn: one plays while a thread resets the other.

    Which of them plays depends only on the number of episodes, since a swap waits for the reset if it must. Each
    instance draws from its own generator, so the order of resets does not matter.

    Args:
        env, spare: the instances; the spare's seed is derived from the other's.
        resets: runs the spares' resets.
        game: name of the environment, for errors.
    """

    def __init__(self, env: gymnasium.Env, spare: gymnasium.Env, resets: ThreadPoolExecutor, game: str) -> None:
        super().__init__(env, game)
        self._spare, self._resets = spare, resets
        self._fresh: Future[Start] | None = None

    def reset(self, seed: int) -> Start:
        """As Simulator.reset; the spare is reset too."""
        self._wait()
        spare_seed = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0] >> 1)
        self._fresh = self._resets.submit(self._spare.reset, seed=spare_seed)
        return super().reset(seed)

    def close(self) -> None:
        """Close both instances once the reset under way is over."""
        self._wait()
        super().close()
        self._spare.close()

    def _restart(self) -> Start:
        assert self._fresh is not None, "a first reset came before"
        start = start_of(self.game, self._fresh.result())
        self.env, self._spare, self.ended = self._spare, self.env, False
        self._fresh = self._resets.submit(self._spare.reset)
        return start

    def _wait(self) -> None:
        if self._fresh is not None:
            self._fresh.exception()


def random_start(simulator: Simulator, start: Start, steps: int, action: Callable[[Any], Any]) -> Start:
    """Takes `steps` actions, over as many episodes as they need, and returns what the simulator then shows.

    Stooke and Abbeel 2018, section 5.3: simulators that begin in the same state give large, poorly informed
    gradients.

    Args:
        simulator: a simulator after its first reset.
        start: what that reset gave.
        steps: number of actions.
        action: observation -> action to take.
    """
    observation, info = start
    for _ in range(steps):
        simulator.reset_ended()
        observation, _, _, _, info = simulator.next(action(observation))
    if simulator.ended:
        simulator.reset_ended()
        observation, _, _, _, info = simulator.next(None)
    return observation, info
