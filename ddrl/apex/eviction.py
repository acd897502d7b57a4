"""Which transitions of a full replay go first."""

from __future__ import annotations

import numpy as np

from ddrl.replay.sum_tree import SumTree


class OldestFirst:
    """Gives the live items in the order of their numbers.

    It sorts all live ones, which takes a fraction of a second for millions, when those that it sorted before are used
    up. What was inserted since is newer than all of those, so nothing has to be done on insertion.

    Args:
        numbers: <int64>[S] by item; an item that is used again has a larger number. Read, not copied.
        tree: of the items' weights: 0 where an item is not live.
    """

    def __init__(self, numbers: np.ndarray, tree: SumTree):
        self._numbers, self._tree = numbers, tree
        self.forget()

    def forget(self) -> None:
        """The items were replaced by others."""
        self._queue, self._next, self._newest = np.zeros(0, np.int64), 0, -1

    def choose(self, count: int) -> np.ndarray:
        """<int64>[count] live items, no more than there are; the caller removes them."""
        chosen, missing = [np.zeros(0, np.int64)], count
        while missing:
            if self._next == len(self._queue):
                self._sort(np.concatenate(chosen))
            items = self._queue[self._next : self._next + missing]
            self._next += len(items)
            # Those that went otherwise may have been used again.
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
        tree: of these weights; what was chosen has weight 0 afterwards.
        random: the source of chance.
    """

    def __init__(self, tree: SumTree, random: np.random.Generator):
        self._tree, self._random = tree, random

    def forget(self) -> None:
        """Nothing is remembered."""

    def choose(self, count: int) -> np.ndarray:
        """<int64>[count] items without repetition, as if drawn one after the other; the caller removes them."""
        chosen, missing = [np.zeros(0, np.int64)], count
        while missing:
            drawn = self._tree.find(self._random.random(missing) * self._tree.total)
            items = drawn[np.sort(np.unique(drawn, return_index=True)[1])]  # each where it was drawn first
            self._tree.set(items, np.zeros(len(items)))
            chosen.append(items)
            missing -= len(items)
        return np.concatenate(chosen)
