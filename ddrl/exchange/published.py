"""The published versions of one shard, kept for readers such as the evaluator.

A reader needs slices of the same version from all shards; it computes no gradients.
"""

from __future__ import annotations

import numpy as np

from ddrl.exchange.messages import Header, Kind, Message

VERSIONS_KEPT = 2  # so that a reader that has one shard's older version can still complete it


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
        """Keeps `parameters`, which must not change any more, as version `name`; returns what readers waited for.

        `version` is the shard's own: asynchronous shards differ in it, and publish under the chief's number.
        """
        self._kept[name] = version, parameters
        while len(self._kept) > VERSIONS_KEPT:
            del self._kept[min(self._kept)]
        waiting, self._waiting = self._waiting, {}
        return [message for peer, wanted in waiting.items() for message in self.fetch(peer, wanted)]

    def fetch(self, peer: int, wanted: int) -> list[Message]:
        """Answers a reader with version `wanted`, or with the newest where that one is gone; later if there is none."""
        newest = max(self._kept, default=-1)
        if newest < wanted:
            self._waiting[peer] = wanted
            return []
        name = wanted if wanted in self._kept else newest
        version, parameters = self._kept[name]
        return [Message(peer, Header(Kind.PUBLISHED, sender=self._shard, version=name, step=version), parameters)]
