"""Predictor threads that several groups share: whatever observations wait are inferred together (HTS-RL's actors)."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from ddrl.sampling.actor import PolicyFunction
from ddrl.sampling.rollouts import POLL_SECONDS, Ended


class _Query:
    """Observations of one group, the row of a call at which they begin, and the answer to come."""

    __slots__ = ("answer", "done", "observations", "parameters", "rows")
    answer: tuple[np.ndarray, np.ndarray] | BaseException  # once `done` is set

    def __init__(self, parameters: object, observations: np.ndarray, first_row: int):
        self.parameters, self.observations = parameters, observations
        self.rows = slice(first_row, first_row + len(observations))
        self.done = threading.Event()


class Predictors:
    """Threads that answer the policy queries of all groups, with one call for queries that wait together.

    Which queries meet in one call depends on time, and so must not matter. On some processors the last bits of a row's
    answer depend on the place of the row, though not on what stands beside it. So every call has the same number of
    rows, and each group has its place there. Actions are drawn from the simulators' own streams (Liu et al. 2020,
    "Asynchronous actors and executors").

    Args:
        policy: the policy function that is called.
        threads: most calls at the same time.
        batch_size: rows of each call.
        query_size: rows of each query. If a call has too few places for all groups, groups share places.
        ended: set when the schedule stops; whoever waits then raises `Ended`.

    Raises:
        ValueError: a call has no room for a query.
    """

    def __init__(self, policy: PolicyFunction, threads: int, batch_size: int, query_size: int, ended: threading.Event):
        if batch_size < query_size:
            raise ValueError(f"queries of {query_size} observations for calls of {batch_size}")
        self._policy, self._ended = policy, ended
        self._batch_size, self._query_size = batch_size, query_size
        self._waiting: deque[_Query] = deque()
        self._changed = threading.Condition()
        for i in range(threads):
            threading.Thread(target=self._serve, name=f"predictor-{i}", daemon=True).start()

    def of_group(self, group: int) -> PolicyFunction:
        """The policy function for the group of this number."""
        return lambda parameters, observations: self.ask(group, parameters, observations)

    def ask(self, group: int, parameters: object, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Queries the policy, and waits for the answer of a predictor thread.

        Args:
            group: number of the group that asks.
            parameters: <float32>[N]; queries of the same object are inferred together.
            observations: [query_size, ...].

        Raises:
            Ended: the schedule was stopped.
            ValueError: another number of observations.
        """
        if len(observations) != self._query_size:
            raise ValueError(f"{len(observations)} observations in a query of {self._query_size}")
        place = group % (self._batch_size // self._query_size)
        query = _Query(parameters, observations, place * self._query_size)
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
        """Takes the query that has waited longest, and those that have the same parameters and other places."""
        with self._changed:
            if not self._waiting:
                self._changed.wait(POLL_SECONDS)
            queries: list[_Query] = []
            places: set[int] = set()
            for query in tuple(self._waiting):
                same_version = not queries or query.parameters is queries[0].parameters
                if same_version and query.rows.start not in places:
                    places.add(query.rows.start)
                    queries.append(query)
                    self._waiting.remove(query)
            return queries

    def _answer(self, queries: list[_Query]) -> None:
        try:
            one = queries[0].observations
            observations = np.zeros((self._batch_size, *one.shape[1:]), one.dtype)
            for query in queries:
                observations[query.rows] = query.observations
            policy, value = self._policy(queries[0].parameters, observations)
            for query in queries:
                query.answer = policy[query.rows], value[query.rows]
        except BaseException as error:  # noqa: BLE001 - raised in the threads that asked
            for query in queries:
                query.answer = error
        for query in queries:
            query.done.set()
