"""The threads of a worker's groups: each steps its own simulators, and all fill one rollout."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np

from ddrl.sampling.actor import furthest_draw, part
from ddrl.sampling.rollouts import POLL_SECONDS, Ended, RolloutActor, columns
from ddrl.types import Snapshot, Unroll


class ActorThreads:
    """One thread per actor, which waits for a rollout to fill.

    With two actors, the policy is queried for one group while the other group steps.

    Args:
        actors: one for each group; group i has the columns after those of group i - 1.
        ended: set when the schedule ends; it ends the threads, too.
    """

    def __init__(self, actors: Sequence[RolloutActor], ended: threading.Event):
        self.actors, self._ended = list(actors), ended
        self._orders: list[queue.SimpleQueue[tuple[Unroll, Callable[[], Snapshot], int]]] = [
            queue.SimpleQueue() for _ in actors
        ]
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._busy = 0
        self._threads = [
            threading.Thread(target=self._serve, args=(i,), name=f"simulators-{i}", daemon=True)
            for i in range(len(self.actors))
        ]

    def fill(self, out: Unroll, newest: Callable[[], Snapshot], refresh_every: int = 0) -> None:
        """Fills a rollout. A single actor does it in the calling thread.

        Args:
            out: [T, B], B simulators of all groups.
            newest: gives the parameters to act with.
            refresh_every: steps after which each actor asks `newest` again (0: never).

        Raises:
            Ended: the schedule was stopped.
        """
        if len(self.actors) == 1:
            self.actors[0].fill(out, newest, refresh_every)
        else:
            self.begin(out, newest, refresh_every)
            self.wait()

    def begin(self, out: Unroll, newest: Callable[[], Snapshot], refresh_every: int = 0) -> None:
        """Starts to fill a rollout, as `fill`, and returns; `wait` must be called before the next one."""
        start = 0
        self._busy = len(self.actors)
        for thread, actor, orders in zip(self._threads, self.actors, self._orders, strict=True):
            if thread.ident is None:
                thread.start()
            stop = start + actor.environment.num_envs
            orders.put((columns(out, start, stop), newest, refresh_every))
            start = stop

    def wait(self) -> None:
        """Waits until the rollout is full.

        Raises:
            Ended: the schedule was stopped.
            Exception: whatever ended an actor's work.
        """
        while self._busy:
            try:
                error = self._done.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self._ended.is_set():
                    raise Ended from None
                continue
            self._busy -= 1
            if error is not None:
                raise error

    def reset(self, seed: int) -> None:
        """Starts new episodes everywhere; group i is seeded by seed + i."""
        for i, actor in enumerate(self.actors):
            actor.reset(seed + i)

    def reset_ended(self) -> None:
        """Resets simulators whose episode has ended, where resets wait for a pause."""
        for actor in self.actors:
            if reset_ended := getattr(actor.environment, "reset_ended", None):
                reset_ended()

    def get_state(self) -> dict[str, np.ndarray]:
        """The actors' state, between two rollouts."""
        return {f"actor{i}.{k}": v for i, actor in enumerate(self.actors) for k, v in actor.get_state().items()}

    def settle(self) -> dict[str, np.ndarray]:
        """The actors' state for checkpoints until the next call, which leave out what is acted meanwhile."""
        for actor in self.actors:
            actor.settle()
        return self.get_state()

    def set_state(self, state: dict[str, np.ndarray]) -> bool:
        """The inverse of `get_state`; True if all simulators go on where they were."""
        goes_on = [
            actor.set_state(part(state, f"actor{i}."))
            for i, actor in enumerate(self.actors)
            if f"actor{i}.draws" in state
        ]
        # The exploration of groups that are new, or of another size, goes on where the furthest simulator was.
        for i, actor in enumerate(self.actors):
            if len(state.get(f"actor{i}.draws", ())) != len(actor.draws()):
                actor.begin_at(furthest_draw(state))
        return len(goes_on) == len(self.actors) and all(goes_on)

    def join(self) -> None:
        """Waits for the threads to end; bounded."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=5.0)

    def _serve(self, index: int) -> None:
        while not self._ended.is_set():
            try:
                out, newest, refresh_every = self._orders[index].get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            try:
                self.actors[index].fill(out, newest, refresh_every)
                self._done.put(None)
            except BaseException as error:  # noqa: BLE001 - `wait` raises it
                self._done.put(error)
