"""What the processes of test_memory.py do: python -m tests.exchange.central_store.store_processes ACTION PATH [N]."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from ddrl.exchange.central_store.memory import CentralStore, Chunk


def uniform(*vectors):
    """The one value of all vectors; it fails where an update is seen half done."""
    values = np.unique(np.concatenate(vectors))
    assert values.size == 1, f"a torn read: {values}"
    return values[0]


def increment(store: CentralStore, updates: str) -> None:
    """Adds one to everything, and reads, while two others do the same."""
    end = time.monotonic() + 60
    while store.opened < 3:
        assert time.monotonic() < end, "the others did not come"
        time.sleep(0.01)

    def add(chunk: Chunk) -> None:
        assert uniform(chunk.parameters, chunk.slots["m"]) == chunk.version
        chunk.parameters[:] += np.float32(1)
        time.sleep(0)
        chunk.slots["m"][:] += np.float32(1)

    parameters, m = np.empty(store.size, np.float32), np.empty(store.size, np.float32)
    for _ in range(int(updates)):
        store.update(add)
        versions = store.read(parameters, {"m": m})
        for chunk, version in zip(store.chunks, versions):
            assert uniform(parameters[chunk.part], m[chunk.part]) == version


def die(store: CentralStore, index: str) -> None:
    """Is killed in the middle of an update of a chunk."""

    def half(chunk: Chunk) -> None:
        chunk.parameters[:] += np.float32(1)
        if chunk.index == int(index):
            os.kill(os.getpid(), signal.SIGKILL)
        chunk.slots["m"][:] += np.float32(1)

    store.update(half)


def die_before_child(store: CentralStore, index: str) -> None:
    """The same, and leaves a forked child behind, which has the memory, and lives until its input ends."""
    parameters = store.chunks[0].parameters
    child = os.fork()
    if child == 0:
        print(os.getpid(), parameters.size, flush=True)
        sys.stdin.read()
        os._exit(0)
    die(store, index)


def hold(store: CentralStore, index: str) -> None:
    """Keeps a chunk's lock until its input ends."""

    def keep(chunk: Chunk) -> None:
        if chunk.index == int(index):
            print("held", flush=True)
            sys.stdin.read()

    store.update(keep)


if __name__ == "__main__":
    action, path, number = sys.argv[1:]
    globals()[action](CentralStore.open(path, patience_seconds=60.0), number)
