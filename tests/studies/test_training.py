"""A point that is a real run of `ddrl train`: it finishes, goes on with the minutes left, and says why it fails."""

from __future__ import annotations

import pytest

from ddrl import rundir
from ddrl.algorithms import preset
from ddrl.reporting.metrics import read_metrics
from ddrl.studies import points
from ddrl.studies.points import Point, note_failure, state_of
from ddrl.studies.training import train_point
from ddrl.types import Machine

CONFIG = preset("smoke", None, Machine(2, 1 << 40), "a2c").changed(
    run={"minutes": 0.0, "max_updates": 30, "video": False}, evaluation={"evaluator": False}
)


@pytest.mark.parametrize("status", ["finished", "running"])
def test_a_failure_is_not_noted_in_the_run_of_another_process_or_one_that_has_finished(tmp_path, monkeypatch, status):
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished"})
    monkeypatch.setattr(points, "state_of", lambda path: points.State(status))
    note_failure(tmp_path, "is being trained by another process")
    assert rundir.read_json(tmp_path / rundir.RESULT) == {"status": "finished"}


@pytest.mark.timeout(240)
def test_a_tiny_point_is_trained(tmp_path):
    path = tmp_path / "[/points]" / "tiny"  # a name that looks like markup of the console
    note_failure(path, "an earlier start that came to nothing")
    train_point(Point("tiny", CONFIG, {}), path)
    assert state_of(path).status == "finished"
    assert max(record.get("update", 0) for record in read_metrics(path)) == 30


def test_a_point_that_goes_on_has_what_is_left_of_its_minutes(tmp_path, monkeypatch):
    """And as much time for its final evaluation as all of them give."""
    from ddrl.launch import local

    calls, path = [], tmp_path / "run"

    def train(config, resume, machine, console, minutes_of_run):
        calls.append((config, resume, minutes_of_run))
        return 0

    monkeypatch.setattr(local, "train", train)
    config = CONFIG.changed(run={"minutes": 10.0, "run_dir": str(path)})
    train_point(Point("p", CONFIG.changed(run={"minutes": 10.0}), {}), path)
    rundir.create_run_dir(config)
    train_point(Point("p", CONFIG.changed(run={"minutes": 10.0}), {}), path)
    assert calls == [(config, None, True), (config, path, True)]


def test_a_failure_is_told_in_the_words_of_the_run(tmp_path, monkeypatch):
    from ddrl.launch import local

    def fail(config, resume, machine, console, minutes_of_run):
        console.print("ddrl: the run failed: a rank died")
        console.print("see log.txt")
        return 1

    monkeypatch.setattr(local, "train", fail)
    with pytest.raises(RuntimeError, match="^the run failed: a rank died$"):
        train_point(Point("p", CONFIG, {}), tmp_path / "p")
