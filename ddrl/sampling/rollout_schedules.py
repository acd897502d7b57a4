"""Schedules that fill whole rollouts: in turn with learning, or at once with it (HTS-RL)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ddrl.sampling.actor import part
from ddrl.sampling.actor_threads import ActorThreads
from ddrl.sampling.minibatches import Minibatches
from ddrl.sampling.rollouts import Ended
from ddrl.sampling.schedules import Schedule, snapshot_from, snapshot_state
from ddrl.types import Snapshot, Transitions, Unroll


class GroupSchedule(Schedule):
    """The base of the schedules whose groups fill rollouts; subclasses decide what becomes of the rollouts.

    Args:
        actor_threads: the groups.
        ended: shared with the threads and their actors.
    """

    def __init__(self, actor_threads: ActorThreads, ended: threading.Event):
        self.actor_threads = actor_threads
        self._ended = ended
        self._busy = threading.Lock()
        self._broken_off = False  # whether the end stopped acting in the middle of a rollout, which nobody will see

    def next_batch(self, wait_for_snapshot: Callable[[], Snapshot | None]) -> tuple[Snapshot, Any] | None:
        """See `ddrl.sampling.schedules.Schedule`."""
        snapshot = wait_for_snapshot()
        if snapshot is None or self._ended.is_set():
            return None
        with self._busy:
            try:
                return self._next(snapshot)
            except Ended:
                self._broken_off = True
                return None

    def get_state(self) -> dict[str, np.ndarray]:
        """Empty in the middle of acting, which is where a straggler is for which the others did not wait."""
        if not self._busy.acquire(blocking=False):
            return {}
        try:
            return self._state()
        finally:
            self._busy.release()

    def counters(self) -> dict[str, np.ndarray]:
        return {f"actor{i}.draws": actor.draws() for i, actor in enumerate(self.actor_threads.actors)}

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        """Goes on from `state`. If simulators could not be saved, they are reset, and the rollout is forgotten."""
        if not (self.actor_threads.set_state(state) and self._set_state(state)):
            self.actor_threads.reset(reset_seed)

    def stop(self) -> None:
        self._ended.set()
        self.actor_threads.join()

    def _next(self, snapshot: Snapshot) -> tuple[Snapshot, Any]:
        raise NotImplementedError

    def _state(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _set_state(self, state: dict[str, np.ndarray]) -> bool:
        """Takes what `_state` gave, once the actors are restored; True if acting goes on where it was."""
        raise NotImplementedError


class RolloutSchedule(GroupSchedule):
    """The base of the schedules that learn from each rollout.

    Args:
        learning: the rollout that is learned from.
        minibatches: cuts it into batches.
        refresh_every: steps after which acting asks for newer parameters in the middle of a rollout (0: never).

    Attributes:
        target: the parameters that `learning` was begun with.
        saves_target: whether the loss reads `target`, so that a state in the middle of a rollout must have it.
    """

    saves_target = False

    def __init__(
        self,
        actor_threads: ActorThreads,
        learning: Unroll,
        minibatches: Minibatches,
        ended: threading.Event,
        refresh_every: int = 0,
    ):
        super().__init__(actor_threads, ended)
        self.learning, self.minibatches = learning, minibatches
        self.refresh_every = refresh_every
        self._contribution: np.ndarray | None = None  # of the rollout at hand
        self.rollouts = 0  # learned from, the one at hand included

    def contribution(self, batch: Any) -> np.ndarray | None:
        """The moments of a rollout, with its last batch, so that all its gradients normalize as acting did."""
        if not self.minibatches.empty:
            return None
        contribution, self._contribution = self._contribution, None
        return contribution

    def _see(self) -> None:
        """Counts what was seen in `learning`, once all of it was acted, and before acting goes on."""
        if self.seen is not None:
            self._contribution = self.seen.of_unroll(self.learning)

    def get_state(self) -> dict[str, np.ndarray]:
        state = super().get_state()
        return state and {"rollouts": np.int64(self.rollouts)} | state

    def counters(self) -> dict[str, np.ndarray]:
        return {"rollouts": np.int64(self.rollouts)} | super().counters()

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        self.rollouts = int(state.get("rollouts", 0))
        self.minibatches.clear()
        super().set_state(state, reset_seed)

    def _start(self) -> None:
        """Begins to learn from `learning`."""
        self.rollouts += 1
        self.minibatches.start(self.learning, self.rollouts)

    def _learning_state(self) -> dict[str, np.ndarray]:
        """The rollout at hand, while batches of it are left."""
        if self.minibatches.empty:
            return {}
        rollout = {f"learning.{name}": array.copy() for name, array in self.learning._asdict().items()}
        seen = {} if self._contribution is None else {"seen": self._contribution}
        return rollout | seen | self._target_state() | {"taken": np.int64(self.minibatches.taken), "cut": self._cut()}

    def _cut(self) -> np.ndarray:
        """The numbers <int64>[5] on which it depends how a rollout is cut into batches."""
        cut = self.minibatches
        return np.array([cut.batch_size, cut.epochs, cut.unroll_length, *self.learning.reward.shape], np.int64)

    def _target_state(self) -> dict[str, np.ndarray]:
        if not self.saves_target or self.target is None:
            return {}
        return snapshot_state("target", self.target)

    def _set_learning_state(self, state: dict[str, np.ndarray]) -> bool:
        """Goes on with the saved rollout, if there is one and it is cut as before; returns whether it does."""
        if "taken" not in state or not np.array_equal(state.get("cut", self._cut()), self._cut()):
            return False
        for name, array in part(state, "learning.").items():
            getattr(self.learning, name)[...] = array
        self._contribution = state.get("seen")
        if "target.vector" in state:
            self.target = snapshot_from("target", state)
        self.minibatches.start(self.learning, self.rollouts, int(state["taken"]))
        return True


class SynchronizedRollouts(RolloutSchedule):
    """Acts for a rollout, then learns from it, in turn (Stooke and Abbeel 2018, section 4.1).

    All steps of a rollout are acted with the parameters at which its first gradient is taken. If `refresh_every` makes
    acting change to newer ones within the rollout, the gradient is taken at the newest that acted: in section 4.3 a
    learner has one vector, which a pull replaces and from which its next step starts.
    """

    _latest: Snapshot  # there from the first `update` or `next_batch` on
    _asked: list[Snapshot]  # the parameters that the groups got when they asked in this rollout

    def update(self, snapshot: Snapshot) -> None:
        """Takes parameters for `refresh_every`; without it, acting has those of `next_batch`."""
        self._latest = snapshot

    def _next(self, snapshot: Snapshot) -> tuple[Snapshot, Transitions]:
        if self.minibatches.empty:
            self._latest = self.target = snapshot
            self._asked = []
            self.actor_threads.fill(self.learning, self._newest, self.refresh_every)
            self._see()
            self.actor_threads.reset_ended()
            self._start()
            if self.refresh_every:
                acted = max(reversed(self._asked), key=lambda asked: asked.version)  # the last of equal ones
                snapshot = snapshot._replace(version=acted.version, parameters=acted.parameters)
        return snapshot, self.minibatches.take()

    def _newest(self) -> Snapshot:
        latest = self._latest
        self._asked.append(latest)
        return latest

    def _state(self) -> dict[str, np.ndarray]:
        return self.actor_threads.get_state() | self._learning_state()

    def _set_state(self, state: dict[str, np.ndarray]) -> bool:
        self._set_learning_state(state)
        return True


class DoubleBuffered(RolloutSchedule):
    """Acts and learns at once, with two storages that change places every alpha steps (Liu et al. 2020, HTS-RL).

    j counts storages, and so synchronizations. Storage j is filled with theta_j, the parameters at the
    synchronization before it; meanwhile the learner consumes storage j - 1, which theta_(j-1) had filled. The lag is
    exactly one storage.

    With one gradient per storage this is equation 6: the gradient is taken at theta_(j-1) on its own data, and
    applied to theta_j. Where a storage gives several gradients (PPO's epochs and minibatches, A2C with alpha a
    multiple of the unroll length), gradient i is taken at phi_i = theta + (theta_(j-1) - theta_j), where theta are the
    newest parameters: phi_0 is theta_(j-1), and phi moves by the same steps as theta, so that minibatches build on
    each other as in PPO, and the data stay those of the policy that the first gradient is taken at. The denominator of
    PPO's ratio is the log-probability recorded when acting, which is that of theta_(j-1): the ratio is 1 at phi_0.

    Running statistics are those of theta_(j-1) at all gradients of a storage.

    Args:
        spare: the second storage.
        statistics: float32 values of running statistics at the end of the parameters.
    """

    def __init__(
        self,
        actor_threads: ActorThreads,
        learning: Unroll,
        spare: Unroll,
        minibatches: Minibatches,
        ended: threading.Event,
        statistics: int = 0,
    ):
        super().__init__(actor_threads, learning, minibatches, ended)
        self._filling, self._statistics = spare, statistics
        self._acting: Snapshot | None = None  # parameters that fill `_filling`
        self._behind: np.ndarray | None = None  # theta_(j-1) - theta_j, but the statistics of theta_(j-1) as they are
        self._first: np.ndarray | None = None  # theta_(j-1), until its gradient was taken
        self._begun: dict[str, np.ndarray] = {}  # the actors' state when they began to fill

    def _next(self, snapshot: Snapshot) -> tuple[Snapshot, Transitions]:
        if self.minibatches.empty:
            self._synchronize(snapshot)
        if self._first is not None:
            point, self._first = self._first, None
        else:
            point = self._with_statistics(snapshot.parameters + self._behind, self._behind)
        return snapshot._replace(parameters=point), self.minibatches.take()

    def _synchronize(self, snapshot: Snapshot) -> None:
        # The first storage: nothing to learn from yet, so theta_1 is theta_0.
        behavior = self._acting or self._fill(snapshot)
        self.actor_threads.wait()
        self.actor_threads.reset_ended()
        self.learning, self._filling = self._filling, self.learning
        self._see()
        self._fill(snapshot)
        self.target = behavior
        behind = behavior.parameters - snapshot.parameters
        self._first, self._behind = behavior.parameters, self._with_statistics(behind, behavior.parameters)
        self._start()

    def _with_statistics(self, vector: Any, source: Any) -> Any:
        """`vector` with the running statistics of `source`."""
        if not self._statistics:
            return vector
        return np.concatenate([vector[: -self._statistics], source[-self._statistics :]])

    def _fill(self, snapshot: Snapshot) -> Snapshot:
        """Begins to act with these parameters, and returns them."""
        self._acting = snapshot
        self._begun = self.actor_threads.settle()
        self.actor_threads.begin(self._filling, lambda: snapshot)
        return snapshot

    def _state(self) -> dict[str, np.ndarray]:
        """The storage at hand, and where the filling of the other one began, which a resumed run fills again."""
        if self._acting is None:
            return self.actor_threads.get_state()
        acting, learning = snapshot_state("acting", self._acting), self._learning_state()
        if learning:
            learning["behind"] = np.asarray(self._behind)
            if self._first is not None:
                learning["first"] = np.asarray(self._first)
        return self._begun | acting | learning

    def _set_state(self, state: dict[str, np.ndarray]) -> bool:
        if "acting.vector" in state:
            goes_on = self._set_learning_state(state)
            self._behind, self._first = (state.get(name) if goes_on else None for name in ("behind", "first"))
            self._fill(snapshot_from("acting", state))
        return True
