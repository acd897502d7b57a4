"""The worker's role, which acts, computes gradients, and exchanges them for new parameters.

predictor threads --data-points--> trainer thread --gradient--> this role (the one thread that talks MPI)
        ^------------------------ newest parameters -----------------------------|
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from ddrl.builders.agent import seed_of
from ddrl.errors import UsageError, read_as
from ddrl.exchange.learning_rates import anneal_of
from ddrl.exchange.messages import Flag, Kind, Message
from ddrl.exchange.statistics import PREFIX
from ddrl.exchange.transport import Blob, Event, Transport
from ddrl.job.feed import Feed
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, Wait, end_of_job, essential_lost, first_word, json_blob
from ddrl.learner import Learner, as_device_vector
from ddrl.networks.network import Network
from ddrl.npz import decode_arrays, encode_arrays
from ddrl.replay.storage import OTHER
from ddrl.reporting.rank_metrics import REPORT_SECONDS, RankMetrics
from ddrl.roles.checkpoint_assembly import states_of
from ddrl.roles.exchanges import setup_of
from ddrl.roles.hashes import ParameterHashes
from ddrl.roles.norms import NormMeter
from ddrl.roles.trainer import Gradient, Trainer
from ddrl.sampling.schedules import Schedule
from ddrl.types import Snapshot

SETTLE_SECONDS = 2.0  # how long the end of a run waits for a trainer that is acting


class WorkerRole:
    """The worker's role, which begins with the chief's SETUP and ends with its END.

    Args:
        worker: id of this worker.
        wake: ends the sleep of the role loop; called when the trainer has a gradient.
        feed: brings batches that the schedule does not make by itself.
        working: called repeatedly during a long round of the role loop, to show that it does not hang.
    """

    def __init__(
        self,
        context: JobContext,
        transport: Transport,
        worker: int,
        network: Network,
        schedule: Schedule,
        learner: Learner,
        metrics: RankMetrics,
        wake: Callable[[], None],
        feed: Feed | None = None,
        working: Callable[[], object] = lambda: None,
    ):
        self.context, self.transport, self.worker, self.schedule = context, transport, worker, schedule
        schedule.working = working
        self._feed = feed or Feed()
        self.metrics, self.finished, self._stopped = metrics, False, False
        config, servers = context.config, context.layout.servers
        self.client = setup_of(context, network.parameter_shapes).client(worker, network.size)
        anneal = anneal_of(config.optimizer, config.agent_steps_per_update)
        tensors, seed = network.parameter_shapes, (config.run.seed, worker)
        self.trainer = Trainer(schedule, learner, metrics, wake, anneal, tensors, seed)
        self._report_seconds = min(config.run.log_every_seconds, REPORT_SECONDS)
        self._next_report = time.monotonic() + self._report_seconds
        self._waiting_since: float | None = None
        self._failed = self._begun = False
        self._first_step = -1  # the first step of this part of the run
        self._arrived: dict[int, float] = {}  # version -> time when its parameters came
        self._submitted = 0.0  # time when the last gradient was sent
        self._dropped = 0
        self._state_due: int | None = None  # number of the state that the chief has asked for
        self._answered = -1  # number of the newest state that was saved
        promised = context.config.run.deterministic and worker == 0
        every = context.config.run.norms_every_updates if worker == 0 else 0
        stepped = [tensor for tensor in network.parameter_shapes if not tensor[0].startswith(PREFIX)]
        self._norms = NormMeter(stepped, every, metrics) if every else None
        self._hashes = ParameterHashes(context.run_dir) if promised else None
        transport.open(self.client.assembler.channels(servers, Kind.PARAMETERS))

    def handle(self, event: Event) -> None:
        essential_lost(event, self.context.layout)
        if isinstance(event, Message) and event.header.kind == Kind.PARAMETERS:
            self._on_parameters(event)
        elif isinstance(event, Blob) and event.topic == Topic.SETUP:
            self._begin(event.data)
        elif isinstance(event, Blob) and event.topic == Topic.STATE_DUE:
            self._on_state_due(json.loads(event.data))
        elif isinstance(event, Blob) and event.topic == Topic.END:
            self._stop()
            self.finished = True
        self._feed.handle(event)

    def advance(self) -> None:
        while not self.trainer.gradients.empty():
            self._submit(self.trainer.gradients.get())
        if self.trainer.error and not self._failed:
            self._failed = True
            self._send(Topic.FAILED, self.trainer.error)
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + self._report_seconds
            self._report()
        if self._begun:
            self._feed.advance()

    def due(self) -> bool:
        return self._waiting_since is not None or self._feed.due()

    def waits(self) -> Wait | None:
        layout, client = self.context.layout, self.client
        if self._stopped:
            return end_of_job(self.context)
        if not self._begun:
            return first_word(self.context)
        if (wait := self._feed.waits()) is not None:
            return wait
        if client.snapshot is None or self._waiting_since is not None:
            if layout.hosts_servers:
                return None  # the server in this process says whom it waits for
            step = client.snapshot.step + 1 if client.snapshot is not None else 0
            # In a job of one process, no other rank could answer for the server.
            peers = tuple(layout.servers[shard] for shard in client.assembler.missing()) if layout.size > 1 else ()
            return Wait(f"parameters of step {step}", peers, self._patience(step - 1))
        step = client.snapshot.step
        what = f"the gradient of step {step} from its own trainer thread"
        # A rollout may take long, but as long as simulators step, something is counted.
        return Wait(what, (), self._patience(step), progress=self.metrics.counted)

    def _patience(self, step: int) -> float:
        """The seconds that a wait for this step may take in any case: more at first, since the gradient is compiled."""
        return self.context.config.run.start_seconds if step <= self._first_step else 0.0

    def _begin(self, data: bytes) -> None:
        content = decode_arrays(data)
        version, agent_steps = int(content.pop("version")), int(content.pop("agent_steps"))
        what = f"the state of worker {self.worker} in the checkpoint of update {version}"
        with read_as(what, OTHER, not_in="reset"):  # an error in an environment's reset is not one of the checkpoint
            self.schedule.set_state(content, seed_of(self.context.config.run.seed, self.worker, version))
        self.trainer.start()
        self._begun = True
        self._feed.begin(content, agent_steps)
        if self.client.snapshot is not None:
            self._on_snapshot(self.client.snapshot)

    def _on_parameters(self, message: Message) -> None:
        header = message.header
        if header.flags & Flag.REFRESH:  # to act with; the schedule decides if the next gradient is taken at them
            self.schedule.update(Snapshot(header.version, header.step, as_device_vector(message.payload)))
            return
        snapshot = self.client.handle(header, message.payload)
        if snapshot is not None and self._begun:  # else `_begin` handles it later, as there is no state to save yet
            self._on_snapshot(snapshot)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self._feed.updated(snapshot.version)
        if self._first_step < 0:
            self._first_step = snapshot.step
        if self._hashes is not None:
            self._hashes.add(snapshot.version, snapshot.parameters)
        if self._norms is not None:
            self._norms.parameters(snapshot.version, snapshot.parameters)
        if self._waiting_since is not None:
            self.metrics.mean("exchange_ms", 1000 * (time.monotonic() - self._waiting_since))
            self._waiting_since = None
        self._arrived[snapshot.version] = time.monotonic()
        flags = self.client.flags
        if flags & Flag.CHECKPOINT or self._state_is_due(snapshot):
            self._save_state(snapshot, last=bool(flags & Flag.STOP))
        if flags & Flag.STOP:
            self._stop()
            self._report()
            return
        with self.metrics.timer("pull"):
            snapshot = snapshot._replace(parameters=as_device_vector(snapshot.parameters))
        self.schedule.update(snapshot)
        self.trainer.parameters(snapshot)

    def _submit(self, gradient: Gradient) -> None:
        if self._stopped:
            return
        snapshot = gradient.snapshot
        if self._norms is not None and gradient.finite:
            self._norms.gradient(snapshot.version, gradient.vector)
        with self.metrics.timer("push"):
            messages = self.client.submit(
                gradient.vector, snapshot.step, snapshot.version, gradient.samples, gradient.finite
            )
            self.transport.send(messages)
        self._computed(snapshot.version)
        self.metrics.count("gradients_dropped", self.client.dropped - self._dropped)
        self._dropped = self.client.dropped
        if messages:
            self._waiting_since = time.monotonic()

    def _computed(self, version: int) -> None:
        """Measures how long a gradient took, from when its parameters were here and the previous gradient was sent."""
        now, before = time.monotonic(), self._submitted
        milliseconds = 1000 * (now - max(self._arrived.get(version, before), before))
        self._submitted = now
        self._arrived = {newer: when for newer, when in self._arrived.items() if newer >= version}
        self.metrics.mean("compute_ms", milliseconds)
        self.metrics.mean("compute_ms_squared", milliseconds**2)

    def _may_lag(self) -> bool:
        """Whether the trainer may be acting when a step closes."""
        return self.client.asynchronous or self.context.config.exchange.may_close_early

    def _on_state_due(self, number: int) -> None:
        """Notes that the chief asks for a state, unless the parameters of that checkpoint have asked for it already."""
        if self.client.asynchronous or number > self._answered:
            self._state_due = number

    def _state_is_due(self, snapshot: Snapshot) -> bool:
        """Whether the chief has asked for a state, and these parameters are not older than its checkpoint."""
        due = self._state_due
        return due is not None and (self.client.asynchronous or snapshot.step >= due)

    def _take_number(self, snapshot: Snapshot, last: bool) -> int:
        """The number of the state that is saved now, which is due no longer; see `states_of`.

        Parameters with CHECKPOINT belong to a checkpoint themselves. Others may have come in place of such ones.
        """
        step, due = snapshot.step, self._state_due or 0
        if self._state_is_due(snapshot):
            self._state_due = None
            if not self.client.flags & Flag.CHECKPOINT:
                step = due
        self._answered = step
        return states_of(self.client.asynchronous, last, step, due)

    def _save_state(self, snapshot: Snapshot, last: bool) -> None:
        """Sends the worker's state at this update boundary, at which the trainer waits for parameters.

        With asynchronous updates the boundary is the worker's own, except for the last one, and a quorum does not wait
        for stragglers. So a trainer may still be acting when the run ends, and gets some time to finish. With a replay,
        the trainer is then stopped, so that the replay can be saved, without what the trainer was acting.
        """
        config = self.context.config.run
        replay = self.context.config.has_replay_in_workers
        name = self._take_number(snapshot, last)
        patience = SETTLE_SECONDS if last and self._may_lag() else 0.0
        self._report()  # so that the checkpoint's counts have every agent step before it
        try:
            state, end = self.schedule.get_state(), time.monotonic() + patience
            while not state and time.monotonic() < end:
                time.sleep(0.01)
                state = self.schedule.get_state()
            if not state and last and replay:
                self.trainer.stop()
                state = self.schedule.get_state()
        except UsageError as error:  # training matters more than a replay's files; a game that fails does so again
            state = self._unsaved(str(error))
        if not state and replay:
            state = self._unsaved("it was acting, and its replay was about to change")
        if config.reset_at_checkpoint and not last and state and "unsaved" not in state:
            self.schedule.set_state(state, seed_of(config.seed, self.worker, snapshot.version))
        state = state or self.schedule.counters()
        self._feed.save(snapshot.step, state, lambda whole: self._send_state(name, whole))

    def _unsaved(self, why: str) -> dict[str, np.ndarray]:
        """The state without the replay: exploration goes on from it, though the replay begins empty."""
        return {"unsaved": np.frombuffer(why.encode(), np.uint8), **self.schedule.counters()}

    def _send_state(self, name: int, state: dict[str, np.ndarray]) -> None:
        data = encode_arrays(state | {"of": np.asarray(name, np.int64)})
        self.transport.send([Blob(self.context.layout.chief, Topic.STATE, data)])

    def _report(self) -> None:
        self._feed.report(self.metrics)
        self._send(Topic.REPORT, self.metrics.report())

    def _send(self, topic: Topic, content: object) -> None:
        self.transport.send([json_blob(self.context.layout.chief, topic, content)])

    def _stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.trainer.stop()
            self._feed.halt()
