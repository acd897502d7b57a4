"""Saves that remove old checkpoints: which stay, what is read for that, and saves that fail or are interrupted."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from ddrl import checkpoint as ckpt
from ddrl.errors import UsageError
from ddrl.files import temporary_path
from ddrl.kept_checkpoints import KeptCheckpoints
from tests.test_checkpoint import assert_same, fail_at, good_versions, make


def save(run_dir, checkpoint, keep):
    """A save of a run that was just resumed, so that what others wrote must be read."""
    return KeptCheckpoints(run_dir).save(checkpoint, keep)


class FullDisk(io.BytesIO):
    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("name", "call", "code"),
    [
        ("open", 1, errno.EACCES),
        ("fsync", 1, errno.EIO),
        ("replace", 1, errno.EACCES),
        ("open", 2, errno.EIO),
        ("fsync", 2, errno.EIO),
    ],
)
def test_a_save_that_fails_leaves_the_old_ones(tmp_path, monkeypatch, name, call, code):
    old = make(version=1)
    save(tmp_path, old, keep=1)
    with monkeypatch.context() as patch:
        fail_at(patch, name, call, code)
        with pytest.raises(UsageError, match=f"cannot write checkpoint .*: {os.strerror(code)}; older"):
            save(tmp_path, make(version=2), keep=1)
    assert_same(ckpt.load(ckpt.checkpoint_path(tmp_path, 1)), old)
    assert not [entry for entry in os.listdir(tmp_path / "checkpoints") if entry.endswith(".tmp")]
    save(tmp_path, make(version=3), keep=1)
    assert good_versions(tmp_path) == [3]


def test_a_full_disk_leaves_the_old_ones(tmp_path, monkeypatch):
    save(tmp_path, make(version=1), keep=1)
    real = os.fdopen
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", lambda descriptor, mode: (real(descriptor, mode).close(), FullDisk())[1])
        with pytest.raises(UsageError, match="No space left"):
            save(tmp_path, make(version=2), keep=1)
    assert os.listdir(tmp_path / "checkpoints") == ["update-000000001.npz"]


def test_an_interrupt_during_the_save_leaves_the_old_ones(tmp_path, monkeypatch):
    save(tmp_path, make(version=1), keep=1)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, make(version=2), keep=1)
    assert os.listdir(tmp_path / "checkpoints") == ["update-000000001.npz"]


def test_a_leftover_of_a_killed_save_is_no_checkpoint_and_goes_away(tmp_path):
    save(tmp_path, make(version=1), keep=2)
    leftover = temporary_path(ckpt.checkpoint_path(tmp_path, 2))
    leftover.write_bytes(b"half")
    assert ckpt.load_latest(tmp_path).version == 1
    save(tmp_path, make(version=3), keep=2)
    assert not leftover.exists()


@pytest.mark.parametrize(("keep", "left"), [(0, [5]), (1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5])])
def test_a_save_keeps_the_newest(tmp_path, keep, left):
    for version in range(1, 6):
        save(tmp_path, make(version), keep)
    assert good_versions(tmp_path) == left
    assert len(ckpt.list_checkpoints(tmp_path)) == len(left)


def test_damaged_ones_do_not_count(tmp_path):
    for version in (1, 2, 3):
        path = save(tmp_path, make(version), keep=9)
    path.write_bytes(path.read_bytes()[:-1])
    save(tmp_path, make(version=4), keep=2)
    assert good_versions(tmp_path) == [2, 4]


def test_an_old_one_that_cannot_be_removed_is_no_failure_of_the_save(tmp_path, monkeypatch):
    def failing(path, missing_ok=False):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    save(tmp_path, make(version=1), keep=1)
    (tmp_path / "checkpoints" / ".update-000000002.npz.tmp").write_bytes(b"half")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", failing)
        save(tmp_path, make(version=3), keep=1)
    assert good_versions(tmp_path) == [1, 3]
    save(tmp_path, make(version=4), keep=1)
    assert good_versions(tmp_path) == [4]


def test_a_save_keeps_what_was_saved_behind_newer_ones(tmp_path):
    """A run resumed from an older checkpoint saves lower versions than those that lie there."""
    for version in (10, 20, 15):
        save(tmp_path, make(version), keep=1)
    assert good_versions(tmp_path) == [15, 20]


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that were read since the list was last cleared."""
    names, real = [], ckpt.read_regular
    monkeypatch.setattr(ckpt, "read_regular", lambda path: (names.append(path.name), real(path))[1])
    return names


def test_a_run_reads_what_others_saved_once_and_what_it_saved_never(tmp_path, reads):
    for version in (1, 2):
        ckpt.save(tmp_path, make(version))
    resumed, other = KeptCheckpoints(tmp_path), KeptCheckpoints(tmp_path)
    resumed.save(make(version=3), keep=3)
    assert reads == ["update-000000002.npz", "update-000000001.npz"]
    reads.clear()
    resumed.save(make(version=4), keep=3)
    assert reads == [] and good_versions(tmp_path) == [2, 3, 4]
    reads.clear()
    assert other.names_in(tmp_path) == set()
    resumed.save(make(version=5), keep=3)
    assert other.names_in(tmp_path) == set()
    assert reads == [f"update-00000000{version}.npz" for version in (2, 3, 4, 5)]


def _flip(path, data):
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def _replace(path, data):
    _flip(path.with_name("other"), data)
    os.replace(path.with_name("other"), path)


@pytest.mark.parametrize("harm", [_flip, _replace, lambda path, data: path.write_bytes(data[:-1])])
def test_what_was_damaged_after_its_save_does_not_count_until_it_is_whole_again(tmp_path, harm):
    kept = KeptCheckpoints(tmp_path)
    for version in (1, 2, 3):
        path = kept.save(make(version), keep=9)
    data = path.read_bytes()
    harm(path, data)
    os.utime(path, (0, 0))  # the clock of a file system may tick more slowly than this test runs
    kept.save(make(version=4), keep=2)
    assert good_versions(tmp_path) == [2, 4] and path.exists() and kept.names_in(tmp_path) is None
    path.write_bytes(data)
    kept.save(make(version=5), keep=3)
    assert good_versions(tmp_path) == [3, 4, 5] and kept.names_in(tmp_path) == set()


@pytest.mark.parametrize("name", ["ddrl.checkpoint.read_regular", "ddrl.kept_checkpoints.identity"])
def test_a_checkpoint_that_cannot_be_read_now_does_not_count_and_is_read_at_the_next_save(tmp_path, monkeypatch, name):
    def failing(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for version in (1, 2):
        ckpt.save(tmp_path, make(version))
    kept = KeptCheckpoints(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(name, failing)
        kept.save(make(version=3), keep=2)
        assert kept.names_in(tmp_path) is None
    assert good_versions(tmp_path) == [1, 2, 3]
    kept.save(make(version=4), keep=3)
    assert good_versions(tmp_path) == [2, 3, 4]
