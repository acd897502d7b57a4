"""The Python of a race's peer: it belongs to the machine, and a study that goes on may be told of another."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ddrl import cli, rundir
from ddrl.commands import study as command
from ddrl.errors import UsageError
from ddrl.studies import data
from ddrl.studies import plan as plans
from ddrl.studies.race import RACE, RaceSettings
from ddrl.studies.settings import from_json, to_json
from tests.bench.fake_peer import peer_python
from tests.studies.support import MACHINE

OURS, THEIRS = "cartpole-v1-ddrl-a2c-seed{}", "cartpole-v1-SB3-ppo-seed{}"
OLD = "peer/bin/python"


@pytest.fixture
def ran(monkeypatch):
    """The points of `ddrl study race` that have run, each with the Python that it was given; they train nothing."""
    ran = []

    def run(point, path, peer_python):
        ran.append((point.name, peer_python))
        path.mkdir(parents=True)
        rundir.write_json(path / rundir.RESULT, {"status": "finished"})

    monkeypatch.setattr(command, "study_of", lambda name: dataclasses.replace(RACE, run=run))
    return ran


def race(directory, *words):
    return command.main(["race", "--dir", str(directory), *words])


def test_it_is_kept_beside_the_study_and_may_be_named_anew(tmp_path, monkeypatch, ran):
    directory, first, other = tmp_path / "race", peer_python(tmp_path, ""), tmp_path / "other"
    monkeypatch.chdir(tmp_path)
    quick = ("--quick", "--repeats", "4", "--peer-python", "python")
    assert race(directory, *quick, "--point", THEIRS.format(1)) == 0
    begun = (directory / plans.PLAN).read_text()
    assert "peer_python" not in begun and len(json.loads(begun)["points"]) == 12
    other.mkdir()
    monkeypatch.chdir(other)
    assert race(directory, "--point", THEIRS.format(2)) == 0, "the path that was typed leads nowhere from here"
    second = peer_python(other, "")
    assert race(directory, "--peer-python", second, "--point", THEIRS.format(3)) == 0
    assert race(directory, "--point", THEIRS.format(4)) == 0
    pythons = (first, first, second, second)
    assert ran == [(THEIRS.format(seed), python) for seed, python in enumerate(pythons, 1)]
    assert (directory / plans.PLAN).read_text() == begun
    with pytest.raises(UsageError, match="--eval-every-minutes 9: the study in .* was begun with 0.2"):
        race(directory, "--eval-every-minutes", "9")


@pytest.mark.parametrize("kind", ["nothing", "a directory", "a file that cannot be executed"])
def test_a_race_does_not_begin_or_go_on_without_it(tmp_path, ran, capsys, kind):
    python, directory = tmp_path / "there" / "python", tmp_path / "race"
    python.parent.mkdir()
    if kind == "a directory":
        python.mkdir()
    elif kind != "nothing":
        python.write_text("")
    words = ["study", "race", "--quick", "--dir", str(directory), "--peer-python"]
    refusal = f"ddrl: --peer-python {python}: there is no executable file; python -m venv PEER && "
    assert cli.main([*words, str(python)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(refusal)
    assert not directory.exists() and ran == []
    assert cli.main([*words, peer_python(tmp_path, ""), "--point", OURS.format(1)]) == 0
    assert cli.main([*words, str(python)]) == 2, "before any of its points runs"
    assert capsys.readouterr().err.splitlines()[-1].startswith(refusal)
    assert [name for name, _ in ran] == [OURS.format(1)]


def test_one_that_has_gone_is_told_of_unless_only_ours_are_left_to_run(tmp_path, ran):
    directory, python = tmp_path / "race", peer_python(tmp_path, "")
    quick = ("--quick", "--repeats", "2", "--peer-python", python)
    assert race(directory, *quick, "--point", THEIRS.format(1)) == 0
    (tmp_path / "python").unlink()
    for words in ((), ("--point", THEIRS.format(2))):
        with pytest.raises(
            UsageError, match="--peer-python .*python: there is no executable file; .*, then --peer-python PEER"
        ):
            race(directory, *words)
    assert race(directory, "--point", OURS.format(2)) == 0
    assert race(directory, "--list") == 0
    assert [name for name, _ in ran] == [THEIRS.format(1), OURS.format(2)]


def test_a_race_that_was_begun_without_it_has_no_use_for_it(tmp_path, ran):
    assert race(tmp_path / "race", "--quick", "--point", OURS.format(1)) == 0
    with pytest.raises(UsageError, match="--peer-python .*: the study was begun without it, so none of its points"):
        race(tmp_path / "race", "--peer-python", peer_python(tmp_path, ""))
    assert not (tmp_path / "race" / plans.LOCAL).exists()


@pytest.fixture
def earlier(tmp_path):
    """A packed race of an earlier version, of whose four points ours of the first seed has finished.

    study.json has the Python among the settings, and in the labels of the peer's points.
    """
    chosen = dataclasses.replace(RACE.quick, ours=("a2c",), peer_python=OLD, repeats=2)
    points = RACE.points(chosen, MACHINE)
    for point in points:
        if "rival" in point.labels:
            point.labels["rival"]["peer_python"] = OLD
    plan = plans.Plan(tmp_path / "earlier", "race", {**to_json(chosen), "peer_python": OLD}, tuple(points))
    plans.write(plan)
    path = plan.path(points[0])
    path.mkdir(parents=True)
    record = {"kind": "evaluation", "mean": 9.0, "maximum": 9.0, "games": 10, "version": 7, "wall_seconds": 20.0}
    (path / rundir.METRICS).write_text(json.dumps(record) + "\n")
    rundir.write_json(path / rundir.RESULT, {"status": "finished"})
    data.pack(plan, tmp_path / "packed")
    return tmp_path / "packed"


def test_a_race_of_an_earlier_version_goes_on_with_that_of_this_machine(tmp_path, monkeypatch, ran, earlier):
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "again"
    assert race(directory, "--from-data", str(earlier)) == 0
    assert race(directory, "--point", OURS.format(2)) == 0, "which needs none"
    with pytest.raises(UsageError, match="--peer-python is missing, with 1 point of .*, then --peer-python PEER"):
        race(directory, "--point", THEIRS.format(1))
    python = peer_python(tmp_path, "")
    assert race(directory, "--peer-python", python, "--point", THEIRS.format(1)) == 0
    assert race(directory, "--point", THEIRS.format(2)) == 0
    assert ran[1:] == [(THEIRS.format(1), python), (THEIRS.format(2), python)]
    assert (directory / plans.PLAN).read_bytes() == (earlier / plans.PLAN).read_bytes()


def test_a_race_whose_data_say_nothing_of_it_asks_for_it(tmp_path, ran, earlier):
    packed = json.loads((earlier / plans.PLAN).read_text())
    del packed["settings"]["peer_python"], packed["sha256"]
    rundir.write_json(earlier / plans.PLAN, packed)
    assert race(tmp_path / "again", "--from-data", str(earlier)) == 0
    missing = "--peer-python is missing, with 2 points of stable-baselines3 left to run; python -m venv PEER"
    with pytest.raises(UsageError, match=missing):
        race(tmp_path / "again")
    assert ran == []


def test_it_is_no_part_of_what_makes_settings_the_same():
    one, other = (dataclasses.replace(RACE.defaults, peer_python=python) for python in ("one", "other"))
    assert to_json(one) == to_json(other) and "peer_python" not in to_json(one)
    labels = [[point.labels for point in RACE.points(each, MACHINE)] for each in (one, other)]
    assert labels[0] == labels[1]
    assert from_json(RaceSettings, {**to_json(one), "peer_python": OLD}).peer_python == OLD
