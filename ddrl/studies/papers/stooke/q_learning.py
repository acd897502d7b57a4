"""Q-learning with batches of any size, at one training intensity: section 5.4.1, figures 4, 6 to 9 and 12."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ddrl import checks, run_lock, rundir
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.curves import learning_panel, spread_text
from ddrl.studies.figures import Panel
from ddrl.studies.findings import extremes
from ddrl.studies.measures import count, final, mean, most, newest
from ddrl.studies.papers.stooke.simulators import chosen_sizes, size_axes, sizes_report
from ddrl.studies.points import Group, Outcome, Point, grouped
from ddrl.studies.settings import EvaluatedSettings, base_config, one_of
from ddrl.studies.study import Labels, Report, Study
from ddrl.studies.tables import table
from ddrl.types import Machine

INTENSITY = 8  # uses of each transition, whatever the batch
RATE_FACTORS: Mapping[str, Mapping[int, float]] = {
    "dqn": {32: 1.0, 512: 3.0, 1024: 6.0},
    "categorical-dqn": {32: 1.0, 256: 1.68},
    "rainbow": {32: 1.0},
}
"""Learning rate by batch size, over that of batch 32 (Stooke and Abbeel 2018, section 5.4.1)."""
EPSILONS = {"categorical-dqn": 0.01, "rainbow": 0.005}
"""Adam's epsilon times the batch size."""


def rate_factor(algorithm: str, size: int) -> float:
    """The learning rate at a batch size, over that of batch 32.

    Between published sizes it is interpolated linearly in logarithms; beyond them it is that of the nearest one.
    """
    sizes, factors = zip(*sorted(RATE_FACTORS[algorithm].items()))
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(factors))))


def with_batch(config: TrainConfig, algorithm: str, size: int, rate: float = 0.0) -> TrainConfig:
    """The settings with another batch size, and with as many updates as use every transition INTENSITY times.

    The target period is rounded to whole updates. RMSProp's epsilon, which is inside the root, falls with the square of
    the batch size: the published one belongs to gradients that are summed, not averaged.

    Args:
        algorithm: dqn, categorical-dqn, rainbow.
        rate: learning rate (0: it grows as published).

    Raises:
        UsageError: the size is not a multiple of INTENSITY.
    """
    if size % INTENSITY:
        raise UsageError(f"batch size {size}: give a multiple of {INTENSITY}, the uses of each transition")
    before, steps = config.optimizer, size // INTENSITY
    growth = rate_factor(algorithm, size) / rate_factor(algorithm, before.batch_size)
    optimizer = {"batch_size": size, "learning_rate": rate or before.learning_rate * growth}
    if algorithm in EPSILONS:
        optimizer["adam_epsilon"] = EPSILONS[algorithm] / size
    if before.optimizer == "rmsprop-centered":
        optimizer["rmsprop_epsilon"] = before.rmsprop_epsilon * (before.batch_size / size) ** 2
    unit = max(steps, config.rows)
    period = max(1, round(config.replay_data.target_period / unit)) * unit
    return config.changed(optimizer=optimizer, algorithm={"steps_per_update": steps, "target_period": period})


# batch-size: figures 4 and 12 -----------------------------------------------------------------------------------------

BATCH_SIZES = {"dqn": (32, 512, 1024, 2048), "categorical-dqn": (32, 256, 512, 1024, 2048), "rainbow": (32, 512)}
"""The paper's batch sizes by algorithm."""
BATCHES_PAPER = (
    "Stooke and Abbeel 2018: DQN learned as well up to batch 512, and at larger ones lost scores in some games; "
    "Categorical DQN up to 2,048; epsilon-Rainbow up to 512"
)


@dataclasses.dataclass(frozen=True)
class BatchSizeSettings(EvaluatedSettings):
    """Score against agent steps by batch size (Stooke and Abbeel 2018, figures 4 and 12; there 50 million agent steps).
    Every transition is used 8 times whatever the size, so larger batches make fewer updates. As in the paper, DQN's
    learning rate grows with the batch, Categorical DQN's up to 256, and epsilon-Rainbow keeps its own; Adam's epsilon
    falls with the batch."""

    algorithms: tuple[str, ...] = tuple(BATCH_SIZES)
    """Which of dqn, categorical-dqn, and rainbow."""
    sizes: tuple[str, ...] = ()
    """Batch sizes instead of the paper's, multiples of 8: dqn=32,512 categorical-dqn=2048."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "algorithms", BATCH_SIZES)
        self.chosen()

    def chosen(self) -> dict[str, tuple[int, ...]]:
        """Algorithm -> its batch sizes."""
        return chosen_sizes({name: BATCH_SIZES[name] for name in self.algorithms}, self.sizes)

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        algorithm = labels["algorithm"]
        config = base_config(self, algorithm, labels["game"], machine)
        return self.scored(with_batch(config, algorithm, labels["size"]))

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        what = dict.fromkeys(BATCH_SIZES, "transitions")
        report = sizes_report(self, outcomes, "Q-learning by batch size", self.caption, what)
        return dataclasses.replace(report, notes=[BATCHES_PAPER])

    def axes(self, machine: Machine) -> Iterator[Labels]:
        return size_axes(self.chosen(), self)


BATCH_SIZE = Study(
    name="batch-size",
    about="Q-learning with large batches (Stooke and Abbeel 2018, figure 4)",
    defaults=BatchSizeSettings(agent_steps=2_000_000),
    quick_changes={
        "agent_steps": 16_000, "eval_every_steps": 2000, "eval_games": 20,
        "sizes": ("dqn=32,128", "categorical-dqn=32,128", "rainbow=32"),
    },
    point_name="{algorithm}-{game}-{size}-seed{seed}",
)  # fmt: skip


# secondary-learner: appendix B, figures 6 to 8 ------------------------------------------------------------------------

NORM = "parameter_norm/all"
LEARNERS = ("sampler", "secondary")
WORKER = "ddrl.bench.secondary_worker"
SECONDARY_PAPER = (
    "Stooke and Abbeel 2018, appendix B, Breakout: a secondary learner with batch 64 kept up with its sampler of "
    "2,048; one with 2,048 learned nothing beside a sampler of 64; two with 256 scored alike"
)


@dataclasses.dataclass(frozen=True)
class SecondarySettings(EvaluatedSettings):
    """A secondary DQN learner trains from nothing but the replay of a normal one, the sampler, with batches of another
    size: where it keeps up, optimization does not limit large batches (Stooke and Abbeel 2018, appendix B, some 50
    million agent steps). Both begin with equal parameters and use every transition 8 times. A point that is interrupted
    begins anew."""

    pairs: tuple[str, ...] = ("2048:64", "64:2048", "256:256")
    """Batch sizes of sampler and secondary learner, multiples of 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score == "online":
            raise UsageError("--score online: the secondary learner plays no training games; use evaluation")
        self.parsed()

    def parsed(self) -> list[dict[str, int]]:
        """For each pair, the batch sizes of both learners by their names.

        Raises:
            UsageError: a pair is not two batch sizes.
        """
        pairs = []
        for words in self.pairs:
            sizes = words.split(":")
            if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
                raise UsageError(f"--pairs {words}: write batch sizes of sampler and secondary learner, as in 2048:64")
            pairs.append(dict(zip(LEARNERS, map(int, sizes))))
        return pairs

    def axes(self, machine: Machine) -> Iterator[Labels]:
        for game, pair, seed in itertools.product(self.games, self.parsed(), self.seeds):
            yield {"game": game, **pair, "seed": seed}

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        """The settings of the sampler, the learner that acts."""
        config = base_config(self, "dqn", labels["game"], machine).changed(sampling={"schedule": "concurrent"})
        if not config.single_process:
            raise UsageError("secondary-learner: both learners share a process; leave workers out of --train-options")
        if config.run.init_from:
            raise UsageError("secondary-learner: both learners draw their parameters; leave --init-from out")
        larger = max(labels[learner] for learner in LEARNERS)
        config = with_batch(config, "dqn", larger)  # a target period that suits both
        return self.scored(with_batch(config, "dqn", labels["sampler"]))

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """Scores and norms of parameters of both learners; the figure has a column for each pair."""
        pairs = grouped(outcomes, "game", *LEARNERS)
        learners = [learner for pair in pairs for learner in _learners(pair)]
        shown = ((self.score_name, "raw score"), (NORM, "norm of the parameters"))
        return Report(
            heading="A secondary DQN learner beside the one that acts",
            caption=f"{self.caption}; {spread_text(outcomes, self.score_name)}",
            finding=extremes(
                learners, final(self.score_name), "final score",
                lambda group: f"{group['learner']}, batch size {group['size']:,}",
            ),
            tables=[
                table("At the end of the budget", learners, {
                    "game": "game", "learner": "learner", "batch size": "size", "beside": "beside",
                    "seeds": count, "updates": most("update"), "score": final(self.score_name),
                    "norm of parameters": mean(newest(NORM)),
                })
            ],
            panels=[
                learning_panel(
                    f"{pair['game']}: sampler {pair['sampler']:,}, secondary {pair['secondary']:,}", y_label,
                    _learners(pair), name, lambda group: f"{group['learner']}, {group['size']:,}", among=pair.runs,
                )
                for name, y_label in shown
                for pair in pairs
            ],
            columns=len(pairs),
            notes=[SECONDARY_PAPER],
        )  # fmt: skip


def secondary_config(point: Point) -> TrainConfig:
    """Settings of the secondary learner."""
    return with_batch(point.config, "dqn", point.labels["secondary"])


def _learners(pair: Group) -> list[Group]:
    """A group for each learner of a pair, whose runs have the records of that learner alone."""
    groups = []
    for learner, other in (LEARNERS, LEARNERS[::-1]):
        labels = {"learner": learner, "size": pair[learner], "beside": f"{other} of {pair[other]:,}"}
        groups.append(Group({**pair.labels, **labels}, [of_learner(run, learner) for run in pair.runs]))
    return groups


def of_learner(run: Outcome, learner: str) -> Outcome:
    """A run with the records of one learner alone."""
    return run._replace(records=[record for record in run.records if record.get("learner") == learner])


def run_both(point: Point, path: Path) -> None:
    """Trains both learners in a separate process, and writes the records that it sends.

    Raises:
        UsageError: the settings are refused, or that process died or sent nothing for too long.
    """
    from ddrl.bench.children import Children
    from ddrl.launch.processes import Interrupts
    from ddrl.reporting.metrics import MetricsWriter

    path.mkdir(parents=True, exist_ok=True)
    config, configs = point.config, (point.config, secondary_config(point))
    first = {name: rundir.config_to_dict(settings) for name, settings in zip(LEARNERS, configs)}
    patience = 2 * config.evaluation.longest_seconds + config.run.start_seconds + config.run.stall_seconds
    with run_lock.locked(path), Interrupts() as interrupts:
        for name in (rundir.METRICS, rundir.RESULT):
            (path / name).unlink(missing_ok=True)
        rundir.write_json(path / rundir.CONFIG, first["sampler"])
        writer = MetricsWriter(path)
        with contextlib.closing(writer), Children(WORKER, [first], patience) as children:
            while not interrupts.stop and not (record := children.hear()[0]).get("end"):
                writer.write(record)
        rundir.write_json(path / rundir.RESULT, {"status": "stopped" if interrupts.stop else "finished"})


SECONDARY_LEARNER = Study(
    name="secondary-learner",
    about="DQN beside a second learner from its replay (Stooke and Abbeel 2018, appendix B)",
    defaults=SecondarySettings(repeats=2, agent_steps=2_000_000),
    quick_changes={
        "repeats": 1, "agent_steps": 24_000, "eval_every_steps": 3000, "eval_games": 20, "pairs": ("256:32", "32:256")
    },
    point_name="{game}-{sampler}-secondary-{secondary}-seed{seed}",
    run=run_both,
)  # fmt: skip


# norms: appendix C, figure 9 ------------------------------------------------------------------------------------------

ALGORITHM = "categorical-dqn"
OPTIMIZERS = {"adam": "Adam", "rmsprop": "RMSProp"}
RMSPROP = {"rmsprop_decay": 0.95, "rmsprop_epsilon": 1e-6, "rmsprop_epsilon_inside": True}
"""DQN's decay, and the epsilon of the program that the paper names; the paper gives neither."""
PARAMETERS = "norm of the parameters"
QUANTITIES = {"parameter_norm": PARAMETERS, "gradient_norm": "norm of a gradient", "step_norm": "norm of a step"}
NORMS_PAPER = (
    "Stooke and Abbeel 2018, appendix C: with Adam the dense layer's parameters are alike for all batch sizes at one "
    "learning rate, and the first convolution's spread; RMSProp needs 20 times the rate from 64 to 1,024; larger "
    "batches have smaller gradients and larger steps"
)


@dataclasses.dataclass(frozen=True)
class NormsSettings(EvaluatedSettings):
    """Norms of parameters, gradients and steps of the first convolution and of the dense layer while Categorical DQN
    learns with batches of several sizes: Adam beside RMSProp (Stooke and Abbeel 2018, appendix C, figure 9, 50 million
    agent steps). Every transition is used 8 times whatever the size."""

    setups: tuple[str, ...] = (
        "adam:64:4.2e-4", "adam:256:4.2e-4", "adam:1024:4.2e-4",
        "rmsprop:64:1e-4", "rmsprop:64:2.5e-4", "rmsprop:64:5e-4", "rmsprop:256:1.1e-3", "rmsprop:1024:5e-3",
    )  # fmt: skip
    """Optimizer (adam or rmsprop), batch size and learning rate of each. Of those with RMSProp at 64, the first is slow
    and the third unstable, as in the paper."""
    layers: tuple[str, ...] = ("conv0", "dense")
    """Layers that are shown: names of the network's tensors before the first /."""
    norms_every_steps: int = 10_000
    """Agent steps between measures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "norms_every_steps")
        self.parsed()

    def parsed(self) -> list[dict[str, str]]:
        """The setups as labels: `optimizer`, and `setup` for batch size and learning rate, such as '64, 0.00042'.

        Raises:
            UsageError: a setup is not an optimizer, a batch size and a learning rate.
        """
        return [_parsed(words) for words in self.setups]

    def axes(self, machine: Machine) -> Iterator[Labels]:
        for game, setup, seed in itertools.product(self.games, self.parsed(), self.seeds):
            yield {"game": game, **setup, "seed": seed}

    def config(self, machine: Machine, labels: Labels) -> TrainConfig:
        size, rate = labels["setup"].split(", ")
        config = with_batch(base_config(self, ALGORITHM, labels["game"], machine), ALGORITHM, int(size), float(rate))
        config = self.scored(config.changed(optimizer={"optimizer": labels["optimizer"], **RMSPROP}))
        return config.changed(run={"norms_every_updates": max(1, self.norms_every_steps * INTENSITY // int(size))})

    def report(self, outcomes: Sequence[Outcome]) -> Report:
        """Curves of scores and norms, and a table of their last values."""
        names = [f"{quantity}/{layer}" for layer in self.layers for quantity in QUANTITIES]
        groups = grouped(outcomes, "game", "optimizer", "setup")
        return Report(
            heading="Norms by batch size and optimizer, Categorical DQN",
            caption=f"curves: batch size, learning rate; {self.caption}; {spread_text(outcomes, self.score_name)}",
            finding=extremes(groups, final(self.score_name), "final score"),
            tables=[
                table("At the end of the budget", groups, {
                    "game": "game", "optimizer": "optimizer", "batch, rate": "setup", "seeds": count,
                    "score": final(self.score_name),
                    **{name: mean(newest(name)) for name in names},
                })
            ],
            panels=[panel for game in grouped(outcomes, "game") for panel in self._norms_panels(game)],
            columns=len(grouped(outcomes, "optimizer")) * (2 if len(self.layers) == 2 else 1),
            notes=[NORMS_PAPER],
        )  # fmt: skip

    def _norms_panels(self, game: Group) -> Iterator[Panel]:
        """Panels with the optimizers side by side: scores, norms of all parameters, then each norm of each layer."""
        shown = [(self.score_name, f" on {game['game']}", "raw score"), (NORM, ", all layers", PARAMETERS)]
        for quantity, text in QUANTITIES.items():
            shown += [(f"{quantity}/{layer}", f", {layer}", text) for layer in self.layers]
        for name, what, y_label in shown:
            for group in grouped(game.runs, "optimizer"):
                title, setups = f"{OPTIMIZERS[group['optimizer']]}{what}", grouped(group.runs, "setup")
                yield learning_panel(title, y_label, setups, name, lambda setup: setup["setup"], among=game.runs)


def _parsed(words: str) -> dict[str, str]:
    try:
        optimizer, size, rate = words.split(":")
        if optimizer in OPTIMIZERS and int(size) > 0 and 0 < float(rate) < 1:
            return {"optimizer": optimizer, "setup": f"{int(size)}, {float(rate)}"}
    except ValueError:
        pass
    raise UsageError(f"--setups {words}: write optimizer, batch size, and learning rate, as in adam:64:4.2e-4")


NORMS = Study(
    name="norms",
    about="norms of layers by batch size, Adam and RMSProp (Stooke and Abbeel 2018, appendix C)",
    defaults=NormsSettings(repeats=2, agent_steps=2_000_000, games=("qbert",)),
    quick_changes={
        "repeats": 1, "agent_steps": 16_000, "eval_every_steps": 2000, "eval_games": 20, "norms_every_steps": 500,
        "layers": ("q0", "q1"), "setups": ("adam:32:1e-3", "adam:128:1e-3", "rmsprop:32:1e-3", "rmsprop:128:2e-3"),
    },
    point_name=lambda settings, labels: (
        f"{labels['game']}-{labels['optimizer']}-{labels['setup'].replace(', ', '-')}-seed{labels['seed']}"
    ),
)  # fmt: skip
