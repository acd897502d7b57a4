"""Places of unfinished files: those of killed processes are removed, and those of others never."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

from ddrl import run_lock
from ddrl import unfinished as unfinished_module
from ddrl.unfinished import check_place, owner_of, unfinished

WRITES = """\
import sys, time
from pathlib import Path
from ddrl.unfinished import unfinished

with unfinished(Path(sys.argv[1])) as place:
    place.mkdir()
    (place / "part").write_text("half")
    print(place, flush=True)
    time.sleep(100)
"""


def abandon(path: Path, machine: str = "") -> Path:
    """Makes what a killed process leaves beside `path`, of this machine if no other is named."""
    directory = path.with_name(f".{path.name}.0.tmp")
    (directory / path.name).mkdir(parents=True)
    owner_of(directory / path.name).write_text(machine or f"{run_lock.boot_id()} {socket.gethostname()}")
    return directory


def test_what_is_whole_has_its_name_and_nothing_else_is_left(tmp_path):
    with unfinished(tmp_path / "a[b].mp4") as place:
        assert place.name == "a[b].mp4" and place.parent.stat().st_mode & 0o777 == 0o700
        place.write_text("whole")
        place.replace(tmp_path / "a[b].mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["a[b].mp4"]
    with pytest.raises(ValueError, match="not whole"), unfinished(tmp_path / "model") as place:
        place.mkdir()
        raise ValueError("not whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a[b].mp4"]


@pytest.mark.parametrize("name", ["owner", "model.owner", ".owner"])
def test_any_name_can_be_written(tmp_path, name):
    for _ in range(2):
        with unfinished(tmp_path / name) as place:
            place.mkdir()
        assert not list(tmp_path.iterdir())


def test_an_error_in_a_place_names_what_the_user_has_named(tmp_path):
    path = tmp_path / "a.gif"
    path.mkdir()
    with pytest.raises(IsADirectoryError) as error, unfinished(path) as place:
        place.write_bytes(b"whole")
        place.replace(path)
    assert (error.value.filename, error.value.filename2) == (str(path), None)
    with pytest.raises(FileNotFoundError) as error, unfinished(path) as place:
        (place / "part").read_bytes()
    assert error.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as error, unfinished(path):
        (tmp_path / "other").read_bytes()
    assert error.value.filename == str(tmp_path / "other") and list(tmp_path.iterdir()) == [path]


def test_a_place_that_is_taken_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda size: "0")
    taken = abandon(tmp_path / "model", "elsewhere")
    with pytest.raises(FileExistsError, match="/model'$"), unfinished(tmp_path / "model"):
        pass
    assert len(list(taken.iterdir())) == 2


def test_a_place_is_kept_as_long_as_its_process_lives_and_removed_when_it_was_killed(tmp_path):
    path = tmp_path / "model"
    command = [sys.executable, "-c", WRITES, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            place = Path(process.stdout.readline().strip())
            with unfinished(path), unfinished(path):  # nor does one process remove its own
                assert (place / "part").read_text() == "half" and len(list(tmp_path.iterdir())) == 3
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == [place.parent]
    with unfinished(path):
        assert not place.parent.exists()
    assert not list(tmp_path.iterdir())


def test_only_what_is_known_to_be_abandoned_is_removed(tmp_path, monkeypatch):
    path = tmp_path / "model"
    kept = {abandon(path, "elsewhere"), abandon(tmp_path / "model2"), abandon(tmp_path / "xmodel")}
    begun, linked = tmp_path / ".model.1.tmp", tmp_path / ".model.2.tmp"
    begun.mkdir()  # its process has not come further
    os.mkfifo(owner_of(begun / "model"))
    outside = abandon(tmp_path / "other")
    linked.symlink_to(outside)
    with unfinished(path):
        pass
    assert set(tmp_path.iterdir()) == kept | {begun, linked, outside} and len(list(outside.iterdir())) == 2


@pytest.mark.parametrize("machine", [f"another {socket.gethostname()}", f"{run_lock.boot_id()} another"])
def test_what_another_machine_of_the_same_name_or_boot_writes_is_left_alone(tmp_path, machine):
    """It may be alive, since its lock is not seen here."""
    leftover = abandon(tmp_path / "model", machine)
    with unfinished(tmp_path / "model"):
        pass
    assert list(tmp_path.iterdir()) == [leftover]


def test_where_the_system_does_not_name_the_machine_nothing_counts_as_abandoned(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "BOOT_ID", tmp_path / "missing")
    leftover = abandon(tmp_path / "model")
    with unfinished(tmp_path / "model") as place:
        assert not owner_of(place).read_bytes()
    assert list(tmp_path.iterdir()) == [leftover]


def test_where_nothing_can_be_locked_nothing_counts_as_abandoned(tmp_path, monkeypatch):
    def flock(*arguments):
        raise OSError("no locks")

    with monkeypatch.context() as patch, unfinished(tmp_path / "model") as outer:
        patch.setattr(unfinished_module.fcntl, "flock", flock)
        with unfinished(tmp_path / "model") as place:
            assert not owner_of(place).read_bytes()
            patch.undo()
            with unfinished(tmp_path / "model"):
                assert place.parent.exists() and outer.parent.exists()


def test_a_file_system_that_is_read_only_is_told_of(tmp_path, monkeypatch):
    check_place(tmp_path / "no" / "such" / "model")
    monkeypatch.setattr(os, "statvfs", lambda path: types.SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(OSError, match="Read-only file system") as error:
        check_place(tmp_path / "no" / "such" / "model")
    assert error.value.filename == str(tmp_path)
