"""Which settings go together with a replay: the Q-learning family and DPG. Each check names both sides, and what to do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ddrl import checks
from ddrl.algorithms import DPGConfig

if TYPE_CHECKING:
    from ddrl.config import TrainConfig

SCHEDULES = ("standard", "concurrent")


def check(config: TrainConfig) -> None:
    """Refuses settings that contradict each other.

    Raises:
        UsageError: with the setting to change.
    """
    sampling, optimizer, algorithm = config.sampling, config.optimizer, config.algorithm
    if config.apex.actors:
        if isinstance(algorithm, DPGConfig):
            _check_dpg(config)
        return  # the rest is that of `ddrl.combinations.apex`
    if sampling.schedule not in SCHEDULES:
        apart = "; asynchronous takes --actors of 1 or more" if sampling.schedule == "asynchronous" else ""
        why = f"{algorithm.name} learns from a replay; {' or '.join(SCHEDULES)}{apart}"
        checks.refuse(sampling, "schedule", why)
    if not optimizer.batch_size:
        checks.refuse(
            optimizer, "batch_size", "a replay has no rollouts to take whole; give the transitions per gradient"
        )
    for name in ("rollout_length", "predictors", "predict_batch"):
        if getattr(sampling, name):
            checks.refuse(sampling, name, f"{algorithm.name} acts with whole groups until its next updates; leave it 0")
    steps, rows = algorithm.steps_per_update, config.rows
    if steps % rows and rows % steps:
        why = f"{rows} simulators step together: it must divide them, or be a multiple of them"
        checks.refuse(algorithm, "steps_per_update", why)
    if algorithm.target_period % max(steps, rows):
        if isinstance(algorithm, DPGConfig):
            why = f"{rows} simulators step together: a multiple of {rows // math.gcd(rows, steps)}, so that a period is whole"
            checks.refuse(algorithm, "target_updates", why)
        why = f"must be a multiple of --steps-per-update {steps} and of the {rows} simulators: a period is whole"
        checks.refuse(algorithm, "target_period", why)
    if isinstance(algorithm, DPGConfig):
        _check_dpg(config)
    _check_replay(config)


def _check_dpg(config: TrainConfig) -> None:
    if config.network.network != "mlp":
        checks.refuse(config.network, "network", "dpg has dense layers alone (--policy-layers, --critic-layers); mlp")
    if config.evaluation.eval_epsilon:
        checks.refuse(config.evaluation, "eval_epsilon", "dpg is evaluated without noise; leave it 0")


def _check_replay(config: TrainConfig) -> None:
    replay, rows = config.replay, config.replay.replay_capacity // config.rows
    if replay.replay_minimum > replay.replay_capacity:
        checks.refuse(
            replay,
            "replay_minimum",
            f"learning could never begin: there is room for --replay-capacity {replay.replay_capacity}; lower it",
        )
    first = config.algorithm.n_step * config.rows
    if replay.replay_minimum < first:
        why = f"a first transition takes --n-step {config.algorithm.n_step} of all {config.rows} simulators"
        checks.refuse(replay, "replay_minimum", f"{why}; raise it to {first}")
    if config.algorithm.n_step >= rows:
        checks.refuse(
            config.algorithm,
            "n_step",
            f"the replay holds {rows} steps of each of {config.rows} simulators; raise --replay-capacity",
        )


def warnings(config: TrainConfig) -> list[str]:
    """What may be meant, and mostly is not: one line each."""
    return _late_priorities(config) + _support(config) + _clipped_rewards(config)


def _late_priorities(config: TrainConfig) -> list[str]:
    algorithm = config.algorithm
    if config.sampling.schedule != "concurrent" or not config.replay.priority_exponent:
        return []
    return [
        f"--schedule concurrent sets priorities at the end of a target period, up to {algorithm.target_updates} "
        "minibatches late, and acts with parameters of its beginning; --schedule standard does neither"
    ]


def _support(config: TrainConfig) -> list[str]:
    algorithm = config.algorithm
    if isinstance(algorithm, DPGConfig) or not algorithm.atoms:
        return []
    support = f"the support of the distributions is {algorithm.value_min:g} to {algorithm.value_max:g}"
    if not algorithm.reward_clip:
        return [f"{support}, and rewards are not clipped: returns beyond count as its ends; watch support_end"]
    largest = algorithm.reward_clip * math.fsum(algorithm.discount**k for k in range(algorithm.n_step))
    if algorithm.value_min > -largest or algorithm.value_max < largest:
        return [
            f"{support}, and the rewards of one target alone reach +-{largest:.3g} (--reward-clip "
            f"{algorithm.reward_clip:g}, --n-step {algorithm.n_step}): widen --value-min and --value-max"
        ]
    return []


def _clipped_rewards(config: TrainConfig) -> list[str]:
    algorithm, game = config.algorithm, config.environment.game
    if not isinstance(algorithm, DPGConfig) or not algorithm.reward_clip or game.startswith("dm_control/"):
        return []
    return [
        f"rewards of {game} are clipped to +-{algorithm.reward_clip:g} for learning, as the paper's, which lie in 0 to 1: "
        "--reward-clip 0 if they are larger, or --preset laptop"
    ]
