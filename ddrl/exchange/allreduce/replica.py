"""All-reduce as a state machine: every worker's process has a replica of all parameters and of the optimizer's state.

A step has two phases. In the first, each replica cuts its worker's gradient into one slice per member, and sends every
member its slice (SLICE). In the second, each replica averages its slices of all gradients, in the order of the worker
ids, and sends their average to all members (AVERAGE). So every value is averaged by one process in one order: all
replicas hold the same average bit for bit, equal to a parameter server's, and apply the same update to the same
parameters. Each replica sends two messages to each of the others. Together they are as long as two gradients, less its
own slice of both, however many members there are; it receives as much.

Every SLICE carries its gradient's sender, its number of samples and whether it is finite; those of worker 0 also carry
the flags of the chief. Each replica has seen all of them before it applies the step, so all decide alike: all refuse a
step with a gradient that is not finite, and checkpoint, publication and stop happen at the same update everywhere.

After a death: no replica can complete a step without the SLICE of every member, and a SLICE of the next step says that
its sender has completed this one. So replicas are never more than one step apart. Each keeps the last average, and its
gradient of the step that is under way. The chief's replica, whose death ends the job, begins a new generation without
the dead member (REGROUP). From then on, all replicas ignore messages of the old generation, and report the last step
that they completed (OUTCOME). If one of them is a step ahead, all get its average (RESUME); else the survivors repeat
the step. No update is ever rolled back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddrl.errors import UsageError
from ddrl.exchange.allreduce.outcome import outcome_of, refused_among
from ddrl.exchange.averaging import average_of
from ddrl.exchange.interface import Due, Server, everything, load
from ddrl.exchange.messages import TO_WORKER, Flag, Header, Kind, Message, Payload
from ddrl.exchange.published import Published
from ddrl.exchange.sharding import from_bitmap, shard_ranges, to_bitmap
from ddrl.exchange.statistics import Statistics
from ddrl.exchange.transport import Channel
from ddrl.exchange.vectors import empty_vector

if TYPE_CHECKING:
    from ddrl.exchange.optimizers import UpdateRule


class Replica(Server):
    """One worker's part of the all-reduce, which takes and returns messages, and knows no process, clock or MPI.

    Args:
        worker: id of the worker in whose process this replica is.
        processes: process of each worker, by worker id.
        chief: the chief's process, which is that of worker 0.
        size: float32 values in the parameter vector; at least as many as there are workers.
        optimizer: applies an averaged gradient.
        learning_rate: version -> learning rate of the update that leads to the next version.
        clip_norm: clip the averaged gradient to this global norm (0: off).

    Raises:
        UsageError: there are more workers than parameters, or so many that a cut would divide the running statistics.
    """

    role = "replica"
    activities = {
        Kind.GRADIENT: "send",
        Kind.SLICE: "average",
        Kind.AVERAGE: "apply",
        Kind.COMMIT: "control",
        Kind.LOAD: "control",
        Kind.FETCH: "control",
        Kind.REGROUP: "control",
        Kind.OUTCOME: "control",
        Kind.RESUME: "control",
    }

    def __init__(
        self,
        worker: int,
        processes: Mapping[int, int],
        chief: int,
        size: int,
        optimizer: UpdateRule,
        learning_rate: Callable[[int], float],
        *,
        clip_norm: float = 0.0,
    ):
        if len(processes) > size:
            raise UsageError(f"--workers {len(processes)}: the network has {size} parameters; use at most that many")
        self.worker, self.processes, self.chief = worker, dict(processes), chief
        self.is_chiefs = self.processes[worker] == chief
        self.optimizer, self.learning_rate, self.clip_norm = optimizer, learning_rate, clip_norm
        self.live = set(processes)
        self.parameters = np.zeros(size, np.float32)
        self.generation = self.dropped = 0
        self.regrouping = False
        self._ranges: dict[int, tuple[int, int]] = {}
        self._set_members(tuple(sorted(processes)))
        self._gradient: Message | None = None  # this worker's for this step; kept until the step is complete
        self._slices: dict[tuple[int, int], tuple[Header, np.ndarray]] = {}  # by step and worker
        self._norms: dict[int, float] = {}  # worker -> squared norm of its part of the average, if that part is here
        self._average, self._spare = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._outcome = Header(Kind.OUTCOME, sender=worker, step=-1)  # that of the last complete step
        self._outcomes: dict[int, tuple[Header, np.ndarray]] = {}
        self._early: list[Message] = []  # from before the LOAD, within a regrouping, or of a generation yet to come
        self._may_send, self._flags = -1, Flag.NONE  # the step that the chief has opened, and its flags
        # Flags, such as STOP, that are carried out at the end of a regrouping. They are kept, and sent again after
        # another death, for members that have missed that end.
        self._command = Flag.NONE
        self._published = Published(0)

    def channels(self, readers: Sequence[int]) -> list[Channel]:
        """The channels of a replica, for slices of half the vector, the longest: those of two members."""
        size, own = self.parameters.size, self.processes[self.worker]
        others = [process for process in self.processes.values() if process != own]
        most = self.most_floats((size + 1) // 2)
        channels = [Channel(p, kind, most) for p in others for kind in (Kind.SLICE, Kind.AVERAGE)]
        if self.is_chiefs:
            channels += [Channel(process, Kind.OUTCOME, size) for process in others]
            return channels + [Channel(process, Kind.FETCH) for process in readers]
        channels += [Channel(self.chief, Kind.LOAD, (1 + len(self.optimizer.slots)) * size)]
        return channels + [Channel(self.chief, Kind.REGROUP), Channel(self.chief, Kind.RESUME, size)]

    def handle(self, peer: int, header: Header, payload: Payload) -> list[Message]:
        if header.kind in (Kind.SLICE, Kind.AVERAGE):
            return self._on_part(Message(peer, header, payload))
        if header.kind == Kind.GRADIENT:
            return self._on_gradient(Message(peer, header, payload))
        if header.kind == Kind.FETCH:
            return self._published.fetch(peer, header.version)
        handlers = {
            Kind.COMMIT: lambda: self._on_commit(header),
            Kind.LOAD: lambda: self._on_load(header, payload),
            Kind.REGROUP: lambda: self._on_regroup(peer, header),
            Kind.OUTCOME: lambda: self._on_outcome(header, payload),
            Kind.RESUME: lambda: self._on_resume(header, payload),
        }
        return handlers[header.kind]()

    def worker_lost(self, worker: int) -> list[Message]:
        """Takes note that a member is dead. The chief's replica begins a new generation, and tells the others."""
        if worker not in self.live:
            return []
        self.live.discard(worker)
        return self._regroup(self._command) if self.is_chiefs else []

    def due(self) -> bool:
        return self.waits() is not None

    def waits(self) -> Due | None:
        """What the replica waits for; None while its own worker computes."""
        awaited, peers = self.missing()
        return Due(f"{awaited} step {self.step}", tuple(peers)) if peers else None

    def counts(self) -> dict[str, int]:
        return {"gradients_dropped": self.dropped}

    def encoded(self, part: np.ndarray) -> np.ndarray:
        """The payload for a part <float32>[n] of a gradient or average, with at most `most_floats(n)` values.

        A subclass that sends less overrides this method, `decoded` and `most_floats`.
        """
        return part

    def decoded(self, payload: np.ndarray, size: int) -> np.ndarray:
        """Decodes a part <float32>[size] that `encoded` made. A payload from MPI may have more values after it."""
        return payload[:size]

    def most_floats(self, size: int) -> int:
        """The most values that a payload has for a part of `size` values or fewer."""
        return size

    def missing(self) -> tuple[str, list[int]]:
        """What this replica waits for, and from which processes; ('', []) while its own worker computes."""
        if self.regrouping:
            absent = [w for w in self.members if w not in self._outcomes and w != self.worker]
            return "agreement on", [self.processes[w] for w in absent] if self.is_chiefs else [self.chief]
        if (self.step, self.worker) not in self._slices:
            return "", []
        absent = [w for w in self.members if (self.step, w) not in self._slices]
        absent = absent or [w for w in self.members if w not in self._norms]
        return "all-reduce of", [self.processes[w] for w in absent]

    # A step --------------------------------------------------------------------------------------------------

    def _on_load(self, header: Header, payload: np.ndarray) -> list[Message]:
        self._set_parameters(load(payload, header, self.optimizer))
        self.step, self.version, self.loaded = header.step, header.version, True
        self._outcome = self._outcome._replace(step=header.step - 1)
        messages = [Message(self.processes[w], header, payload) for w in self._others()] if self.is_chiefs else []
        return messages + [self._to_worker(Flag.NONE, members=0)] + self._take_early()

    def _on_commit(self, header: Header) -> list[Message]:
        """Takes a COMMIT, with which the chief opens a step, or commands something, such as the stop, between two."""
        if header.flags & Flag.COMMAND:
            return self._regroup(header.flags)
        self._may_send, self._flags = header.step, header.flags
        return self._contribute()

    def _on_gradient(self, message: Message) -> list[Message]:
        if message.header.step != self.step or self.stopped:
            self.dropped += 1
            return []
        self._gradient = message
        return self._contribute()

    def _contribute(self) -> list[Message]:
        """Sends this worker's gradient if it is here and may be sent."""
        opened = not self.is_chiefs or self._may_send == self.step
        if self._gradient is None or self.regrouping or self.stopped or not opened:
            return []
        header, gradient = self._gradient.header, self._gradient.payload
        flags = header.flags & Flag.FINITE | (self._flags if self.is_chiefs else Flag.NONE)
        header = header._replace(kind=Kind.SLICE, generation=self.generation, flags=flags)
        messages = []
        for worker, (start, stop) in self._ranges.items():
            if worker == self.worker:
                self._slices[self.step, worker] = header, gradient[start:stop]
            else:
                messages.append(Message(self.processes[worker], header, self.encoded(gradient[start:stop])))
        return messages + self._progress()

    def _on_part(self, message: Message) -> list[Message]:
        header = message.header
        if header.generation < self.generation:
            return []
        if header.generation > self.generation or self.regrouping or not self.loaded:
            self._early.append(message._replace(payload=message.payload.copy()))
            return []
        if header.kind == Kind.SLICE:
            start, stop = self._ranges[self.worker]
            self._slices[header.step, header.sender] = header, self.decoded(message.payload, stop - start)
        else:
            start, stop = self._ranges[header.sender]
            self._spare[start:stop] = self.decoded(message.payload, stop - start)
            self._norms[header.sender] = header.value
        return self._progress()

    def _progress(self) -> list[Message]:
        """Averages this replica's slices once all are here, and completes the step once the whole average is here."""
        held = [self._slices[self.step, w] for w in self.members if (self.step, w) in self._slices]
        if len(held) < len(self.members):
            return []
        headers = [header for header, _ in held]
        refused = refused_among(headers)
        messages = []
        if not refused and self.worker not in self._norms:
            start, stop = self._ranges[self.worker]
            own = self._spare[start:stop]
            statistics = self._statistics_of(start, stop)
            average, self._norms[self.worker] = average_of([payload for _, payload in held], own, statistics)
            if average is not own:  # there is only one replica, and the average is its gradient
                np.copyto(own, average)
            payload = self.encoded(own)
            if payload is not own:  # apply here, too, exactly what the others get
                np.copyto(own, self.decoded(payload, own.size))
            header = Header(
                Kind.AVERAGE, self.generation, self.worker, self.step, self.version, value=self._norms[self.worker]
            )
            messages = [Message(self.processes[w], header, payload) for w in self._others()]
        if refused or len(self._norms) == len(self.members):
            squared = math.fsum(self._norms[w] for w in self.members) if not refused else float("nan")
            asked = next(h.flags for h in headers if self.processes[h.sender] == self.chief)
            messages += self._complete(outcome_of(headers, asked, refused, squared, self.worker), self._spare)
        return messages

    def _complete(self, outcome: Header, average: np.ndarray) -> list[Message]:
        """Applies a step, as all replicas do, and keeps `average` for replicas that may not have it yet."""
        if not outcome.refused:
            clips = self.clip_norm and outcome.value > self.clip_norm
            scale = self.clip_norm / outcome.value if clips else 1.0
            parameters = empty_vector(self.parameters.size)  # new, as the worker and readers may still use the old ones
            self.optimizer.apply(self.parameters, [average], self.learning_rate(self.version), scale, parameters)
            self._set_parameters(parameters)
            self.version += 1
            self._average, self._spare = average, self._average
        self._outcome = outcome
        self.step += 1
        self._slices = {key: held for key, held in self._slices.items() if key[0] >= self.step}
        self._norms.clear()
        self._gradient = None
        return self._effects(outcome)

    def _effects(self, outcome: Header) -> list[Message]:
        """Carries out the flags of a complete step or of a command; returns the messages for that."""
        messages = []
        if self.is_chiefs:
            have = outcome._replace(kind=Kind.READY, sender=0, version=self.version)
            messages.append(Message(self.chief, have))
            if outcome.flags & Flag.CHECKPOINT:
                header = Header(Kind.SNAPSHOT, step=self.step, version=self.version, count=self.optimizer.count)
                messages.append(Message(self.chief, header, everything(self.parameters, self.optimizer)))
            if outcome.flags & Flag.PUBLISH:
                messages += self._published.add(self.version, self.version, self.parameters)
        self.stopped = self.stopped or bool(outcome.flags & Flag.STOP)
        return messages + [self._to_worker(outcome.flags, outcome.members)]

    def _to_worker(self, flags: Flag, members: int) -> Message:
        header = Header(Kind.PARAMETERS, step=self.step, version=self.version, flags=flags & TO_WORKER, members=members)
        return Message(self.processes[self.worker], header, self.parameters)

    def _set_parameters(self, parameters: np.ndarray) -> None:
        parameters.flags.writeable = False
        self.parameters = parameters

    # A death -------------------------------------------------------------------------------------------------

    def _regroup(self, command: Flag) -> list[Message]:
        """Begins a new generation of the live members, and tells them; only the chief's replica does so.

        The flags in `command` are carried out once the members have agreed on the last step.
        """
        self._begin_generation(self.generation + 1, tuple(sorted(self.live)), command)
        header = Header(Kind.REGROUP, self.generation, members=to_bitmap(self.members), flags=command)
        return [Message(self.processes[w], header) for w in self._others()] + self._agree()

    def _on_regroup(self, peer: int, header: Header) -> list[Message]:
        if header.generation <= self.generation:
            return []
        if not self.loaded:  # it has no outcome to report yet, and no parameters to stop with
            self._early.append(Message(peer, header))
            return []
        self._begin_generation(header.generation, from_bitmap(header.members), header.flags)
        self.live = set(self.members)
        return [Message(self.chief, self._outcome._replace(generation=self.generation), self._average)]

    def _begin_generation(self, generation: int, members: tuple[int, ...], command: Flag) -> None:
        self.generation, self.regrouping, self._command = generation, True, command
        self._set_members(members)
        self._slices.clear()
        self._norms.clear()
        self._outcomes.clear()
        self._spare = np.zeros_like(self._spare)  # new, as sends of parts of the old array may still be under way

    def _on_outcome(self, header: Header, payload: np.ndarray) -> list[Message]:
        if header.generation != self.generation or not self.regrouping:
            return []
        self._outcomes[header.sender] = header, payload.copy()
        return self._agree()

    def _agree(self) -> list[Message]:
        """Continues from the latest step that any member completed, once all have reported theirs.

        Only the chief's replica does so; it tells the others with RESUME.
        """
        if len(self._outcomes) < len(self.members) - 1:
            return []
        messages = []
        for header, average in self._outcomes.values():
            messages += self._adopt(header, average)
        resume = self._outcome._replace(kind=Kind.RESUME, generation=self.generation)
        messages += [Message(self.processes[w], resume, self._average) for w in self._others()]
        return messages + self._resume()

    def _on_resume(self, header: Header, payload: np.ndarray) -> list[Message]:
        if header.generation != self.generation or not self.regrouping:
            return []
        return self._adopt(header, payload.copy()) + self._resume()

    def _adopt(self, outcome: Header, average: np.ndarray) -> list[Message]:
        """Completes the step under way with another replica's outcome and average, if that replica has completed it."""
        if outcome.step != self.step:
            return []
        return self._complete(outcome._replace(kind=Kind.OUTCOME, sender=self.worker), average)

    def _resume(self) -> list[Message]:
        self.regrouping = False
        messages = []
        if self._command and not self.stopped:
            messages += self._effects(Header(Kind.OUTCOME, step=self.step, flags=self._command))
        return messages + self._contribute() + self._take_early()

    def _take_early(self) -> list[Message]:
        early, self._early = self._early, []
        return [answer for message in early for answer in self.handle(*message[:3])]

    def _set_members(self, members: tuple[int, ...]) -> None:
        self.members = members
        ranges = shard_ranges(self.parameters.size, len(members))
        if self.generation and self.optimizer.statistics is not None:
            # A cut within the statistics ends a run at its start, but must not after a death. There is at most one such
            # cut, because the statistics were within one of the shorter ranges of before.
            ranges = self.optimizer.statistics.uncut(ranges)
        self._ranges = dict(zip(members, ranges, strict=True))
        for start, stop in self._ranges.values():
            self._statistics_of(start, stop)  # raises if the range has only a part of the statistics

    def _statistics_of(self, start: int, stop: int) -> Statistics | None:
        return self.optimizer.statistics and self.optimizer.statistics.within(start, stop)

    def _others(self) -> list[int]:
        return [worker for worker in self.members if worker != self.worker]
