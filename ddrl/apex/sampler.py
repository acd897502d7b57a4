"""The learner's side of its messages with replay shards: it asks for batches ahead, and sends priorities back."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ddrl.apex.known_shards import KnownShard, next_to_ask
from ddrl.apex.packing import BatchFormat, pack_priorities
from ddrl.apex.remote_replay import Drawn, RemoteReplay
from ddrl.apex.segment import SegmentFormat
from ddrl.apex.shard_replay import RUNS
from ddrl.apex.shard_setup import ShardSetup
from ddrl.errors import UsageError
from ddrl.exchange.messages import Flag, Header, Kind, Message
from ddrl.exchange.transport import Blob, Channel, Event, PeerLost, Transport
from ddrl.job.feed import State
from ddrl.job.layout import JobContext
from ddrl.job.role import RoleLost, Topic, Wait, json_blob
from ddrl.npz import decode_arrays, encode_arrays
from ddrl.wording import counted

SAVE_SECONDS = 240.0
"""Seconds after which a shard that writes its part of a checkpoint and says nothing is given up; less than
REPLAY_SECONDS, so that the others' parts are saved."""
WORD_SECONDS = 2.0  # after which shards are told something, so that they know that the learner is alive


class Sampler:
    """Keeps `--prefetch` batches asked for or ready.

    It asks the shards in proportion to the sums of their weights, so that each transition is drawn as often as from one
    replay (Horgan et al. 2018, appendix F). Below the minimum fill, in the beginning or after the loss of a shard, it
    asks for no batch. A lost shard is left out. The job ends (RoleLost) with the last shard, and also with the last
    actor, since nothing new would come.

    Args:
        schedule: takes the batches.
        format: of the segments.
        parameters: length of the parameter vector.

    Attributes:
        version: updates so far.
        paused: whether there are too few transitions to learn from.
    """

    def __init__(
        self, context: JobContext, transport: Transport, schedule: RemoteReplay, format: SegmentFormat, parameters: int
    ):
        self.context, self.transport, self.schedule = context, transport, schedule
        self.format, self.batches = format, BatchFormat(format, context.config.batch_size)
        self.version, self.paused = 0, True
        self._parameters, self._run = parameters, 0
        self._ahead = 0  # agent steps by which an actor's epsilon is further than its share of those of all actors
        self._shards = {i: KnownShard(process) for i, process in enumerate(context.layout.replay_shards)}
        self._actors = set(context.layout.actors)
        self._free: list[np.ndarray] = []
        self._learned, self._accused = 0, False
        self._halted, self._next_word = False, 0.0
        self._saving: _Saving | None = None
        for shard in self._shards.values():
            transport.open(
                [
                    Channel(shard.process, Kind.SAMPLE, self.batches.floats, into=self._buffer),
                    Channel(shard.process, Kind.SIZE),
                ]
            )

    @property
    def size(self) -> int:
        """Transitions of all shards."""
        return sum(shard.size for shard in self._shards.values())

    @property
    def all_spoken(self) -> bool:
        """Whether every living shard has spoken since the start: before that, `size` is less than they hold."""
        return all(shard.heard > 0.0 for shard in self._shards.values())

    @property
    def outstanding(self) -> int:
        """Batches that were asked for and have not come, except from shards that were named as silent."""
        return sum(shard.asked - shard.received for shard in self._shards.values() if not shard.told)

    @property
    def minimum(self) -> int:
        """The number of transitions that learning needs, at most half of what the living shards keep.

        With episodes of a step or two they may never hold more than that half, because these have more frames for each
        transition than a shard has places for.
        """
        config = self.context.config
        return min(config.replay.replay_minimum, config.shard_capacity * len(self._shards) // 2)

    def begin(self, state: State, agent_steps: int = 0) -> None:
        """Makes shards and actors begin, from a state that `save` gave, or from nothing.

        Args:
            state: from `save`; empty at the beginning of a run.
            agent_steps: of all actors in the earlier parts of this run; an epsilon that decreases goes on from there.

        Raises:
            UsageError: the run was started more often than its replay can count.
        """
        self._run = int(state.get("run", 0)) + 1
        if self._run >= RUNS:
            raise UsageError(
                f"start {self._run} of this run: its replay counts at most {RUNS - 1} starts; begin a new run"
            )
        setup = ShardSetup(self._run, self.format).encode()
        for index, shard in self._shards.items():
            saved = {"replay": state[key]} if (key := f"shard{index}") in state else {}
            self.transport.send([Blob(shard.process, Topic.SETUP, encode_arrays({"setup": setup} | saved))])
            if (agent_steps or "run" in state) and not saved:  # a checkpoint may lack the whole state
                self._event("replay_not_loaded", f"replay shard {index} begins empty, as it is not in the checkpoint")
        left = sum(key.startswith("shard") and int(key.removeprefix("shard")) not in self._shards for key in state)
        if left:
            shards = counted(left, "replay shard")
            text = f"transitions of {shards} in the checkpoint are left out, as there are fewer shards now"
            self._event("replay_not_loaded", text)
        actors = self.context.layout.actors
        each = self._begin_epsilon(state, agent_steps, len(actors))
        start = {"run": self._run, "parameters": self._parameters, "agent_steps": each}
        self.transport.send(json_blob(process, Topic.SETUP, start) for process in actors)

    def _begin_epsilon(self, state: State, agent_steps: int, actors: int) -> int:
        """The agent steps of each actor that its epsilon goes on from: with another number of actors, it stays where it
        was, though each of them now makes another share of the run's agent steps."""
        before = int(state.get("actors", actors))  # which older checkpoints do not have
        each = int(state.get("ahead", 0)) + agent_steps // before
        self._ahead = each - agent_steps // actors
        return each

    def handle(self, event: Event) -> None:
        """Takes what comes from shards."""
        self._hear(event)
        if isinstance(event, PeerLost):
            self._on_lost(event.peer)
        elif isinstance(event, Message) and event.header.kind in (Kind.SAMPLE, Kind.SIZE):
            self._on_shard(event)
        elif isinstance(event, Blob) and event.topic == Topic.SAVED:
            index = self.context.layout.replay_shards.index(event.peer)
            if index in self._shards:
                self._shards[index].saving = False
            if self._saving is not None and self._saving.take(index, decode_arrays(event.data)):
                self._saving = None

    def advance(self) -> None:
        """Gives back what was learned, and asks for more."""
        for learned in self.schedule.used():
            self._give_back(learned.drawn, learned.priorities)
        self._look_for_silence(time.monotonic())
        if not self._halted:
            self._look_at_size()
            if not self.paused:
                self._ask()

    def due(self) -> bool:
        """Whether a batch that is on its way is wanted at once; while others are ready, there is time."""
        return self.outstanding > 0 and not self.schedule.ready

    def waits(self) -> Wait:
        """What the trainer waits for, when it waits for a batch."""
        inserted, run = sum(shard.inserted for shard in self._shards.values()), self.context.config.run
        # The time after which an actor's process that hangs is replaced, and the time that the new one needs to start.
        patience = max(run.stall_seconds, run.start_seconds) + run.start_seconds
        if self.paused:
            what = f"transitions to learn from, {self.minimum} or more; {inserted} were inserted"
            return Wait(what, self.context.layout.actors, patience)
        shards = tuple(shard.process for shard in self._shards.values())
        if saving := [shard for shard in self._shards.values() if shard.saving]:
            words = sum(shard.words for shard in saving)  # another text is another wait
            return Wait(f"a batch of shards that write their part of a checkpoint, and spoke {words} times", shards)
        if self.context.config.apex.samples_per_insert:
            what = f"a batch, or transitions that have to come before one; {inserted} were inserted"
            return Wait(what, (*shards, *self.context.layout.actors), patience)
        return Wait(f"a batch of the replay, into which {inserted} transitions were inserted", shards)

    def halt(self) -> None:
        """Learning is over: nothing is drawn any more, and actors act no more."""
        if not self._halted:
            self._halted = True
            others = (*self.context.layout.actors, *self.context.layout.replay_shards)
            self.transport.send(Blob(process, Topic.HALT, b"") for process in others)

    def save(self, step: int, state: State, done: Callable[[State], None]) -> None:
        """Has every shard save what it holds; `done` gets `state` with their manifests when all have answered.

        A shard that was named as silent is not asked, and one that does not answer in time is not waited for: its
        transitions are not in the checkpoint.
        """
        asked = {index: shard for index, shard in self._shards.items() if not shard.told}
        self._told_of_save(set(self._shards) - set(asked), step)
        actors = len(self.context.layout.actors)
        whole: State = state | {
            "run": np.int64(self._run), "actors": np.int64(actors), "ahead": np.int64(self._ahead)
        }  # fmt: skip
        self._saving = _Saving(step, whole, set(asked), done, time.monotonic()) if asked else None
        self.transport.send(json_blob(shard.process, Topic.SAVE, {"step": step}) for shard in asked.values())
        if not asked:
            done(whole)

    def _hear(self, event: Event) -> None:
        """Notes that a shard has spoken."""
        shard = next((s for s in self._shards.values() if s.process == getattr(event, "peer", None)), None)
        if shard is None or isinstance(event, PeerLost):
            return
        shard.heard, shard.words = time.monotonic(), shard.words + 1
        if shard.told:
            shard.told = False
            self._event("replay_shard_speaks", f"{self.context.layout.name(shard.process)} answers again")

    def _look_for_silence(self, now: float) -> None:
        """Names shards that are silent, once, and gives up those that take too long to save."""
        for shard in self._shards.values():
            if shard.silent(now) and not shard.told:
                shard.told = True
                text = (
                    f"{self.context.layout.name(shard.process)} has been silent for {now - shard.heard:.0f} s: until "
                    "it answers, its transitions are not drawn, and not in checkpoints"
                )
                self._event("replay_shard_silent", text)
        if self._saving is not None:
            self._give_up_saving(self._saving, now)

    def _give_up_saving(self, saving: _Saving, now: float) -> None:
        """Gives up shards that are silent or write for too long, so that they do not hold up a checkpoint."""
        given_up = {index for index in saving.missing if self._is_late(saving, self._shards[index], now)}
        self._told_of_save(given_up, saving.step)
        for index in given_up:
            self._shards[index].saving = False
            if saving.without(index):
                self._saving = None

    def _is_late(self, saving: _Saving, shard: KnownShard, now: float) -> bool:
        """Whether a shard takes too long to save.

        At the end of a job its words count for nothing, since the job waits for no longer than REPLAY_SECONDS; before,
        a shard may write for as long as it says that it does.
        """
        since = saving.began if self._halted else max(saving.began, shard.heard)
        return shard.told or now - since >= SAVE_SECONDS

    def _told_of_save(self, left_out: set[int], step: int) -> None:
        for index in sorted(left_out):
            name = self.context.layout.name(self._shards[index].process)
            text = f"{name} does not answer; the checkpoint of step {step} is saved without its transitions"
            self._event("replay_not_saved", text)

    def _event(self, name: str, text: str) -> None:
        self.transport.send([json_blob(self.context.layout.chief, Topic.EVENT, {"name": name, "text": text})])

    def _buffer(self) -> np.ndarray:
        """The buffer into which the next batch is received."""
        return self._free.pop() if self._free else self.batches.buffer()

    def _on_shard(self, message: Message) -> None:
        header = message.header
        if header.sender not in self._shards:
            return  # the last words of a lost one
        shard = self._shards[header.sender]
        if header.version >= shard.inserted:  # SAMPLE and SIZE may overtake each other
            shard.size, shard.weight, shard.inserted = header.count, header.value, header.version
        if header.kind == Kind.SIZE:  # messages of one kind stay in order
            shard.saving = bool(header.flags & Flag.CHECKPOINT)
        if header.kind == Kind.SAMPLE:
            shard.received += 1
            self.schedule.put(Drawn(header.sender, self.batches.views(message.payload), message.payload))

    def _give_back(self, drawn: Drawn, priorities: np.ndarray | None) -> None:
        config, shard = self.context.config, self._shards.get(drawn.shard)
        prioritized = config.replay.priority_exponent > 0.0 or bool(config.apex.eviction_exponent)
        if prioritized and shard is not None and priorities is not None and self._can_be(priorities):
            payload = pack_priorities(drawn.batch.key, priorities)
            header = Header(Kind.PRIORITIES, count=len(priorities), version=self.version)
            self.transport.send([Message(shard.process, header, payload)])
        self._free.append(drawn.buffer)
        self._learned += 1
        if self._learned % config.apex.trim_every_updates == 0:
            self._tell(Kind.TRIM)

    def _can_be(self, priorities: np.ndarray) -> bool:
        """Whether a shard would take these priorities; if not, the batch keeps its old ones.

        Priorities that it would not take are counted, and the first time they are reported.
        """
        wrong = int((~(np.isfinite(priorities) & (priorities >= 0))).sum())
        if wrong:
            self.schedule.metrics.count("priorities_not_sent", wrong)
        if wrong and not self._accused:
            self._accused = True
            text = f"{wrong} of {len(priorities)} are negative, infinite, or not a number: lower --learning-rate"
            self._event("priorities_not_sent", text)
        return not wrong

    def _look_at_size(self) -> None:
        paused, now = self.size < self.minimum, time.monotonic()
        if paused != self.paused or now >= self._next_word:
            self.paused, self._next_word = paused, now + WORD_SECONDS
            self._tell(Kind.PAUSE, int(paused))

    def _tell(self, kind: Kind, count: int = 0) -> None:
        header = Header(kind, version=self.version, count=count)
        self.transport.send(Message(shard.process, header, newest_only=True) for shard in self._shards.values())

    def _ask(self) -> None:
        wanted = self.context.config.apex.prefetch - self.outstanding - self.schedule.ready
        for _ in range(wanted):
            shard = next_to_ask(self._shards.values())
            if shard is None:
                return
            config = self.context.config
            beta = config.replay.importance(self.version, config.agent_steps_per_update)
            header = Header(Kind.DRAW, step=shard.asked, version=self.version, count=shard.received, value=beta)
            shard.asked += 1
            self.transport.send([Message(shard.process, header)])

    def _on_lost(self, process: int) -> None:
        if process in self._actors:
            self._actors.remove(process)
            if not self._actors and not self._halted:
                raise RoleLost(f"{self.context.layout.name(process)} died, and it was the last actor")
        index = next((i for i, shard in self._shards.items() if shard.process == process), None)
        if index is None:
            return
        del self._shards[index]
        if not self._shards and not self._halted:
            raise RoleLost(f"replay shard {index} died, and it was the last one")
        if self._saving is not None and self._saving.without(index):
            self._saving = None


class _Saving:
    """The answers to one request to save."""

    def __init__(self, step: int, state: State, missing: set[int], done: Callable[[State], None], began: float):
        self.step, self.began = step, began
        self._state, self._missing, self._done = state, missing, done

    @property
    def missing(self) -> set[int]:
        """Shards that have not answered."""
        return set(self._missing)

    def take(self, index: int, answer: State) -> bool:
        """Takes a shard's answer; True when it was the last one."""
        if int(answer["step"]) != self.step or index not in self._missing:
            return False
        if "replay" in answer:
            self._state[f"shard{index}"] = answer["replay"]
        return self.without(index)

    def without(self, index: int) -> bool:
        """Waits for that shard no more; True when it was the last one."""
        self._missing.discard(index)
        if not self._missing:
            self._done(self._state)
        return not self._missing
