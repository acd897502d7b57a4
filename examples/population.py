"""Population-based training of Adam's epsilon (Jaderberg et al. 2017), from Python.

    python examples/population.py --dir population --game ddrl/Catch-v0

Members train in turn for some updates. After each generation the worst goes on with the parameters of the best and with
another epsilon near the best one's, both from checkpoints, in a run directory of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import ddrl

SMALLEST, LARGEST = 1e-9, 1e-2  # of epsilon at the beginning
FACTORS = (0.2, 5.0)  # of a copied epsilon


@dataclasses.dataclass
class Member:
    """A run and its epsilon; `score` is the mean of its last evaluation."""

    path: Path
    epsilon: float
    score: float = float("-inf")


def train(member: Member, updates: int, settings: dict[str, Any]) -> None:
    """Trains a member up to so many updates in all."""
    change = {"adam_epsilon": member.epsilon, "max_updates": updates, "minutes": 0, "progress": False}
    if member.path.exists():
        run = ddrl.train(resume=member.path, **change)
    else:
        run = ddrl.train(
            run_dir=member.path, video=False, **{"algorithm": "ppo", "preset": "smoke", **settings, **change}
        )
    member.score = float(run.metrics("evaluation")["mean"][-1])


def population(
    directory: Path, members: int, generations: int, updates: int, seed: int, **settings: Any
) -> list[Member]:
    """The members after the last generation, the best first.

    Args:
        directory: of the runs.
        members: 2 or more.
        generations: of `updates` updates each.
        updates: of a member in a generation.
        seed: of the epsilons.
        settings: of all runs, as `ddrl.train` takes them.
    """
    random = np.random.default_rng(seed)
    exponents = random.uniform(np.log10(SMALLEST), np.log10(LARGEST), members)
    ranked = [Member(directory / f"member-{i}", float(10.0**x)) for i, x in enumerate(exponents)]
    for generation in range(1, generations + 1):
        if generation > 1:
            best, worst = ranked[0], ranked[-1]
            path = directory / f"{worst.path.name.split('.')[0]}.{generation}"
            shutil.copytree(best.path, path)
            ranked[-1] = Member(path, best.epsilon * float(random.choice(FACTORS)))
        for number, member in enumerate(ranked):
            train(member, generation * updates, {"seed": seed + number, **settings})
        ranked.sort(key=lambda member: -member.score)
        for member in ranked:
            print(f"generation {generation}: {member.path.name} with epsilon {member.epsilon:.2g}: {member.score:.2f}")
    return ranked


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Population-based training of Adam's epsilon.")
    parser.add_argument("--dir", type=Path, default=Path("population"), help="of the runs")
    parser.add_argument("--game", default="ddrl/Catch-v0")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--updates", type=int, default=300, help="of a member in a generation")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = options.members, options.generations, options.updates
    best = population(options.dir, *sizes, options.seed, game=options.game)[0]
    print(f"best: {best.path} with epsilon {best.epsilon:.2g}")


if __name__ == "__main__":
    main()
