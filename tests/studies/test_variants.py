"""Variants of one algorithm: their points, and each of them beside the first."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import gymnasium
import numpy as np
import pytest

from ddrl import plugin_modules, plugins
from ddrl.errors import UsageError
from ddrl.studies.measures import EVALUATION
from ddrl.studies.point_checks import check_environments
from ddrl.studies.points import Outcome
from ddrl.studies.variants import VARIANTS
from tests.studies.support import MACHINE

THREE = ("plain:", "no backup:--quorum 2", "large batch: --batch-size 256 --learning-rate 1e-3")


FAST = """
import dataclasses
from typing import ClassVar

from ddrl.algorithms import Name, a2c
from ddrl.plugins import register_algorithm


@dataclasses.dataclass(frozen=True)
class Settings(a2c.A2CConfig):
    name: ClassVar[str] = "fast-a2c"


def fast(game, machine):
    config = a2c.ALGORITHM.names["a2c"].presets["smoke"](game, machine)
    return config.changed(algorithm=Settings(), optimizer={"batch_size": 8}, evaluation={"target_score": 1.0})


names = {"fast-a2c": Name("fast A2C", {"default": fast, "fast": fast})}
register_algorithm(dataclasses.replace(a2c.ALGORITHM, settings=Settings, names=names))
"""


def settings(**changes):
    return dataclasses.replace(VARIANTS.defaults, **{"variants": THREE, "repeats": 3, **changes})


def finished(chosen, score_of):
    outcomes = []
    for point in VARIANTS.points(chosen, MACHINE):
        score = score_of(point.labels["variant"], point.config.run.seed)
        record = {"kind": "evaluation", EVALUATION: score, "games": 50, "wall_seconds": 60.0, "agent_steps": 7_000}
        outcomes.append(Outcome(point, {"status": "finished"}, [record], None))
    return outcomes


def test_each_variant_has_its_options_beside_the_common_ones():
    points = VARIANTS.points(settings(train_options="--workers 2 --entropy-cost 0.02"), MACHINE)
    assert [point.name for point in points[:4]] == [
        "breakout-plain-seed1", "breakout-no-backup-seed1", "breakout-large-batch-seed1", "breakout-plain-seed2"
    ]  # fmt: skip
    assert len(points) == 9 and {point.config.algorithm.entropy_cost for point in points} == {0.02}
    plain, quorum, large = (point.config for point in points[:3])
    assert (plain.exchange.quorum, quorum.exchange.quorum) == (0, 2)
    assert (large.optimizer.batch_size, large.optimizer.learning_rate) == (256, 1e-3)


def test_a_variant_may_have_another_algorithm():
    chosen = settings(
        algorithm="ppo",
        variants=("plain:", "narrow: ppo --clip-range 0.05", "short:a2c"),
        train_options="--discount 0.9",
    )
    plain, narrow, short = (point.config for point in VARIANTS.points(chosen, MACHINE)[:3])
    assert [config.title for config in (plain, narrow, short)] == ["ppo", "ppo", "a2c"]
    assert (narrow.algorithm.clip_range, {each.algorithm.discount for each in (plain, narrow, short)}) == (0.05, {0.9})
    report = VARIANTS.report(chosen, finished(chosen, lambda name, seed: 20.0))
    assert report.heading == "ppo and a2c"
    of_one = settings()
    assert VARIANTS.report(of_one, finished(of_one, lambda name, seed: 1.0)).heading == "ba3c with other options"


def test_points_may_have_a_preset_that_only_an_algorithm_of_a_plugin_has(tmp_path):
    plugin = tmp_path / "fast.py"
    plugin.write_text(FAST)
    plugin_modules.load((str(plugin),))
    chosen = settings(preset="fast", algorithm="fast-a2c", variants=("plain:", "other:--discount 0.9"))
    configs = [point.config for point in VARIANTS.points(chosen, MACHINE)]
    assert {config.optimizer.batch_size for config in configs} == {8}
    assert {config.evaluation.target_score for config in configs} == {None}, "the preset's target is not the study's"


def test_variants_of_a_layer_that_the_network_lacks_are_refused():
    """They would be one variant, and the report would say that the layer makes no difference."""
    sizes = {"variants": ("64:--fc-neurons 64", "256:--fc-neurons 256"), "games": ("ddrl/Catch-v0",)}
    for network, refused in (("ba3c", False), ("nature", True)):
        points = VARIANTS.points(settings(train_options=f"--network {network}", **sizes), MACHINE)
        what = "--fc-neurons 256 and --fc-neurons 64: points differ in it, and only --network ba3c uses it"
        with pytest.raises(UsageError, match=what) if refused else nullcontext():
            check_environments(point.config for point in points)


class Misshapen(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, *sizes):
        self._observations = [np.zeros(size) for size in sizes]

    def reset(self, *, seed=None, options=None):
        return self._observations[0], {}

    def step(self, action):
        return self._observations[1], 0.0, False, False, {}


@pytest.mark.parametrize("sizes", [(3, 2), (2, 3)], ids=["reset", "step"])
def test_a_game_that_gives_what_is_not_of_its_spaces_is_refused_before_the_study(sizes):
    plugins.register_environment("misshapen", lambda: Misshapen(*sizes))
    points = VARIANTS.points(settings(variants=("a:", "b:--discount 0.9"), games=("misshapen",)), MACHINE)
    with pytest.raises(UsageError, match=r"^misshapen gave an observation of shape \(3,\)"):
        check_environments(point.config for point in points)
    plugins.environments.remove("misshapen")


def test_switches_that_no_variant_reads_are_named_as_they_are_typed():
    name = "rmsprop-epsilon-inside"
    switched = {"variants": (f"in:--{name}", f"out:--no-{name}"), "games": ("ddrl/Catch-v0",)}
    points = VARIANTS.points(settings(train_options="--optimizer adam", **switched), MACHINE)
    with pytest.raises(UsageError, match=f"^--no-{name} and --{name}: points differ in it, and only --optimizer rms"):
        check_environments(point.config for point in points)


def test_variants_that_differ_in_what_none_of_them_reads_are_refused():
    epsilons = {"variants": ("small:--adam-epsilon 1e-8", "large:--adam-epsilon 1e-3"), "games": ("ddrl/Catch-v0",)}
    for words, refused in (("--optimizer rmsprop", True), ("--optimizer adam", False)):
        points = VARIANTS.points(settings(train_options=words, **epsilons), MACHINE)
        what = "--adam-epsilon .* and .*: points differ in it, and only --optimizer adam uses it"
        with pytest.raises(UsageError, match=what) if refused else nullcontext():
            check_environments(point.config for point in points)


def test_each_variant_stands_beside_the_first():
    chosen = settings(target_score=30.0, games=("breakout", "pong"))
    scores = {"plain": 20.0, "no backup": 40.0, "large batch": 20.5}
    report = VARIANTS.report(chosen, finished(chosen, lambda name, seed: scores[name] + seed))
    assert report.finding.startswith(
        'Breakout: the final score of "no backup" is 42.0, that of "plain" 22.0, and every run of the one is above '
        'every run of the other. Breakout: the final score of "large batch" is 22.5, that of "plain" 22.0; 3 runs of '
        "each say little about chance. Pong: "
    )
    breakout, pong, together = report.tables
    assert breakout.rows[0][:5] == ["plain", "-", 3, "not reached in 1 min", "never; never; never"]
    assert breakout.rows[1][:4] == ["no backup", "--quorum 2", 3, "1; 1; 1 min"]
    assert breakout.rows[1][4].values == (7_000.0,) * 3
    assert [row[0] for row in together.rows] == list(scores)
    assert [panel.title for panel in report.panels] == ["breakout"] * 2 + ["pong"] * 2 + ["Performance profile"]


def test_where_all_reached_the_target_agent_steps_are_compared():
    chosen = settings(target_score=10.0, games=("breakout",))
    report = VARIANTS.report(chosen, finished(chosen, lambda name, seed: 20.0))
    assert report.finding.startswith(
        'The number of agent steps to 10 of "no backup" is 7,000, that of "plain" 7,000; 3 runs'
    )
    assert 'Seed by seed, "no backup" took 1; 1; 1 times the agent steps of "plain".' in report.finding


def test_runs_of_equal_seeds_are_compared_in_pairs():
    chosen = settings(target_score=10.0, games=("breakout",), verdict="minutes", repeats=5)
    outcomes = finished(chosen, lambda name, seed: 20.0)
    for outcome in outcomes:
        share = {"plain": 1.0, "no backup": 0.5, "large batch": 1.0}[outcome.point.labels["variant"]]
        outcome.records[0]["wall_seconds"] = share * 10.0**outcome.point.config.run.seed
    finding = VARIANTS.report(chosen, outcomes).finding
    assert (
        'Seed by seed, "no backup" took 0.5 [0.5, 0.5] times the minutes of "plain"; the 95% interval excludes 1.'
        in finding
    )
    assert '"large batch" took 1 [1, 1] times the minutes of "plain"; the 95% interval includes 1.' in finding
    fewer = [
        outcome
        for outcome in outcomes
        if outcome.point.config.run.seed > 1 or outcome.point.labels["variant"] == "plain"
    ]
    assert "Seed by seed" not in VARIANTS.report(chosen, fewer).finding, "a seed that one of them lacks"


def test_runs_that_end_with_the_target_are_not_compared_by_their_scores():
    chosen = settings(target_score=18.0, games=("pong",), stop_at_target=True)
    scores = {"plain": 18.5, "no backup": 17.0, "large batch": 18.0}
    finding = VARIANTS.report(chosen, finished(chosen, lambda name, seed: scores[name])).finding
    assert finding == 'Runs that reached 18: 3 of 3 of "plain", 0 of 3 of "no backup", 3 of 3 of "large batch".'


def test_or_minutes():
    chosen = settings(target_score=10.0, games=("breakout",), verdict="minutes", repeats=5)
    outcomes = finished(chosen, lambda name, seed: 20.0)
    for outcome in outcomes:
        late = 60.0 if outcome.point.labels["variant"] == "plain" else 0.0
        outcome.records[0]["wall_seconds"] = 60.0 + late + outcome.point.config.run.seed
    finding = VARIANTS.report(chosen, outcomes).finding
    assert finding.startswith(
        'The time in minutes to 10 of "no backup" is 1.05, that of "plain" 2.05, '
        "and the 95% interval of their difference excludes 0"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": ("plain", "other:")}, "--variants plain: write NAME:OPTIONS"),
        ({"variants": ("plain:", "plain:--workers 2")}, "--variants plain: give two or more"),
        ({"variants": ("plain:", "odd:--no-such-option 3")}, "variant odd: .*--no-such-option"),
        ({"algorithm": "ba4c"}, "ba4c.*did you mean ba3c"),
        ({"variants": ("plain:", "other:ba4c --workers 2")}, "variant other: ba4c.*did you mean ba3c"),
        ({"preset": "lapdog"}, "--preset lapdog: there is none of that name; did you mean laptop"),
        ({"stop_at_target": True}, "--stop-at-target.*no target"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        VARIANTS.points(settings(**changes), MACHINE)
