"""A point that is a real run of `ddrl train`: it finishes, goes on with the minutes left, and says why it fails."""

from __future__ import annotations

import dataclasses

import pytest

from ddrl import rundir
from ddrl.algorithms import preset
from ddrl.config import EvaluationConfig
from ddrl.launch import outcome
from ddrl.reporting.metrics import read_metrics
from ddrl.studies import points, training
from ddrl.studies.points import Point, note_failure, state_of
from ddrl.studies.training import settings_in, train_point
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


def test_a_point_that_goes_on_has_the_minutes_that_are_left(tmp_path, monkeypatch):
    config = CONFIG.changed(run={"minutes": 10.0})
    path, _ = rundir.create_run_dir(config.changed(run={"run_dir": str(tmp_path / "run")}))
    assert settings_in(config, path) == (config.changed(run={"run_dir": str(path)}), True)  # no checkpoint yet
    monkeypatch.setattr(training, "list_checkpoints", lambda path: ["one"])
    for seconds, minutes in ((240.0, 6.0), (600.0, training.SHORTEST_MINUTES)):
        loaded = dataclasses.make_dataclass("Loaded", ["wall_seconds"])(seconds)
        monkeypatch.setattr(training, "load_latest", lambda path, loaded=loaded: loaded)
        assert settings_in(config, path)[0].run.minutes == pytest.approx(minutes)


def test_a_point_that_goes_on_has_the_final_evaluation_of_all_its_minutes(tmp_path, monkeypatch):
    """Of 8% of ten minutes, and not of the three seconds that are left."""
    config = CONFIG.changed(run={"minutes": 10.0}, evaluation=EvaluationConfig())
    path, _ = rundir.create_run_dir(config.changed(run={"run_dir": str(tmp_path / "run")}))
    monkeypatch.setattr(training, "list_checkpoints", lambda path: ["one"])
    loaded = dataclasses.make_dataclass("Loaded", ["wall_seconds"])(600.0)
    monkeypatch.setattr(training, "load_latest", lambda path: loaded)
    settings, _ = settings_in(config, path)
    assert settings.evaluation.longest_final_seconds(60.0 * settings.run.minutes) == pytest.approx(48.0)
    chosen = config.changed(evaluation={"final_evaluation_minutes": 0.0})
    assert settings_in(chosen, path)[0].evaluation == chosen.evaluation


def test_a_point_that_lacks_only_its_final_evaluation_trains_no_more(tmp_path, monkeypatch):
    """It keeps the minutes of its last start, which an earlier resume had shortened to four of ten."""
    config = CONFIG.changed(run={"minutes": 10.0}, evaluation=EvaluationConfig())
    path, _ = rundir.create_run_dir(config.changed(run={"run_dir": str(tmp_path / "run"), "minutes": 4.0}))
    rundir.write_json(path / rundir.RESULT, {"status": "finished", "unevaluated": True})
    monkeypatch.setattr(training, "list_checkpoints", lambda path: ["one"])
    loaded = dataclasses.make_dataclass("Loaded", ["wall_seconds"])(600.0)
    monkeypatch.setattr(training, "load_latest", lambda path: loaded)
    settings, resumes = settings_in(config, path)
    assert resumes and outcome.lacks_evaluation_only(path, settings)
    assert settings.evaluation.longest_final_seconds(60.0 * settings.run.minutes) == pytest.approx(48.0)


def test_a_failure_is_told_in_the_words_of_the_run(tmp_path, monkeypatch):
    from ddrl.launch import local

    def fail(config, resume, machine, console):
        console.print("ddrl: the run failed: a rank died")
        console.print("see log.txt")
        return 1

    monkeypatch.setattr(local, "train", fail)
    with pytest.raises(RuntimeError, match="^the run failed: a rank died$"):
        train_point(Point("p", CONFIG, {}), tmp_path / "p")
