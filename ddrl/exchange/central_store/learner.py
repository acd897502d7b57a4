"""A learner on a central store: it takes gradients and returns new parameters (Stooke and Abbeel 2018, section 4.3).

There are two ways to apply a gradient. `SharedStatistics` applies each gradient to the central parameters with the
central slots, as A3C does (Mnih et al. 2016), by any optimizer. `LocalSteps` takes Adam steps on parameters of its own,
and synchronizes with the store after every n of them (appendix A).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddrl.errors import UsageError
from ddrl.exchange.central_store.memory import CentralStore, Chunk
from ddrl.exchange.central_store.multistep_adam import MultiStepAdam
from ddrl.exchange.optimizers import Optimizer, make_optimizer, rule_of
from ddrl.exchange.parameter_groups import ParameterGroup, cut
from ddrl.exchange.statistics import Statistics

if TYPE_CHECKING:
    from ddrl.exchange.settings import OptimizerConfig


def make_learner(
    store: CentralStore,
    config: OptimizerConfig,
    synchronize_every: int = 0,
    groups: Sequence[ParameterGroup] = (),
    statistics: Statistics | None = None,
) -> CentralLearner:
    """Makes the learner of a process.

    Args:
        store: the store with the central parameters.
        config: settings of the update rule.
        synchronize_every: number of local steps between two synchronizations (0: each gradient is applied to the
            central parameters).
        groups: ranges of the parameters whose learning rate has a factor.
        statistics: position of the running statistics at the end of the parameters; None if there are none.

    Raises:
        UsageError: if an optimizer other than Adam is to take local steps, the store has other slots than the
            optimizer, or a chunk has only a part of the statistics.
    """
    if synchronize_every and config.optimizer != "adam":
        raise UsageError(
            f"--optimizer {config.optimizer} has no local steps between synchronizations, which are defined for adam "
            "only; choose that, or leave out --local-steps"
        )
    slots = make_optimizer(config, 1).slot_names
    if set(slots) != set(store.chunks[0].slots):
        raise UsageError(f"{store.path} has the slots {', '.join(store.chunks[0].slots)}, not {', '.join(slots)}")
    ranges = [(chunk.part.start, chunk.part.stop) for chunk in store.chunks]
    parts = [(b - a, cut(groups, a, b), statistics and statistics.within(a, b)) for a, b in ranges]
    if synchronize_every:
        return LocalSteps(store, [MultiStepAdam(config, *part) for part in parts], synchronize_every)
    rule = rule_of(config.optimizer)
    return SharedStatistics(store, [rule(config, *part) for part in parts])


class CentralLearner(ABC):
    """The learner of one process.

    Attributes:
        parameters: its newest parameters <float32>[N], read-only; each call that changes them makes a new array.
        versions: versions of the store's chunks from which `parameters` come, without own steps that are not yet
            synchronized.
        staleness: number of gradients that others applied between this learner's last read and its last update, in the
            chunk with the most of them.
        local_steps: number of own steps in `parameters` that are not yet in the store.
    """

    def __init__(self, store: CentralStore):
        self.store = store
        self.staleness = 0
        self.versions = store.versions
        self.parameters = np.empty(0, np.float32)

    @property
    @abstractmethod
    def local_steps(self) -> int: ...

    @property
    def version(self) -> int:
        """The number of gradients that are applied in every part of `parameters`."""
        return int(self.versions.min()) + self.local_steps

    @property
    def newest_version(self) -> int:
        """The version that `parameters` would have after a `pull` now."""
        return self.store.version + self.local_steps

    @abstractmethod
    def submit(self, gradient: np.ndarray, learning_rate: float) -> np.ndarray:
        """Applies a gradient <float32>[N], which must be finite; returns the new `parameters`.

        Raises:
            TimeoutError: if a chunk of the store does not become free.
        """

    @abstractmethod
    def pull(self) -> np.ndarray:
        """Reads the central parameters, so that acting continues with the newest ones; returns the new `parameters`.

        Raises:
            TimeoutError: if a chunk of the store does not become free.
        """

    @abstractmethod
    def synchronize(self) -> np.ndarray:
        """Adds the local steps to the store, and reads it; returns the new `parameters`.

        Raises:
            TimeoutError: if a chunk of the store does not become free.
        """

    def _renew(self, parameters: np.ndarray, versions: np.ndarray) -> np.ndarray:
        parameters.flags.writeable = False
        self.parameters, self.versions = parameters, versions
        return parameters


class SharedStatistics(CentralLearner):
    """Applies each gradient to the central parameters, with slots that all learners share.

    Args:
        optimizers: one for each chunk.
    """

    local_steps = 0

    def __init__(self, store: CentralStore, optimizers: Sequence[Optimizer]):
        super().__init__(store)
        self._optimizers = optimizers
        for optimizer, chunk in zip(optimizers, store.chunks, strict=True):
            optimizer.slots = chunk.slots
        self.pull()

    def submit(self, gradient: np.ndarray, learning_rate: float) -> np.ndarray:
        parameters, before = np.empty(self.store.size, np.float32), np.empty_like(self.versions)

        def apply(chunk: Chunk) -> None:
            optimizer = self._optimizers[chunk.index]
            optimizer.count, before[chunk.index] = chunk.count, chunk.version
            optimizer.apply(chunk.parameters, gradient[chunk.part], learning_rate)
            parameters[chunk.part] = chunk.parameters

        self.store.update(apply)
        self.staleness = int((before - self.versions).max())
        return self._renew(parameters, before + 1)

    def pull(self) -> np.ndarray:
        parameters = np.empty(self.store.size, np.float32)
        return self._renew(parameters, self.store.read(parameters))

    def synchronize(self) -> np.ndarray:
        return self.pull()


class LocalSteps(CentralLearner):
    """Takes Adam steps on its own parameters, and synchronizes with the store after every `every` of them.

    A pull keeps the local steps: theta = Theta - a_s, with m, v and t as they are. So it changes the parameters with
    which this process acts and at which the next gradient is taken, but not the sums for the next synchronization.

    Args:
        adams: one for each chunk.
    """

    def __init__(self, store: CentralStore, adams: Sequence[MultiStepAdam], every: int):
        super().__init__(store)
        self._adams, self.every = adams, every
        self.synchronize()

    @property
    def local_steps(self) -> int:
        return self._adams[0].local_steps

    def submit(self, gradient: np.ndarray, learning_rate: float) -> np.ndarray:
        parameters = np.empty(self.store.size, np.float32)
        for adam, chunk in zip(self._adams, self.store.chunks, strict=True):
            part = chunk.part
            adam.apply(self.parameters[part], gradient[part], learning_rate, out=parameters[part])
        self._renew(parameters, self.versions)
        return self.synchronize() if self.local_steps >= self.every else parameters

    def pull(self) -> np.ndarray:
        parameters = np.empty(self.store.size, np.float32)
        versions = self.store.read(parameters)
        for adam, chunk in zip(self._adams, self.store.chunks, strict=True):
            adam.ahead_of(parameters[chunk.part], out=parameters[chunk.part])
        return self._renew(parameters, versions)

    def synchronize(self) -> np.ndarray:
        parameters, before = np.empty(self.store.size, np.float32), np.empty_like(self.versions)
        steps = self.local_steps

        def exchange(chunk: Chunk) -> None:
            before[chunk.index] = chunk.version
            adam = self._adams[chunk.index]
            adam.synchronize(chunk.parameters, chunk.slots, chunk.count, out=parameters[chunk.part])

        self.store.update(exchange, steps)
        self.staleness = int((before - self.versions).max())
        return self._renew(parameters, before + steps)
