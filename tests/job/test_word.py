"""The chief's word where updates are asynchronous: who speaks, who listens, and what is waited for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.exchange.messages import Header, Kind, Message
from ddrl.exchange.transport import Blob, Channel
from ddrl.job import word
from ddrl.job.layout import JobContext, JobLayout
from ddrl.job.role import Topic
from ddrl.job.word import WordRole


class Transport:
    def __init__(self, rank):
        self.rank, self.sent, self.opened = rank, [], []

    def open(self, channels):
        self.opened += channels

    def send(self, messages):
        self.sent += messages


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=50.0)
    monkeypatch.setattr(word, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def role(rank, run_dir, servers=(2, 3)):
    layout = JobLayout(chief=0, workers={0: 0, 1: 1}, servers=servers, evaluator=4, size=5)
    return WordRole(JobContext(TrainConfig(algorithm=BA3CConfig()), run_dir, layout), Transport(rank))


@pytest.mark.parametrize("servers, others", [((2, 3), [1, 2, 3]), ((0,), [1])])
def test_the_chief_speaks_to_workers_and_servers_once_in_a_while_until_the_end(tmp_path, clock, servers, others):
    chief = role(0, tmp_path, servers)
    for _ in range(3):
        chief.advance()
    assert [message.peer for message in chief._transport.sent] == others and chief.waits() is None
    assert all(message.newest_only for message in chief._transport.sent), "one that hangs is not sent ever more"
    clock.seconds += word.WORD_SECONDS
    chief.advance()
    assert len(chief._transport.sent) == 2 * len(others)
    chief.handle(Blob(0, Topic.END, b""))
    clock.seconds += word.WORD_SECONDS
    chief.advance()
    assert chief.finished and len(chief._transport.sent) == 2 * len(others)


def test_the_others_wait_for_the_next_word_and_for_none_after_the_end(tmp_path, clock):
    server = role(2, tmp_path)
    server.advance()
    first = server.waits()
    assert (first.peers, first.patience_seconds) == (
        (0,),
        TrainConfig(algorithm=BA3CConfig()).run.start_seconds,
    ) and not server._transport.sent
    assert server._transport.opened == [Channel(0, Kind.WORD)]
    server.handle(Message(0, Header(Kind.WORD)))
    second = server.waits()
    assert second.what != first.what and second.patience_seconds == 0.0
    assert server.waits() == second, "a wait that lasts stays the same"
    server.handle(Blob(0, Topic.END, b""))
    assert server.finished and server.waits() is None
