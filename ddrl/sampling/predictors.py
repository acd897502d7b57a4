"""Predictor threads that several groups share: whatever observations wait are inferred together (HTS-RL's actors)."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from ddrl.sampling.actor import PolicyFunction
from ddrl.sampling.rollouts import POLL_SECONDS, Ended


class _Query:
    """Observations of one group, and the answer to come."""

    __slots__ = ("answer", "done", "observations", "parameters")
    answer: tuple[np.ndarray, np.ndarray] | BaseException  # once `done` is set

    def __init__(self, parameters: object, observations: np.ndarray):
        self.parameters, self.observations = parameters, observations
        self.done = threading.Event()


class Predictors:
    """A policy function that gathers the queries of many threads.

    Which queries meet in one call depends on time, and so must not matter: `policy` pads to one size, so that a row's
    answer is the same to the bit whatever stands beside it. Actions are drawn by the simulators' own streams
    (Liu et al. 2020, "Asynchronous actors and executors").

    Args:
        policy: pads to `batch_size`.
        threads: calls at once.
        batch_size: observations per call at most; no query may have more.
        ended: set when the schedule stops; whoever waits then raises `Ended`.
    """

    def __init__(self, policy: PolicyFunction, threads: int, batch_size: int, ended: threading.Event):
        self._policy, self.batch_size, self._ended = policy, batch_size, ended
        self._waiting: deque[_Query] = deque()
        self._changed = threading.Condition()
        self.calls = 0
        for i in range(threads):
            threading.Thread(target=self._serve, name=f"predictor-{i}", daemon=True).start()

    def __call__(self, parameters: object, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `policy`; waits for a predictor.

        Args:
            parameters: <float32>[N]; queries of the same object are inferred together.
            observations: [b, ...].

        Raises:
            Ended: the schedule was stopped.
            ValueError: more observations than `batch_size`.
        """
        if len(observations) > self.batch_size:
            raise ValueError(f"{len(observations)} observations in one query of at most {self.batch_size}")
        query = _Query(parameters, observations)
        with self._changed:
            self._waiting.append(query)
            self._changed.notify()
        while not query.done.wait(POLL_SECONDS):
            if self._ended.is_set():
                raise Ended
        if isinstance(query.answer, BaseException):
            raise query.answer
        return query.answer

    def _serve(self) -> None:
        while not self._ended.is_set():
            queries = self._take()
            if queries:
                self._answer(queries)

    def _take(self) -> list[_Query]:
        """The queries that wait first, as many as one call can have with one version of the parameters."""
        with self._changed:
            if not self._waiting:
                self._changed.wait(POLL_SECONDS)
            queries: list[_Query] = []
            rows = 0
            while self._waiting:
                query = self._waiting[0]
                rows += len(query.observations)
                if rows > self.batch_size or (queries and query.parameters is not queries[0].parameters):
                    break
                queries.append(self._waiting.popleft())
            return queries

    def _answer(self, queries: list[_Query]) -> None:
        try:
            together = [query.observations for query in queries]
            observations = together[0] if len(together) == 1 else np.concatenate(together)
            policy, value = self._policy(queries[0].parameters, observations)
            self.calls += 1
            start = 0
            for query in queries:
                stop = start + len(query.observations)
                query.answer = policy[start:stop], value[start:stop]
                start = stop
        except BaseException as error:  # noqa: BLE001 - raised in the threads that asked
            for query in queries:
                query.answer = error
        for query in queries:
            query.done.set()
