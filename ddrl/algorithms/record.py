"""What is known of an algorithm beside its settings, and of each name that it has on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ddrl.config import AlgorithmConfig, NetworkConfig, TrainConfig
from ddrl.networks import build_network
from ddrl.networks.network import Network
from ddrl.ops.draws import Draw
from ddrl.types import ActionSpace, LossOutput, Machine

Preset = Callable[[str, Machine], TrainConfig]
"""(game, machine) -> settings."""
Loss = Callable[..., LossOutput]
"""(network, parameters <float32>[N], batch, settings, LossContext) -> LossOutput."""
Targets = Callable[[Any, Any, Any, Any], Any]
"""(network, theta^- as `network.prepare` makes it, transitions, settings) -> targets, which theta^- alone decide. The
transitions have `reward`, `discount`, and `next_observation`; their other fields are None."""


class Name(NamedTuple):
    """A name that `ddrl train` takes: an algorithm with its schedule and exchange.

    Attributes:
        printed: as the papers write it.
        presets: name of a preset -> its settings. `default` must be there; ddrl's own names have `laptop` and `smoke`,
            too.
        game: of all presets, where none is named (empty: the preset's own).
        about: what it is, in a sentence that begins with its printed name (empty: the first of its module says so).
    """

    printed: str
    presets: Mapping[str, Preset]
    game: str = ""
    about: str = ""


class AheadTargets(NamedTuple):
    """Targets that theta^- alone decide: they are computed for many minibatches at once, ahead of the updates.

    So theta^- must be copied now and then. Where it is averaged, it changes with each update, and the loss reads it.

    Attributes:
        of: (network, prepared theta^-, transitions, settings) -> targets. The transitions have `reward`, `discount`,
            and `next_observation`; targets that need more, such as the action, belong in the loss.
        shape: (settings, action space) -> shape of a row of them.
        loss_reads_next: settings -> whether the loss reads `next_observation`, too.
    """

    of: Targets
    shape: Callable[[Any, Any], tuple[int, ...]] = lambda settings, space: ()
    loss_reads_next: Callable[[Any], bool] = lambda settings: False


class Exploration(NamedTuple):
    """What a way to draw actions in training may depend on.

    Attributes:
        space: of the actions.
        agent_steps: counts of a simulator's draws [b] -> agent steps of this worker since learning began; below 0 the
            replay is still being filled.
        places: simulator ids [b] -> their places among all simulators of the job, from 0 to 1.
        mean: (name, mean of some values, how many they are) for the metrics.
    """

    space: ActionSpace
    agent_steps: Callable[[np.ndarray], np.ndarray]
    places: Callable[[np.ndarray], np.ndarray]
    mean: Callable[[str, float, float], None]


def _standard_network(
    config: NetworkConfig, settings: AlgorithmConfig, shape: tuple[int, ...], dtype: Any, space: ActionSpace
) -> Network:
    return build_network(config, shape, dtype, space, settings.head)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An algorithm, as its module registers it.

    Attributes:
        settings: the class of its settings.
        names: on the command line.
        loss: a pure function of tensors.
        targets: of a loss from a replay whose targets are computed ahead (None: it computes its own).
        context: what the loss reads of its LossContext beside `anneal`: `target` (from a replay or rollouts), `key`.
        network: (NetworkConfig, settings, observation shape, its dtype, action space) -> Network.
        draw: (settings, Exploration) -> how actions are drawn in training (None: from the policy's distribution).
        critic: (network, prepared parameters, observations, actions) -> q <float32>[M] of continuous actions, with
            which actors of Ape-X give initial priorities (None: the values that their policy gave already).
        learned: (settings, action space) -> name and first value of scalars that the algorithm learns beside the
            network, such as multipliers. They are tensors of the flat vector, in what `network.prepare` gives.
    """

    settings: type[AlgorithmConfig]
    names: Mapping[str, Name]
    loss: Loss
    targets: AheadTargets | None = None
    context: frozenset[str] = frozenset()
    network: Callable[..., Network] = _standard_network
    draw: Callable[[Any, Exploration], Draw] | None = None
    critic: Callable[[Any, Any, Any, Any], Any] | None = None
    learned: Callable[[Any, Any], Mapping[str, float]] = lambda settings, space: {}

    @property
    def name(self) -> str:
        """Of the settings, as files bear it."""
        return self.settings.name
