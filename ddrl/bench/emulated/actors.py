"""Ape-X with actors that sleep instead of acting and a learner that only draws batches: real roles, no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from ddrl import algorithms
from ddrl.apex.child import Frame, Received
from ddrl.apex.remote_replay import Drawn, Learned
from ddrl.apex.sampler import Sampler
from ddrl.apex.segment import renumbered
from ddrl.bench.replay_shard import KINDS, recorded_frames, recorded_segment
from ddrl.config import TrainConfig
from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.published import Published
from ddrl.exchange.transport import Blob, Channel, Event, Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic
from ddrl.placement.resources import this_machine
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.types import Discrete

FORMAT = dataclasses.replace(KINDS["shard-images"].format, action_space=Discrete(4))  # Breakout's actions
FRAME_SKIP = 4
SEGMENTS = 64  # recorded segments, which actors send again and again under other numbers
BEHIND = 8  # segments that an actor makes up for after a pause; the pipe of a real one holds more
REPORT_SECONDS = 1.0  # between two reports of each rank


def config_of(
    actors: int,
    shards: int,
    simulators: int,
    capacity: int,
    minimum: int,
    batch_size: int = 0,
    preset: str = "default",
    seconds: float = 0.0,
) -> TrainConfig:
    """The settings of `ddrl train apex-dqn` with a preset, these sizes, and no evaluator.

    Args:
        actors: number of actors.
        shards: number of replay shards.
        simulators: simulators of each actor.
        capacity: transitions in all shards.
        minimum: transitions with which learning begins.
        batch_size: transitions in a batch (0: the preset's).
        preset: name of the preset.
        seconds: time budget of the run (0: none).
    """
    base = algorithms.preset(preset, "breakout", this_machine(), "apex-dqn")
    return base.changed(
        sampling={"simulators": simulators},
        replay={"replay_capacity": capacity, "replay_minimum": minimum},
        apex={"actors": actors, "replay_shards": shards, "segment_length": FORMAT.length},
        optimizer={"batch_size": batch_size or base.optimizer.batch_size},
        evaluation={"evaluator": False},
        run={"minutes": seconds / 60.0, "log_every_seconds": REPORT_SECONDS, "video": False},
    )


def write_segments(path: Path) -> None:
    """Writes encoded segments of real frames, as actors send them, into an npz file."""
    frames, chance = recorded_frames(), np.random.default_rng(0)
    segments = (recorded_segment(FORMAT, frames, simulator, chance) for simulator in range(SEGMENTS))
    np.savez(path, *(np.frombuffer(FORMAT.encode(segment), np.uint8) for segment in segments))


def read_segments(path: Path) -> list[bytes]:
    """Reads the encoded segments that `write_segments` wrote."""
    with np.load(path) as segments:
        return [segment.tobytes() for segment in segments.values()]


class EmulatedChild:
    """Stands in for the acting process of an actor (`ddrl.apex.actor.ActingProcess`): it sleeps instead of acting.

    It first waits for parameters, and asks for newer ones as often as a real one does.

    Args:
        config: the run's settings.
        actor: the actor's index.
        run_id: the run ID to put into the segments.
        step_seconds: time of one step of all simulators together.
        segments: the encoded segments to send.
        feed_seconds: how long it sends segments, from its first parameters on.
    """

    def __init__(
        self,
        config: TrainConfig,
        actor: int,
        run_id: int,
        step_seconds: float,
        segments: Sequence[bytes],
        feed_seconds: float = math.inf,
    ):
        self._simulators, self._actor, self._run_id, self._segments = config.rows, actor, run_id, segments
        self._seconds = step_seconds * FORMAT.length / self._simulators  # per segment, as simulators send in turn
        refresh = config.apex.refresh_every_frames / (FRAME_SKIP * FORMAT.length) * self._simulators
        self._refresh_segments = max(1, round(refresh))
        self._metrics, self._next_report = RankMetrics("actor", actor), 0.0
        self._report_seconds = config.run.log_every_seconds
        self._version, self._asked, self._count, self._asked_at, self._next = -1, False, 0, 0, 0.0
        self._feed_seconds, self._end = feed_seconds, math.inf

    def send(self, kind: Frame, number: int, data: object = b"") -> None:
        """Takes parameters, the first of which start it; ignores TAKEN, as it makes segments at its own pace."""
        if kind == Frame.TAKEN:
            return
        if self._version < 0:
            self._next = time.monotonic() + random.random() * self._seconds  # actors are not in step
            self._end = time.monotonic() + self._feed_seconds
        self._version, self._asked, self._asked_at = number, False, self._count

    def flush(self) -> None:
        """Does nothing, as nothing waits to be sent."""

    def receive(self) -> Received | None:
        now = time.monotonic()
        if not self._asked and (self._version < 0 or self._count - self._asked_at >= self._refresh_segments):
            self._asked = True
            return Received(Frame.REFRESH, self._version, b"")
        if self._version >= 0 and now >= self._next_report:
            self._next_report = now + self._report_seconds
            return Received(Frame.REPORT, 0, json.dumps(self._metrics.report()).encode())
        if self._version < 0 or now < self._next or now > self._end:
            return None
        return Received(Frame.SEGMENT, 0, self._segment(now))

    def status(self) -> int | None:
        return None

    def last_words(self) -> list[Received]:
        return []

    def end(self) -> None:
        """Does nothing, as there is no process to end."""

    def _segment(self, now: float) -> bytes:
        late = now - self._next - BEHIND * self._seconds
        if late > 0:
            self._metrics.count("waited_seconds", late)
            self._next += late
        self._next += self._seconds
        round_, simulator = divmod(self._count, self._simulators)
        data = self._segments[self._count % len(self._segments)]
        self._count += 1
        self._metrics.count("agent_steps", FORMAT.length)
        return renumbered(data, self._actor, self._run_id, simulator, round_ * FORMAT.length)


class PacedBatches:
    """Stands in for the schedule that a sampler feeds: holds the drawn batches that wait, and the used ones."""

    def __init__(self, chance: np.random.Generator):
        self._chance, self._batches, self._used = chance, deque[Drawn](), list[Learned]()

    @property
    def ready(self) -> int:
        return len(self._batches)

    def put(self, drawn: Drawn) -> None:
        self._batches.append(drawn)

    def used(self) -> list[Learned]:
        used, self._used = self._used, []
        return used

    def learn(self) -> None:
        """Marks one waiting batch as used, with random new priorities."""
        drawn = self._batches.popleft()
        self._used.append(Learned(drawn, self._chance.random(len(drawn.batch.key), np.float32)))


class EmulatedLearner:
    """A learner that only draws batches at a given rate, publishes parameters, and collects reports of other ranks.

    It measures for `seconds`, from `warm_up` seconds after all actors have begun to act, and then ends the job.

    Args:
        context: the job.
        transport: carries its messages.
        parameters: number of float32 parameters.
        batches_per_s: the most batches to draw per second.
        warm_up: seconds from the first reports of all actors to the measurement.
        seconds: length of the measurement.

    Attributes:
        reports: the reports that lie wholly in the measurement, by role.
        events: texts of the events and failures that actors and shards reported.
    """

    def __init__(
        self,
        context: JobContext,
        transport: Transport,
        parameters: int,
        batches_per_s: float,
        warm_up: float,
        seconds: float,
    ):
        self.context, self.transport, self.finished = context, transport, False
        self._batches = PacedBatches(np.random.default_rng(0))
        self.sampler = Sampler(context, transport, cast(Any, self._batches), FORMAT, parameters)
        self._published, self._vector = Published(0), np.zeros(parameters, np.float32)
        self._pause, self._next_batch = 1.0 / batches_per_s, 0.0
        self._warm_up, self._seconds = warm_up, seconds
        self._begin, self._heard = float("inf"), set[int]()
        self.reports: dict[str, list[dict[str, Any]]] = {"actor": [], "replay_shard": []}
        self.events: list[str] = []
        self._vector.flags.writeable = False
        self._published.add(0, 0, self._vector)
        transport.open(Channel(process, Kind.FETCH) for process in context.layout.actors)
        self.sampler.begin({})

    def handle(self, event: Event) -> None:
        self.sampler.handle(event)
        if isinstance(event, Message) and event.header.kind == Kind.FETCH:
            self.transport.send(self._published.fetch(event.peer, event.header.version))
        elif isinstance(event, Blob) and event.topic == Topic.REPORT:
            self._on_report(json.loads(event.data), time.monotonic())
        elif isinstance(event, Blob) and event.topic in (Topic.EVENT, Topic.FAILED):
            self.events.append(json.loads(event.data)["text"])

    def advance(self) -> None:
        now = time.monotonic()
        if now >= self._next_batch and self._batches.ready:
            self._next_batch = max(self._next_batch + self._pause, now)
            self._batches.learn()
            self.sampler.version += 1
            self.transport.send(self._published.add(self.sampler.version, self.sampler.version, self._vector))
        self.sampler.advance()
        if now >= self._begin + self._seconds or self.events:
            self.sampler.halt()
            layout = self.context.layout
            self.transport.send(
                Blob(process, Topic.END, b"") for process in range(layout.size) if process != layout.chief
            )
            self.finished = True

    def due(self) -> bool:
        return self.sampler.due()

    def _on_report(self, report: dict[str, Any], now: float) -> None:
        if report["role"] == "actor":
            self._heard.add(report["index"])
        if len(self._heard) == len(self.context.layout.actors) and self._begin == float("inf"):
            self._begin = now + self._warm_up
        if self._begin + report["interval_seconds"] <= now:  # all of its interval is in the measurement
            self.reports[report["role"]].append(report)

    def summary(self) -> dict[str, float]:
        """The rates of all actors and shards together; the busy shares are the largest of any shard."""
        actors, shards = (_by_index(self.reports[role]) for role in ("actor", "replay_shard"))
        busy = [
            (
                sum(seconds for report in reports for seconds in report["seconds"].values()) / _time(reports),
                sum(report["cpu_seconds"] for report in reports) / _time(reports),
            )
            for reports in shards
        ]
        return {
            "steps_per_s": sum(_rate(reports, "agent_steps") for reports in actors),
            "inserts_per_s": sum(_rate(reports, "inserts") for reports in shards),
            "samples_per_s": sum(_rate(reports, "samples") for reports in shards),
            "shard_busy": max((share for share, _ in busy), default=0.0),
            "shard_cores": max((cores for _, cores in busy), default=0.0),
            "waiting": sum(_rate(reports, "waited_seconds") for reports in actors) / max(1, len(actors)),
        }


def _by_index(reports: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    indices = sorted({report["index"] for report in reports})
    return [[report for report in reports if report["index"] == index] for index in indices]


def _time(reports: list[dict[str, Any]]) -> float:
    return sum(report["interval_seconds"] for report in reports)


def _rate(reports: list[dict[str, Any]], name: str) -> float:
    return sum(report["counters"].get(name, 0) for report in reports) / _time(reports)
