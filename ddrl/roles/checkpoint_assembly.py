"""Gathers the parts of a checkpoint at the chief: slices from the servers, and states from the workers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ddrl.checkpoint import Checkpoint
from ddrl.exchange.messages import Header
from ddrl.npz import decode_arrays

AT_THE_END = -1


def states_of(asynchronous: bool, last: bool, step: int, version: int) -> int:
    """The number that identifies the workers' states that belong to a checkpoint.

    It is the first step after the checkpoint. With asynchronous updates each worker counts its own steps, so it is the
    version that the chief names, and `AT_THE_END` for the states that workers save by themselves when training ends.
    """
    if not asynchronous:
        return step
    return AT_THE_END if last else version


class Gathering:
    """Gathers the parts of at most one checkpoint at a time.

    States are kept before there is one, because a worker's state may come before the chief knows of the update.
    """

    def __init__(self) -> None:
        self.assembly: CheckpointAssembly | None = None
        self._states: dict[int, bytes] = {}

    def begin(self, assembly: CheckpointAssembly) -> None:
        """Gathers the parts of `assembly` from now on, and no longer those of an earlier one."""
        self.assembly = assembly
        states, self._states = self._states, {}
        for worker, data in states.items():
            assembly.add_state(worker, data)

    def add_slice(self, header: Header, payload: np.ndarray) -> None:
        """Takes a server's SNAPSHOT."""
        if self.assembly is not None:
            self.assembly.add_slice(header, payload)

    def add_state(self, worker: int, data: bytes) -> None:
        """Takes a worker's STATE."""
        self._states[worker] = data
        if self.assembly is not None:
            self.assembly.add_state(worker, data)

    def take(self, servers: int, workers: set[int], now: float) -> tuple[CheckpointAssembly | None, bool]:
        """Returns the assembly once it is complete or its time is up, and whether slices are missing then.

        Before that, it returns None and False.

        Args:
            servers: number of servers that send slices.
            workers: ids of the workers that send states.
            now: time.monotonic().
        """
        assembly = self.assembly
        if assembly is None:
            return None, False
        ready = assembly.ready(servers, workers, now)
        if not ready and now < assembly.deadline:
            return None, False
        self.assembly = None
        for worker in workers - set(assembly.states):
            assembly.unsaved[worker] = "its state did not come in time"
        return assembly, not ready


@dataclasses.dataclass
class CheckpointAssembly:
    """The parts that have arrived of the checkpoint of `version`.

    Attributes:
        version: version of the parameters.
        step: the first step after the checkpoint; slices for another step are ignored.
        states_of: number of the workers' states, see the function `states_of`; states with another number are ignored.
        wall_seconds: wall time of the run at the update.
        deadline: time.monotonic() until which the parts are waited for. States that are missing then are left out; a
            slice that is missing is a failure.
        any_step: whether slices of any step are taken, because servers count their own steps (asynchronous updates).
        slices: shard index -> header and payload of its SNAPSHOT.
        states: worker -> its state, arrays by name.
        unsaved: worker -> why its state could not be saved; the checkpoint does not have it.
    """

    version: int
    step: int
    states_of: int
    wall_seconds: float
    deadline: float
    any_step: bool
    slices: dict[int, tuple[Header, np.ndarray]] = dataclasses.field(default_factory=dict)
    states: dict[int, dict[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    unsaved: dict[int, str] = dataclasses.field(default_factory=dict)

    def add_slice(self, header: Header, payload: np.ndarray) -> None:
        """Takes a server's SNAPSHOT: <float32>[(1 + slots) * size], which is copied."""
        if self.any_step or header.step == self.step:
            self.slices[header.sender] = (header, payload.copy())

    def add_state(self, worker: int, data: bytes) -> None:
        """Takes a worker's STATE."""
        state = decode_arrays(data)
        if int(state.pop("of")) == self.states_of:
            if "unsaved" in state:
                self.unsaved[worker] = state.pop("unsaved").tobytes().decode()
            self.states[worker] = state

    def ready(self, servers: int, workers: set[int], now: float) -> bool:
        """Whether all slices are here, and either the states of all these workers are here, too, or time is up."""
        complete = set(self.states) >= workers
        return len(self.slices) == servers and (complete or now >= self.deadline)

    def checkpoint(
        self, start: Checkpoint, agent_steps: int, counters: dict[str, Any], config: dict[str, Any]
    ) -> Checkpoint:
        """Makes the checkpoint from its parts; `start` gives the names of the slots and the layout."""
        rows = [payload.reshape(1 + len(start.slots), -1) for _, (_, payload) in sorted(self.slices.items())]
        whole = np.concatenate(rows, axis=1)
        return Checkpoint(
            version=self.version,
            step=self.step,
            agent_steps=agent_steps,
            wall_seconds=self.wall_seconds,
            parameters=np.ascontiguousarray(whole[0]),
            slots={name: np.ascontiguousarray(row) for name, row in zip(start.slots, whole[1:], strict=True)},
            optimizer_count=max(header.count for header, _ in self.slices.values()),
            layout=start.layout,
            counters=counters,
            worker_states=self.states,
            config=config,
        )
