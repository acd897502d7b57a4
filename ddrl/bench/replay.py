"""`ddrl bench replay`: samples/s of a full prioritized replay on one core while transitions come in.

A shard of Ape-X's replay is measured by `ddrl.bench.replay_shard`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from ddrl import checks
from ddrl.bench import replay_shard, timing
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments
from ddrl.placement.resources import available_memory
from ddrl.replay.replay import Replay, check_memory
from ddrl.replay.sum_tree import SumTree
from ddrl.reporting.rank_metrics import resident_mb
from ddrl.types import Unroll

OBSERVATION, STACK = (4, 84, 84), 4
STEPS = 32  # steps in an unroll
MOST_INSERTS_PER_SAMPLE = 1000.0
NOTES = {
    "samples_per_s": "drawn, gathered and given new priorities, while inserting",
    "inserts_per_s": "transitions, at the same time on the same core",
    "samples_per_s_alone": "nothing is inserted",
    "inserts_per_s_alone": "nothing is sampled",
    "bytes_per_transition": "resident memory, all in all",
    "find_us": "to draw a batch from a sum tree, by its items",
    "set_us": "to change a batch of weights, by items",
    "find_us_per_level": "constant where the cost is logarithmic",
    "set_us_per_level": "constant where the cost is logarithmic",
}


@dataclasses.dataclass(frozen=True)
class ReplayArguments(BenchmarkArguments):
    """Fill a replay of 84x84 frames, then draw batches from it and insert transitions in turns, in one thread.

    After that, the sum tree alone, over its number of items. The kinds shard-images and shard-features are a shard of
    Ape-X's replay, with settings of their own, beside DeepMind's Reverb where --peer-python has it.
    """

    kind: Literal["one-process", "shard-images", "shard-features"] = "one-process"
    """What is measured: the replay of `train dqn`, or a shard of Ape-X's with the paper's batches."""
    peer_python: str = ""
    """Shards only: Python of an environment that has dm-reverb."""
    replay_capacity: int = 1_000_000
    """Transitions; a million take 7.1 GB."""
    batch_size: int = 512
    """Transitions drawn at once."""
    inserts_per_sample: float = 0.5
    """Transitions inserted for each that is drawn."""
    simulators: int = 8
    """Simulators that the transitions come from."""
    n_step: int = 3
    """Steps of a return."""
    priority_exponent: float = 0.6
    """Exponent of the priorities; 0 draws uniformly."""
    tree_items: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    """Sizes of the sum tree to measure alone; 10 million items take 160 MB."""
    seconds: float = 5.0
    """Time for each measurement."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "batch_size", "simulators", "n_step")
        why = "the inserts for one batch would take longer than all else"
        checks.between(self, 0.0, MOST_INSERTS_PER_SAMPLE, "inserts_per_sample", why=why)
        checks.above(self, 0.0, "seconds")
        if self.peer_python and self.kind == "one-process":
            checks.refuse(
                self, "peer_python", "only --kind shard-images and --kind shard-features use it; leave it out"
            )
        if min(self.tree_items, default=0) < 1:
            checks.refuse(self, "tree_items", "give one or more numbers above 0")


def measure(arguments: ReplayArguments) -> dict[str, Any]:
    """Measures rates, memory, and the sum tree by size; for a shard, only its rates.

    Raises:
        UsageError: the replay does not fit into memory, its numbers are out of range, or a peer cannot be run.
    """
    if arguments.kind != "one-process":
        given = (arguments.kind, arguments.replay_capacity, arguments.seconds, arguments.peer_python)
        return replay_shard.measure(*given)
    kind = (arguments.replay_capacity, arguments.simulators, OBSERVATION, np.uint8)
    check_memory(Replay.bytes_for(*kind, stack=STACK, n_step=arguments.n_step), available_memory())
    before, unroll = resident_mb(), endless_unroll(arguments.simulators)
    replay = Replay(*kind, stack=STACK, n_step=arguments.n_step, priority_exponent=arguments.priority_exponent)
    for _ in range(arguments.replay_capacity // unroll.reward.size + 2):
        replay.add(unroll)
    taken = 1e6 * (resident_mb() - before)
    values = {**_rates(arguments, replay, unroll), "bytes_per_transition": round(taken / replay.size, 1)}
    del replay
    return {**values, **_tree(arguments), **arguments.settings("tree_items")}


def endless_unroll(simulators: int) -> Unroll:
    """An unroll of noise whose frame stacks wrap around, so that adding it repeatedly makes an endless episode."""
    random, shape = np.random.default_rng(0), (STEPS, simulators)
    frames = random.integers(256, size=(*shape, *OBSERVATION[1:]), dtype=np.uint8)
    stacks = frames[(np.arange(STEPS + 1)[:, None] - np.arange(STACK - 1, -1, -1)) % STEPS]
    ones = np.ones(shape, np.float32)
    return Unroll(
        observation=np.moveaxis(stacks, 1, 2).copy(),
        action=random.integers(4, size=shape).astype(np.int32),
        reward=random.standard_normal(shape).astype(np.float32),
        discount=0.99 * ones,
        continues=ones,
        valid=ones,
        value=np.zeros((STEPS + 1, simulators), np.float32),
        behaviour_log_prob=-ones,
        behaviour_version=np.zeros(shape, np.int64),
    )


def _rates(arguments: ReplayArguments, replay: Replay, unroll: Unroll) -> dict[str, float]:
    random, memory = np.random.default_rng(1), replay.memory_for(arguments.batch_size)

    def draw() -> int:
        sample = replay.sample(random, arguments.batch_size, importance_exponent=0.4, into=memory)
        replay.set_priorities(sample.key, random.exponential(size=arguments.batch_size))
        return arguments.batch_size

    def insert() -> int:
        replay.add(unroll)
        return int(unroll.reward.size)

    return replay_shard.rates(draw, insert, arguments.inserts_per_sample, arguments.seconds)


def _tree(arguments: ReplayArguments) -> dict[str, dict[str, float]]:
    """Microseconds to draw a batch from a sum tree and to set a batch of weights, by the number of items."""
    names = ("find_us", "find_us_per_level", "set_us", "set_us_per_level")
    values: dict[str, dict[str, float]] = {name: {} for name in names}
    random = np.random.default_rng(2)
    for items in arguments.tree_items:
        tree = SumTree(items)
        tree.set_all(random.exponential(size=items))
        # The inputs are made before the measurement, and enough of them that they do not all stay in the cache.
        masses = random.random((64, arguments.batch_size)) * tree.total
        chosen = random.integers(items, size=(64, arguments.batch_size))
        turn = iter(range(1 << 62))

        def find() -> None:
            tree.find(masses[next(turn) % 64])

        def change() -> None:
            tree.set(chosen[(i := next(turn)) % 64], masses[i % 64])

        levels = max(1, (items - 1).bit_length())
        for name, work in (("find", find), ("set", change)):
            value = 1e6 / timing.rate(work, arguments.seconds / 4)
            values[f"{name}_us"][str(items)] = round(value, 1)
            values[f"{name}_us_per_level"][str(items)] = round(value / levels, 2)
    return values


main = Benchmark(
    name="replay",
    arguments=ReplayArguments,
    measure=measure,
    title="replay ({options.kind}) of {options.replay_capacity:,}",
    notes=replay_shard.NOTES | NOTES,
)
