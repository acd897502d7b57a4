"""The format of Ape-X's transitions, which follows from the configuration, and the memory that they take."""

from __future__ import annotations

from ddrl.apex.packing import WORD, BatchFormat
from ddrl.apex.segment import SegmentFormat
from ddrl.apex.shard_replay import ShardReplay
from ddrl.config import TrainConfig
from ddrl.envs.base import GameFacts, frames_of
from ddrl.structured import type_text

BATCHES_ON_THEIR_WAY = 3  # most batches that a learner has asked a replay shard for and not received


def segment_format(config: TrainConfig, environment: GameFacts) -> SegmentFormat:
    """The format of the segments that the actors of Ape-X send.

    Raises:
        UsageError: a replay cannot keep such observations.
    """
    return SegmentFormat(
        tuple(environment.observation_shape),
        type_text(environment.observation_dtype),
        environment.action_space,
        stack=frames_of(environment),
        n_step=config.replay_data.n_step,
        length=config.apex.segment_length,
    )


def shard_bytes(config: TrainConfig, format: SegmentFormat) -> int:
    """Bytes of memory of a replay shard when it is full, with the batches that it sends.

    Raises:
        UsageError: there can be no such replay.
    """
    batches = (BATCHES_ON_THEIR_WAY + 1) * WORD * BatchFormat(format, config.batch_size).floats
    return ShardReplay.bytes_for(format, config.shard_capacity, config.apex.eviction_exponent) + batches


def prefetch_bytes(config: TrainConfig, environment: GameFacts) -> int:
    """Bytes of memory of the batches that a learner has from replay shards; 0 without Ape-X."""
    if not config.apex.actors:
        return 0
    each = WORD * BatchFormat(segment_format(config, environment), config.batch_size).floats
    return each * (config.apex.prefetch + config.apex.replay_shards + 1)
