"""Ape-X with emulated actors: what they send, and a small job of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cluster.launch import find_mpirun
from ddrl.apex.child import Frame
from ddrl.apex.segment import renumbered
from ddrl.apex.shard_replay import ShardReplay
from ddrl.bench.emulated import actors as emulated_actors
from ddrl.bench.emulated import apex as emulated_apex
from ddrl.bench.emulated.actors import FORMAT, EmulatedChild, config_of
from ddrl.bench.emulated.apex import ActorsArguments, LearnerArguments, measure_actors, measure_learner
from ddrl.bench.replay_shard import FRAMES, GAMES, recorded_segment
from ddrl.errors import UsageError


@pytest.fixture(scope="module")
def segment() -> bytes:
    return FORMAT.encode(recorded_segment(FORMAT, no_frames(), 0, np.random.default_rng(0)))


def no_frames() -> np.ndarray:
    return np.zeros((GAMES, FRAMES, *FORMAT.frame_shape), np.uint8)


def test_a_renumbered_segment_is_whole_and_of_another_sender(segment):
    found = FORMAT.decode(renumbered(segment, 7, 3, 2, 150))
    assert (found.actor, found.run_id, found.simulator, found.first_step) == (7, 3, 2, 150)
    assert np.array_equal(found.reward, FORMAT.decode(segment).reward)


def test_a_child_waits_for_parameters_and_sends_segments_that_a_shard_takes(segment, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(emulated_actors.time, "monotonic", lambda: now[0])
    config = config_of(actors=1, shards=1, simulators=2, batch_size=8, capacity=2000, minimum=100)
    child = EmulatedChild(config, 5, 1, 0.01, [segment])
    frames = [child.receive() for _ in range(3)]
    assert [frame and frame.kind for frame in frames] == [Frame.REFRESH, None, None] and frames[0].number == -1
    child.send(Frame.PARAMETERS, 4, b"")
    replay, kinds, steps = ShardReplay(FORMAT, 2000, run=1), [], 0
    for _ in range(1000):  # 10 seconds
        now[0] += 0.01
        while (frame := child.receive()) is not None:
            kinds.append(frame.kind)
            if frame.kind == Frame.SEGMENT:
                assert replay.insert(frame.data)
            elif frame.kind == Frame.REPORT:
                steps += json.loads(frame.data)["counters"].get("agent_steps", 0)
            else:
                child.send(Frame.PARAMETERS, frame.number + 1, b"")
    assert 1900 <= replay.inserted <= 2000  # 2 simulators, 100 steps/s each
    assert 1700 <= steps <= replay.inserted
    assert 8 <= kinds.count(Frame.REFRESH) <= 10  # every 400 frames of each


def test_a_child_that_was_not_heard_makes_up_for_few_segments(segment, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(emulated_actors.time, "monotonic", lambda: now[0])
    config = config_of(actors=1, shards=1, simulators=1, batch_size=8, capacity=2000, minimum=100)
    child = EmulatedChild(config, 0, 1, 0.01, [segment])
    child.send(Frame.PARAMETERS, 0, b"")
    now[0] += 100.0
    sent = 0
    while (frame := child.receive()) is not None:
        sent += frame.kind == Frame.SEGMENT
    assert sent == emulated_actors.BEHIND + 1


def test_a_child_stops_feeding_when_it_was_told_to(segment, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(emulated_actors.time, "monotonic", lambda: now[0])
    config = config_of(actors=1, shards=1, simulators=1, batch_size=8, capacity=2000, minimum=100)
    child = EmulatedChild(config, 0, 1, 0.01, [segment], feed_seconds=5.0)
    now[0] += 50.0  # before the first parameters nothing counts
    child.send(Frame.PARAMETERS, 0, b"")
    sent = []
    for _ in range(1000):
        now[0] += 0.01
        frame = child.receive()
        sent += [now[0] - 150.0] if frame and frame.kind == Frame.SEGMENT else []
    assert len(sent) in (9, 10, 11) and max(sent) <= 5.01  # of 50 steps each, 100 steps/s


@pytest.fixture
def short_job(monkeypatch):
    """Ranks report four times a second, and no game is played to record its frames."""
    monkeypatch.setattr(emulated_actors, "REPORT_SECONDS", 0.25)
    monkeypatch.setattr(emulated_actors, "recorded_frames", no_frames)


@pytest.mark.timeout(120)
@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun here")
def test_a_job_of_emulated_actors_inserts_and_samples(short_job):
    arguments = ActorsArguments(
        actors=(2,),
        step_ms=2.0,
        replay_capacity=5000,
        batch_size=16,
        batches_per_s=10.0,
        parameters=1000,
        warm_up=0.5,
        seconds=4.0,  # a busy machine may hold the actors up for seconds
    )
    found = measure_actors(arguments)
    # Rates have no upper bound here: a child that the machine held up makes up for it.
    assert found["inserts_per_s"]["2"] > 0 and found["ratio"] == {"2": 1.0}
    assert found["samples_per_s"]["2"] > 0 and found["asleep"] == {"2": 1000.0}


def test_a_time_in_which_nothing_was_inserted_is_refused(monkeypatch):
    """An actor sends a segment when it has all of its steps."""
    rates = {"steps_per_s": 2.0, "inserts_per_s": 0.0}
    monkeypatch.setattr(emulated_apex, "_actor_rates", lambda arguments, actors: rates)
    with pytest.raises(UsageError, match="--seconds 20: too short for a segment to be inserted; give more"):
        measure_actors(ActorsArguments(step_ms=500.0))


def test_no_numbers_of_actors():
    with pytest.raises(UsageError, match="--actors"):
        ActorsArguments(actors=(0,))


@pytest.mark.timeout(180)
@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun here")
def test_a_learner_is_measured_alone_and_fed(short_job):
    found = measure_learner(
        LearnerArguments(actors=1, simulators=8, replay_minimum=300, alone=0.2, warm_up=0.0, seconds=4.5, unfed=3.5)
    )
    assert found["updates_per_s_alone"] > 0 and found["gradients_per_s_alone"] > 0
    assert found["ratio"] == pytest.approx(found["updates_per_s"] / found["updates_per_s_alone"], rel=0.05)
    assert 0 < found["inserts_per_s"] < 2000 and found["learner_split"]["gradient"] > 0
    unfed = found["updates_per_s_unfed"]
    assert unfed > 0 and found["ratio_to_unfed"] == pytest.approx(found["updates_per_s"] / unfed, rel=0.05)


def test_a_learner_needs_time_after_the_warm_up():
    with pytest.raises(UsageError, match="--seconds"):
        LearnerArguments(warm_up=10.0, seconds=12.0)
