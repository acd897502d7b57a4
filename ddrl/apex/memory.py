"""The transitions of Ape-X as the configuration has them, and the memory that they take."""

from __future__ import annotations

from ddrl.apex.packing import WORD, BatchFormat
from ddrl.apex.segment import SegmentFormat
from ddrl.apex.shard_replay import ShardReplay
from ddrl.config import TrainConfig
from ddrl.envs import VectorEnvironment
from ddrl.envs.base import frames_of
from ddrl.structured import type_text

BATCHES_ON_THEIR_WAY = 3  # that a learner asks a replay shard for, ahead of the first one's arrival


def segment_format(config: TrainConfig, environment: VectorEnvironment) -> SegmentFormat:
    """Of what the actors of Ape-X send.

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
    """Memory of a replay shard when it is full, and of the batches that it sends.

    Raises:
        UsageError: there is no such replay.
    """
    each = config.replay.replay_capacity // config.apex.replay_shards
    batches = (BATCHES_ON_THEIR_WAY + 1) * WORD * BatchFormat(format, config.batch_size).floats
    return ShardReplay.bytes_for(format, each, config.apex.eviction_exponent) + batches


def prefetch_bytes(config: TrainConfig, environment: VectorEnvironment) -> int:
    """Memory of the batches that a learner has from replay shards; 0 without them."""
    if not config.apex.actors:
        return 0
    each = WORD * BatchFormat(segment_format(config, environment), config.batch_size).floats
    return each * (config.apex.prefetch + config.apex.replay_shards + 1)
