"""The child process in which an actor of Ape-X acts; its parent is the actor's rank (`ddrl.apex.actor`).

Its arguments are RUN ACTOR RUN_ID AGENT_STEPS CORES PARENT IN OUT, the last two the descriptors of its pipes. It ends
when its parent does, and has nothing to save.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

from ddrl import programs
from ddrl.apex.child import Frame, end_with_parent, read_frame, write_frame
from ddrl.apex.segment import Segment, SegmentFormat, renumbered
from ddrl.apex.segment_maker import STEPS
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.job.exits import refuse_exits
from ddrl.job.role import failure_of
from ddrl.placement.ranks import expose_gpu, threads_for, with_threads
from ddrl.reporting.rank_metrics import REPORT_SECONDS, RankMetrics
from ddrl.rundir import load_config
from ddrl.types import Snapshot


class Link:
    """The child's side of the pipes. A thread reads what comes, and ends the process when the pipe is closed."""

    def __init__(self, read: int, write: int):
        self._read, self._write = read, write
        self._changed = threading.Condition()
        self._newest: tuple[int, bytes] | None = None
        self._segments = self._taken = 0  # segments sent here, and those of them that have gone to a shard
        threading.Thread(target=self._listen, name="link", daemon=True).start()

    def newest(self, version: int) -> Snapshot | None:
        """Parameters newer than `version`, if they are here; a frame REFRESH asks for them."""
        with self._changed:
            newest = self._newest
        if newest is None or newest[0] <= version:
            return None
        return Snapshot(newest[0], -1, np.frombuffer(newest[1], np.float32))

    def first(self) -> Snapshot:
        """Waits for the first parameters."""
        with self._changed:
            while (snapshot := self.newest(-1)) is None:
                self._changed.wait()
        return snapshot

    def send(self, kind: Frame, number: int = 0, data: bytes = b"") -> None:
        """Sends one frame; waits while the pipe is full."""
        try:
            write_frame(self._write, kind, number, data)
        except BrokenPipeError:
            os._exit(0)

    def send_segment(self, data: bytes, ahead: int) -> None:
        """Sends a segment, once fewer than `ahead` earlier ones are still on their way to a shard.

        Otherwise the pipe alone would hold thousands of small transitions. They would be old on arrival, and so would
        parameters whose request waits behind them.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._segments - self._taken < ahead)
        self._segments += 1
        self.send(Frame.SEGMENT, 0, data)

    def _listen(self) -> None:
        try:
            while (frame := read_frame(self._read)) is not None:
                with self._changed:
                    if frame.kind == Frame.TAKEN:
                        self._taken = frame.number
                    else:
                        self._newest = frame.number, frame.data
                    self._changed.notify_all()
        except ValueError as error:
            print(f"ddrl: an actor's process cannot read what its rank sent: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)


def main() -> int:
    """Acts until the parent ends; returns only where acting failed."""
    run_dir, (actor, run_id, agent_steps, cores, parent, read, write) = Path(sys.argv[1]), map(int, sys.argv[2:])
    end_with_parent(parent)
    refuse_exits()
    expose_gpu("")

    def work() -> int:
        config, link = load_config(run_dir), Link(read, write)
        try:
            act(config, actor, run_id, agent_steps, cores, link)
        except BaseException as error:
            link.send(Frame.FAILURE, 0, json.dumps(failure_of(error)).encode())
            raise
        return 1

    return programs.run(work, lambda message: programs.say(f"actor {actor}: {message}"), needs_output=False)


def act(config: TrainConfig, actor: int, run_id: int, agent_steps: int, cores: int, link: Link) -> None:
    """Acts, sends segments and reports, and asks for newer parameters; it does not return.

    Args:
        actor: index of this actor.
        run_id: of this incarnation; it makes games and exploration differ from those of earlier incarnations.
        agent_steps: those of earlier incarnations of this actor; an epsilon that decreases goes on from there.
        cores: number of cores that it may use.
    """
    from ddrl.apex.agent import segment_maker
    from ddrl.floating_point import flush_denormals
    from ddrl.learner import as_device_vector, configure_tensorflow

    flush_denormals()
    threads = threads_for(config, cores)
    configure_tensorflow(threads.intra_op, threads.inter_op)
    metrics = RankMetrics("actor", actor)
    maker, format = segment_maker(with_threads(config, threads), metrics, actor, run_id, agent_steps)
    link.send(Frame.REFRESH, -1)
    snapshot = link.first()
    snapshot = snapshot._replace(parameters=as_device_vector(snapshot.parameters))
    clock = Clock(config, metrics, STEPS * maker.actor.frames_per_step)
    sender = Sender(link, format, metrics, config.rows, config.apex.duplicates)
    while True:
        for segment in maker.act(snapshot):
            sender.send(segment)
        clock.acted(link, snapshot.version)
        newer = link.newest(snapshot.version)
        if newer is not None:
            clock.refreshed(newer.version - snapshot.version)
            snapshot = newer._replace(parameters=as_device_vector(newer.parameters))


class Sender:
    """Sends segments, up to one of each simulator ahead of what has gone to shards.

    A segment that a shard would refuse is not sent but counted, and the first one is reported.

    Args:
        simulators: number of simulators of this actor.
        duplicates: times that each segment is sent; the copies have numbers of simulators that do not exist.
    """

    def __init__(self, link: Link, format: SegmentFormat, metrics: RankMetrics, simulators: int, duplicates: int = 1):
        self._link, self._format, self._metrics, self._told = link, format, metrics, False
        self._simulators, self._duplicates = simulators, duplicates

    def send(self, segment: Segment) -> None:
        try:
            data = self._format.encode(segment)
        except UsageError as error:
            self._metrics.count("segments_not_sent")
            if not self._told:
                self._told = True
                self._link.send(Frame.COMPLAINT, 0, str(error).encode())
            return
        with self._metrics.timer("wait_replay"):
            ahead = self._simulators * self._duplicates
            self._link.send_segment(data, ahead)
            for copy in range(1, self._duplicates):
                simulator = segment.simulator + copy * self._simulators
                name = (segment.actor, segment.run_id, simulator, segment.first_step)
                self._link.send_segment(renumbered(data, *name), ahead)


class Clock:
    """Asks for newer parameters and sends reports when it is time for them.

    Args:
        frames_per_row: emulator frames of each simulator in one call of `acted`.
    """

    def __init__(self, config: TrainConfig, metrics: RankMetrics, frames_per_row: float):
        self._every, self._metrics, self._frames_per_row = config.apex.refresh_every_frames, metrics, frames_per_row
        self._report_seconds = min(config.run.log_every_seconds, REPORT_SECONDS)
        self._next_report = time.monotonic() + self._report_seconds
        self._frames, self._asked = 0.0, False

    def acted(self, link: Link, version: int) -> None:
        """Counts steps that all simulators have made with this version, and sends what is due."""
        self._frames += self._frames_per_row
        if self._frames >= self._every and not self._asked:
            self._asked = True
            link.send(Frame.REFRESH, version)
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + self._report_seconds
            link.send(Frame.REPORT, 0, json.dumps(self._metrics.report()).encode())

    def refreshed(self, behind: int) -> None:
        """Notes that parameters have come that are newer by `behind` versions."""
        self._frames, self._asked = 0.0, False
        self._metrics.mean("actor_lag", behind)
        self._metrics.maximum("actor_lag", behind)


if __name__ == "__main__":
    sys.exit(main())
