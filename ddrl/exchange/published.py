"""The published versions of one shard, which it keeps for readers such as the evaluator.

A reader computes no gradients, and needs slices of the same version from all shards.
"""

from __future__ import annotations

import numpy as np

from ddrl.exchange.messages import Header, Kind, Message

VERSIONS_KEPT = 2  # a reader that has another shard's slice of the older version can still get that version


class Published:
    """The newest published versions of one shard, and the readers that wait for a newer one.

    Args:
        shard: index of the shard.
    """

    def __init__(self, shard: int):
        self._shard = shard
        self._kept: dict[int, tuple[int, np.ndarray]] = {}
        self._waiting: dict[int, int] = {}

    def add(self, name: int, version: int, parameters: np.ndarray) -> list[Message]:
        """Keeps `parameters` as published version `name`; returns the answers to readers that waited for it.

        Args:
            name: number under which all shards publish it.
            version: the shard's own version, which differs from `name` with asynchronous updates.
            parameters: <float32>[n], the shard's slice, which must not change any more.
        """
        self._kept[name] = version, parameters
        while len(self._kept) > VERSIONS_KEPT:
            del self._kept[min(self._kept)]
        waiting, self._waiting = self._waiting, {}
        return [message for peer, wanted in waiting.items() for message in self.fetch(peer, wanted)]

    def fetch(self, peer: int, wanted: int) -> list[Message]:
        """Answers the reader `peer` with version `wanted`, or with the newest version if that one is no longer kept.

        If version `wanted` is still to come, `add` answers later.
        """
        newest = max(self._kept, default=-1)
        if newest < wanted:
            self._waiting[peer] = wanted
            return []
        name = wanted if wanted in self._kept else newest
        version, parameters = self._kept[name]
        return [Message(peer, Header(Kind.PUBLISHED, sender=self._shard, version=name, step=version), parameters)]
