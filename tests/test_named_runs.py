"""Runs and checkpoints as people name them, and advice that works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddrl import rundir
from ddrl.algorithms import preset
from ddrl.checkpoint import best_path, checkpoint_path
from ddrl.errors import UsageError
from ddrl.named_runs import go_on, run_and_checkpoint, run_and_checkpoint_in_one
from ddrl.options.train_options import parse
from ddrl.options.wanted import ready
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with checkpoints of updates 3 and 450, beside the current directory; only their names count."""
    for version in (3, 450):
        path = checkpoint_path(tmp_path / "a run", version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return Path("a run")


@pytest.mark.parametrize(
    "named, checkpoint, version",
    [
        ("a run", "", None),
        ("a run/checkpoints", "", None),
        ("a run/checkpoints/update-000000450.npz", "", 450),
        ("a run/checkpoints/update-450.npz", "", 450),
        ("a run", "3", 3),
        ("a run/", "450", 450),
    ],
)
def test_ways_to_name_a_checkpoint(run, named, checkpoint, version):
    file = checkpoint_path(run, version) if version else None
    assert run_and_checkpoint(named, checkpoint) == (run, file)


def test_a_file_is_named_from_within_and_from_elsewhere(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run / "checkpoints")
    path, file = run_and_checkpoint("update-000000003.npz")
    assert path == tmp_path / "a run" and file == checkpoint_path(path, 3)
    assert run_and_checkpoint("..", str(tmp_path / "other.npz")) == (Path(".."), tmp_path / "other.npz")


def test_the_best_is_named_by_a_word_or_by_its_file(run):
    named = [("a run", "best"), ("a run/checkpoints", "best"), ("a run/checkpoints/best.npz", "")]
    for each in named:
        with pytest.raises(UsageError, match="^a run has no checkpoints/best.npz: no evaluation of it has ended"):
            run_and_checkpoint(*each)
    best_path(run).touch()
    assert [run_and_checkpoint(*each) for each in named] == [(run, best_path(run))] * 3
    with pytest.raises(UsageError, match="--checkpoint 3: .*best.npz already names one"):
        run_and_checkpoint("a run/checkpoints/best.npz", "3")
    assert run_and_checkpoint("a run") == (run, None), "the newest is named as before"


@pytest.mark.parametrize(
    "named, checkpoint, message",
    [
        ("a run", "4", "a run has no checkpoint of update 4, only of updates 3, 450"),
        ("a run/checkpoints/update-4.npz", "", "has no checkpoint of update 4"),
        ("a run", "bets", "^a run has no checkpoint bets; name the number of an update, best, or a file$"),
        ("a run", "4,500", "^a run has no checkpoint 4,500; name the number of an update, best, or a file$"),
        ("a run/checkpoints/update-3.npz", "450", "--checkpoint 450: .* already names one"),
    ],
)
def test_checkpoints_that_are_not_there(run, named, checkpoint, message):
    with pytest.raises(UsageError, match=message):
        run_and_checkpoint(named, checkpoint)


def test_a_run_and_its_checkpoint_are_named_in_one_word(run):
    best_path(run).touch()
    assert run_and_checkpoint_in_one("a run") == (run, None)
    assert run_and_checkpoint_in_one("a run:3") == (run, checkpoint_path(run, 3))
    assert run_and_checkpoint_in_one("a run/checkpoints:best") == (run, best_path(run))
    assert run_and_checkpoint_in_one("a run:elsewhere/x.npz") == (run, Path("elsewhere/x.npz"))
    assert run_and_checkpoint_in_one("a run/checkpoints/update-450.npz") == (run, checkpoint_path(run, 450))
    with pytest.raises(UsageError, match="a run has no checkpoint of update 4, only of updates 3, 450"):
        run_and_checkpoint_in_one("a run:4")


def test_a_run_with_a_colon_in_its_name_is_one(run):
    named = run.rename("a run:3")
    assert run_and_checkpoint_in_one("a run:3") == (named, None)
    assert run_and_checkpoint_in_one("a run:3:450") == (named, checkpoint_path(named, 450))


def test_advice_works_with_and_without_a_checkpoint(run, tmp_path):
    assert go_on(run) == "resume with `ddrl train --resume 'a run'`"
    config = preset("smoke", None, MACHINE).changed(run={"run_dir": "new run"})
    new, _ = rundir.create_run_dir(config)
    advice = "start again with `ddrl train --resume-or-start --run-dir 'new run'`, as there is no checkpoint yet"
    assert go_on(new) == advice
    wanted = ready(parse(["--resume-or-start", "--run-dir", "new run"], MACHINE), MACHINE)
    assert wanted.resume == Path("new run")
    with pytest.raises(UsageError, match=f"--resume new run: {advice}"):
        ready(parse(["--resume", "new run"], MACHINE), MACHINE)
    (new / rundir.METRICS).write_text('{"kind": "train"}\n')
    with pytest.raises(UsageError, match=f"nothing in it is overwritten; {advice}, or choose another --run-dir"):
        rundir.create_run_dir(config)
    assert "--resume gone" in go_on("gone"), "a directory that is away for now may have checkpoints"


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda path: path.mkdir(), "is empty, so it is not a run"),
        (lambda path: path.symlink_to("nothing"), "is a link to nothing, which does not exist, so it is not a run"),
        (lambda path: path.touch(), "is a file, so it is not a run"),
        (lambda path: None, "does not exist, so it is not a run"),
    ],
)
def test_what_is_no_run_is_told_apart(tmp_path, make, why):
    make(tmp_path / "x")
    with pytest.raises(UsageError, match=why):
        rundir.load_config(tmp_path / "x")
    config = preset("smoke", None, MACHINE).changed(run={"run_dir": str(tmp_path / "x")})
    if os.path.lexists(tmp_path / "x") and not (tmp_path / "x").is_dir():
        with pytest.raises(UsageError, match="cannot make .*: it is (a link to|not a directory).*; choose another"):
            rundir.create_run_dir(config)
