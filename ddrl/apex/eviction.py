"""Chooses which transitions of a full replay are evicted first."""

from __future__ import annotations

import numpy as np

from ddrl.replay.sum_tree import SumTree


class OldestFirst:
    """Chooses live items in the order of their numbers.

    It sorts all live items, and again when those are used up; for millions that takes a fraction of a second. Items
    inserted since are newer than all of those that it sorted, so nothing has to be done on insertion.

    Args:
        numbers: <int64>[S] by item; an item that is used again has a larger number. Read, not copied.
        tree: of the items' weights: 0 where an item is not live.
    """

    def __init__(self, numbers: np.ndarray, tree: SumTree):
        self._numbers, self._tree = numbers, tree
        self.forget()

    def forget(self) -> None:
        """Forgets the sorted items, because others have replaced all items."""
        self._queue, self._next, self._newest = np.zeros(0, np.int64), 0, -1

    def choose(self, count: int) -> np.ndarray:
        """Chooses live items <int64>[count], which must not be more than there are; the caller removes them."""
        chosen, missing = [np.zeros(0, np.int64)], count
        while missing:
            if self._next == len(self._queue):
                self._sort(np.concatenate(chosen))
            items = self._queue[self._next : self._next + missing]
            self._next += len(items)
            # Items that were removed without being chosen here may be in use again.
            items = items[(self._tree.weights[items] > 0) & (self._numbers[items] <= self._newest)]
            chosen.append(items)
            missing -= len(items)
        return np.concatenate(chosen)

    def _sort(self, chosen: np.ndarray) -> None:
        live = self._tree.weights > 0
        live[chosen] = False
        items = np.flatnonzero(live)
        self._queue, self._next = items[np.argsort(self._numbers[items])], 0
        self._newest = int(self._numbers[self._queue[-1]])


class InversePriority:
    """Draws items in proportion to their weights, p^exponent with an exponent below 0 (Horgan et al. 2018, appendix D).

    Args:
        tree: of these weights; chosen items have weight 0 in it afterward.
        random: the source of chance.
    """

    def __init__(self, tree: SumTree, random: np.random.Generator):
        self._tree, self._random = tree, random

    def forget(self) -> None:
        """Does nothing, because nothing is remembered."""

    def choose(self, count: int) -> np.ndarray:
        """Draws items <int64>[count] without replacement, as if one after the other; the caller removes them."""
        chosen, missing = [np.zeros(0, np.int64)], count
        while missing:
            drawn = self._tree.find(self._random.random(missing) * self._tree.total)
            items = drawn[np.sort(np.unique(drawn, return_index=True)[1])]  # each where it was drawn first
            self._tree.set(items, np.zeros(len(items)))
            chosen.append(items)
            missing -= len(items)
        return np.concatenate(chosen)
