"""Who is to blame for a job that stands still, and since when a rank waits: bookkeeping without threads."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.job import watchdog
from ddrl.job.role import Wait
from ddrl.job.watchdog import Report, Waits, culprit, explain


def name(rank):
    return f"rank {rank}"


def report(rank, waits="", peers=(), seconds=20.0):
    return Report(rank, name(rank), waits, peers, seconds)


def test_a_silent_rank_that_is_waited_for_is_to_blame():
    reports = [report(0, "word", (2,)), report(2, "gradients of step 3", (1,))]
    assert culprit(reports) == (1, True)
    assert explain(reports, name) == (
        "no progress: rank 1 does not answer; rank 2 has waited 20 s for gradients of step 3 from rank 1"
    )


def test_a_rank_that_waits_for_itself_is_to_blame_when_all_answer():
    reports = [report(0, "word", (2,)), report(1, "its own trainer thread"), report(2, "gradients", (1,))]
    assert culprit(reports) == (1, False)
    assert "rank 1 has waited 20 s for its own trainer thread; rank 2" in explain(reports, name)


def test_a_rank_that_waits_for_nobody_is_to_blame_before_one_that_waits():
    reports = [report(0, "word", (2, 3)), report(2), report(3, "word", (0,))]
    assert culprit(reports) == (2, False)
    assert explain(reports, name) == (
        "no progress: rank 0 has waited 20 s for word from rank 2, rank 3; rank 2 went on meanwhile: if it is only "
        "slow, raise --stall-seconds"
    )


def test_the_most_particular_witness_is_heard():
    reports = [report(0, "word", (2, 3)), report(4, "parameters", (3,)), report(2, "a decision", (0,))]
    assert "rank 4 has waited 20 s for parameters from rank 3" in explain(reports, name)


def test_the_request_for_stacks_goes_though_the_disk_takes_no_message(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(watchdog, "write_json", full)
    run = TrainConfig(algorithm=BA3CConfig()).run
    context = SimpleNamespace(run_dir=tmp_path, layout=SimpleNamespace(name=name), config=SimpleNamespace(run=run))
    (tmp_path / "stalled").touch()
    watchdog.Watchdog(context, 0, end=lambda status: None)._say([report(0, "its own loop")])
    assert list(tmp_path.iterdir()) == []


def test_what_a_job_of_more_ranks_has_left_is_no_report_of_this_one(tmp_path):
    """Its ranks have no names here, and the message would never be written."""
    for each in (report(1, "word", (0,)), report(7, "gradients", (9,))):
        (tmp_path / f"stacks-{each.rank}.txt").write_text(json.dumps(each._asdict()) + "\nThread 0x1:\n")
    (tmp_path / "stacks-0.txt").write_text('{"rank": 0}\n')
    os.mkfifo(tmp_path / "stacks-2.txt")  # a reader of which would wait for ever
    assert list(watchdog.read_reports(tmp_path, 4)) == [report(1, "word", (0,))]


def beyond(waits, now):
    return waits.longest(now)[2]


def test_only_a_wait_that_stays_the_same_counts():
    waits, a, b = Waits(10.0, 300.0, 0.0), Wait("a", (1,)), Wait("b", (1,))
    for now in range(1, 9):
        waits.note([a], now)
        assert beyond(waits, now) < 0
    waits.note([b], 9.0)
    for now in range(10, 19):
        waits.note([b], now)
        assert beyond(waits, now) < 0
    waits.note([b], 20.0)
    assert waits.longest(20.0) == (b, 11.0, 1.0)


def test_a_wait_for_what_is_on_its_way_begins_again():
    waits = Waits(10.0, 300.0, 0.0)
    for now in range(1, 60):
        waits.note([Wait("slow", (), progress=now // 9)], now)
        assert beyond(waits, now) < 0
    for now in range(60, 75):
        waits.note([Wait("slow", (), progress=7)], now)
    assert waits.longest(74.0) == (Wait("slow", (), progress=7), 14.0, 4.0)


def test_patience_prolongs_a_wait():
    waits, slow = Waits(10.0, 300.0, 0.0), Wait("slow", (), 30.0)
    for now in range(1, 31):
        waits.note([slow], now)
        assert beyond(waits, now) < 0
    waits.note([slow], 32.0)
    assert beyond(waits, 32.0) == pytest.approx(1.0)


def test_the_time_of_a_stopped_process_does_not_count():
    waits, a = Waits(10.0, 300.0, 0.0), Wait("a", (1,))
    waits.note([a], 1.0)
    assert beyond(waits, 1.0) < 0
    assert waits.longest(1000.0)[1] == 0.0
    waits.note([a], 1001.0)
    assert beyond(waits, 1001.0) < 0


def test_a_loop_that_says_that_it_works_does_not_hang_and_waits_for_nothing_meanwhile():
    waits, a = Waits(10.0, 300.0, 0.0), Wait("a", (1,))
    waits.note([a], 1.0)
    for now in range(2, 500):
        waits.working(float(now))
        assert beyond(waits, float(now)) < 0
    waits.note([a], 500.0)
    assert beyond(waits, 500.0) == pytest.approx(1.0 - 10.0), "the time before and after counts"
    late = []
    for now in range(500, 512):
        waits.note([a], float(now))
        late.append(beyond(waits, float(now)))
    assert late[-1] > 0


def test_a_loop_that_does_not_turn_is_a_wait_too():
    waits = Waits(10.0, 300.0, 0.0)
    waits.note([], 1.0)
    wait = None
    for now in range(1, int(watchdog.LOOP_SECONDS) + 3):
        wait, _, over = waits.longest(float(now))
    assert wait.what == "its own loop" and over > 0


def test_a_loop_that_hangs_is_named_instead_of_what_it_waited_for():
    waits, a = Waits(10.0, 300.0, 0.0), Wait("a", (1,))
    waits.note([a], 1.0)
    waits.note([a], 2.0)
    for now in range(3, int(watchdog.LOOP_SECONDS) + 1):
        assert beyond(waits, float(now)) < 0  # it may have come since the loop last told of it
    for now in range(int(watchdog.LOOP_SECONDS) + 1, int(watchdog.LOOP_SECONDS) + 4):
        wait, _, over = waits.longest(float(now))
    assert wait.what == "its own loop" and over > 0
