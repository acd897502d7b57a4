"""NaN and infinite numbers of environments: what a replay gives of steps around them."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.replay.finite import finite_part
from ddrl.replay.replay import Replay
from tests.replay.simulators import DISCOUNT, Simulators

STEPS, SIMULATORS = 12, 2
NAN, INFINITE = np.float32(np.nan), np.float32(np.inf)


def clean_unroll(steps=STEPS, start=0):
    """Episodes that go on, whose observation at a step is its number, and whose rewards are powers of two."""
    simulators = Simulators(SIMULATORS, 1, frame=(1,), dtype=np.float32, chances=(1.0, 0.0, 0.0, 0.0, 0.0))
    unroll = simulators.unroll(steps)
    number = np.arange(start, start + steps + 1, dtype=np.float32)
    unroll.observation[:] = number[:, None, None]
    unroll.reward[:] = (2.0 ** (number[:-1] % 8))[:, None]
    return unroll


def harmed(unroll, field, step, simulator, value=NAN):
    getattr(unroll, field)[step, simulator] = value
    return unroll


def make(n_step, capacity=80):
    return Replay(capacity, SIMULATORS, (1,), np.float32, n_step=n_step)


def drawn(replay):
    """Every transition that can be drawn: (step, simulator) -> reward, discount, next observation."""
    sample = replay.sample(np.random.default_rng(0), 4_000)
    rows, simulators = np.divmod(sample.key, SIMULATORS)
    for array in sample[:-1]:
        assert np.isfinite(array).all()
    columns = (sample.reward, sample.discount, sample.next_observation[:, 0])
    return dict(zip(zip(rows.tolist(), simulators.tolist()), zip(*(column.tolist() for column in columns))))


def expected(unroll, left_out, n_step):
    """The same, step by step: sums end before a step that is left out, with the observation there."""
    found = {}
    for t in range(len(unroll.reward) - n_step + 1):
        for b in range(SIMULATORS):
            if left_out[t, b]:
                continue
            steps = next((k for k in range(1, n_step) if left_out[t + k, b]), n_step)
            reward = sum(DISCOUNT**k * float(unroll.reward[t + k, b]) for k in range(steps))
            found[t, b] = (reward, DISCOUNT**steps, float(unroll.observation[t + steps, b, 0]))
    return found


def assert_same(replay, transitions):
    found = drawn(replay)
    assert set(found) == set(transitions)
    for key, values in transitions.items():
        assert found[key] == pytest.approx(values, rel=1e-5), key


def test_an_unroll_that_is_finite_is_left_as_it_is():
    assert finite_part(clean_unroll()) is None
    assert finite_part(Simulators(3, 4).unroll(20)) is None, "images of uint8"


@pytest.mark.parametrize(
    "field, value, gone",
    [("reward", NAN, {5}), ("reward", -INFINITE, {5}), ("observation", NAN, {4, 5}), ("observation", INFINITE, {4, 5})],
)
def test_steps_that_hold_or_lead_to_it_are_left_out(field, value, gone):
    finite = finite_part(harmed(clean_unroll(), field, 5, 1, value))
    assert finite.first == (5, 1, field)
    assert {tuple(place) for place in np.argwhere(finite.left_out)} == {(step, 1) for step in gone}
    for array in finite.unroll:
        assert np.isfinite(array).all()
    ended = {int(t) for t in np.flatnonzero(finite.unroll.continues[:, 1] == 0)}
    assert ended == gone | {min(gone) - 1} and finite.unroll.continues[:, 0].all()


def test_an_action_that_is_not_finite_is_named():
    unroll = clean_unroll()
    unroll = unroll._replace(action=np.zeros((STEPS, SIMULATORS, 2), np.float32))
    assert finite_part(harmed(unroll, "action", 3, 0)).first == (3, 0, "action")


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("field", ["reward", "observation"])
@pytest.mark.parametrize("step", [0, 1, 6, STEPS - 1])
def test_the_others_are_learned_as_they_were(n_step, field, step):
    unroll, whole = harmed(clean_unroll(), field, step, 1), clean_unroll()
    finite, replay = finite_part(unroll), make(n_step)
    replay.add(finite.unroll, left_out=finite.left_out)
    replay.check()
    assert_same(replay, expected(whole, finite.left_out, n_step))


@pytest.mark.parametrize("field", ["reward", "observation"])
def test_sums_that_began_in_the_buffer_before_end_at_its_end(field):
    """The last observation of a buffer is the first of the next one, and what is wrong there is known to both."""
    replay, whole = make(3), clean_unroll(2 * STEPS)
    second = harmed(clean_unroll(STEPS, start=STEPS), field, 0, 1)
    first = clean_unroll()
    if field == "observation":
        first.observation[STEPS, 1] = NAN
    masks = []
    for unroll in (first, second):
        finite = finite_part(unroll)
        masks.append(np.zeros((STEPS, SIMULATORS), bool) if finite is None else finite.left_out)
        replay.add(unroll if finite is None else finite.unroll, left_out=None if finite is None else finite.left_out)
    replay.check()
    assert_same(replay, expected(whole, np.concatenate(masks), 3))


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("field", ["reward", "observation"])
def test_a_saved_replay_of_before_is_mended_when_it_is_loaded(field, n_step, tmp_path):
    replay = make(n_step)
    unroll = harmed(harmed(clean_unroll(), field, 5, 1), field, 9, 0, INFINITE)
    left_out = finite_part(unroll).left_out
    replay.add(unroll)
    size = replay.size
    restored = make(n_step)
    restored.load(tmp_path, replay.save(tmp_path))
    dropped = restored.drop_not_finite()
    complete = left_out[: STEPS - n_step + 1]
    assert dropped == complete.sum() == size - restored.size
    restored.check()
    assert_same(restored, expected(clean_unroll(), left_out, n_step))
    assert restored.drop_not_finite() == 0


def test_priorities_of_transitions_that_were_excluded_meanwhile_are_left_out(tmp_path):
    """A row that leads to a wrong one within its n steps was drawn, and learned from, before the replay was saved."""
    replay = Replay(80, SIMULATORS, (1,), np.float32, n_step=3, priority_exponent=0.6)
    replay.add(harmed(clean_unroll(), "observation", 9, 1))
    keys = np.array([row * SIMULATORS + 1 for row in (8, 2)])  # the first one leads to it
    replay.set_priorities(keys, np.ones(2, np.float32))
    restored = Replay(80, SIMULATORS, (1,), np.float32, n_step=3, priority_exponent=0.6)
    restored.load(tmp_path, replay.save(tmp_path))
    assert restored.may_have_priorities(keys).all() and restored.drop_not_finite()
    may = restored.may_have_priorities(keys)
    assert list(may) == [False, True]
    with pytest.raises(ValueError, match="a key names a row that is not a transition"):
        restored.set_priorities(keys, np.ones(2, np.float32))
    restored.set_priorities(keys[may], np.full(1, 2.0, np.float32))
    restored.check()


def test_frames_of_a_stack_carry_it_on():
    """In a saved replay of stacks of floats, each of the observations that have the frame is left out."""
    simulators = Simulators(SIMULATORS, 3, frame=(1,), dtype=np.float32, chances=(1.0, 0.0, 0.0, 0.0, 0.0))
    replay = Replay(80, SIMULATORS, (3,), np.float32, stack=3)
    replay.add(simulators.unroll(STEPS))
    row = np.arange(STEPS)[6] + 2  # after the two rows of older frames
    replay._history.rows.frame[row, 0] = NAN
    assert replay.drop_not_finite() == 4  # the step before leads to it, and three see it
    replay.check()
    drawn_rows = {row for row, simulator in drawn_keys(replay) if simulator == 0}
    assert drawn_rows == set(range(2, STEPS + 2)) - set(range(row - 1, row + 3))


def drawn_keys(replay):
    sample = replay.sample(np.random.default_rng(0), 4_000)
    assert np.isfinite(sample.observation).all() and np.isfinite(sample.next_observation).all()
    return {(int(key) // SIMULATORS, int(key) % SIMULATORS) for key in sample.key}
