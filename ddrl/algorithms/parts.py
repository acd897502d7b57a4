"""What presets of several algorithms are made of."""

from __future__ import annotations

from typing import Any

from ddrl.algorithms.record import Preset
from ddrl.config import EnvironmentConfig, ExchangeConfig, NetworkConfig, RunConfig, SamplingConfig
from ddrl.types import Machine

ALONE = ExchangeConfig(workers=1, parameter_servers=0)
"""One process."""
PUBLISHED_NETWORK = NetworkConfig(network="nature", compute_dtype="float32")
"""Of presets that carry a paper's name: all papers compute in float32."""
LAPTOP_EVAL_EPSILON = 0.01
"""Of evaluations of actor-critics: without a random action now and then, every second greedy game of Breakout is caught
in a loop."""
SMOKE_NETWORK = NetworkConfig(network="mlp", compute_dtype="float32")
SMOKE_RUN = RunConfig(minutes=0.5, log_every_seconds=1.0, video=False)

# Stooke and Abbeel 2018, as they trained on Atari. What the paper does not say is taken from its code, accel_rl. Losses
# are means over the batch there, and the square error of the value is whole, as here.
STOOKE_AGENT_STEPS = 50_000_000  # of a whole run: 200 million frames (tables 2 and 3)
STOOKE_RUN = RunConfig(minutes=0.0, agent_steps=STOOKE_AGENT_STEPS)
# Of Q-learning, section 5: every million agent steps, of which an update takes 4, for up to 125,000, in games of at
# most 27,000; how many at once is ours.
STOOKE_EVALUATION = {
    "eval_every_updates": 1_000_000 // 4, "eval_games": 30, "eval_agent_steps": 125_000, "eval_time_share": 1.0,
    "evaluation_minutes": 0.0,
}  # fmt: skip


def laptop_network(machine: Machine) -> NetworkConfig:
    """Of presets for one machine: a smaller network, and the type that is faster there."""
    return NetworkConfig(network="a3c", compute_dtype=machine.faster_dtype)


def stooke_environment(game: str) -> EnvironmentConfig:
    """Images of 104x80, the loss of a life ends an episode, and every simulator begins with up to 2,000 random
    actions."""
    return EnvironmentConfig(game=game, protocol="stooke", life_loss_terminal=True, random_start_steps=2_000)


def stooke_q_learning(preset: Preset, optimizer: dict[str, Any]) -> Preset:
    """Stooke and Abbeel 2018, section 5.4: the settings of `preset` with their environment, sampling and evaluation.

    The docstring of `preset` says what larger batches need. All of them take more agent steps for an update.

    Args:
        preset: to change.
        optimizer: its settings that are others.
    """
    return lambda game, machine: preset(game, machine).changed(
        environment=stooke_environment(game),
        sampling=SamplingConfig(schedule="standard", simulators=8, groups=2),
        optimizer=optimizer,
        evaluation=STOOKE_EVALUATION,
        run=STOOKE_RUN,
    )


def central_store(machine: Machine, local_steps: int = 0) -> ExchangeConfig:
    """A central store for a worker on each core, two to eight of them.

    Args:
        machine: where it runs.
        local_steps: a worker's own steps between two synchronizations (0: every gradient goes to the store).
    """
    workers = max(2, min(machine.cores, 8))
    return ExchangeConfig(exchange="central_store", workers=workers, local_steps=local_steps)


def apex_actors(machine: Machine) -> int:
    """Actors of Ape-X on one machine: a core each, but for the learner's."""
    return max(1, min(machine.cores - 1, 16))
