"""The evaluator's role, which plays whole games with frozen, published parameters and reports the scores."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from ddrl.errors import UsageError
from ddrl.evaluation.games import EvaluationResult, play_games
from ddrl.evaluation.turns import Turns
from ddrl.exchange.client import Reader
from ddrl.exchange.messages import Kind, Message
from ddrl.exchange.sharding import shard_ranges
from ddrl.exchange.transport import Blob, Event, Transport
from ddrl.job.layout import JobContext
from ddrl.job.role import Topic, Wait, essential_lost, failure_of, json_blob
from ddrl.learner import Policy, as_device_vector
from ddrl.networks.network import Network
from ddrl.placement.resources import this_machine
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.roles.best_evaluation import BestEvaluation

SLICE_SECONDS = 0.02  # how long the evaluator plays between two polls
AHEAD = 4  # games that step at the same time: each step waits for a thread to wake, which is slow while cores are busy
ALL_AT_ONCE = 50  # most games at once when all games are played for the target
FRESH_GAMES = 104_729  # added to the seed when all games are played for the target, so that they are new games


class EvaluatorRole:
    """Plays when the chief sends EVALUATE.

    A newer request ends the games that are under way, without a result. A request that says only "end" ends them, too,
    but with a result.

    Args:
        make_policy: () -> the compiled policy; called at the first request, since it takes memory and time.
    """

    def __init__(self, context: JobContext, transport: Transport, network: Network, make_policy: Callable[[], Policy]):
        self.context, self.transport, self._make_policy = context, transport, make_policy
        self.finished = False
        self.metrics = RankMetrics("evaluator", 0)
        layout = context.layout
        ranges = shard_ranges(network.size, len(layout.servers))
        self.reader = Reader(layout.servers, ranges)
        self._best = BestEvaluation(context, network.parameter_shapes, self._event)
        self._policy: Policy | None = None
        self._request: dict[str, Any] = {}
        self._games: Generator[None, None, EvaluationResult] | None = None
        self._turns: Turns | None = None
        self._deadline = math.inf
        self._parameters: np.ndarray = np.zeros(0, np.float32)  # the parameters that play; nobody writes to them
        self._vector: Any = None  # the same parameters, on the policy's device
        self._plays_all = False  # whether all games are being played, for the target
        self._started, self._fetching = 0.0, False
        self._started_processor = 0.0
        self._next_report = time.monotonic()
        transport.open(self.reader.assembler.channels(layout.servers, Kind.PUBLISHED))

    def handle(self, event: Event) -> None:
        essential_lost(event, self.context.layout)
        if isinstance(event, Message) and event.header.kind == Kind.PUBLISHED:
            again, snapshot = self.reader.handle(event.header, event.payload)
            self.transport.send(again)
            if snapshot is not None:
                self._begin(snapshot.parameters)
        elif isinstance(event, Blob) and event.topic == Topic.EVALUATE:
            request = json.loads(event.data)
            if request.get("end"):
                self._deadline = 0.0
                return
            self._request, self._games, self._deadline = request, None, math.inf
            self._started, self._fetching = time.monotonic(), True
            self._started_processor = time.process_time()
            self.transport.send(self.reader.fetch(self._request["version"]))
        elif isinstance(event, Blob) and event.topic == Topic.END:
            self.finished = True

    def advance(self) -> None:
        now = time.monotonic()
        while self._games is not None and time.monotonic() - now < SLICE_SECONDS:
            self._play()
        if now >= self._next_report:
            if self._games is not None and self._turns is not None and self._request.get("final"):
                self.metrics.gauge("evaluation_games_over", self._turns.over)
                self.metrics.gauge("evaluation_games", self._turns.games)
            self._next_report = now + self.context.config.run.log_every_seconds
            self.transport.send([json_blob(self.context.layout.chief, Topic.REPORT, self.metrics.report())])

    def due(self) -> bool:
        return self._games is not None

    def busy(self) -> bool:
        """Whether games are being played, so that it has work at the next poll; see `ddrl.exchange.local.Hosted`."""
        return self._games is not None

    def waits(self) -> Wait | None:
        if not self._fetching:
            return None
        servers = self.context.layout.servers
        return Wait(f"version {self._request['version']}", tuple(servers[i] for i in self.reader.assembler.missing()))

    def _begin(self, parameters: np.ndarray) -> None:
        self._fetching = False
        if self._policy is None:
            self._policy = self._make_policy()
        self._parameters = parameters
        self._vector, self._plays_all = as_device_vector(parameters), False
        evaluation, request = self.context.config.evaluation, self._request
        at_once = request["at_once"] or evaluation.eval_games
        turns = Turns(evaluation.eval_games, at_once, request["limit_seconds"])
        self._start_games(None if evaluation.eval_agent_steps else turns)  # a budget of steps ends games by itself

    def _play_all(self) -> None:
        """Plays all games, and new ones, because the games so far may have reached the target by luck."""
        self._plays_all = True
        games = self.context.config.evaluation.eval_games
        self._start_games(Turns(games, ALL_AT_ONCE, self._request["target_seconds"]), FRESH_GAMES)

    def _start_games(self, turns: Turns | None, fresh: int = 0) -> None:
        config, request, policy, vector = self.context.config, self._request, self._policy, self._vector
        assert policy is not None
        self._turns = turns
        if self._deadline > 0.0:  # else the evaluation was asked to end while its parameters were on their way
            self._deadline = math.inf if turns else time.monotonic() + request["limit_seconds"]
        cores = this_machine().cores
        self._games = play_games(
            config.environment,
            lambda observations: policy(vector, observations)[0],
            config.evaluation.eval_games,
            # The seed differs from those of training, and from one version to the next.
            seed=config.run.seed + 7919 * (request["version"] + 1) + fresh,
            epsilon=config.evaluation.eval_epsilon,
            drawn=config.evaluation.draws_actions,
            agent_steps=config.evaluation.eval_agent_steps,
            ahead=cores if request.get("final") else AHEAD,  # at the end nobody trains any more
            stop=lambda: time.monotonic() > self._deadline,
            turns=turns,
        )

    def _play(self) -> None:
        if self._games is None:
            return
        try:
            with self.metrics.timer("playing"):
                next(self._games)
        except StopIteration as end:
            self._games = None
            if self._may_have_reached_target(end.value):
                self._play_all()
            else:
                self._report(end.value)
        except UsageError as error:  # logits that are not finite: training will refuse its gradients and say so
            self._games = None
            failure = self._request | {"failed": str(error), "seconds": time.monotonic() - self._started}
            self.transport.send([json_blob(self.context.layout.chief, Topic.RESULT, failure)])
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # an environment may raise any of them
            self._games = None
            self.transport.send([json_blob(self.context.layout.chief, Topic.FAILED, failure_of(error))])

    def _may_have_reached_target(self, result: EvaluationResult) -> bool:
        target, games = self._request.get("target"), len(result.scores)
        some = 0 < games < self.context.config.evaluation.eval_games and self._turns is not None
        return target is not None and some and not self._plays_all and self._deadline > 0 and result.mean >= target

    def _machine_seconds(self) -> float:
        """The seconds of the whole machine that the evaluation has taken.

        In a run of one process it is all the time since the start, because training stands still meanwhile.
        """
        seconds = time.monotonic() - self._started
        if self.context.config.single_process:
            return seconds
        return min(seconds, (time.process_time() - self._started_processor) / this_machine().cores)

    def _report(self, result: EvaluationResult) -> None:
        evaluation, games = self.context.config.evaluation, len(result.scores)
        scores = {"mean": result.mean, "maximum": result.maximum, "scores": list(result.scores)} if games else {}
        content = self._request | {
            **scores,
            "games": games,
            "of_games": games + result.timed_out if evaluation.eval_agent_steps else evaluation.eval_games,
            "unfinished": result.unfinished,
            "timed_out": result.timed_out,
            "not_finite": result.not_finite,
            "stuck": result.stuck,
            "forced_actions": result.forced_actions,
            "seconds": time.monotonic() - self._started,
            "machine_seconds": self._machine_seconds(),
            "stamp": result.stamp,
        }
        self._best.take(content, self._parameters)  # comes first, as the chief may end the job after the last result
        self.transport.send([json_blob(self.context.layout.chief, Topic.RESULT, content)])

    def _event(self, name: str, text: str) -> None:
        self.transport.send([json_blob(self.context.layout.chief, Topic.EVENT, {"name": name, "text": text})])
