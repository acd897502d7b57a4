"""The rewards to learn from, and word of it where they are clipped although the game is none of Atari's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from ddrl.config import TrainConfig
from ddrl.envs.game_names import atari_rom
from ddrl.reporting.rank_metrics import RankMetrics

Transform = Callable[[np.ndarray], np.ndarray]
"""Raw rewards <float32>[...] -> rewards to learn from."""


def transform_of(config: TrainConfig, metrics: RankMetrics) -> Transform:
    """The algorithm's `transform_reward`; the first reward that it clips makes an event, `reward_clipped`.

    Clipping is made for Atari games, with one setting for games that score in ones and in hundreds (Mnih et al. 2015).
    Elsewhere it is seldom meant, and only lower scores would show it. The first worker or actor tells of it.
    """
    settings, game = config.algorithm, config.environment.game
    if not settings.reward_clip or metrics.index > 0 or atari_rom(game) is not None:
        return settings.transform_reward
    untold = [True]  # emptied once it is told, by the thread of one group

    def transform(rewards: np.ndarray) -> np.ndarray:
        if untold:
            clipped = rewards[np.abs(rewards * np.float32(settings.reward_scale)) > settings.reward_clip]
            if clipped.size:
                with contextlib.suppress(IndexError):  # another thread was faster
                    untold.pop()
                    metrics.event("reward_clipped", _text(config, float(clipped[0])))
        return settings.transform_reward(rewards)

    return transform


def _text(config: TrainConfig, reward: float) -> str:
    clip, scale = config.algorithm.reward_clip, config.algorithm.reward_scale
    rewards = "rewards" if scale == 1.0 else f"rewards times {scale:g}"
    return (
        f"{config.environment.game} gave a reward of {reward:g}, but {rewards} are clipped to [-{clip:g}, {clip:g}] "
        "for learning, as for Atari games; --reward-clip 0 turns that off (scores are never clipped)"
    )
