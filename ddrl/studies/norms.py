"""`ddrl study norms`: which layer moves how far (Stooke and Abbeel 2018, appendix C, figure 9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddrl import checks
from ddrl.errors import UsageError
from ddrl.studies.curves import score_curve, spread_text, steps_unit
from ddrl.studies.figures import Panel
from ddrl.studies.groups import grouped
from ddrl.studies.measures import bootstrap
from ddrl.studies.points import Outcome, Point
from ddrl.studies.q_learning import INTENSITY, Scored, check_scored, scored, with_batch
from ddrl.studies.settings import StudySettings, base_config, changed, game_name, not_empty
from ddrl.studies.sized import last_score
from ddrl.studies.study import Report, Study
from ddrl.studies.tables import Table
from ddrl.types import Machine

ALGORITHM = "categorical-dqn"
OPTIMIZERS = {"adam": "Adam", "rmsprop": "RMSProp"}
RMSPROP = {"rmsprop_decay": 0.95, "rmsprop_epsilon": 1e-6, "rmsprop_epsilon_inside": True}
"""DQN's decay, and the epsilon of the program that the paper names; it tells neither."""
PARAMETERS = "norm of the parameters"
QUANTITIES = {"parameter_norm": PARAMETERS, "gradient_norm": "norm of a gradient", "step_norm": "norm of a step"}
CONVOLUTION, DENSE = "conv0", "dense"
PAPER = (
    "Stooke and Abbeel 2018, appendix C: with Adam the dense layer's parameters are alike for all batch sizes at one "
    "learning rate, and the first convolution's spread; RMSProp needs 20 times the rate from 64 to 1,024; larger "
    "batches have smaller gradients and larger steps"
)


class Setup(NamedTuple):
    """Optimizer, batch size, learning rate."""

    optimizer: str
    size: int
    rate: float

    @property
    def text(self) -> str:
        """Such as 64, 0.00042."""
        return f"{self.size}, {self.rate:g}"


@dataclasses.dataclass(frozen=True)
class NormsSettings(Scored, StudySettings):
    """Norms of parameters, gradients and steps of the first convolution and of the dense layer while Categorical DQN
    learns with batches of several sizes: Adam beside RMSProp (Stooke and Abbeel 2018, appendix C, figure 9). Every
    transition is used 8 times whatever the size."""

    games: tuple[str, ...] = ("qbert",)
    """Games, as for `ddrl train --game`."""
    repeats: int = 2
    """Runs of every point, each with a seed of its own."""
    setups: tuple[str, ...] = (
        "adam:64:4.2e-4", "adam:256:4.2e-4", "adam:1024:4.2e-4",
        "rmsprop:64:1e-4", "rmsprop:64:2.5e-4", "rmsprop:64:5e-4", "rmsprop:256:1.1e-3", "rmsprop:1024:5e-3",
    )  # fmt: skip
    """Optimizer (adam or rmsprop), batch size and learning rate of each. Of RMSProp at 64 the first is slow and the
    third unstable, as in the paper."""
    layers: tuple[str, ...] = (CONVOLUTION, DENSE)
    """Layers that are shown: names of the network's tensors before the first /."""
    norms_every_steps: int = 10_000
    """Agent steps between measures."""
    agent_steps: int = 2_000_000
    """Agent steps of a point (0: as many as --minutes allow; the paper: 50 million)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scored(self)
        not_empty(self, "setups", "layers")
        checks.at_least(self, 1, "norms_every_steps")
        self.parsed()

    def parsed(self) -> list[Setup]:
        """The setups.

        Raises:
            UsageError: one that says nothing.
        """
        return [_setup(words) for words in self.setups]


def _setup(words: str) -> Setup:
    optimizer, _, rest = words.partition(":")
    size, _, rate = rest.partition(":")
    try:
        setup = Setup(optimizer, int(size), float(rate))
    except ValueError:
        setup = None
    if setup is None or optimizer not in OPTIMIZERS or setup.size < 1 or not 0 < setup.rate < 1:
        raise UsageError(f"--setups {words}: write optimizer, batch size and learning rate, as in adam:64:4.2e-4")
    return setup


def points(settings: NormsSettings, machine: Machine) -> list[Point]:
    """All of them."""
    return [
        _point(settings, machine, setup, game, seed)
        for game in settings.games
        for setup in settings.parsed()
        for seed in settings.seeds
    ]


def _point(settings: NormsSettings, machine: Machine, setup: Setup, game: str, seed: int) -> Point:
    config = with_batch(base_config(settings, ALGORITHM, game, machine), ALGORITHM, setup.size, setup.rate)
    config = scored(settings, changed(config, optimizer={"optimizer": setup.optimizer, **RMSPROP}), seed)
    every = max(1, settings.norms_every_steps * INTENSITY // setup.size)
    name = f"{game_name(game)}-{setup.optimizer}-{setup.size}-{setup.rate:g}-seed{seed}"
    labels = {"game": game, "optimizer": setup.optimizer, "setup": setup.text}
    return Point(name, changed(config, run={"norms_every_updates": every}), labels)


def report(settings: NormsSettings, outcomes: Sequence[Outcome]) -> Report:
    """Figure 9: scores and norms; the last values as a table."""
    names = [f"{quantity}/{layer}" for layer in settings.layers for quantity in QUANTITIES]
    columns = ("game", "optimizer", "batch, rate", "seeds", "score", *names)
    rows = [
        [
            *labels,
            len(runs),
            bootstrap([last_score(run, settings.score_name) for run in runs]),
            *(bootstrap([_last(run, name) for run in runs]) for name in names),
        ]
        for labels, runs in grouped(outcomes, "game", "optimizer", "setup")
    ]
    optimizers = len({outcome.point.labels["optimizer"] for outcome in outcomes})
    return Report(
        heading="Norms by batch size and optimizer, Categorical DQN",
        caption=f"curves: batch size, learning rate; {settings.caption}; {spread_text(outcomes)}",
        tables=[Table("At the end of the budget", columns, rows)],
        panels=list(_panels(settings, outcomes)),
        columns=optimizers * (2 if len(settings.layers) == 2 else 1),
        notes=[PAPER],
    )


def _last(run: Outcome, name: str) -> float | None:
    return next((record[name] for record in reversed(run.records) if name in record), None)


def _panels(settings: NormsSettings, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    """Optimizers side by side: scores, norms of all parameters, then each quantity of each layer."""
    for (game,), some in grouped(outcomes, "game"):
        unit, x_label = steps_unit(some)
        wanted = [(settings.score_name, f" on {game}", "raw score"), ("parameter_norm/all", ", all layers", PARAMETERS)]
        for quantity, text in QUANTITIES.items():
            wanted += [(f"{quantity}/{layer}", f", {layer}", text) for layer in settings.layers]
        for name, what, y_label in wanted:
            for (optimizer,), runs in grouped(some, "optimizer"):
                curves = [score_curve(r, name, "agent_steps", unit, text) for (text,), r in grouped(runs, "setup")]
                yield Panel(f"{OPTIMIZERS[optimizer]}{what}", x_label, y_label, curves)


STUDY = Study(
    name="norms",
    defaults=NormsSettings(),
    quick=NormsSettings(
        quick=True,
        preset="smoke",
        games=("ddrl/Catch-v0",),
        repeats=1,
        agent_steps=16_000,
        eval_every_steps=2000,
        eval_games=20,
        norms_every_steps=500,
        layers=("q0", "q1"),
        setups=("adam:32:1e-3", "adam:128:1e-3", "rmsprop:32:1e-3", "rmsprop:128:2e-3"),
    ),
    points=points,
    report=report,
)
