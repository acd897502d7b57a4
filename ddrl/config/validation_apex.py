"""Which settings go together in Ape-X. Each check names both sides, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddrl import checks
from ddrl.config.algorithm import refuse_data
from ddrl.wording import counted

if TYPE_CHECKING:
    from ddrl.config.settings import TrainConfig

UNUSED = {
    "steps_per_update": "the learner does not wait for actors; use --samples-per-insert to set a ratio",
    "target_period": "the learner does not count the actors' steps; use --target-every-updates",
    "target_updates": "Ape-X has --target-every-updates instead; use that",
}


def check(config: TrainConfig) -> None:
    """Refuses settings of a run with actors that contradict each other, and settings of Ape-X without actors.

    Raises:
        UsageError: with the setting to change.
    """
    apex = config.apex
    if not apex.actors:
        why = "there are no actors to fill such a replay; train apex-dqn, with --actors of 1 or more"
        checks.unused(apex, why)
        return
    if not config.has_replay:
        why = f"{config.algorithm.name} does not learn from a replay; leave it at 0, or train apex-dqn"
        checks.refuse(apex, "actors", why)
    _check_sampling(config)
    _check_exchange(config)
    _check_unused(config)
    _check_replay(config)


def _check_sampling(config: TrainConfig) -> None:
    sampling, optimizer = config.sampling, config.optimizer
    if sampling.schedule != "asynchronous":
        checks.refuse(
            sampling, "schedule", "actors and learner do not wait for each other; use asynchronous, or train apex-dqn"
        )
    if sampling.groups != 1:
        checks.refuse(sampling, "groups", "an actor steps its simulators together; use more --actors, and 1 group")
    why = "an actor queries the policy itself, with all its simulators; leave it at 0"
    checks.unused(sampling, why, "rollout_length", "predictors", "predict_batch")
    if not optimizer.batch_size:
        why = "a replay has no rollouts to take whole; give the number of transitions per gradient"
        checks.refuse(optimizer, "batch_size", why)


def _check_exchange(config: TrainConfig) -> None:
    exchange = config.exchange
    if exchange.workers != 1:
        checks.refuse(exchange, "workers", "one learner takes all batches, and the --actors act; use 1")
    if not exchange.kind.has_servers:
        why = "actors fetch parameters from servers, or from the learner; use parameter_server"
        checks.refuse(exchange, "exchange", why)
    if exchange.chief != "trains":
        checks.refuse(exchange, "chief", "the learner is the chief; use trains")
    if exchange.updates != "synchronous":
        checks.refuse(exchange, "updates", "there is one learner, which waits for its own update; use synchronous")


def _check_unused(config: TrainConfig) -> None:
    algorithm = config.algorithm
    uncounted = "the learner does not count the actors' steps"
    checks.unused(config.optimizer, f"{uncounted}; use --learning-rate-updates", "learning_rate_agent_steps")
    checks.unused(config.replay, f"{uncounted}; use --importance-updates", "importance_agent_steps")
    unseen = "the learner does not see what the actors saw; leave it out, or train dqn or dpg"
    checks.unused(config.network, unseen, "normalize_observations")
    checks.unused(algorithm, unseen, "normalize_rewards")
    for name, why in UNUSED.items():
        if hasattr(algorithm, name):
            checks.unused(algorithm, why, name)


def _check_replay(config: TrainConfig) -> None:
    apex, replay, each = config.apex, config.replay, config.shard_capacity
    if each < apex.segment_length:
        why = f"each would keep {counted(each, 'transition')}, fewer than --segment-length {apex.segment_length}"
        checks.refuse(apex, "replay_shards", f"{why}; use fewer shards")
    if 2 * replay.replay_minimum > each * apex.replay_shards:
        # Episodes of a step or two have more frames for each transition than a shard has places for.
        why = f"must be at most half of --replay-capacity {replay.replay_capacity}, or learning could never begin"
        checks.refuse(replay, "replay_minimum", why)
    if config.replay_data.n_step > apex.segment_length:
        refuse_data(config.algorithm, "n_step", f"must be at most --segment-length {apex.segment_length}")


def warnings(config: TrainConfig) -> list[str]:
    """What may be meant, and mostly is not: one line each."""
    apex, replay, found = config.apex, config.replay, []
    if not apex.actors or not (replay.priority_exponent or apex.eviction_exponent):
        return []
    if apex.prefetch * config.batch_size > replay.replay_minimum:
        found.append(
            f"{apex.prefetch} batches of {config.batch_size} are drawn ahead of their updates, and learning begins "
            f"with {replay.replay_minimum} transitions, so priorities come late; lower --prefetch"
        )
    if atoms := getattr(config.algorithm, "atoms", 0):
        found.append(
            f"--atoms {atoms}: actors give initial priorities in rewards, and the learner later ones in nats, so that "
            "one kind may crowd out the other; use --atoms 0, or --priority-exponent 0 without --eviction-exponent"
        )
    return found
