"""The chief's decisions one by one: when a step closes, with whom, and with which scale."""

from __future__ import annotations

import math

import pytest

from ddrl.exchange.messages import Flag, Header, Kind
from ddrl.exchange.parameter_server.coordinator import Quorum, QuorumCoordinator


def coordinator(quorum=0, deadline=0.0, workers=3, shards=1, clip=0.0):
    when = Quorum(quorum, deadline)
    return QuorumCoordinator(range(shards), range(workers), when, lambda version: 0.5, clip_norm=clip)


def closed(chief, members, now=0.0, shard=0, squared_norm=math.nan):
    """What becomes of the step when a shard tells that it holds these workers' gradients; None: it stays open."""
    header = Header(Kind.READY, sender=shard, step=chief.step, members=members, count=10, value=squared_norm)
    chief.handle(header, now)
    return chief.poll(now)[1]


def test_without_a_quorum_a_step_closes_with_all_who_live():
    chief = coordinator()
    assert closed(chief, 0b011) is None and closed(chief, 0b111).members == (0, 1, 2)
    chief.worker_lost(2)
    assert closed(chief, 0b001) is None and closed(chief, 0b011).members == (0, 1)


def test_a_quorum_closes_a_step_and_not_before():
    chief = coordinator(quorum=2)
    assert closed(chief, 0b100) is None and closed(chief, 0b101).members == (0, 2)
    assert closed(chief, 0b111).members == (0, 1, 2), "more than the quorum count if they are there"


def test_who_dies_lowers_a_quorum_that_would_never_be_there():
    chief = coordinator(quorum=2)
    chief.worker_lost(0)
    chief.worker_lost(1)
    assert closed(chief, 0b100).members == (2,)


def test_only_those_count_whom_all_shards_have():
    chief = coordinator(quorum=1, shards=2)
    assert closed(chief, 0b011, shard=0) is None, "a shard has not spoken yet"
    assert closed(chief, 0b110, shard=1).members == (1,)


def test_a_deadline_closes_with_whoever_is_there():
    chief = coordinator(deadline=2.0)
    assert closed(chief, 0b001, now=10.0) is None and closed(chief, 0b011, now=11.9) is None
    assert closed(chief, 0b011, now=12.0).members == (0, 1)


@pytest.mark.parametrize(("norm", "scale"), [(0.5, 1.0), (2.0, 1.0), (8.0, 0.25)])
def test_only_what_is_above_the_limit_is_clipped(norm, scale):
    chief = coordinator(clip=2.0)
    chief.handle(Header(Kind.READY, members=0b111, count=10, value=norm**2), 0.0)
    messages, done = chief.poll(0.0)
    assert [message.header.scale for message in messages] == [scale] and done.norm == norm


def refused(chief):
    """What becomes of the step when a shard tells that the gradient of worker 0 is not finite."""
    chief.handle(Header(Kind.READY, step=chief.step, members=0b111, count=10, refused=0b001), 0.0)
    return chief.poll(0.0)[1]


def test_what_waits_for_an_update_does_not_go_with_a_step_that_is_refused():
    chief = coordinator()
    chief.request(Flag.STOP | Flag.CHECKPOINT | Flag.WITH_UPDATE)
    assert refused(chief).flags == refused(chief).flags == Flag.SKIP and not chief.stopped
    assert closed(chief, 0b111).flags == Flag.STOP | Flag.CHECKPOINT and chief.stopped


def test_a_stop_that_is_asked_for_without_an_update_goes_with_any_step():
    chief = coordinator()
    chief.request(Flag.STOP | Flag.CHECKPOINT | Flag.WITH_UPDATE)
    chief.request(Flag.STOP)
    assert refused(chief).flags == Flag.SKIP | Flag.STOP | Flag.CHECKPOINT and chief.stopped


@pytest.mark.parametrize("squared_norm", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_refuses_the_step_as_a_whole(squared_norm):
    chief = coordinator(clip=2.0)
    done = closed(chief, 0b111, squared_norm=squared_norm)
    if done is None:  # asked once more, since a norm that is not a number may not have been computed
        chief.handle(Header(Kind.NORM, members=0b111, count=10, value=squared_norm), 0.0)
        done = chief.poll(0.0)[1]
    assert done.flags & Flag.SKIP and done.refused == (0, 1, 2) and (done.version, chief.step) == (0, 1)
