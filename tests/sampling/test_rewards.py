"""The rewards to learn from: an event tells when those of a game other than Atari's are clipped."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ddrl import algorithms
from ddrl.reporting.rank_metrics import RankMetrics
from ddrl.sampling.rewards import transform_of
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)


def learned(rewards, game="LunarLander-v3", index=0, **settings):
    """What is learned from several arrays of rewards, and the events that they make."""
    config = algorithms.preset("default", game, MACHINE, "ppo").changed(algorithm=settings)
    metrics = RankMetrics("worker", index)
    transform = transform_of(config, metrics)
    return [transform(np.float32(array)).tolist() for array in rewards], metrics.report()["events"]


def test_the_first_reward_that_is_clipped_makes_an_event():
    rewards, events = learned([[0.5, 1.0, -1.0], [0.25, -100.0, 7.0], [5.0]])
    assert rewards == [[0.5, 1.0, -1.0], [0.25, -1.0, 1.0], [1.0]]
    (event,) = events
    assert event["name"] == "reward_clipped"
    assert event["text"].startswith(
        "LunarLander-v3 gave a reward of -100, but rewards are clipped to [-1, 1] for learning, as for Atari games; "
        "--reward-clip 0 turns that off"
    )


def test_of_two_threads_that_clip_at_once_one_tells():
    """Each group of simulators has a thread, and they share the function."""
    both = threading.Barrier(2)

    class Met(np.ndarray):
        def __mul__(self, factor):
            both.wait(60)
            return np.asarray(self) * factor

    config, metrics = algorithms.preset("default", "LunarLander-v3", MACHINE, "ppo"), RankMetrics("worker", 0)
    transform, rewards = transform_of(config, metrics), np.float32([-100.0]).view(Met)
    with ThreadPoolExecutor(2) as threads:
        for learned_from in [threads.submit(transform, rewards) for _ in range(2)]:
            assert learned_from.result(60).tolist() == [-1.0]
    assert [event["name"] for event in metrics.report()["events"]] == ["reward_clipped"]


def test_a_scale_comes_before_the_clip():
    assert learned([[20.0]], reward_scale=0.05) == ([[1.0]], [])
    rewards, (event,) = learned([[100.0]], reward_scale=0.05, reward_clip=4.0)
    assert rewards == [[4.0]] and "a reward of 100, but rewards times 0.05 are clipped to [-4, 4]" in event["text"]


@pytest.mark.parametrize(
    "options", [{"game": "pong"}, {"game": "ALE/Pong-v5"}, {"index": 1}, {"reward_clip": 0.0}, {"reward_clip": 100.0}]
)
def test_nothing_is_told_where_clipping_is_meant_or_another_rank_tells(options):
    clip = options.get("reward_clip", 1.0)
    assert learned([[-100.0]], **options) == ([[-clip or -100.0]], [])
