from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ddrl.errors import UsageError
from ddrl.exchange.central_store.file import store_path
from ddrl.exchange.central_store.memory import CentralStore

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the locks are Linux's")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def create(path, size=10, **arguments):
    zeros = np.zeros(size, np.float32)
    return CentralStore.create(path, zeros, {"m": zeros, "v": zeros}, **arguments)


@contextlib.contextmanager
def process(action, path, number):
    command = [sys.executable, "-m", "tests.exchange.central_store.store_processes", action, str(path), str(number)]
    child = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def add_one(chunk):
    chunk.parameters[:] += np.float32(1)


def everything(store):
    parameters, slots = np.empty(store.size, np.float32), {n: np.empty(store.size, np.float32) for n in ("m", "v")}
    return parameters, slots, store.read(parameters, slots)


@pytest.mark.parametrize("chunks", [1, 3, 10])
def test_what_is_put_in_is_read(path, chunks):
    vectors = np.arange(30, dtype=np.float32).reshape(3, 10)
    store = CentralStore.create(path, vectors[0], {"m": vectors[1], "v": vectors[2]}, version=7, count=5, chunks=chunks)
    other = CentralStore.open(path)
    parameters, slots, versions = everything(other)
    np.testing.assert_array_equal([parameters, slots["m"], slots["v"]], vectors)
    assert versions.tolist() == [7] * chunks and other.count == 5 and store.opened == 1
    covered = np.concatenate([np.arange(10)[chunk.part] for chunk in store.chunks])
    np.testing.assert_array_equal(covered, np.arange(10))


def test_an_update_is_seen_by_all_and_counted(path):
    store = create(path)
    other = CentralStore.open(path)
    other.update(add_one, steps=4)
    parameters, slots, versions = everything(store)
    assert (parameters == 1).all() and not slots["m"].any()
    assert versions.tolist() == [4, 4, 4] and store.version == store.count == 4 and store.torn == 0


def test_two_stores_of_one_process_exclude_each_other(path):
    store, other = create(path), CentralStore.open(path, patience_seconds=0.05)
    seen = []

    def try_the_other(chunk):
        if chunk.index == 1:
            with pytest.raises(TimeoutError, match=f"chunk 1 .* process {os.getpid()} "):
                other.update(lambda other_chunk: seen.append(other_chunk.index))

    store.update(try_the_other)
    assert seen == [0, 2]  # it took those that were free
    other.update(add_one)  # and the lock came free


def test_closing_one_store_of_a_process_frees_no_lock_of_another(path):
    store, third, other = create(path), CentralStore.open(path), CentralStore.open(path, patience_seconds=0.05)

    def close_the_third(chunk):
        third.close()
        with pytest.raises(TimeoutError, match=f"chunk {chunk.index} "):
            other.update(lambda other_chunk: None)

    store.update(close_the_third)


def test_an_update_that_fails_counts_as_torn(path):
    store = create(path)

    def fail(chunk):
        if chunk.index == 2:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        store.update(fail)
    assert store.versions.tolist() == [1, 1, 0] and store.torn == 0
    store.update(add_one)
    assert store.torn == 1 and store.versions.tolist() == [2, 2, 1]


def test_no_update_of_several_processes_is_lost_and_no_read_is_torn(path):
    store = create(path, size=50_000)
    with contextlib.ExitStack() as stack:
        for child in [stack.enter_context(process("increment", path, 500)) for _ in range(3)]:
            _, errors = child.communicate(timeout=90)
            assert child.returncode == 0, errors
    parameters, slots, versions = everything(store)
    assert (parameters == 1500).all() and (slots["m"] == 1500).all() and versions.tolist() == [1500] * 3
    assert store.torn == 0


@pytest.mark.parametrize("action", ["die", "die_before_child"])
def test_who_dies_in_an_update_frees_its_lock_and_is_noticed(path, action):
    store = create(path, patience_seconds=20.0)
    with process(action, path, 1) as child:
        child.wait(timeout=60)
        assert child.returncode == -signal.SIGKILL
        store.update(add_one)  # while a child that it forked lives still
        assert store.torn == 1 and store.chunks[1].version == 1
        store.update(add_one)
        assert store.torn == 1
        if action == "die_before_child":
            os.kill(int(child.stdout.readline().split()[0]), 0)  # it does
    parameters, slots, _ = everything(store)
    np.testing.assert_array_equal(parameters, np.repeat([3, 3, 2], [4, 3, 3]))  # its half of chunk 1 stays
    np.testing.assert_array_equal(slots["m"], np.repeat([1, 0, 0], [4, 3, 3]))


def test_waiting_for_a_lock_ends_and_names_the_holder(path):
    store = create(path, patience_seconds=0.1)
    with process("hold", path, 0) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError, match=f"chunk 0 .* process {holder.pid} "):
            store.read(np.empty(store.size, np.float32))
        holder.communicate(timeout=60)
    store.update(add_one)
    assert store.torn == 0


def test_nobody_else_may_read_the_file(path):
    old = os.umask(0)
    try:
        create(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_others_may_touch_is_refused(path):
    store = create(path)
    path.chmod(0o640)
    for attempt in (lambda: CentralStore.open(path), lambda: create(path)):
        with pytest.raises(UsageError, match="mode 0640, not 0600"):
            attempt()
    store.close()
    assert path.exists()


def test_a_file_of_another_user_is_refused(path, monkeypatch):
    create(path)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(UsageError, match="belongs to user .* not to 54321"):
        CentralStore.open(path)


def test_links_and_directories_are_refused(path, tmp_path):
    create(path)
    (tmp_path / "link").symlink_to(path)
    for name, why in [("link", "symbolic link"), (".", "directory")]:
        with pytest.raises(UsageError, match=why):
            CentralStore.open(tmp_path / name)


def test_a_file_of_another_length_or_content_is_refused(path):
    store = create(path)
    length = path.stat().st_size
    os.truncate(path, length - 1)
    with pytest.raises(UsageError, match=f"{length - 1} bytes, not {length}"):
        CentralStore.open(path)
    os.truncate(path, length)
    with path.open("r+b") as file:
        file.write(b"not JSON")
    with pytest.raises(UsageError, match="is not a central store"):
        CentralStore.open(path)
    store.close()


def test_the_file_of_a_dead_run_is_replaced_and_never_opened(path):
    create(path, size=20).close()
    with pytest.raises(TimeoutError, match="no process created"):
        CentralStore.open(path, patience_seconds=0.02)
    store = create(path)
    assert CentralStore.open(path).size == store.size == 10


def test_the_file_of_a_living_run_is_not_replaced(path):
    create_and_keep = create(path)
    with pytest.raises(UsageError, match="a run that is still going"):
        create(path)
    create_and_keep.update(add_one)


def test_no_room_is_said_and_leaves_nothing(path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageError, match=r"needs 0 MB: No space left.*use --exchange parameter_server"):
        create(path)
    assert not path.exists()


def test_after_unlink_the_memory_stays_for_those_who_have_it(path):
    store = create(path)
    other = CentralStore.open(path)
    store.unlink()
    assert not path.exists()
    other.update(add_one)
    assert store.version == 1
    store.unlink()


@pytest.mark.parametrize("chunks", [0, 11])
def test_chunks_that_cannot_be(path, chunks):
    with pytest.raises(UsageError, match=f"{chunks} chunks of 10 parameters: choose 1 to 10"):
        create(path, chunks=chunks)
    assert not path.exists()


def test_runs_have_paths_of_their_own(tmp_path):
    one, same = store_path(tmp_path / "a"), store_path(tmp_path / "b" / ".." / "a")
    assert one == same != store_path(tmp_path / "b")
    assert str(os.geteuid()) in one.name
