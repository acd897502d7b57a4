"""The actor's side of Ape-X's replay: unrolls in, segments of n-step transitions with initial priorities out."""

from __future__ import annotations

import numpy as np

from ddrl.apex.segment import Segment, SegmentFormat
from ddrl.replay.history import History
from ddrl.types import Unroll


class SegmentBuilder:
    """The local buffer of an actor with B simulators (Horgan et al. 2018, algorithm 1 and appendix F).

    After every `length` steps it makes a segment for each simulator, of the steps whose n next ones are there. The end
    of an episode does not end a segment: sums of rewards end there, ages tell which frames belong to a stack, and rows
    that are not valid are no transitions. So messages have one size, however long the episodes are.

    The initial priority is |R + D max_a q(s', a) - q(s, a)|, with the Q-values that the actor computed when it saw the
    states, from the parameters that it had then. So a transition is complete when s' has been acted on.

    Args:
        format: of the segments.
        simulators: B.
        actor: id of the sender.
        run_id: of this incarnation, larger than that of any before.
    """

    def __init__(self, format: SegmentFormat, simulators: int, actor: int, run_id: int):
        self.format, self.actor, self.run_id = format, actor, run_id
        # At most `length` + n rows wait; then come the rows of a piece, and those that a reset adds.
        rows = 2 * (format.length + format.n_step + format.stack)
        action = (format.action_space.action_shape, format.action_type)
        self._history = History(
            rows, simulators, format.observation_shape, format.observation_dtype, format.stack, action
        )
        self._largest = np.zeros((rows, simulators))  # max_a q(s, a)
        self._taken = np.zeros((rows, simulators))  # q(s, a) of the action taken
        self._next = 0  # the first row that was not sent

    def add(self, unroll: Unroll, action_value: np.ndarray) -> list[Segment]:
        """Takes steps that continue the last ones; returns the segments that became full, oldest first.

        Args:
            unroll: [T, B]; copied. `value` <float32>[T+1, B] is max_a q(s, a), or q(s, pi(s)); its last row is used
                only if the simulators are reset after it.
            action_value: <float32>[T, B] q(s, a) of the action taken.

        Raises:
            ValueError: shapes or types are not those of the format.
            UsageError: a stack of frames that cannot be rebuilt.
        """
        steps, segments = len(unroll.reward), []
        if action_value.shape != unroll.reward.shape:
            raise ValueError(f"action_value {list(action_value.shape)} of an unroll {list(unroll.reward.shape)}")
        for start in range(0, steps, self.format.length):
            stop = min(start + self.format.length, steps)
            piece = Unroll(*(array[start : stop + len(array) - steps] for array in unroll))
            self._append(piece, action_value[start:stop])
            while self._ready() - self._next >= self.format.length:
                segments += self._cut(self._next + self.format.length)
        return segments

    def _append(self, piece: Unroll, action_value: np.ndarray) -> None:
        self._history.append(piece)
        ring = np.arange(self._history.head - len(action_value), self._history.head + 1) % len(self._taken)
        self._largest[ring] = piece.value
        self._taken[ring[:-1]] = action_value

    def _ready(self) -> int:
        """The first row whose n-th next row has not been acted on; all rows before it are ready."""
        return self._history.head - self.format.n_step

    def _cut(self, stop: int) -> list[Segment]:
        """Segments of the rows before `stop`, for the simulators that have transitions there."""
        history, simulators = self._history, self._history.simulators
        rows = np.arange(self._next, stop)
        shape = (len(rows), simulators)
        every = np.repeat(rows, simulators), np.tile(np.arange(simulators), len(rows))
        reward, discount, steps = (a.reshape(shape) for a in history.returns(*every, self.format.n_step))
        after = (rows[:, None] + steps) % history.length
        ring, columns = rows % history.length, np.arange(simulators)
        bootstrap = np.where(discount > 0, discount * self._largest[after, columns], 0.0)
        priority = np.abs(reward + bootstrap - self._taken[ring]).astype(np.float32)
        self._next = stop
        valid = history.rows.valid[ring]
        return [
            self._segment(b, rows[valid[:, b]], *(a[valid[:, b], b] for a in (reward, discount, steps, priority)))
            for b in range(simulators)
            if valid[:, b].any()
        ]

    def _segment(
        self,
        simulator: int,
        rows: np.ndarray,
        reward: np.ndarray,
        discount: np.ndarray,
        steps: np.ndarray,
        priority: np.ndarray,
    ) -> Segment:
        history = self._history
        ring = rows % history.length
        first = int(rows[0]) - int(history.rows.age[ring[0], simulator])  # the oldest frame of the first stack
        frames = np.arange(first, rows[-1] + steps[-1] + 1) % history.length
        return Segment(
            actor=self.actor,
            run_id=self.run_id,
            simulator=simulator,
            first_step=int(rows[0]),
            frames=history.rows.frame[frames, simulator],
            age=history.rows.age[frames, simulator],
            row=(rows - first).astype(np.int32),
            steps=steps.astype(np.int32),
            action=history.rows.action[ring, simulator],
            reward=reward,
            discount=discount,
            version=history.rows.version[ring, simulator],
            priority=priority,
        )
