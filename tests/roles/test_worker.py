"""How long a worker's gradients take, by its own count."""

from __future__ import annotations

import pytest

from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles import worker
from ddrl.roles.worker import WorkerRole


@pytest.fixture
def timed(monkeypatch):
    """timed(EVENT...) -> the milliseconds of each gradient; an event is (second, "came" or "sent", version)."""

    def play(*events):
        role = WorkerRole.__new__(WorkerRole)
        role.metrics, role._arrived, role._submitted = RankMetrics("worker", 0), {}, 0.0
        found = []
        for second, what, version in events:
            monkeypatch.setattr(worker.time, "monotonic", lambda: second)
            if what == "came":
                role._arrived[version] = second
                continue
            role._computed(version)
            total, count = role.metrics.report()["means"]["compute_ms"]
            found.append(total / count)
        return found

    return play


def test_a_gradient_takes_from_its_parameters_to_its_end(timed):
    assert timed((1.0, "came", 1), (1.25, "sent", 1), (2.0, "came", 2), (2.5, "sent", 2)) == [250.0, 500.0]


def test_one_that_was_late_is_counted_and_the_next_begins_after_it(timed):
    events = ((1.0, "came", 1), (1.5, "came", 2), (2.0, "sent", 1), (2.25, "sent", 2), (2.5, "sent", 2))
    assert timed(*events) == [1000.0, 250.0, 250.0]
