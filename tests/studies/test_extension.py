"""A study that has begun gets more repeats: the points that it would have had with them, after those that it has."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ddrl import rundir
from ddrl.commands import study as command
from ddrl.errors import UsageError
from ddrl.studies import plan as plans
from ddrl.studies import simulate
from ddrl.studies.extension import extended
from ddrl.studies.points import POINTS
from ddrl.studies.settings import to_json
from ddrl.types import Machine
from tests.studies import support
from tests.studies.support import fake

FOUR = Machine(4, 1 << 40)
MORE = {"race": {"peer_python": "python"}, "simulate": {"validate": True}}
"""Settings with which these studies have points of every kind."""
BEGUN = ["size1-seed1", "size1-seed2", "size2-seed1", "size2-seed2"]
ADDED = ["size1-seed3", "size2-seed3", "size1-seed4", "size2-seed4"]


def names(directory):
    return [point.name for point in plans.load(directory, "fake").points]


@pytest.mark.parametrize("name", command.STUDIES)
def test_a_study_has_the_points_that_it_would_have_had_from_the_start(tmp_path, name, monkeypatch):
    times = {"average_seconds_per_byte": 1e-10, "apply_seconds_per_byte": 1e-9}
    monkeypatch.setattr(simulate, "time_server", lambda *_: times)  # measured, they are others each time
    study = command.study_of(name)
    settings = dataclasses.replace(study.quick, seed=7, **MORE.get(name, {}))
    few, many = (dataclasses.replace(settings, repeats=repeats) for repeats in (1, 3))
    plans.write(plans.Plan(tmp_path, name, to_json(few), tuple(study.points(few, FOUR)), "first"))
    begun = plans.load(tmp_path, name)
    plans.write(extended(study, begun, many, "second"))
    more, whole = plans.load(tmp_path, name), study.points(many, FOUR)
    assert more.points[: len(begun.points)] == begun.points and len(more.points) == len(whole)
    assert {point.name: point for point in more.points} == {point.name: point for point in whole}
    assert more.settings == to_json(many) and more.command == "first\nsecond"
    assert extended(study, more, few, "third") == more


def test_what_is_missing_runs_and_the_rest_is_kept(tmp_path, runner, capsys):
    fake("--dir", tmp_path)
    before = {name: (tmp_path / POINTS / name / "result.json").stat().st_mtime_ns for name in BEGUN}
    assert runner.ran == BEGUN
    assert fake("--dir", tmp_path, "--repeats", 4) == 0
    assert runner.ran == names(tmp_path) == BEGUN + ADDED
    assert before == {name: (tmp_path / POINTS / name / "result.json").stat().st_mtime_ns for name in BEGUN}
    assert "|    2 | 10.0; 20.0; 30.0; 40.0 |" in capsys.readouterr().out
    for again in ([], ["--repeats", 4, "--sizes", 1, 2], ["--collect", "--repeats", 4]):
        assert fake("--dir", tmp_path, *again) == 0
    assert names(tmp_path) == runner.ran == BEGUN + ADDED
    first, second = plans.load(tmp_path, "fake").command.splitlines()
    assert first == f"ddrl study fake --dir {tmp_path}" and second == f"{first} --repeats 4"
    assert second in (tmp_path / "report.html").read_text()


def test_fewer_repeats_are_refused_in_one_line(tmp_path, runner):
    fake("--dir", tmp_path)
    kept = "has 2 of each point, and keeps them; give 2 or more, leave the option out, or choose another --dir"
    with pytest.raises(UsageError) as refusal:
        fake("--dir", tmp_path, "--repeats", 1)
    assert str(refusal.value) == f"--repeats 1: the study in {tmp_path} {kept}"
    with pytest.raises(UsageError, match="--sizes 5: the study in .* was begun with 1 2"):
        fake("--dir", tmp_path, "--repeats", 3, "--sizes", 5)
    assert names(tmp_path) == BEGUN


@pytest.mark.parametrize("change", [{"name": "size1_1"}, {"seed": 9}])
def test_points_that_another_version_has_named_otherwise_are_not_repeated(tmp_path, runner, change):
    """With new names, all of them would run a second time, and count twice."""
    fake("--dir", tmp_path, "--sizes", 1, "--repeats", 1)
    begun = json.loads((tmp_path / plans.PLAN).read_text())
    (point,) = begun["points"]
    point["name"] = change.get("name", point["name"])
    point["config"]["run"]["seed"] = change.get("seed", 1)
    rundir.write_json(tmp_path / plans.PLAN, begun)
    with pytest.raises(
        UsageError, match=f"^study.json: point {point['name']} comes from another version of ddrl; choo"
    ):
        fake("--dir", tmp_path, "--repeats", 2)
    assert names(tmp_path) == [point["name"]] and runner.ran == ["size1-seed1"]


def test_what_only_reads_extends_nothing(tmp_path, runner, capsys):
    directory, packed = tmp_path / "s", tmp_path / "packed"
    fake("--dir", directory)
    fake("--dir", directory, "--pack", packed)
    capsys.readouterr()
    assert fake("--dir", directory, "--repeats", 4, "--list") == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()][4:] == [
        [str(number), name] for number, name in enumerate(ADDED, 4)
    ]
    assert fake("--dir", directory, "--repeats", 4, "--submit", "--dry-run") == 0
    assert "--array=4,5,6,7\n" in capsys.readouterr().out
    for words in (["--collect"], ["--pack", tmp_path / "other"]):
        with pytest.raises(UsageError, match=rf"--repeats 4: the study in .*s has 2 .* {words[0]} adds none"):
            fake("--dir", directory, "--repeats", 4, *words)
    with pytest.raises(UsageError, match=r"--repeats 4: the study in .*packed has 2 .* --from-data adds none"):
        fake("--dir", tmp_path / "new", "--repeats", 4, "--from-data", packed)
    assert names(directory) == BEGUN and not (tmp_path / "new").exists()


def test_a_study_from_packed_data_is_extended_on_any_machine(tmp_path, runner, monkeypatch):
    fake("--dir", tmp_path / "s")
    fake("--dir", tmp_path / "s", "--pack", tmp_path / "packed")
    fake("--from-data", tmp_path / "packed", "--dir", tmp_path / "new")
    monkeypatch.setattr(command, "this_machine", lambda: pytest.fail("the points have their settings"))
    runner.ran.clear()
    assert fake("--dir", tmp_path / "new", "--repeats", 4) == 0
    assert runner.ran == ADDED


def test_an_extension_that_is_stopped_goes_on(tmp_path, runner):
    fake("--dir", tmp_path)
    runner.acts["size2_seed3"] = "stop"
    fake("--dir", tmp_path, "--repeats", 4)
    assert runner.ran == [*BEGUN, *ADDED[:2]] and names(tmp_path) == BEGUN + ADDED
    runner.acts.clear()
    assert fake("--dir", tmp_path) == 0
    assert runner.ran == [*BEGUN, *ADDED[:2], *ADDED[1:]]


def test_a_plan_that_cannot_be_written_stays_as_it_was(tmp_path, runner, monkeypatch):
    fake("--dir", tmp_path)
    before = (tmp_path / plans.PLAN).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(UsageError, match="No space left on device; choose one that can be written"):
            fake("--dir", tmp_path, "--repeats", 4)
    assert (tmp_path / plans.PLAN).read_bytes() == before and runner.ran == BEGUN
    assert fake("--dir", tmp_path, "--repeats", 4) == 0 and runner.ran == BEGUN + ADDED


def test_an_extension_by_another_call_meanwhile_is_kept(tmp_path, runner):
    """Both looked before either of them wrote."""
    fake("--dir", tmp_path)
    begun, study = plans.load(tmp_path, "fake"), support.study(runner)
    three, four = (support.FakeSettings(repeats=repeats) for repeats in (3, 4))
    command.begin(study, extended(study, begun, three, "three"), three, "three", alone=True)
    written = command.begin(study, extended(study, begun, four, "four"), four, "four", alone=True)
    assert written == plans.load(tmp_path, "fake") and names(tmp_path) == BEGUN + ADDED
    assert written.command == f"{begun.command}\nthree\nfour"
    assert command.begin(study, extended(study, begun, four, "again"), four, "again", alone=True) == written
    with pytest.raises(UsageError, match="--repeats 3: the study in .* has 4 of each point"):
        command.begin(study, extended(study, begun, three, "late"), three, "late", alone=True)
    assert json.loads((tmp_path / plans.PLAN).read_text())["settings"]["repeats"] == 4


def test_a_point_that_is_new_is_run_alone_unless_another_call_holds_the_directory(tmp_path, runner):
    fake("--dir", tmp_path)
    with plans.held(tmp_path), pytest.raises(UsageError, match="another `ddrl study` is running in it"):
        fake("--dir", tmp_path, "--repeats", 4, "--point", "size2-seed4")
    with pytest.raises(UsageError, match="--point size2-seed5: .* has none of that name"):
        fake("--dir", tmp_path, "--repeats", 4, "--point", "size2-seed5")
    assert names(tmp_path) == runner.ran == BEGUN
    assert fake("--dir", tmp_path, "--repeats", 4, "--point", "size2-seed4") == 0
    assert runner.ran == [*BEGUN, "size2-seed4"] and names(tmp_path) == BEGUN + ADDED
    with plans.held(tmp_path):
        assert fake("--dir", tmp_path, "--repeats", 4, "--point", 4) == 0
    assert runner.ran[-1] == "size1-seed3"
