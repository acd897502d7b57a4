"""Unrolls become segments: every transition once, as a slow replay of whole observations has it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddrl.apex.segment_builder import SegmentBuilder
from ddrl.types import Unroll
from tests.apex.segments import FEATURES, IMAGES, Player, noise, rest_of, transitions
from tests.replay.simulators import SlowReplay

GOES_ON = (1, 0, 0, 0, 0)


class Slow:
    """All steps of a player, whole, with the Q-values that it had."""

    def __init__(self, player: Player):
        self.player, self.format = player, player.format
        self.slow = SlowReplay(player.simulators.simulators, 10**9, player.format.n_step)
        self.largest, self.taken = ([[] for _ in self.slow.steps] for _ in range(2))

    def play(self, steps):
        segments = self.player.play(steps)
        self.slow.add(self.player.unroll)
        for b in range(len(self.largest)):
            self.largest[b] += self.player.unroll.value[:-1, b].tolist()
            self.taken[b] += self.player.action_value[:, b].tolist()
        return segments

    def transitions(self, b):
        """(transition, priority) of each valid step of a simulator that has n later ones which were acted on."""
        steps, n = self.slow.steps[b], self.format.n_step
        for t in range(len(steps) - n):
            if steps[t][5]:
                transition = self.slow._transition(steps, t, None)
                ends = [k for k in range(n) if not steps[t + k][4]]
                later = self.largest[b][t + (ends[0] + 1 if ends else n)]
                target = float(transition[2]) + float(transition[3]) * later
                yield transition, abs(target - self.taken[b][t])


def assert_same(format, segments, slow):
    for b in range(len(slow.largest)):
        mine = [s for s in segments if s.simulator == b]
        expected = list(slow.transitions(b))
        rebuilt = [t for segment in mine for t in transitions(format, segment)]
        assert len(rebuilt) == len(expected) > 10
        for one, (other, _) in zip(rebuilt, expected, strict=True):
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])
            np.testing.assert_allclose(one[2:4], other[2:4], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(one[4], other[4])
            assert one[5] == other[5]
        priorities = np.concatenate([segment.priority for segment in mine])
        np.testing.assert_allclose(priorities, [priority for _, priority in expected], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", (IMAGES, FEATURES, dataclasses.replace(IMAGES, n_step=1, length=4)))
@pytest.mark.parametrize("seed", range(3))
def test_every_transition_comes_once_with_its_priority(format, seed):
    """Pieces shorter and longer than a segment, and than the local buffer."""
    slow, random = Slow(Player(format, 3, seed=seed, idle=3)), np.random.default_rng(seed)
    segments = []
    for steps in [1, 2, 70, *random.integers(1, 30, size=12).tolist()]:
        for segment in slow.play(steps):
            format.check(segment)
            segments.append(segment)
    segments += rest_of(slow.player.builder)
    assert_same(format, segments, slow)


def test_segments_do_not_depend_on_how_steps_are_cut_into_unrolls():
    one, other = Player(IMAGES, seed=5), Player(IMAGES, seed=5)
    whole = one.play(60)
    parts = []
    for start, stop in ((0, 1), (1, 20), (20, 23), (23, 60)):
        unroll = one.unroll
        piece = Unroll(*(array[start : stop + len(array) - 60] for array in unroll))
        parts += other.builder.add(piece, one.action_value[start:stop])
    assert len(whole) == len(parts) == 12
    for mine, others in zip(whole, parts, strict=True):
        assert IMAGES.encode(mine) == IMAGES.encode(others)


def test_an_endless_episode_gives_full_segments_in_the_order_of_their_steps():
    player = Player(IMAGES, 2, actor=4, run_id=9, chances=GOES_ON)
    segments = player.play(33)
    names = [(s.actor, s.run_id, s.simulator, s.first_step) for s in segments]
    # The first rows hold the older frames of the first stack, and so are no steps.
    assert [name[2:] for name in names] == [(b, step) for step in (IMAGES.stack - 1, 10, 20) for b in (0, 1)]
    assert {name[:2] for name in names} == {(4, 9)}
    assert all(len(s.frames) <= IMAGES.most_frames for s in segments)


def test_after_a_reset_the_steps_before_are_truncated_and_the_names_go_on():
    player = Player(IMAGES, 1, chances=GOES_ON)
    before = player.play(12)
    last = player.unroll.observation[-1]
    player.simulators.reset()
    after = player.play(40) + rest_of(player.builder)
    steps = [s.first_step + int(row) - int(s.row[0]) for s in before + after for row in s.row]
    assert steps == sorted(set(steps))
    ended = [t for s in before + after for t in transitions(IMAGES, s) if np.array_equal(t[4], last[0])]
    assert len(ended) == IMAGES.n_step, "the last n transitions lead to the observation that was left"
    for segment in before + after:
        IMAGES.check(segment)


def test_an_observation_that_is_no_number_cuts_the_episodes_of_no_other_simulator():
    player, found = Player(FEATURES, 2, seed=3), ([], [])
    builders = [SegmentBuilder(FEATURES, 2, actor=0, run_id=1) for _ in found]
    for _ in range(8):
        player.play(10)
        broken = player.unroll._replace(observation=player.unroll.observation.copy())
        broken.observation[:, 1, 0] = np.nan
        for segments, builder, unroll in zip(found, builders, (player.unroll, broken), strict=True):
            segments += [s for s in builder.add(unroll, player.action_value) if s.simulator == 0]
    assert len(found[0]) == len(found[1]) > 3
    for clean, other in zip(*found, strict=True):
        for mine, theirs in zip(clean, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_bootstrap_that_does_not_count_is_not_read():
    """A termination: whatever the network says of the observation after it."""
    player = Player(FEATURES, 1, chances=(0, 1, 0, 0, 0))
    player.play(1)
    unroll = player.simulators.unroll(20)
    shape = unroll.reward.shape
    unroll = unroll._replace(action=np.zeros((*shape, 2), np.float32), value=np.full((21, 1), np.nan, np.float32))
    segments = player.builder.add(unroll, np.zeros(shape, np.float32)) + rest_of(player.builder)
    assert sum(len(s.row) for s in segments) > 5
    for segment in segments:
        assert np.isfinite(segment.priority).all()


def test_shapes_are_checked():
    player = Player(IMAGES)
    unroll = player.simulators.unroll(4)
    with pytest.raises(ValueError, match="action_value"):
        player.builder.add(unroll, np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="action"):
        wrong = unroll._replace(action=unroll.action.astype(np.int64))
        player.builder.add(wrong, np.zeros_like(unroll.reward))
    builder = SegmentBuilder(FEATURES, 2, 0, 0)
    with pytest.raises(ValueError, match="observation"):
        builder.add(unroll, np.zeros_like(unroll.reward))


def test_noise_is_a_segment():
    for format in (IMAGES, FEATURES):
        format.check(noise(format, np.random.default_rng(0)))
