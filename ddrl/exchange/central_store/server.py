"""A worker's own door to the central store, as a state machine with the messages of an asynchronous shard.

Every worker's process hosts one. It gets its worker's whole gradients and answers with whole vectors; what others do,
it sees in the shared memory only. Its HAVE tells the chief of each gradient. One of them, the main one, in the
chief's process, creates the store and answers for it: SNAPSHOT and PUBLISHED come from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ddrl.errors import UsageError
from ddrl.exchange.central_store.learner import CentralLearner, make_learner
from ddrl.exchange.central_store.memory import CentralStore
from ddrl.exchange.messages import Flag, Header, Message
from ddrl.exchange.optimizers import make_optimizer
from ddrl.exchange.parameter_server.server_shard import Shard
from ddrl.exchange.settings import OptimizerConfig


class StoreShard(Shard):
    """See the module; `Shard` has the messages. A version counts gradients that the central parameters have taken.

    Args:
        size: float32 values of the parameters.
        config: of the update rule.
        workers: process of the worker that this is for, by worker id.
        chief: process of the chief.
        path: of the store's file.
        openers: how many others open it: its name is removed as soon as they have, so that no file is left
            whichever way the job ends. None of them may come later.
        main: whether this one creates the store.
        synchronize_every: local Adam steps per synchronization (0: each gradient is applied to the store).
        chunks: of the store, each with its own lock.
        max_staleness: drop gradients more than this many versions old (0: unbounded).
        patience_seconds: for a lock and for the store's creation.
    """

    def __init__(
        self,
        size: int,
        config: OptimizerConfig,
        workers: Mapping[int, int],
        chief: int,
        path: Path,
        openers: int,
        *,
        main: bool,
        synchronize_every: int = 0,
        chunks: int = 3,
        max_staleness: int = 0,
        patience_seconds: float = 60.0,
    ):
        optimizer = make_optimizer(config, size)
        super().__init__(0, size, optimizer, workers, chief, asynchronous=True, max_staleness=max_staleness)
        self.config, self.path, self.openers, self.main = config, path, openers, main
        self.synchronize_every, self.chunks = synchronize_every, min(chunks, size)
        self.patience_seconds = patience_seconds
        self.learner: CentralLearner | None = None
        self._named = False  # whether the store's name is still to be removed

    @property
    def torn(self) -> int:
        """Updates of a chunk in whose middle a process died, over all processes."""
        return self.learner.store.torn if self.learner else 0

    def pull(self) -> list[Message]:
        """The newest central parameters for the worker, under the step that it has; for acting between gradients."""
        if self.learner is None or self.stopped:
            return []
        self._renew(self.learner.pull())
        return self._parameters_to(self.workers, Flag.REFRESH, members=0)

    def close(self) -> None:
        """Frees what this process has of the store; the main one removes its name too, if it is there still."""
        if self.learner is not None:
            if self._named:
                self.learner.store.unlink()
            self.learner.store.close()

    def _on_load(self, header: Header, payload: np.ndarray | None) -> list[Message]:
        """LOAD has a payload for the main one only."""
        if self.stopped:
            return []
        if self.main:
            super()._on_load(header, payload)
        self.learner = make_learner(self._store(), self.config, self.synchronize_every)
        self.step, self.learning_rate, self.loaded = header.step, header.value, True
        self._named = self.main
        self._remove_name()
        self._renew(self.learner.vector)
        return self._parameters_to(self.workers, Flag.NONE, members=0)

    def _store(self) -> CentralStore:
        if self.main:
            return CentralStore.create(
                self.path,
                self.parameters,
                self.optimizer.slots,
                version=self.version,
                count=self.optimizer.count,
                chunks=self.chunks,
                patience_seconds=self.patience_seconds,
            )
        store = CentralStore.open(self.path, patience_seconds=self.patience_seconds)
        if store.size != len(self.parameters):
            raise UsageError(
                f"{self.path} holds {store.size} parameters, this worker's network has {len(self.parameters)}: "
                "start all ranks with the same options"
            )
        return store

    def _apply_on_arrival(self, header: Header, payload: np.ndarray) -> list[Message]:
        if self.stopped:
            return []
        self.step = header.step + 1
        self.version = self.learner.newest_version
        if self._refuses(header):
            self._renew(self.learner.pull())  # or the next gradient would be as old
        return super()._apply_on_arrival(header, payload)

    def _apply(self, gradients: list[np.ndarray], learning_rate: float, scale: float) -> None:
        """Just one gradient: this is asynchronous."""
        self._renew(self.learner.submit(gradients[0], learning_rate))
        self._remove_name()

    def _remove_name(self) -> None:
        if self._named and self.learner.store.opened >= self.openers:
            self.learner.store.unlink()
            self._named = False

    def _command(self, header: Header) -> list[Message]:
        if header.flags & Flag.STOP and self.loaded and not self.stopped:
            self._renew(self.learner.synchronize())
        return super()._command(header)

    def _side_effects(self, header: Header) -> list[Message]:
        if not self.main:
            return super()._side_effects(header._replace(flags=header.flags & Flag.STOP))
        if header.flags & (Flag.CHECKPOINT | Flag.PUBLISH) and self.loaded:
            store = self.learner.store
            self.parameters = np.empty(store.size, np.float32)
            self.version = int(store.read(self.parameters, self.optimizer.slots).min())
            self.optimizer.count = store.count
        return super()._side_effects(header)

    def _renew(self, vector: np.ndarray) -> None:
        self.parameters, self.version = vector, self.learner.version
