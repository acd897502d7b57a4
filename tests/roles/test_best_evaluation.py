"""The parameters of the best evaluation: kept while others are worse, over resumes, full disks and damage."""

from __future__ import annotations

import dataclasses
import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest

from ddrl import algorithms, rundir
from ddrl import checkpoint as checkpoints
from ddrl.files import temporary_path
from ddrl.roles import best_evaluation
from ddrl.roles.best_evaluation import BestEvaluation
from ddrl.types import Machine

CONFIG = algorithms.preset("smoke", None, Machine(2, 1 << 34))


class Part:
    """A part of a run: what an evaluator keeps in it, and notes."""

    def __init__(self, run_dir):
        self.run_dir, self.events = run_dir, []
        context = SimpleNamespace(config=CONFIG, run_dir=run_dir)
        self._keeps = BestEvaluation(context, (("w", (3,)),), lambda *event: self.events.append(event))

    def play(self, version, mean, games=4, timed_out=0):
        """Has a version evaluated; its parameters are its number."""
        content = {"version": version, "agent_steps": 10 * version, "wall_seconds": 0.5, "stamp": {"seed": 1}}
        content |= {"games": games, "timed_out": timed_out}
        scores = {"mean": mean, "maximum": 9.0} if games else {}
        self._keeps.take(content | scores, np.full(3, version, np.float32))

    @property
    def best(self):
        return checkpoints.load(checkpoints.best_path(self.run_dir))


@pytest.fixture
def begin(tmp_path):
    """Begins a part of one run."""
    return lambda: Part(tmp_path)


def test_the_first_of_the_highest_mean_is_kept_with_what_acting_needs(begin):
    part = begin()
    for version, mean in ((1, -1.0), (2, 3.0), (3, 2.5), (4, 3.0)):
        part.play(version, mean)
    best = part.best
    assert (best.version, best.agent_steps, best.parameters.tolist()) == (2, 20, [2.0, 2.0, 2.0])
    told = {"mean": 3.0, "maximum": 9.0, "games": 4, "timed_out": 0, "version": 2, "agent_steps": 20}
    assert best.counters == {"evaluation": told | {"wall_seconds": 0.5}}
    assert best.layout == (("w", (3,)),) and rundir.config_from_dict(best.config) == CONFIG
    assert (best.slots, best.worker_states, part.events) == ({}, {}, [])


def test_an_evaluation_without_a_score_or_with_games_cut_off_is_not_kept(begin, tmp_path):
    part = begin()
    part.play(1, 0.0, games=0, timed_out=4)
    part.play(2, 7.0, timed_out=1)
    assert list(tmp_path.iterdir()) == [] and part.events == []


def test_a_resumed_run_goes_on_comparing(begin):
    begin().play(5, 3.0)
    part = begin()
    part.play(3, 2.0)
    assert part.best.version == 5
    part.play(6, 3.5)
    assert part.best.version == 6 and part.events == []


def test_a_full_disk_leaves_the_one_before_and_the_next_better_one_is_written(begin, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    part = begin()
    part.play(1, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        part.play(2, 9.0)
    ((name, text),) = part.events
    assert name == "best_not_saved" and "best.npz" in text and "No space left" in text
    assert part.best.version == 1
    part.play(3, 2.0)
    assert part.best.version == 3, "better than any that was kept"


@pytest.mark.parametrize("kind", ["damaged", "of a version"])
def test_a_file_that_tells_no_mean_is_named_and_replaced(begin, kind):
    before = begin()
    before.play(5, 3.0)
    path = checkpoints.best_path(before.run_dir)
    if kind == "damaged":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        checkpoints.save_best(before.run_dir, dataclasses.replace(before.best, counters={}))
    part = begin()
    part.play(6, 2.0)
    ((name, text),) = part.events
    assert name == "checkpoint_left_out" and str(path) in text and "\n" not in text
    assert part.best.version == 6


def test_a_file_that_cannot_be_read_now_is_not_replaced_by_what_may_be_worse(begin, monkeypatch):
    def failing(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    begin().play(5, 3.0)
    part = begin()
    with monkeypatch.context() as patch:
        patch.setattr(best_evaluation, "read_regular", failing)
        part.play(6, 2.0)
    ((name, text),) = part.events
    assert name == "best_not_saved" and "update 6: cannot read " in text and "Input/output error" in text
    assert part.best.version == 5
    part.play(7, 2.5)
    assert part.best.version == 5, "it is read again"
    part.play(8, 3.5)
    assert part.best.version == 8 and len(part.events) == 1


def test_what_a_killed_evaluator_left_goes_away_at_the_next_start(begin, tmp_path):
    begin().play(5, 3.0)
    leftover = temporary_path(tmp_path / "checkpoints" / "best.npz")
    leftover.write_bytes(b"half")
    begin()
    assert not leftover.exists() and begin().best.version == 5
