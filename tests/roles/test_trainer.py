"""A worker's trainer: how it stops, how it fails, and what its gradients carry."""

from __future__ import annotations

import threading
import types

import numpy as np
import pytest

from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.trainer import Trainer
from ddrl.types import DataPoints, Snapshot

TENSORS = ("hidden/kernel", (1, 3)), ("hidden/bias", (1,)), ("policy/kernel", (2,))


class Closed:
    """A schedule that fails as soon as it is stopped."""

    def __init__(self):
        self.began, self._stopped = threading.Event(), threading.Event()

    def next_batch(self, wait_for_snapshot):
        self.began.set()
        assert self._stopped.wait(60.0)
        raise RuntimeError("closed")

    def stop(self):
        self._stopped.set()


def test_what_fails_because_of_the_stop_is_no_failure():
    schedule = Closed()
    trainer = Trainer(schedule, None, RankMetrics("worker", 0), lambda: None, lambda version: 1.0, TENSORS)
    trainer.start()
    assert schedule.began.wait(60.0)
    trainer.stop()
    trainer._thread.join(60.0)  # the machine may pause for longer than a stop waits
    assert trainer.error is None and not trainer._thread.is_alive()


def test_any_other_failure_is_told():
    schedule, told = Closed(), threading.Event()
    trainer = Trainer(schedule, None, RankMetrics("worker", 0), told.set, lambda version: 1.0, TENSORS)
    trainer.start()
    schedule.stop()
    assert told.wait(60.0) and trainer.error["line"].startswith("RuntimeError: closed (test_trainer.py, line ")
    assert trainer.error["text"].startswith("Traceback")
    trainer.stop()


@pytest.mark.parametrize(
    ("value", "norm", "finite"),
    [
        (3e18, 3e18, True),
        (3e38, np.inf, False),  # twice that is infinite
        (np.inf, np.inf, False),
        (np.nan, np.nan, False),
    ],
)
def test_a_gradient_whose_norm_overflows_is_not_finite(value, norm, finite):
    found = np.array([1.0, value], np.float32), {"gradient_norm": norm}, None
    trainer, _ = trainer_of(found)
    assert trainer._gradient(Snapshot(5, 7, np.zeros(2, np.float32)), batch_of()).finite == finite


def trainer_of(found):
    """A trainer whose learner finds this in every batch, and its metrics."""
    learner = types.SimpleNamespace(gradient=lambda *what: found, context=())
    schedule, metrics = types.SimpleNamespace(contribution=lambda batch: None), RankMetrics("worker", 1)
    return Trainer(schedule, learner, metrics, lambda: None, lambda version: 1.0, TENSORS), metrics


def batch_of(**fields):
    four = np.zeros(4, np.float32)
    batch = DataPoints(np.zeros((4, 2), np.uint8), four.astype(np.int32), four, four, four.astype(np.int64))
    return batch._replace(**fields)


def test_the_first_gradient_that_is_not_finite_is_told_of_with_its_tensor_and_cause():
    nan = np.nan
    found = np.array([1, nan, nan, 2, nan, 3], np.float32), {"loss": nan, "entropy": 1.0, "gradient_norm": nan}, None
    trainer, metrics = trainer_of(found)
    snapshot = Snapshot(5, 7, np.zeros(6, np.float32))
    for returns in ([0, nan, np.inf, 0], [nan] * 4):
        assert not trainer._gradient(snapshot, batch_of(return_=np.array(returns, np.float32))).finite
    (event,) = metrics.report()["events"]
    assert event["name"] == "gradient_not_finite"
    assert event["text"] == (
        "the gradient of worker 1 at update 5 is not finite: 2 of 3 values of hidden/kernel, and some of 1 other "
        "tensor; not finite before it: 2 of 4 values of the batch's return_, its loss; later ones are not reported"
    )


def test_a_finite_gradient_is_not_looked_at(monkeypatch):
    monkeypatch.setattr("ddrl.roles.trainer.where_not_finite", None)
    trainer, metrics = trainer_of((np.zeros(6, np.float32), {"gradient_norm": 0.0}, None))
    assert trainer._gradient(Snapshot(5, 7, np.zeros(6, np.float32)), batch_of()).finite
    assert metrics.report()["events"] == []


@pytest.mark.parametrize("shape", [(20,), (5, 4)], ids=["transitions", "unrolls"])
def test_every_data_point_of_a_gradient_counts(shape):
    """Those of unrolls are T steps of B simulators."""
    found = np.zeros(2, np.float32), {"gradient_norm": 0.0}, None
    learner = types.SimpleNamespace(gradient=lambda *what: found, context=())
    schedule = types.SimpleNamespace(contribution=lambda batch: None)
    metrics = RankMetrics("worker", 0)
    trainer = Trainer(schedule, learner, metrics, lambda: None, lambda version: 1.0, TENSORS)
    batch = types.SimpleNamespace(behaviour_version=np.full(shape, 3, np.int64))
    assert trainer._gradient(Snapshot(5, 7, None), batch).samples == 20
    report = metrics.report()
    assert report["counters"]["datapoints"] == 20 and report["counters"]["gradients"] == 1
    assert tuple(report["means"]["lag"]) == (2.0 * 20, 20)


def test_every_step_has_random_numbers_of_its_own():
    """Those of SAC's actions; the same ones again after a resume, which is at the same step."""
    keys = {}
    for seed in ((1, 0), (1, 1), (2, 0)):
        learner = types.SimpleNamespace(context=("key",))
        trainer = Trainer(None, learner, RankMetrics("worker", 0), lambda: None, lambda version: 1.0, TENSORS, seed)
        for step in range(20):
            keys[seed, step] = tuple(trainer._context(Snapshot(3, step, None)).key)
            assert tuple(trainer._context(Snapshot(3, step, None)).key) == keys[seed, step]
    assert len(set(keys.values())) == 60
