"""Observations of several fields in a replay, in segments and shards, in a drawn batch and in saved states."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.apex.packing import BatchFormat
from ddrl.apex.segment import SegmentFormat
from ddrl.apex.segment_builder import SegmentBuilder
from ddrl.apex.shard_replay import ShardReplay
from ddrl.apex.shard_setup import ShardSetup
from ddrl.errors import UsageError
from ddrl.npz import decode_arrays, encode_arrays
from ddrl.replay.finite import finite_part
from ddrl.replay.replay import Replay
from ddrl.structured import space_facts, space_from, type_of, type_text
from ddrl.types import Continuous, Discrete, MultiDiscrete
from tests.unrolls import random_unroll

DTYPE = np.dtype([("image", "u1", (5, 5, 1)), ("speed", "f4", (2,)), ("inner/on", "?"), ("action_mask", "?", (3,))])
STEPS, SIMULATORS = 40, 3


def observed(shape, seed=0):
    random = np.random.default_rng(seed)
    array = np.zeros(shape, DTYPE)
    array["image"] = random.integers(0, 256, (*shape, 5, 5, 1))
    array["speed"], array["inner/on"] = random.standard_normal((*shape, 2)), random.random(shape) < 0.5
    array["action_mask"] = random.random((*shape, 3)) < 0.7
    return array


def unroll(seed=0):
    return random_unroll(STEPS, SIMULATORS, seed)._replace(observation=observed((STEPS + 1, SIMULATORS), seed))


def replay():
    return Replay(120, SIMULATORS, (), DTYPE, n_step=2, priority_exponent=0.5)


def test_a_replay_gives_and_saves_what_it_got(tmp_path):
    kept, played = replay(), unroll()
    kept.add(played)
    drawn = kept.sample(np.random.default_rng(0), 32)
    rows, simulators = np.divmod(drawn.key, SIMULATORS)
    np.testing.assert_array_equal(drawn.observation, played.observation[rows, simulators])
    steps = 1 + (played.continues[rows, simulators] > 0)
    np.testing.assert_array_equal(drawn.next_observation, played.observation[rows + steps, simulators])
    into = kept.memory_for(32)
    kept.sample(np.random.default_rng(0), 32, into=into)
    np.testing.assert_array_equal(into[0], drawn.observation)
    loaded = replay()
    loaded.load(tmp_path, kept.save(tmp_path))
    for each in (kept, loaded):
        each.add(unroll(seed=1))
    for one, other in zip(*(each.sample(np.random.default_rng(1), 32) for each in (kept, loaded))):
        np.testing.assert_array_equal(one, other)
    other = Replay(120, SIMULATORS, (), np.dtype([*DTYPE.descr[:-1]]), n_step=2, priority_exponent=0.5)
    with pytest.raises(
        UsageError, match="the saved replay has observation type .*action_mask.*resume with the settings"
    ):
        other.load(tmp_path, kept.save(tmp_path))


def test_unrolls_that_join_and_those_that_do_not():
    kept, first, second = replay(), unroll(), unroll(1)
    second.observation[0] = first.observation[-1]
    kept.add(first)
    kept.add(second)
    assert kept._history.head == 2 * STEPS
    kept.add(unroll(2))
    assert kept._history.head == 3 * STEPS + 1  # a row more: simulators were reset


@pytest.mark.parametrize("again, rows", [(np.nan, 2 * STEPS), (0.0, 2 * STEPS + 1)])
def test_a_field_that_is_no_number_cuts_the_episodes_of_no_other_simulator(again, rows):
    """The first observation of an unroll is the last one of that before, also where both have NaN."""
    kept, first, second = replay(), unroll(), unroll(1)
    first.observation["speed"][-1, 1, 0] = np.nan
    second.observation[0] = first.observation[-1]
    second.observation["speed"][0, 1, 0] = again
    kept.add(first)
    kept.add(second)
    assert kept._history.head == rows


def test_a_number_that_is_not_finite_in_a_field():
    played = unroll()
    played.observation["speed"][7, 1, 0] = np.nan
    finite = finite_part(played)
    assert finite.first == (7, 1, "observation")
    assert np.argwhere(finite.left_out).tolist() == [[6, 1], [7, 1]]
    assert finite.unroll.observation["speed"][7, 1, 0] == 0.0 and np.isnan(played.observation["speed"][7, 1, 0])
    np.testing.assert_array_equal(finite.unroll.observation["image"], played.observation["image"])
    assert finite_part(unroll()) is None


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 1)), Continuous((-1.0,), (1.0,))])
def test_segments_and_shards(tmp_path, space):
    format = SegmentFormat((), type_text(DTYPE), space, n_step=2, length=10)
    assert ShardSetup.decode(ShardSetup(3, format).encode()) == ShardSetup(3, format)
    played, random = unroll(), np.random.default_rng(2)
    action = random.integers(1, size=(STEPS, SIMULATORS, *space.action_shape)).astype(space.action_dtype)
    builder = SegmentBuilder(format, SIMULATORS, 0, 1)
    segments = builder.add(played._replace(action=action), np.zeros((STEPS, SIMULATORS), np.float32))
    shards = [ShardReplay(format, 100), ShardReplay(format, 100)]
    for segment in segments:
        decoded = format.decode(format.encode(segment))
        for name, one, other in zip(segment._fields, segment, decoded):
            np.testing.assert_array_equal(one, other, err_msg=name)
        assert shards[0].insert(format.encode(segment))
    drawn = shards[0].sample(np.random.default_rng(0), 16)
    seen = {row.tobytes() for row in played.observation.ravel()}
    assert all(row.tobytes() in seen for row in drawn.observation)
    shards[1].load(tmp_path, shards[0].save(tmp_path))
    again = shards[1].sample(np.random.default_rng(0), 16)
    views = BatchFormat(format, 16)
    buffer = views.buffer()
    for one, other, view in zip(drawn, again, views.views(buffer)):
        if one is not None:
            view[:] = one
            np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(one, view)


def test_a_segment_with_a_number_that_is_not_finite():
    format = SegmentFormat((), type_text(DTYPE), Discrete(3), length=10)
    played = unroll()
    played.observation["speed"][4, 0] = np.inf
    segments = SegmentBuilder(format, SIMULATORS, 0, 1).add(played, np.zeros((STEPS, SIMULATORS), np.float32))
    with pytest.raises(UsageError, match="values of observation in a segment are out of"):
        format.encode(segments[0])
    with pytest.raises(UsageError, match="observations of type float64: a replay keeps uint8, float32, bool"):
        SegmentFormat((), type_text(np.dtype([("a", "f8")])), Discrete(3))


def test_types_and_spaces_as_text():
    for dtype in (DTYPE, np.dtype(np.uint8), np.dtype(np.float32), np.dtype(bool)):
        assert type_of(type_text(dtype)) == dtype
    for space in (Discrete(3), MultiDiscrete((2, 5)), Continuous((-1.0, -np.inf), (1.0, 2.0))):
        assert space_from(space_facts(space)) == space and type(space_from(space_facts(space))) is type(space)


def test_states_of_structured_arrays():
    arrays = {"rows": observed((3, 2)), "one": observed(())}
    for name, array in decode_arrays(encode_arrays(arrays)).items():
        assert array.dtype == DTYPE
        np.testing.assert_array_equal(array, arrays[name])
