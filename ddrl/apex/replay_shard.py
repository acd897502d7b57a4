"""The role of a replay shard of Ape-X: it keeps what actors send, and draws batches for the learner. No TensorFlow."""

from __future__ import annotations

import functools
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ddrl.apex.memory import shard_bytes
from ddrl.apex.packing import BatchFormat, unpack_priorities
from ddrl.apex.rate_limiter import RateLimiter
from ddrl.apex.shard_replay import ShardReplay
from ddrl.apex.shard_setup import ShardSetup
from ddrl.errors import UsageError
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.transport import Blob, Channel, Event, Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, Wait, essential_lost, first_word, json_blob
from ddrl.kept_checkpoints import KeptCheckpoints
from ddrl.npz import decode_arrays, encode_arrays
from ddrl.placement.resources import available_memory
from ddrl.replay.replay import check_memory
from ddrl.replay_files import shard_directory
from ddrl.reporting.rank_metrics import RankMetrics

FILL_SECONDS = 0.2  # between two messages to the learner about how many transitions there are
BEAT_SECONDS = 1.0  # the same if nothing has changed, so that a silent shard is noticed
LOOK_SECONDS = 30.0  # between two looks at all transitions, for their ages and priorities
QUANTILES = (0.1, 0.5, 0.9)
DECADES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of priorities


class ReplayShardRole:
    """Waits for the learner's SETUP, then takes segments and answers draws until END.

    A segment is acknowledged once it was taken, or refused. With a ratio of samples to inserts, acknowledgments
    wait while inserts are ahead, and draws wait while samples are ahead.

    Args:
        index: of this shard.
        working: called again and again while a round of the role loop takes long.
    """

    def __init__(
        self, context: JobContext, transport: Transport, index: int, working: Callable[[], object] = lambda: None
    ):
        self.context, self.transport, self.index, self._working = context, transport, index, working
        self.finished = self._halted = False
        self._paused, self._words = True, 0
        self._replay: ShardReplay | None = None
        self.metrics = RankMetrics("replay_shard", index)
        self._kept = KeptCheckpoints(context.run_dir)
        config = context.config
        self._limiter = RateLimiter(config.apex.samples_per_insert, config.batch_size, config.apex.segment_length)
        self._random = np.random.default_rng([config.run.seed, index, time.time_ns()])
        self._early: list[Blob] = []  # segments that came before SETUP
        self._draws: deque[Header] = deque()
        self._sent: deque[tuple[int, np.ndarray]] = deque()  # number and buffer of batches on their way
        self._free: list[np.ndarray] = []
        # Segments of each actor that were taken or refused, and how many of them were acknowledged.
        self._taken: dict[int, list[int]] = {process: [0, 0] for process in context.layout.actors}
        self._accused: set[int] = set()  # senders of refused segments
        self._counted: dict[str, int] = {}
        self._filled = (-1, -1)  # inserted and size, when the learner was told last
        self._next_fill = self._next_beat = self._next_report = self._next_look = 0.0

    @property
    def replay(self) -> ShardReplay:
        """The transitions of this shard, once the learner's SETUP has come.

        Raises:
            RuntimeError: a message that needs them came before SETUP.
        """
        if self._replay is None:
            raise RuntimeError(f"replay shard {self.index} received a message before its setup")
        return self._replay

    @property
    def _learner(self) -> int:
        return self.context.layout.workers[0]

    def handle(self, event: Event) -> None:
        essential_lost(event, self.context.layout)
        if isinstance(event, Blob):
            self._on_blob(event)
        elif isinstance(event, Message) and event.header.kind == Kind.DRAW:
            self._on_draw(event.header)
        elif isinstance(event, Message) and event.header.kind == Kind.PRIORITIES:
            with self.metrics.timer("priorities"):
                self.replay.set_priorities(*unpack_priorities(event.payload))
        elif isinstance(event, Message) and event.header.kind == Kind.TRIM:
            with self.metrics.timer("trim"):
                self.replay.trim()
        elif isinstance(event, Message) and event.header.kind == Kind.PAUSE:
            self._words += 1
            self._on_pause(bool(event.header.count))

    def advance(self) -> None:
        if self._replay is None:
            return
        self._answer()
        self._acknowledge()
        now = time.monotonic()
        changed = (self.replay.inserted, self.replay.size) != self._filled
        if (now >= self._next_fill and changed) or now >= self._next_beat:
            self._next_fill, self._filled = now + FILL_SECONDS, (self.replay.inserted, self.replay.size)
            self._next_beat = now + BEAT_SECONDS
            self.transport.send([Message(self._learner, self._header(Kind.SIZE))])
        if now >= self._next_report:
            self._next_report = now + self.context.config.run.log_every_seconds
            self._report(now)

    def due(self) -> bool:
        return self._replay is not None  # a draw may come at any time

    def waits(self) -> Wait | None:
        if self._replay is None:
            return first_word(self.context)
        return None if self._halted else Wait(f"word {self._words} of the learner", (self._learner,), essential=True)

    def _on_blob(self, blob: Blob) -> None:
        if blob.topic == Topic.SETUP:
            self._set_up(decode_arrays(blob.data))
        elif blob.topic == Topic.SEGMENT and self._replay is None:
            self._early.append(blob)  # no more than actors may send ahead
        elif blob.topic == Topic.SEGMENT:
            self._insert(blob)
        elif blob.topic == Topic.SAVE:
            self._save(json.loads(blob.data)["step"])
        elif blob.topic in (Topic.HALT, Topic.END):
            self._halted, self.finished = True, self.finished or blob.topic == Topic.END

    def _set_up(self, content: dict[str, np.ndarray]) -> None:
        config, setup = self.context.config, ShardSetup.decode(content.pop("setup"))
        check_memory(shard_bytes(config, setup.format), available_memory(), f"replay shard {self.index} needs")
        self.batches = BatchFormat(setup.format, config.batch_size)
        self._replay = ShardReplay(
            setup.format,
            config.shard_capacity,
            priority_exponent=config.replay.priority_exponent,
            eviction_exponent=config.apex.eviction_exponent,
            run=setup.run,
            seed=config.run.seed + self.index,
        )
        if content:
            try:
                self.replay.load(self._directory, content)
            except UsageError as error:
                self._event("replay_not_loaded", f"replay shard {self.index} begins empty: {error}")
        self._counted = self.replay.counters()
        self.transport.open(
            [Channel(self._learner, Kind.DRAW), Channel(self._learner, Kind.PRIORITIES, 3 * config.batch_size)]
        )
        early, self._early = self._early, []
        for blob in early:
            self._insert(blob)

    @property
    def _directory(self) -> Path:
        return shard_directory(self.context.run_dir, self.index)

    def _insert(self, blob: Blob) -> None:
        self._taken[blob.peer][0] += 1
        try:
            with self.metrics.timer("insert"):
                if self.replay.insert(blob.data):
                    return
            why = "its steps have been inserted before"
        except UsageError as error:
            why = str(error)
        if blob.peer not in self._accused:
            self._accused.add(blob.peer)
            name = self.context.layout.name(blob.peer)
            self._event("segment_refused", f"of {name}: {why}; later ones of it are not reported")

    def _on_draw(self, header: Header) -> None:
        """Takes a request for a batch. Its `count` says how many batches have arrived, whose buffers are now free."""
        while self._sent and self._sent[0][0] < header.count:
            self._free.append(self._sent.popleft()[1])
        self._draws.append(header)

    def _on_pause(self, paused: bool) -> None:
        """Takes whether learning is paused.

        The learner says so at each change, and also now and then, so that its silence is noticed.
        """
        if paused == self._paused:
            return
        self._paused = paused
        if paused:
            self._limiter.pause()
        else:
            self._limiter.start(self.replay.inserted, self.replay.sampled)

    def _answer(self) -> None:
        replay = self.replay
        while self._draws and replay.size and self._limiter.may_draw(replay.inserted, replay.sampled):
            draw = self._draws.popleft()
            buffer = self._free.pop() if self._free else self.batches.buffer()
            with self.metrics.timer("sample"):
                self._fill(buffer, draw.value)
            self._sent.append((draw.step, buffer))
            header = self._header(Kind.SAMPLE)._replace(step=draw.step)
            with self.metrics.timer("send"):
                self.transport.send([Message(self._learner, header, buffer)])

    def _fill(self, buffer: np.ndarray, importance_exponent: float) -> None:
        views = self.batches.views(buffer)
        into = views.observation, views.next_observation
        drawn = self.replay.sample(self._random, self.batches.batch_size, importance_exponent, into)
        for view, array in zip(views, drawn, strict=True):
            if view is not array:
                view[...] = array

    def _header(self, kind: Kind) -> Header:
        replay = self.replay
        return Header(
            kind,
            sender=self.index,
            step=replay.sampled,
            version=replay.inserted,
            count=replay.size,
            value=replay.weight,
        )

    def _acknowledge(self) -> None:
        if not self._limiter.may_insert(self.replay.inserted, self.replay.sampled):
            return
        for process, counts in self._taken.items():
            if counts[0] > counts[1]:
                counts[1] = counts[0]
                self.transport.send([Message(process, Header(Kind.ACKNOWLEDGE, sender=self.index, count=counts[0]))])

    def _save(self, step: int) -> None:
        answer = {"step": np.int64(step)}
        self._tell_of_save()
        try:
            with self.metrics.timer("save"):
                named = functools.partial(self._kept.names_in, self._directory)
                answer |= self.replay.save(self._directory, named, self._saving)
        except UsageError as error:
            self._event("replay_not_saved", f"the resumed run begins with an empty replay shard {self.index}: {error}")
        self.transport.send([Blob(self._learner, Topic.SAVED, encode_arrays(answer))])

    def _saving(self) -> None:
        """Gives signs of life during a save, because gigabytes may take longer than a rank may be silent."""
        self._working()
        if time.monotonic() >= self._next_beat:
            self._tell_of_save()

    def _tell_of_save(self) -> None:
        self._next_beat = time.monotonic() + BEAT_SECONDS
        self.transport.send([Message(self._learner, self._header(Kind.SIZE)._replace(flags=Flag.CHECKPOINT))])

    def _report(self, now: float) -> None:
        counters = self.replay.counters()
        names = {"inserted": "inserts", "sampled": "samples", "evicted": "evicted", "ignored": "priorities_ignored",
                 "refused": "segments_refused"}  # fmt: skip
        for theirs, name in names.items():
            self.metrics.count(name, counters[theirs] - self._counted[theirs])
        self._counted = counters
        if now >= self._next_look and self.replay.size:
            self._next_look = now + LOOK_SECONDS
            self._look()
        self.transport.send([json_blob(self.context.layout.chief, Topic.REPORT, self.metrics.report())])

    def _look(self) -> None:
        """Measures quantiles of ages, in transitions inserted since, and shares with priorities below powers of 10."""
        for quantile, age in zip(QUANTILES, self.replay.ages(np.array(QUANTILES)), strict=True):
            self.metrics.mean(f"replay_age/{quantile:g}", float(age))
        if self.context.config.replay.priority_exponent:
            below = np.cumsum(self.replay.priority_histogram(np.array(DECADES)))[:-1] / self.replay.size
            for edge, share in zip(DECADES, below, strict=True):
                self.metrics.mean(f"priority_below/{edge:g}", float(share))

    def _event(self, name: str, text: str) -> None:
        self.transport.send([json_blob(self.context.layout.chief, Topic.EVENT, {"name": name, "text": text})])
