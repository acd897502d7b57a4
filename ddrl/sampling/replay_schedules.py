"""Schedules that learn from a replay: in turn with acting, or at once with it (Daley and Amato 2022, fast DQN)."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from ddrl.replay.finite import Finite, finite_part
from ddrl.replay.storage import Named, nothing_named
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.actor_threads import ActorThreads
from ddrl.sampling.replay_batches import ReplayBatches
from ddrl.sampling.rollout_schedules import GroupSchedule
from ddrl.sampling.rollouts import time_slice
from ddrl.types import Replayed, Snapshot, Unroll


class ReplaySchedule(GroupSchedule):
    """What both have in common. A period is some agent steps, and the minibatches that are learned beside or after
    them; theta^- are the parameters of the last copy to the target network.

    Before the first period, the replay gets its minimum.

    Args:
        actor_threads: the groups.
        buffer: [T, B], the agent steps of a period.
        batches: its minibatches.
        minimum: agent steps before learning begins, up to whole rows; epsilon is the actors' part.
        directory: of the replay's files, for checkpoints.
        metrics: of this rank.
        ended: shared with the threads and their actors.
        named: the names of the replay's files that checkpoints on disk name.
        average: part of newer parameters that enters theta^- with each update, where they are not copied.
        target_periods: periods from one copy to the target network to the next; `Concurrent` copies in each.
        statistics: float32 values of running statistics at the end of the parameters; they are never averaged.

    Attributes:
        period: number of the period at hand; 0 while the replay is being filled.
        target: theta^-.
    """

    def __init__(
        self,
        actor_threads: ActorThreads,
        buffer: Unroll,
        batches: ReplayBatches,
        minimum: int,
        directory: Path,
        metrics: RankMetrics,
        ended: threading.Event,
        named: Named = nothing_named,
        average: float = 0.0,
        target_periods: int = 1,
        statistics: int = 0,
    ):
        super().__init__(actor_threads, ended)
        self._statistics = statistics
        self._contributions: list[np.ndarray] = []  # of what was put into the replay since the last gradient
        self._named, self._average, self._target_periods = named, average, target_periods
        self._stored, self._told = 0, False  # steps of each simulator in this part of the run; whether one was left out
        self.batches, self.replay, self.metrics = batches, batches.replay, metrics
        self.period = 0
        self._buffer, self._minimum, self._directory = buffer, minimum, directory

    def stop(self) -> None:
        super().stop()
        self.batches.close()

    def learned(self, batch: Replayed, priorities: np.ndarray) -> None:
        """The priorities count from the end of the period on."""
        self.batches.learned(batch, priorities)

    def contribution(self, batch: Replayed) -> np.ndarray | None:
        """With the first gradient after acting: what was acted, each step once, however often it will be drawn."""
        contributions, self._contributions = self._contributions, []
        return None if self.seen is None or not contributions else self.seen.statistics.merged(contributions)

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        """Goes on from `state`. The replay and the period are there even where environments must be reset."""
        if not self.actor_threads.set_state(state):
            self.actor_threads.reset(reset_seed)
        if "replay" in state:
            self.replay.load(self._directory, state)
            if dropped := self.replay.drop_not_finite():
                text = f"{dropped} transitions of the saved replay are NaN or infinite, and are no longer learned from"
                self.metrics.count("transitions_left_out", dropped)
                self.metrics.event("transitions_left_out", text)
            self.target = Snapshot(int(state["target.version"]), -1, state["target.vector"])
            self.period = int(state["period"])
            self.batches.set_state(state, self.target)

    def _next(self, snapshot: Snapshot) -> tuple[Snapshot, Replayed]:
        if self.batches.empty:
            with self.metrics.timer("replay"):
                self.batches.finish()
            self._advance(snapshot)
        if self._average and self.target is not None:
            self.target = averaged(self.target, snapshot, self._average, self._statistics)
        with self.metrics.timer("minibatch"):
            return snapshot, self.batches.take()

    def _advance(self, snapshot: Snapshot) -> None:
        """Acts, or sees that others do, until there is a new period to learn in."""
        raise NotImplementedError

    def _fill(self, buffer: Unroll, snapshot: Snapshot) -> None:
        """Acts for a buffer with these parameters, and puts it into the replay."""
        self.actor_threads.fill(buffer, lambda: snapshot)
        self._store(buffer)

    def _prefill(self, snapshot: Snapshot) -> None:
        whole, simulators = self._buffer.reward.shape
        left = -(-self._minimum // simulators)  # rows; steps count, since not every row has a transition
        while left > 0:
            part = time_slice(self._buffer, 0, min(left, whole))
            self._fill(part, snapshot)
            left -= len(part.reward)

    def _store(self, buffer: Unroll) -> None:
        with self.metrics.timer("replay"):
            finite = finite_part(buffer)
            if self.seen is not None:
                whole = (buffer,) if finite is None else (finite.unroll, finite.left_out)
                self._contributions.append(self.seen.of_unroll(*whole))
            if finite is None:
                self.replay.add(buffer)
            else:
                self.replay.add(finite.unroll, left_out=finite.left_out)
                self._tell(finite)
        self._stored += len(buffer.reward)
        self.metrics.gauge("replay_size", self.replay.size)
        self.actor_threads.reset_ended()

    def _state(self) -> dict[str, np.ndarray]:
        """Nothing of the time before the first period: it is short, and begins again."""
        if self.target is None or not self.period:
            return {}
        target = {"target.version": np.int64(self.target.version), "target.vector": np.asarray(self.target.parameters)}
        return self._acting_state() | target | self.batches.get_state() | self._saved_replay()

    def _tell(self, finite: Finite) -> None:
        """Counts what was left out; the first time it is named."""
        self.metrics.count("transitions_left_out", int(finite.left_out.sum()))
        if not self._told:
            self._told = True
            step, simulator, field = finite.first
            text = (
                f"the {field} of simulator {simulator} at its step {self._stored + step} is NaN or infinite; such "
                "steps are not learned from, but counted in transitions_left_out, and later ones are not reported"
            )
            self.metrics.event("transitions_left_out", text)

    def _saved_replay(self) -> dict[str, np.ndarray]:
        return self.replay.save(self._directory, self._named, self.beat or (lambda: None))

    def _acting_state(self) -> dict[str, np.ndarray]:
        """Where acting was broken off, simulators begin anew: the replay has nothing of the episodes that they are in
        since the period before."""
        return self.counters() if self._broken_off else self.actor_threads.get_state()


def averaged(target: Snapshot, newest: Snapshot, part: float, statistics: int = 0) -> Snapshot:
    """theta^- + part (theta - theta^-), once for each version of theta (Lillicrap et al. 2016, algorithm 1).

    Args:
        target: theta^-.
        newest: theta.
        part: of theta, in (0, 1].
        statistics: values at the end that are taken from theta as they are.
    """
    if newest.version == target.version:
        return target
    old, new = np.asarray(target.parameters), np.asarray(newest.parameters)
    average = old + np.float32(part) * (new - old)
    if statistics:
        average[-statistics:] = new[-statistics:]
    return Snapshot(newest.version, -1, average)


class Standard(ReplaySchedule):
    """Acts for a period, then learns, in turn (Mnih et al. 2015, algorithm 1).

    Actions come from the newest parameters, and every `target_periods` theta^- become these.
    """

    def _advance(self, snapshot: Snapshot) -> None:
        if self.target is None or self.period % self._target_periods == 0:
            self.target = snapshot
        if self.period == 0:
            self._prefill(snapshot)
        self._fill(self._buffer, snapshot)
        self.period += 1
        self.batches.start(self.period, self.target, snapshot.version)


class Concurrent(ReplaySchedule):
    """Acts and learns at once (Daley and Amato 2022, algorithm 1): Concurrent Training.

    A period is that of the target network. Meanwhile the actors act with theta^- and fill the buffer, the learner
    draws from a replay that does not change, and neither waits for the other. Then both stop, the buffer goes into
    the replay, and theta^- become theta. With all simulators in one group they query the policy together, which is
    Synchronized Execution; with a group for each, by themselves.

    Priorities too are set at the end of a period, up to C / F minibatches late (2,000 with Rainbow's numbers), where
    Schaul et al. 2016, algorithm 1, sets them after each; and actions come from parameters up to C agent steps old. In
    runs with few random actions neither DQN nor Rainbow had begun to learn Pong with it when they had with `Standard`.
    """

    _begun: dict[str, np.ndarray]  # the actors' state when it began to fill the buffer

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        super().set_state(state, reset_seed)
        if self.target is not None:
            self._begin(self.target)

    def _advance(self, snapshot: Snapshot) -> None:
        if self.period == 0:
            self._prefill(snapshot)
        else:
            with self.metrics.timer("wait_data"):
                self.actor_threads.wait()
            self._store(self._buffer)
        self.period += 1
        self._begin(snapshot)
        self.batches.start(self.period, snapshot, snapshot.version)

    def _begin(self, target: Snapshot) -> None:
        self.target = target
        self._begun = self.actor_threads.settle()
        self.actor_threads.begin(self._buffer, lambda: target)

    def _acting_state(self) -> dict[str, np.ndarray]:
        return self._begun
