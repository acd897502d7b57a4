"""The last steps of several simulators. Each frame is stored once; reading rebuilds stacks and n-step windows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ddrl.errors import UsageError
from ddrl.replay.finite import not_finite, set_to_zero
from ddrl.types import Unroll


class Rows(NamedTuple):
    """What is kept of each step: arrays [R, B, ...], of which row t stands at t mod R.

    Attributes:
        frame: <observation's type>[R, B, ...] newest frame of the observation.
        age: <uint8>[R, B] how many earlier rows belong to the observation's stack; frames before these are zero.
        action: <int32>[R, B] or [R, B, K], or <float32>[R, B, A].
        reward: <float32>[R, B].
        discount: <float32>[R, B] gamma, or 0 where the step terminated.
        continues: <bool>[R, B] the next row belongs to the same episode.
        valid: <bool>[R, B] the action counts: False in the row of an episode's last observation.
        version: <int64>[R, B] of the parameters that chose the action.
    """

    frame: Any
    age: Any
    action: Any
    reward: Any
    discount: Any
    continues: Any
    valid: Any
    version: Any


class History:
    """A ring of the last R rows of B simulators, which move on together. Used by one thread at a time.

    Rows are numbered from 0 on and never renumbered. Row `head` is open: it holds the observation that the last step
    led to, and its action comes with the next unroll. The rows before it are complete.

    An observation is a stack of frames, oldest first along the first axis. Each observation is the previous one shifted
    by one frame, and frames from before the episode are zero.

    Args:
        rows: R; more than `stack`.
        simulators: B.
        observation_shape: of one observation.
        observation_dtype: of one.
        stack: frames in an observation.
        action: shape and type of one action.

    Attributes:
        head: number of the open row; -1 when nothing has been appended.

    Raises:
        UsageError: the observation is not that many frames.
    """

    def __init__(
        self,
        rows: int,
        simulators: int,
        observation_shape: tuple[int, ...],
        observation_dtype: Any,
        stack: int,
        action: tuple[tuple[int, ...], Any] = ((), np.int32),
    ):
        self.length, self.simulators, self.stack = rows, simulators, stack
        self.observation_shape = tuple(observation_shape)
        layout = row_layout(self.observation_shape, observation_dtype, stack, action)
        self.rows = Rows(*(np.zeros((rows, simulators, *shape), dtype) for shape, dtype in layout))
        self.head = -1

    def append(self, unroll: Unroll) -> int:
        """Takes the T steps of an unroll, which continue those of the last unroll.

        If the first observation is not the one with which the last unroll ended, the simulators were reset in between.
        The open row then counts as the final observation of truncated episodes. After it, and at the very beginning,
        come stack - 1 rows that are not valid, which hold the older frames of the first observation, zero or not.

        Returns:
            the number of rows that were completed; the last T of them are those of the unroll.

        Raises:
            ValueError: shapes or types are not those of this history.
            UsageError: an observation is not the previous one shifted by a frame; nothing was stored.
        """
        self._check_shapes(unroll)
        observation, valid = unroll.observation, unroll.valid > 0
        joined = self._joins(observation[0], valid[0])
        age = self._ages(valid, joined)
        self._check_stacks(observation, valid, age)
        first = max(self.head, 0)
        if not joined:
            self._begin(observation[0])
        ring = (self.head + np.arange(len(valid) + 1)) % self.length
        self.rows.frame[ring] = self._frames(observation)[:, :, -1]
        self.rows.age[ring] = age
        ring = ring[:-1]
        self.rows.action[ring] = unroll.action
        self.rows.reward[ring] = unroll.reward
        self.rows.discount[ring] = unroll.discount
        self.rows.continues[ring] = unroll.continues > 0
        self.rows.valid[ring] = valid
        self.rows.version[ring] = unroll.behaviour_version
        self.head += len(valid)
        return self.head - first

    def cut(self, simulators: np.ndarray) -> None:
        """Ends the episodes of simulators <bool>[B] at the last complete row, as if truncated there."""
        if self.head > 0:
            self.rows.continues[(self.head - 1) % self.length, simulators] = False

    def mend(self) -> np.ndarray:
        """Sets numbers that are not finite to 0, and ends episodes before their rows.

        Returns:
            <bool>[R, B] rows of the ring that held such a number or led to one.
        """
        arrays = (self.rows.frame, self.rows.action, self.rows.reward)
        frame, *rest = map(not_finite, arrays)
        seen = frame.copy()  # an observation has frames of the rows before, too
        for back in range(1, self.stack):
            seen |= np.roll(frame, back, axis=0)
        wrong = np.logical_or.reduce([seen, np.roll(seen, -1, axis=0), *rest])
        self.rows.continues[wrong | np.roll(wrong, -1, axis=0)] = False
        for array in arrays if wrong.any() else ():
            set_to_zero(array)
        return wrong

    def observations(self, rows: np.ndarray, simulators: np.ndarray, into: np.ndarray | None = None) -> np.ndarray:
        """Observations [M, ...] of rows <int64>[M] of simulators <int64>[M], as the environments gave them.

        Args:
            rows, simulators: <int64>[M].
            into: a C-contiguous array [M, ...] that takes them (None: a new one).
        """
        back = np.arange(self.stack - 1, -1, -1)
        slots = (rows[:, None] - back) % self.length * self.simulators + simulators[:, None]
        frame = self.rows.frame.shape[2:]
        if into is None:
            into = np.empty((len(rows), *self.observation_shape), self.rows.frame.dtype)
        frames = into.reshape(len(rows), self.stack, *frame)
        # All slots are in range; with "clip" NumPy makes no copy to check that they are.
        self.rows.frame.reshape(-1, *frame).take(slots, axis=0, out=frames, mode="clip")
        frames[back > self.rows.age[rows % self.length, simulators][:, None]] = 0
        return into

    def returns(
        self, rows: np.ndarray, simulators: np.ndarray, n_step: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sums of rewards over at most `n_step` steps, fewer where the episode ends before.

        R = r_0 + d_0 r_1 + d_0 d_1 r_2 + ..., D = d_0 d_1 ... (d_t: the discount of step t), both over k steps; the
        target is R + D V(observation of row + k) (Sutton and Barto 2018, equation 7.1).

        Args:
            rows: <int64>[M], each at least `n_step` before `head`.
            simulators: <int64>[M].

        Returns:
            R <float32>[M], D <float32>[M] and k <int64>[M].
        """
        ring, simulators = (rows[:, None] + np.arange(n_step)) % self.length, simulators[:, None]
        within = np.ones(ring.shape, bool)  # no earlier step has ended the episode
        np.logical_and.accumulate(self.rows.continues[ring, simulators][:, :-1], axis=1, out=within[:, 1:])
        discount = np.where(within, self.rows.discount[ring, simulators].astype(np.float64), 1.0)
        reward = np.where(within, self.rows.reward[ring, simulators].astype(np.float64), 0.0)
        after = np.cumprod(discount, axis=1)
        reward[:, 1:] *= after[:, :-1]
        return reward.sum(1).astype(np.float32), after[:, -1].astype(np.float32), within.sum(1)

    def _frames(self, observation: np.ndarray) -> np.ndarray:
        """[..., *observation] as [..., stack, *frame], a view."""
        leading = observation.ndim - len(self.observation_shape)
        return observation.reshape(*observation.shape[:leading], self.stack, *self.rows.frame.shape[2:])

    def _joins(self, observation: np.ndarray, valid: np.ndarray) -> bool:
        """Whether the open row holds this observation, except for simulators that idle after the end of an episode."""
        if self.head < 0:
            return False
        acted = self.rows.valid[(self.head - 1) % self.length]
        stored = self.observations(np.full(self.simulators, self.head), np.arange(self.simulators))
        return bool((_same(stored, observation) | ~(acted | valid)).all())

    def _begin(self, observation: np.ndarray) -> None:
        """Ends the open row, puts the older frames of the first observation in rows of their own, and opens one."""
        first = self.head + 1
        ended = np.arange(max(self.head, 0), first + self.stack - 1) % self.length
        for name in ("action", "reward", "discount", "continues", "valid", "version"):
            getattr(self.rows, name)[ended] = 0
        if self.head >= 0:
            self.rows.continues[(self.head - 1) % self.length] = False
        older = np.moveaxis(self._frames(observation), 1, 0)[:-1]
        self.rows.frame[(first + np.arange(self.stack - 1)) % self.length] = older
        self.head = first + self.stack - 1

    def _ages(self, valid: np.ndarray, joined: bool) -> np.ndarray:
        """The ages <uint8>[T+1, B] of the rows; a row after one that is not valid begins an episode, and has age 0."""
        oldest = self.stack - 1
        begun = np.full((len(valid) + 1, self.simulators), -oldest, np.int64)  # the row where the stack begins
        if joined:
            begun[0] = -self.rows.age[self.head % self.length].astype(np.int64)
        steps = np.arange(1, len(valid) + 1)[:, None]
        begun[1:] = np.where(valid, -oldest, steps)
        np.maximum.accumulate(begun, axis=0, out=begun)
        return np.minimum(np.arange(len(begun))[:, None] - begun, oldest).astype(np.uint8)

    def _check_stacks(self, observation: np.ndarray, valid: np.ndarray, age: np.ndarray) -> None:
        """Raises UsageError if an observation is not the previous one shifted by a frame.

        It compares row by row, so that it makes no array as large as the unroll.
        """
        if self.stack == 1:
            return
        frames = self._frames(observation)
        axes = tuple(range(1, frames.ndim - 1))
        for t in range(1, len(frames)):
            moved_on = (frames[t, :, :-1] == frames[t - 1, :, 1:]).all(axes)
            right = np.where(age[t] > 0, moved_on, ~frames[t, :, :-1].any(axes))
            # The open row is compared when it is joined; what idle simulators show is never read.
            matters = valid[t - 1] | (valid[t] if t < len(valid) else False)
            if (matters & ~right).any():
                simulator = int(np.flatnonzero(matters & ~right)[0])
                raise UsageError(
                    f"the observation of simulator {simulator} at step {t} of {len(valid)} is not the previous one "
                    f"shifted by one frame, and a replay of stacks of {self.stack} frames cannot rebuild anything "
                    "else; store whole observations (stack 1)"
                )

    def _check_shapes(self, unroll: Unroll) -> None:
        steps = len(unroll.reward)
        expected = {
            "observation": ((steps + 1, self.simulators, *self.observation_shape), self.rows.frame.dtype),
            "action": ((steps, *self.rows.action.shape[1:]), self.rows.action.dtype),
        }
        for name, (shape, dtype) in expected.items():
            array = getattr(unroll, name)
            if array.shape != shape or array.dtype != dtype or not steps:
                raise ValueError(
                    f"{name} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)} of at least 1 step"
                )


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """<bool>[B] which observations [B, ...] are equal in all that they hold, several fields or one."""
    if one.dtype.names is not None:
        return np.all([_same(one[name], other[name]) for name in one.dtype.names], axis=0)
    same = one == other
    if one.dtype.kind == "f":  # a simulator that gives NaN shall not cut the episodes of all others
        same |= np.isnan(one) & np.isnan(other)
    return same.reshape(len(same), -1).all(1)


def row_layout(
    observation_shape: tuple[int, ...],
    observation_dtype: Any,
    stack: int,
    action: tuple[tuple[int, ...], Any] = ((), np.int32),
) -> Rows:
    """Shape and type of one simulator's part of each array of a row.

    Args:
        observation_shape: of one environment.
        observation_dtype: of one.
        stack: frames of an observation, its first axis.
        action: shape and dtype of one action.

    Raises:
        UsageError: the observation is not that many frames.
    """
    shape = tuple(observation_shape)
    if stack < 1 or (stack > 1 and (not shape or shape[0] % stack)):
        raise UsageError(f"observations {list(shape)} are not stacks of {stack} frames along their first axis: use 1")
    frame = shape if stack == 1 else (shape[0] // stack, *shape[1:])
    return Rows(
        frame=(frame, np.dtype(observation_dtype)),
        age=((), np.dtype(np.uint8)),
        action=(action[0], np.dtype(action[1])),
        reward=((), np.dtype(np.float32)),
        discount=((), np.dtype(np.float32)),
        continues=((), np.dtype(bool)),
        valid=((), np.dtype(bool)),
        version=((), np.dtype(np.int64)),
    )
