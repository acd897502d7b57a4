"""Runs that are found, that come and that go."""

from __future__ import annotations

import os

from ddrl.board.board import SEARCH_SECONDS, Board
from ddrl.board.discovery import find_runs
from tests.board.runs import make_run, train_record


def test_runs_are_found_at_any_level_and_once(tmp_path):
    for name in ("a", "study/points/size1-seed1", "study/points/size2-seed1"):
        make_run(tmp_path / "runs" / name)
    make_run(tmp_path / "runs" / "a" / "inside")  # a run's own directories are not looked into
    make_run(tmp_path / "runs" / ".hidden")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    os.mkfifo(tmp_path / "runs" / "config.json")
    found = find_runs([tmp_path / "runs"])
    assert set(found.values()) == {"a", "study/points/size1-seed1", "study/points/size2-seed1"}
    assert set(find_runs([tmp_path / "runs" / "a"]).values()) == {"a"}
    several = find_runs([tmp_path / "runs" / "a", tmp_path / "runs" / "study"])
    assert str(tmp_path / "runs" / "a") in several.values() and len(several) == 3


def test_runs_come_and_go_while_the_page_is_open(tmp_path):
    now = [0.0]
    make_run(tmp_path / "first").write(train_record(1))
    board = Board([tmp_path], clock=lambda: now[0])
    (first,) = board.runs(0)["runs"]
    writer = make_run(tmp_path / "second")
    assert board.runs(first["version"])["runs"] == []
    now[0] += SEARCH_SECONDS
    (second,) = board.runs(first["version"])["runs"]
    assert second["name"] == "second"
    writer.write(train_record(7))
    now[0] += SEARCH_SECONDS
    (changed,) = board.runs(second["version"])["runs"]
    assert changed["update"] == 7
    (tmp_path / "first").rename(tmp_path.parent / "elsewhere")
    now[0] += SEARCH_SECONDS
    assert board.runs(changed["version"])["ids"] == [second["id"]]


def test_long_runs_are_read_one_after_the_other(tmp_path):
    for name in ("a", "b"):
        writer = make_run(tmp_path / name)
        for line in range(200):
            writer.write(train_record(line, padding="x" * 400))
    board = Board([tmp_path])
    answer = board.runs(0)
    assert answer["reading"] == 2 and [row["update"] for row in answer["runs"]] == [199, 199]
    assert board.series([1], ["train/update"])["1"]["columns"]["train/update"] == list(range(200))
    assert board.runs(1)["reading"] == 0
