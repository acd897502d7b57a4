"""Directories of mpirun's files: there while somebody owns them, swept when nobody does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cluster import session
from cluster.launch import start_process
from cluster.session import SEGMENT_DIRECTORY, SESSION_DIRECTORY, SessionFiles


def test_the_directory_is_this_users_alone_and_named_to_mpirun(tmp_path):
    with SessionFiles(str(tmp_path)) as files:
        assert os.listdir(tmp_path) == [os.path.basename(files.path)]
        assert os.stat(files.path).st_mode & 0o077 == 0
        assert files.variables == {SESSION_DIRECTORY: files.path, SEGMENT_DIRECTORY: files.path}
    assert os.listdir(tmp_path) == []


def test_what_a_killed_owner_left_is_swept_by_the_next_start(tmp_path):
    program = (
        f"from cluster.session import SessionFiles; SessionFiles({str(tmp_path)!r}); print(1, flush=True); input()"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"1\n"
    (left,) = tmp_path.iterdir()
    (left / "segment").write_bytes(b"x" * 100)
    with SessionFiles(str(tmp_path)):
        assert left.exists(), "its owner lives"
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    with SessionFiles(str(tmp_path)) as files:
        assert [str(path) for path in tmp_path.iterdir()] == [files.path]


def test_a_started_process_owns_the_files_too(tmp_path):
    files = SessionFiles(str(tmp_path))
    process = start_process([sys.executable, "-c", "input()"], os.environ, files, stdin=subprocess.PIPE)
    os.close(files.lock)  # as if whoever started it were dead
    session.sweep(str(tmp_path))
    assert os.path.isdir(files.path)
    process.communicate(b"\n")
    session.sweep(str(tmp_path))
    assert not os.path.exists(files.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a directory to another user")
def test_another_users_directory_stays(tmp_path):
    other = tmp_path / f"{session.PREFIX}other"
    other.mkdir()
    (other / session.OWNER).touch()
    os.chown(other, 65534, 65534)
    session.sweep(str(tmp_path))
    assert other.exists()


def test_what_is_no_directory_of_ours_stays(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / session.OWNER).touch()
    (tmp_path / f"{session.PREFIX}link").symlink_to(target)
    (tmp_path / f"{session.PREFIX}file").touch()
    session.sweep(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3


def test_what_was_being_made_or_removed_when_its_owner_was_killed_is_swept(tmp_path):
    half, making, old = (
        tmp_path / name for name in (f"{session.PREFIX}a", f"{session.UNOWNED}b", f"{session.UNOWNED}c")
    )
    for path in (half, making, old):
        path.mkdir()
    os.utime(old, (0, 0))
    session.sweep(str(tmp_path))
    assert list(tmp_path.iterdir()) == [making]


def test_without_shared_memory_the_temporary_directory_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "SHARED_MEMORY", str(tmp_path / "none"))
    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))
    with SessionFiles() as files:
        assert os.path.dirname(files.path) == str(tmp_path)
