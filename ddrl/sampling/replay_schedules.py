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
from ddrl.sampling.schedules import snapshot_from, snapshot_state
from ddrl.types import Replayed, Snapshot, Unroll
from ddrl.wording import counted


class ReplaySchedule(GroupSchedule):
    """The base of the schedules that learn from a replay.

    A period is some agent steps, and the minibatches that are learned from beside or after them. theta^- are the
    parameters of the target network. Before the first period, the replay is filled to its minimum.

    Args:
        actor_threads: the groups.
        buffer: [T, B], the agent steps of a period.
        batches: draws the minibatches of a period.
        minimum: agent steps before learning begins, rounded up to whole rows. How random their actions are is up to the
            actors.
        directory: of the replay's files, for checkpoints.
        metrics: of this rank.
        ended: shared with the threads and their actors.
        named: gives the names of those of the replay's files that checkpoints on disk need.
        average: weight of the newest parameters when theta^- are averaged with them at each update (0: copies).
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
        self._contributions: list[np.ndarray] = []  # moments of what was stored since the last gradient
        self._named, self._average, self._target_periods = named, average, target_periods
        # Steps of each simulator stored in this part of the run; whether an event has named one that was left out.
        self._stored, self._told = 0, False
        self.batches, self.replay, self.metrics = batches, batches.replay, metrics
        self.period = 0
        self._buffer, self._minimum, self._directory = buffer, minimum, directory

    def stop(self) -> None:
        super().stop()
        self.batches.close()

    def learned(self, batch: Replayed, priorities: np.ndarray) -> None:
        """Takes the new priorities of a minibatch, which count from the end of the period on."""
        self.batches.learned(batch, priorities)

    def contribution(self, batch: Replayed) -> np.ndarray | None:
        """The moments of the steps that were stored, with the first gradient after them.

        Each step counts once, however often it will be drawn.
        """
        contributions, self._contributions = self._contributions, []
        return None if self.seen is None or not contributions else self.seen.statistics.merged(contributions)

    def set_state(self, state: dict[str, np.ndarray], reset_seed: int) -> None:
        """Goes on from `state`. The replay and the period are restored even if simulators must be reset."""
        if not self.actor_threads.set_state(state):
            self.actor_threads.reset(reset_seed)
        if "replay" in state:
            self.replay.load(self._directory, state)
            if dropped := self.replay.drop_not_finite():
                what = f"{counted(dropped, 'transition')} with NaN or infinite numbers"
                text = f"the saved replay has {what}, from which nothing is learned any more"
                self.metrics.count("transitions_left_out", dropped)
                self.metrics.event("transitions_left_out", text)
            self.target = snapshot_from("target", state)
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
        """Acts, or waits for the threads that act, and begins a new period."""
        raise NotImplementedError

    def _fill(self, buffer: Unroll, snapshot: Snapshot) -> None:
        """Fills a buffer by acting with these parameters, and puts it into the replay."""
        self.actor_threads.fill(buffer, lambda: snapshot)
        self._store(buffer)

    def _prefill(self, snapshot: Snapshot) -> None:
        whole, simulators = self._buffer.reward.shape
        left = -(-self._minimum // simulators)  # rows; they count even where they hold no transition
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
        """Empty before the first period, since the filling of the replay is short and can begin again."""
        if self.target is None or not self.period:
            return {}
        target = snapshot_state("target", self.target)
        saved = self.replay.save(self._directory, self._named, self.working or (lambda: None))
        return self._acting_state() | target | self.batches.get_state() | saved

    def _tell(self, finite: Finite) -> None:
        """Counts the transitions that were left out; the first time, an event names what was not finite."""
        self.metrics.count("transitions_left_out", int((finite.left_out & (finite.unroll.valid > 0)).sum()))
        if not self._told:
            self._told = True
            step, simulator, field = finite.first
            text = (
                f"the {field} of simulator {simulator} at its step {self._stored + step} is NaN or infinite; such "
                "steps are not learned from, but counted in transitions_left_out, and later ones are not reported"
            )
            self.metrics.event("transitions_left_out", text)

    def _acting_state(self) -> dict[str, np.ndarray]:
        """The actors' state, or only their counters if acting was broken off.

        Simulators begin anew then, because the replay lacks the steps that they have made since the last period.
        """
        return self.counters() if self._broken_off else self.actor_threads.get_state()


def averaged(target: Snapshot, newest: Snapshot, part: float, statistics: int = 0) -> Snapshot:
    """theta^- + part (theta - theta^-), once for each version of theta (Lillicrap et al. 2016, algorithm 1).

    Args:
        target: theta^-.
        newest: theta.
        part: weight of theta, in (0, 1].
        statistics: number of values at the end that are taken from theta as they are.
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

    Actions come from the newest parameters, which become theta^- every `target_periods` periods.
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

    A period lasts from one copy to the target network to the next. Within it, the actors act with theta^- and fill the
    buffer, the learner draws from a replay that does not change, and neither waits for the other. Then both stop, the
    buffer goes into the replay, and theta^- become theta. With all simulators in one group they query the policy
    together, which is Synchronized Execution; with a group for each simulator, each queries it alone.

    Priorities, too, are set at the end of a period, up to C / F minibatches late (2,000 with Rainbow's numbers), where
    Schaul et al. 2016, algorithm 1, sets them after each; and actions come from parameters up to C agent steps old. In
    runs with few random actions, neither DQN nor Rainbow had begun to learn Pong by the time at which they had with
    `Standard`.
    """

    _begun: dict[str, np.ndarray]  # the actors' state when they began to fill the buffer

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

    def _fill(self, buffer: Unroll, snapshot: Snapshot) -> None:
        """As in ReplaySchedule, but a single group acts in its own thread, too, which --pin-simulators then pins."""
        self.actor_threads.begin(buffer, lambda: snapshot)
        self.actor_threads.wait()
        self._store(buffer)

    def _begin(self, target: Snapshot) -> None:
        self.target = target
        self._begun = self.actor_threads.settle()
        self.actor_threads.begin(self._buffer, lambda: target)

    def _acting_state(self) -> dict[str, np.ndarray]:
        return self._begun
