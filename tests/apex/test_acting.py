"""What the process of an actor sends, and with which exploration."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ddrl.algorithms.dqn import DQNConfig
from ddrl.apex import acting
from ddrl.apex.acting import Clock, Sender
from ddrl.apex.child import Frame
from ddrl.apex.shard_replay import ShardReplay
from ddrl.config.apex import ApexConfig
from ddrl.errors import UsageError
from ddrl.reporting.rank_metrics import RankMetrics
from tests.apex.apex_world import config_of
from tests.apex.segments import IMAGES, noise


class Sent(list):
    def send_segment(self, data, ahead):
        self.append(data)
        self.ahead = ahead


@pytest.mark.parametrize("duplicates", [1, 3])
def test_each_transition_is_inserted_so_many_times(duplicates):
    link, random, replay = Sent(), np.random.default_rng(0), ShardReplay(IMAGES, 1000, run=1)
    sender = Sender(link, IMAGES, RankMetrics("actor", 0), 2, duplicates)
    segments = [noise(IMAGES, random, actor=0, run_id=1, simulator=b, first_step=0) for b in (0, 1)]
    for segment in segments:
        sender.send(segment)
    assert len(link) == link.ahead == 2 * duplicates and all(replay.insert(data) for data in link)
    assert replay.inserted == duplicates * sum(len(segment.row) for segment in segments) and replay.refused == 0


def test_segments_that_a_shard_would_refuse_are_not_sent_but_counted_and_told_of_once():
    link, told, metrics = Sent(), [], RankMetrics("actor", 0)
    link.send = lambda *frame: told.append(frame)
    sender, random = Sender(link, IMAGES, metrics, 2), np.random.default_rng(0)
    for number, reward in enumerate((np.nan, np.inf, 1.0)):
        segment = noise(IMAGES, random, first_step=10 * number)
        segment.reward[4] = reward
        sender.send(segment)
    ((kind, _, text),) = told
    assert kind == Frame.COMPLAINT and b"1 of 10 values of reward" in text
    assert len(link) == 1 and metrics.report()["counters"]["segments_not_sent"] == 2


def test_a_ladder_of_few_values_has_its_two_ends_and_neighbors_share():
    settings = {"epsilon_end": 0.4, "epsilon_steps": 0, "epsilon_ladder": 7.0}
    place, steps = np.arange(360) / 359, np.ones(360)
    full, few = (DQNConfig(**settings, epsilon_values=n).epsilon(steps, place) for n in (0, 6))
    assert few[[0, -1]] == pytest.approx(full[[0, -1]]) and (np.diff(few) <= 0).all()
    values, counts = np.unique(few, return_counts=True)
    assert len(values) == 6 and counts.max() - counts.min() <= 2


def test_a_ladder_of_one_value_and_no_insert_at_all_are_refused():
    for settings in ({"epsilon_values": 1, "epsilon_ladder": 7.0}, {"epsilon_values": 6}):
        with pytest.raises(UsageError, match="--epsilon-values"):
            DQNConfig(**settings)
    with pytest.raises(UsageError, match="--duplicates 0"):
        ApexConfig(duplicates=0)


def test_the_last_word_of_a_process_is_what_ends_it(monkeypatch, tmp_path):
    sent = []

    def act(config, actor, run_id, agent_steps, cores, link):
        assert (config, actor, run_id, agent_steps, cores) == ("settings", 3, 7, 1_000, 2)
        raise ValueError("the ball is lost")

    for name in ("end_with_parent", "refuse_exits", "expose_gpu"):
        monkeypatch.setattr(acting, name, lambda *arguments: None)
    monkeypatch.setattr(acting, "load_config", lambda run_dir: "settings")
    monkeypatch.setattr(acting, "Link", lambda *pipes: SimpleNamespace(send=lambda *frame: sent.append(frame)))
    monkeypatch.setattr(acting, "act", act)
    monkeypatch.setattr("sys.argv", ["acting", str(tmp_path), "3", "7", "1000", "2", "1", "8", "9"])
    with pytest.raises(ValueError):
        acting.main()
    ((kind, _, data),) = sent
    told = json.loads(data)
    assert kind == Frame.FAILURE and "Traceback" in told["text"]
    assert told["line"].startswith("ValueError: the ball is lost (test_acting.py, line ")


def test_what_a_killed_process_has_not_reported_is_little(monkeypatch):
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(acting, "time", SimpleNamespace(monotonic=lambda: now.time))
    reports = SimpleNamespace(send=lambda kind, number, data: sent.append(kind))
    sent, metrics = [], RankMetrics("actor", 0)
    clock = Clock(config_of(run={"log_every_seconds": 60.0}, apex={"refresh_every_frames": 10_000}), metrics, 4.0)
    for _ in range(100):
        now.time += 0.1
        clock.acted(reports, 0)
    assert set(sent) == {Frame.REPORT} and 8 <= len(sent) <= 10
