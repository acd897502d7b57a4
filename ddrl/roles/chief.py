"""The chief's role, which closes steps, takes checkpoints, has versions evaluated, handles failures, and ends the job.

It is in worker 0's process, or in a process of its own (`--chief dedicated`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddrl.checkpoint import Checkpoint
from ddrl.errors import read_as
from ddrl.exchange.interface import Closed
from ddrl.exchange.messages import Flag, Kind
from ddrl.exchange.transport import Blob, Event, PeerLost, Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, Wait, essential_lost
from ddrl.replay.storage import OTHER
from ddrl.reporting.collector import Collector
from ddrl.reporting.metrics import read_metrics
from ddrl.roles.budget import Budget
from ddrl.roles.checkpoint_saver import CheckpointSaver
from ddrl.roles.earlier_parts import EarlierParts
from ddrl.roles.evaluations import Evaluations, announcement
from ddrl.roles.evaluator_client import EvaluatorClient
from ddrl.roles.exchanges import make_coordinator
from ddrl.roles.not_finite import too_many_refused
from ddrl.roles.phase import Phase
from ddrl.roles.run_log import RunLog
from ddrl.roles.run_totals import RunTotals, rank_of
from ddrl.roles.setup_and_end import ends, setups
from ddrl.roles.state_requests import StateRequests
from ddrl.roles.time_left import TimeLeft
from ddrl.rundir import RESULT, RESULT_BEFORE, note_trained, stop_reason, stop_requested, write_json
from ddrl.wording import counted

STOP_FILE_SECONDS = 0.25  # between two looks for the file `stop`
LAST_COMMIT_SECONDS = 10.0  # how long the end of a run waits for the step under way to close
FAILED_COMMIT_SECONDS = 1.0  # the same after a rank has failed, as the step may wait for that rank's gradient


class ChiefRole:
    """The chief's role; see the module.

    Args:
        start: the state to start from: version 0 with fresh parameters, or a loaded checkpoint.
        resumed: whether the run had begun before; `start` is its newest checkpoint, if there was one.
        notes: (name, text) of events about `start`, which are appended to the metrics.
    """

    def __init__(
        self,
        context: JobContext,
        transport: Transport,
        start: Checkpoint,
        resumed: bool,
        notes: Sequence[tuple[str, str]] = (),
    ):
        config = context.config
        self.context, self.transport, self.start = context, transport, start
        self.finished, self.phase = False, Phase.RUNNING
        self.result: dict[str, Any] = {}
        with read_as(f"what is counted in the checkpoint of update {start.version}", OTHER):
            self.collector = Collector(start.version, start.wall_seconds, start.counters.get("metrics"))
            self.evaluations = Evaluations(config.evaluation, start.version, start.counters.get("evaluations"))
            self._before = EarlierParts(context, start)
        self._totals = RunTotals(context, start, self._before, self.collector)
        if resumed and config.evaluation.target_score is not None:
            self.evaluations.remember(read_metrics(context.run_dir), start.version)
        self.time_left = TimeLeft(config, start, self.evaluations, context.spent_seconds)
        self.log = RunLog(context, start, resumed, self.collector, self.time_left)
        self.coordinator = make_coordinator(context, start.step, start.version)
        event, write, began = self.log.event, self.log.write, self.log.began
        self.evaluator = EvaluatorClient(context, transport, self.evaluations, event, write, began)
        self.budget = Budget(config.run, start)
        asynchronous = self.coordinator.asynchronous
        self.saver = CheckpointSaver(context, start, self.log.metrics, event, self._counted, asynchronous)
        self._state_requests = StateRequests(context, transport, asynchronous)
        self._next_stop_check = self._stop_deadline = 0.0
        self._hears_others = set(context.layout.servers) != {transport.rank}  # servers elsewhere may report at any time
        self._signaled = self._started = self._evaluation_due = False
        self._without_last: dict[str, Any] = {}  # the result if the last update, for which the run waits, is not made
        self._last_version = start.version  # asynchronous workers may apply a few gradients after the last checkpoint
        self._failed: set[int] = set()  # processes that have reported a failure
        self._begin(resumed, notes)

    def handle(self, event: Event) -> None:
        if self.finished:  # the metrics are closed; events may still come while the other roles of the process end
            return
        if isinstance(event, PeerLost):
            self._on_lost(event)
        elif isinstance(event, Blob):
            self._on_blob(event)
        elif event.header.kind in (Kind.READY, Kind.NORM):
            for closed in self.coordinator.handle(event.header, time.monotonic()):
                self._on_closed(closed)
        elif event.header.kind == Kind.SNAPSHOT:
            self.saver.gathering.add_slice(event.header, event.payload)

    def advance(self) -> None:
        if self.finished:
            return
        now = time.monotonic()
        self._look_for_stop(now)
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            self._close_step(now)
        if self.phase is Phase.RUNNING:
            self._check_budget(now)
        elif self.phase is Phase.STOPPING and now >= self._stop_deadline:
            self._command()
        self._gather(now)
        if self.phase is Phase.EVALUATING and self.evaluator.is_over(now, self._signaled):
            self._end()
        if now >= self.log.next_line:
            self._write_line(now)

    def due(self) -> bool:
        return self.phase is Phase.RUNNING and self._hears_others

    def waits(self) -> Wait | None:
        """The wait for the servers' reports; all other waits of the chief have deadlines of their own."""
        coordinator, layout, servers = self.coordinator, self.context.layout, self.context.layout.servers
        last = self.phase is Phase.STOPPING and self._stop_deadline == math.inf
        if (self.phase is not Phase.RUNNING and not last) or layout.hosts_servers or layout.actors or layout.size == 1:
            return None  # a server, a learner, or the only worker in this process reports its waits itself
        once = self.context.config.run.start_seconds
        if coordinator.asynchronous:
            return Wait(f"an update after version {coordinator.version}", servers[:1], once)
        patience = once if coordinator.step == self.start.step else 0.0
        what = f"word of the gradients of step {coordinator.step}"
        return Wait(what, tuple(coordinator.missing()) or servers, patience)

    # Beginning and end ---------------------------------------------------------------------------------------

    def _begin(self, resumed: bool, notes: Sequence[tuple[str, str]]) -> None:
        start, slots = self.start, list(self.start.slots.values())
        self.transport.send(setups(self.context.layout, start))
        self.transport.open(self.coordinator.channels(start.parameters.size, len(slots)))
        self.transport.send(self.coordinator.begin(start.parameters, slots, start.optimizer_count))
        if resumed:
            spent = round(self.context.spent_seconds, 3) or None
            self.log.event("resumed", f"from update {start.version}", update=start.version, spent_seconds=spent)
            (self.context.run_dir / RESULT_BEFORE).unlink(missing_ok=True)
        for name, text in notes:
            self.log.event(name, text)

    def stop(
        self, status: str, message: str, signaled: bool = False, flags: Flag = Flag.CHECKPOINT | Flag.PUBLISH
    ) -> None:
        """Ends training at the next update boundary; a checkpoint, the final evaluation and END follow.

        Args:
            status: status in the run's result, such as 'finished'.
            message: why training ends.
            signaled: whether to end soon: the final evaluation is left out, or cut short.
            flags: flags of the last COMMIT besides STOP.
        """
        if self.phase is not Phase.RUNNING:
            self._stop_sooner(status, message, signaled)
            return
        self.phase, self._signaled = Phase.STOPPING, signaled
        note_trained(self.context.run_dir)
        only_evaluates = not flags & Flag.CHECKPOINT  # see `_ends_at_once`
        self._totals.training_over(time.monotonic() - self.log.began, only_evaluates)
        self.time_left.training_over(self._totals.trained_seconds, not signaled)
        self.result = {"status": status, "message": message}
        self._stop_deadline = time.monotonic() + LAST_COMMIT_SECONDS
        self.coordinator.request(Flag.STOP | flags)
        self._evaluation_due = True
        if self.coordinator.asynchronous:
            self._command()

    def _stop_sooner(self, status: str, message: str, signaled: bool) -> None:
        """Ends a run that is already ending: a failure becomes its result, and a signal limits the last step's time."""
        if status == "failed" and self.result["status"] != "failed":
            self.result |= {"status": status, "message": message}
        if signaled and self.phase is Phase.STOPPING:
            if self._stop_deadline == math.inf:
                self._without_last = {"status": status, "message": message}
                self.coordinator.request(Flag.STOP)  # with the step under way, even if that is refused
            self._signaled = True
            self._stop_deadline = min(self._stop_deadline, time.monotonic() + LAST_COMMIT_SECONDS)

    def _command(self) -> None:
        messages, closed = self.coordinator.command()
        self.transport.send(messages)
        if closed:
            self._on_flags(closed)

    def _end(self) -> None:
        self._write_line(time.monotonic())
        cut = self._signaled and self.evaluator.lacks_final(self._totals.trained_seconds)
        if cut and self.result["status"] == "finished":
            self.result["unevaluated"] = True  # training is done; if the run is resumed, it is evaluated
        totals = self.evaluations.to_score | {
            "update": self._last_version,
            "agent_steps": self._totals.agent_steps,
            "wall_seconds": round(self.log.wall_seconds, 3),
        }
        write_json(self.context.run_dir / RESULT, self.result | totals)
        self.log.end(self.result | totals)
        self.transport.send(ends(self.context.layout, self.evaluator.rank))
        self.phase, self.finished = Phase.ENDED, True

    # Steps ---------------------------------------------------------------------------------------------------

    def _close_step(self, now: float) -> None:
        if self.phase is Phase.RUNNING and self.coordinator.takes_requests:
            if self._awaits_checkpoint(now):
                return
            self._request_flags()
        messages, closed = self.coordinator.poll(now)
        self.transport.send(messages)
        if closed:
            self._on_closed(closed)

    def _awaits_checkpoint(self, now: float) -> bool:
        """Whether the next update has to wait for the parts of the last checkpoint.

        It has to if it needs a checkpoint, too, and checkpoints reset games: resets must come with the same updates in
        every run, so this checkpoint must not be put off.
        """
        gathering = self.context.config.run.reset_at_checkpoint and self.saver.gathering.assembly is not None
        return gathering and self.budget.checkpoint_due(self.coordinator.next_version, now)

    def _request_flags(self) -> None:
        """Requests what is due with the next update: the end, a checkpoint, a published version."""
        if self._ends_at_once():
            return
        version = self.coordinator.next_version
        if self.budget.last_update(version):
            flags = Flag.CHECKPOINT | Flag.PUBLISH | Flag.WITH_UPDATE
            self.stop("finished", self.budget.updates_used_up(), flags=flags)
            self._stop_deadline = math.inf  # the last update is still to be made
            return
        if self.budget.checkpoint_due(version, time.monotonic()) and self.saver.gathering.assembly is None:
            self.coordinator.request(Flag.CHECKPOINT)
        elapsed = self.log.wall_seconds
        if self.evaluator.rank is not None and self.evaluations.due(version, elapsed, self.log.metrics):
            self.coordinator.request(Flag.PUBLISH)
            self._evaluation_due = True
        if self.context.layout.actors:
            self.coordinator.request(Flag.PUBLISH)  # with every update, since it copies nothing
        if self.coordinator.wants_command:
            self._command()

    def _ends_at_once(self) -> bool:
        """Ends a run before its first update if earlier parts have left nothing to train; returns whether it did so."""
        begins = self.coordinator.version == self.start.version
        if not begins or not (end := self._before.end(self.budget)):
            return False
        self.stop(*end, flags=Flag.PUBLISH)  # no checkpoint: an earlier part has saved this version
        if self.phase is Phase.STOPPING:
            self._command()
        return True

    def _on_closed(self, closed: Closed) -> None:
        if closed.flags & Flag.COMMAND:
            self._on_flags(closed)
            return
        self.log.step(closed, self.coordinator.learning_rate(closed.version))
        if not self._started:
            self._started = True
            self.log.first_update(self.coordinator.version)
        if closed.refused:
            self._on_refused(closed)
        self._on_flags(closed)

    def _on_flags(self, closed: Closed) -> None:
        flags = closed.flags
        last, now = bool(flags & Flag.STOP), time.monotonic()
        if flags & Flag.CHECKPOINT:
            number = self.saver.begin(closed.version, self.coordinator.step, self.log.wall_seconds, last, now)
            self.budget.checkpointed(closed.version, now)
            if not last:
                self._state_requests.ask(number, self.coordinator.live)
        if last:
            self.phase, self._last_version = Phase.SAVING, closed.version
            if self.result["status"] == "finished" and not self.budget.last_update(closed.version):
                self.result |= self._without_last
        if flags & Flag.PUBLISH and self._evaluation_due:
            self._evaluation_due = False
            self._evaluate(closed.version, last)

    def _on_refused(self, closed: Closed) -> None:
        names = self.log.refused(closed)
        limit = self.context.config.run.max_refused_steps
        if self.coordinator.refused_steps >= limit:
            self.stop("failed", too_many_refused(limit, names, self.context.run_dir), signaled=True)

    # Evaluation ----------------------------------------------------------------------------------------------

    def _evaluate(self, version: int, last: bool) -> None:
        taken_at = self._totals.taken_at(self.log.wall_seconds)
        at = {"version": version, "agent_steps": self._totals.agent_steps, "wall_seconds": taken_at}
        if not last:
            self.evaluator.play(at, self._before.planned_seconds)
        elif not self._signaled:
            self.evaluator.play_last(at, self._totals.trained_seconds)

    def _on_result(self, content: Mapping[str, Any]) -> None:
        reached = self.evaluator.take(content)
        if reached and self.context.config.evaluation.stop_at_target:
            self.stop("target", f"target score reached: {reached}")

    # Budget, checkpoints, metrics ----------------------------------------------------------------------------

    def _look_for_stop(self, now: float) -> None:
        """Looks for the file `stop`, which asks to end training, and also cuts the final evaluation short."""
        if now >= self._next_stop_check:
            self._next_stop_check = now + STOP_FILE_SECONDS
            if stop_requested(self.context.run_dir):
                if self.phase is Phase.RUNNING and self.coordinator.takes_requests:
                    self._ends_at_once()  # so that a run that lacks only its final evaluation still counts as trained
                why = stop_reason(self.context.run_dir)
                self.stop("stopped", f"stopped: {why}" if why else "stopped on request", signaled=True)
                self._signaled = True

    def _check_budget(self, now: float) -> None:
        seconds = self.context.spent_seconds + now - self.log.began
        if reason := self.budget.used_up(self.collector.agent_steps, seconds):
            self.stop("finished", reason)

    def _gather(self, now: float) -> None:
        last = self.phase is Phase.SAVING
        error = self.saver.advance(len(self.coordinator.holders), self.coordinator.live, now, last)
        if error and self.result["status"] != "failed":
            # A run without its last checkpoint has failed, however it ended; a new start begins from an older one.
            text = f"{self.result['message']}, but the last checkpoint is not written: {error}"
            self.result |= {"status": "failed", "message": text, "unsaved": True}
        if last and self.saver.idle:
            self.phase = Phase.EVALUATING
            if limit := self.evaluator.await_last(now):
                self.time_left.final_evaluation(now - self.log.began, limit)
                phase = self.log.phase(self.coordinator.version)
                self.log.event("phase", announcement(self.context.config.evaluation, limit), **phase)

    def _counted(self, workers: Iterable[int]) -> tuple[int, dict[str, Any]]:
        """The agent steps and counters of a checkpoint that has the states of these workers."""
        return self._totals.of_checkpoint(workers, self.evaluations.state(), self.result)

    def _write_line(self, now: float) -> None:
        self.log.line(now, self.coordinator.version, len(self.coordinator.live))

    # What other ranks say, and their deaths ------------------------------------------------------------------

    def _on_blob(self, blob: Blob) -> None:
        if blob.peer == self.evaluator.rank:
            self.evaluator.heard(time.monotonic())
        if blob.topic == Topic.REPORT:
            self.log.report(json.loads(blob.data))
        elif blob.topic == Topic.RESULT:
            self._on_result(json.loads(blob.data))
        elif blob.topic == Topic.STATE:
            worker = next((w for w, p in self.context.layout.workers.items() if p == blob.peer), None)
            if worker is not None:
                self._state_requests.answered(worker)
                self.collector.hold(rank_of(worker))
                self.saver.gathering.add_state(worker, blob.data)
        elif blob.topic == Topic.FAILED:
            self._on_failed(blob.peer, **json.loads(blob.data))
        elif blob.topic == Topic.EVENT:
            self.log.event(**json.loads(blob.data))

    def _on_failed(self, peer: int, text: str, line: str) -> None:
        name = self.context.layout.name(peer)
        self._failed.add(peer)
        self.log.event("rank_failed", f"{name}: {line}", traceback=text)
        if peer == self.evaluator.rank:
            self.evaluator.lost()  # it may still send reports, but evaluates no more
        self.stop("failed", f"{name} failed: {line} (see log.txt)", signaled=True)
        if self.phase is Phase.STOPPING:
            self._stop_deadline = min(self._stop_deadline, time.monotonic() + FAILED_COMMIT_SECONDS)
        print(f"{name} failed:\n{text}", flush=True)

    def _on_lost(self, event: PeerLost) -> None:
        layout = self.context.layout
        name = layout.name(event.peer)
        note = self.log.event if event.peer not in self._failed else lambda *what: None  # it has said why
        for worker, process in layout.workers.items():
            if process == event.peer:
                self.transport.send(self.coordinator.worker_lost(worker))
                rest = counted(len(self.coordinator.live), "worker")
                note("worker_lost", f"{name} died; training goes on with {rest}")
                if not self.coordinator.live:
                    self.stop("failed", f"{name} died, and it was the last worker", signaled=True)
        if event.peer == self.evaluator.rank:
            note("evaluator_lost", f"{name} died; training goes on without evaluation")
            self.evaluator.lost()
        if event.peer in layout.actors:
            note("actor_lost", f"{name} died; it is left out until the next start")
        if event.peer in layout.replay_shards:
            note("replay_shard_lost", f"{name} died, and with it its part of the replay")
        essential_lost(event, layout)
