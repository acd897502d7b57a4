"""Studies of the Q-learning family: what their points are, and what their reports make of runs."""

from __future__ import annotations

import dataclasses
import math

import pytest

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.reporting.metrics import rate_between
from ddrl.studies.figures import Curve
from ddrl.studies.human_normalized import scores_of
from ddrl.studies.papers import fast_dqn
from ddrl.studies.papers.stooke import q_learning
from ddrl.studies.papers.stooke.q_learning import LEARNERS, of_learner, rate_factor, with_batch
from ddrl.studies.point_checks import refuse_equal
from ddrl.studies.points import Outcome, outcome_of, state_of
from ddrl.studies.settings import TrainingSettings, base_config
from ddrl.types import Machine
from tests.studies.support import outcome

FOUR = Machine(4, 1 << 40)


def default(algorithm, preset="default"):
    return base_config(TrainingSettings(preset=preset), algorithm, "pong", FOUR)


def evaluation(steps, mean):
    return {"kind": "evaluation", "agent_steps": steps, "wall_seconds": steps / 100, "mean": mean, "games": 30}


def train(update, seconds, **more):
    return {"kind": "train", "update": update, "wall_seconds": seconds, **more}


# batches --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm, size, rate, epsilon",
    [
        ("dqn", 32, 2.5e-4, 0.01 / 32**2),
        ("dqn", 512, 7.5e-4, 0.01 / 512**2),
        ("dqn", 1024, 15e-4, 0.01 / 1024**2),
        ("dqn", 2048, 15e-4, 0.01 / 2048**2),
        ("categorical-dqn", 32, 2.5e-4, 0.01 / 32),
        ("categorical-dqn", 256, 4.2e-4, 0.01 / 256),
        ("categorical-dqn", 2048, 4.2e-4, 0.01 / 2048),
        ("rainbow", 512, 6.25e-5, 0.005 / 512),
    ],
)
def test_rates_and_epsilons_are_the_published_ones(algorithm, size, rate, epsilon):
    config = with_batch(default(algorithm), algorithm, size)
    optimizer = config.optimizer
    assert optimizer.learning_rate == pytest.approx(rate)
    found = optimizer.rmsprop_epsilon if algorithm == "dqn" else optimizer.adam_epsilon
    assert found == pytest.approx(epsilon)
    assert config.batch_size / config.algorithm.steps_per_update == 8
    assert config.algorithm.target_period == pytest.approx(default(algorithm).algorithm.target_period, rel=0.01)


def test_a_size_by_way_of_another_is_the_same():
    there_and_back = with_batch(with_batch(default("dqn"), "dqn", 1024), "dqn", 32)
    assert there_and_back.optimizer.learning_rate == pytest.approx(2.5e-4)
    assert there_and_back.optimizer.rmsprop_epsilon == pytest.approx(0.01 / 32**2)
    assert there_and_back.algorithm.steps_per_update == 4


def test_between_two_published_sizes_the_rate_lies_between():
    assert 1.0 < rate_factor("dqn", 64) < rate_factor("dqn", 256) < 3.0
    assert rate_factor("rainbow", 512) == 1.0


def test_a_size_without_whole_updates_is_refused():
    with pytest.raises(UsageError, match="batch size 12: give a multiple of 8"):
        with_batch(default("dqn"), "dqn", 12)


def test_batch_sizes_are_the_papers_and_evaluate_as_often():
    points = q_learning.BATCH_SIZE.points(q_learning.BATCH_SIZE.defaults, FOUR)
    sizes = {}
    for point in points:
        sizes.setdefault(point.labels["algorithm"], []).append(point.labels["size"])
        evaluation, algorithm = point.config.evaluation, point.config.algorithm
        steps = evaluation.eval_every_updates * algorithm.steps_per_update
        assert steps == pytest.approx(250_000, rel=1e-3) and evaluation.eval_epsilon == 0.05 and evaluation.evaluator
    assert {name: tuple(found) for name, found in sizes.items()} == q_learning.BATCH_SIZES


# ablation -------------------------------------------------------------------------------------------------------------


def test_the_fourteen_variants_are_schedules_and_groups():
    points = fast_dqn.ABLATION.points(dataclasses.replace(fast_dqn.ABLATION.defaults, repeats=1), FOUR)
    sampling = {(p.labels["variant"], p.labels["samplers"]): p.config.sampling for p in points}
    found = {labels: (settings.schedule, settings.groups) for labels, settings in sampling.items()}
    assert len(points) == len(found) == 14 == sum(map(len, fast_dqn.PAPER_HOURS.values()))
    assert found["standard", 8] == ("standard", 8) and found["concurrent", 8] == ("concurrent", 8)
    assert found["synchronized", 8] == ("standard", 1) and found["both", 8] == ("concurrent", 1)
    for point in points:
        algorithm, run = point.config.algorithm, point.config.run
        assert (algorithm.epsilon_start, algorithm.epsilon_end, algorithm.epsilon_steps) == (0.1, 0.1, 0)
        assert run.max_updates == 8125 and not run.minutes and not run.agent_steps  # 3 periods of 2,500, and a quarter
    others = {dataclasses.replace(p.config, sampling=points[0].config.sampling) for p in points}
    assert len(others) == 1  # they differ in nothing else


def test_trials_come_one_after_the_other():
    seeds = [point.config.run.seed for point in fast_dqn.ABLATION.points(fast_dqn.ABLATION.defaults, FOUR)]
    assert seeds == sorted(seeds) and len(seeds) == 5 * 14


def ablated(rates, **changes):
    """Runs of updates at rates of agent steps, of which those before the first period are far slower."""
    settings = dataclasses.replace(fast_dqn.ABLATION.defaults, repeats=2, **changes)
    outcomes = []
    for point in fast_dqn.ABLATION.points(settings, FOUR):
        rate = rates[point.labels["variant"], point.labels["samplers"]] * (1.1 if point.config.run.seed == 2 else 0.9)
        records = [train(0, 0.0)] + [train(2500 + 100 * i, 900.0 + 400.0 * i / rate) for i in range(57)]
        outcomes.append(Outcome(point, {"status": "finished"}, records, None))
    return settings, outcomes


def test_hours_are_mean_and_deviation_of_whole_periods():
    rates = {("standard", 1): 500.0, ("concurrent", 1): 1000.0}
    settings, outcomes = ablated(rates, samplers=(1,), variants=("standard", "concurrent"))
    hours, percent, faster, measured = fast_dqn.ABLATION.report(settings, outcomes).tables
    assert hours.rows == [[1, "28.06 ± 3.97", "14.03 ± 1.98", "25.08 ± 0.52", "20.64 ± 0.29"]]
    assert percent.rows[0][1:3] == ["100.0%", "50.0%"] and percent.rows[0][4] == "82.3%"
    assert faster.rows[0][1:3] == ["1.00x", "2.00x"]
    assert [row[3].mean for row in measured.rows] == pytest.approx([500.0, 1000.0])


def test_the_training_intensity_is_that_of_whole_periods_though_acting_runs_ahead():
    settings, outcomes = ablated({("concurrent", 8): 500.0}, samplers=(8,), variants=("concurrent",))
    lines = outcomes[0].records
    ahead = [{**line, "agent_steps": 10_000 * (1 + math.ceil(line["update"] / 2500))} for line in lines]
    (row,) = fast_dqn.ABLATION.report(settings, [outcomes[0]._replace(records=ahead)]).tables[-1].rows
    assert row[4].mean == pytest.approx(8.0, rel=0.02)
    (row,) = fast_dqn.ABLATION.report(settings, [outcomes[0]._replace(records=ahead[:10])]).tables[-1].rows
    assert row[4] is None


def test_a_variant_that_was_not_measured_is_left_open():
    rates = {("standard", 1): 500.0}
    settings, outcomes = ablated(rates, samplers=(1,), variants=("standard",))
    outcomes = [run._replace(records=run.records[:5]) for run in outcomes]
    report = fast_dqn.ABLATION.report(settings, outcomes)
    assert report.tables[0].rows[0][1] is None and report.tables[1].rows[0][1] is None


def test_trials_whose_rates_may_include_another_start_are_named():
    settings, outcomes = ablated({("standard", 1): 500.0}, samplers=(1,), variants=("standard",))
    assert not fast_dqn.ABLATION.report(settings, outcomes).careful
    event = {"kind": "event", "name": "resumed", "text": "from update 5000", "wall_seconds": 2900.0}
    first, second = outcomes
    resumed = second._replace(records=[*second.records[:30], event, *second.records[30:]])
    (line,) = fast_dqn.ABLATION.report(settings, [first, resumed]).careful
    assert line == "resumed, so their rates may include another start: pong-standard-1samplers-seed2"


def test_a_rate_between_two_totals_is_read_off_the_line():
    event = {"kind": "event", "wall_seconds": 11.0}
    records = [train(0, 0.0), train(10, 10.0), event, train(30, 20.0), train(30, 25.0)]
    assert rate_between(records, "update", 5, 20) == pytest.approx(15 / (15.0 - 5.0))
    assert rate_between(records, "update", 5, 30) is None  # nothing says when 30 was over
    assert rate_between(records, "agent_steps", 5, 20) is None


# suite ----------------------------------------------------------------------------------------------------------------


def test_the_suite_plays_all_49_games_as_the_paper_does():
    points = fast_dqn.SUITE.points(fast_dqn.SUITE.defaults, FOUR)
    assert len(points) == 49
    config = points[0].config
    assert (config.evaluation.eval_games, config.evaluation.eval_epsilon) == (30, 0.05)
    assert config.evaluation.eval_every_updates * config.algorithm.steps_per_update == 250_000
    assert config.run.agent_steps == 50_000_000


def test_best_and_last_scores_stand_beside_the_papers():
    settings = dataclasses.replace(fast_dqn.SUITE.defaults, games=("pong", "breakout"))
    pong = [evaluation(100, -20.0), evaluation(200, 20.0), evaluation(300, 9.3)]
    outcomes = [
        outcome({"algorithm": "dqn", "game": "pong"}, pong),
        outcome({"algorithm": "dqn", "game": "breakout"}, [evaluation(100, 2.0), evaluation(200, 1.7)]),
    ]
    report = fast_dqn.SUITE.report(settings, outcomes)
    games, together = report.tables
    pong = dict(zip(games.columns, games.rows[0]))
    assert (pong["best"].mean, pong["last"].mean, pong["human"], pong["DQN (2015)"]) == (20.0, 9.3, 9.3, 18.9)
    assert pong["last, normalized"] == "100.0%" and pong["best, normalized"] == "135.7%"
    rows = {row[0]: row[1:] for row in together.rows}
    assert rows["dqn, best"] == [2, "68.3%", 1, 1]  # 135.7% and 1.0%; Pong is human and above DQN
    assert rows["dqn, last"] == [2, "50.0%", 1, 0]
    assert rows["DQN (2015), all 49 games"] == [49, "93.5%", 29, 0]
    assert "epsilon 0.05" in report.caption


def test_one_lucky_game_is_not_the_best_score():
    """Neither at the beginning of training, nor in an evaluation that had no time for more."""
    online = [
        train(i, float(i), agent_steps=100 * i, online_score_mean=mean, episodes=episodes)
        for i, (mean, episodes) in enumerate(((21.0, 1), (-20.0, 100), (-3.0, 100), (-5.0, 100)))
    ]
    few = evaluation(300, 21.0) | {"games": 1, "of_games": 30}
    labels = {"algorithm": "dqn", "game": "pong"}
    for score, records, best in (("online", online, -3.0), ("evaluation", [evaluation(100, 2.0), few], 2.0)):
        settings = dataclasses.replace(fast_dqn.SUITE.defaults, games=("pong",), score=score)
        games = fast_dqn.SUITE.report(settings, [outcome(labels, records)]).tables[0]
        assert dict(zip(games.columns, games.rows[0]))["best"].mean == best


def test_a_game_without_any_evaluation_is_left_out_of_the_median():
    outcomes = [outcome({"algorithm": "dqn", "game": "pong"}, []), outcome({"algorithm": "dqn", "game": "tennis"}, [])]
    report = fast_dqn.SUITE.report(fast_dqn.SUITE.defaults, outcomes)
    assert [row[0] for row in report.tables[1].rows] == ["DQN (2015), all 49 games", "fast DQN (2022), all 49 games"]


def test_the_median_over_games_is_that_of_their_percents():
    human = {game: scores_of(game).human for game in ("pong", "breakout", "boxing")}
    curves = {game: Curve("", [0.0, 10.0], [scores_of(game).random, score]) for game, score in human.items()}
    found = fast_dqn.median_curve(curves)
    assert found.y[0] == pytest.approx(0.0) and found.y[-1] == pytest.approx(100.0)
    assert fast_dqn.median_curve(curves | {"pong": Curve("", [], [])}).x == []


# norms ----------------------------------------------------------------------------------------------------------------


def test_setups_are_the_papers():
    points = q_learning.NORMS.points(q_learning.NORMS.defaults, FOUR)
    assert len(points) == 8 * 2
    by_name = {point.name: point.config for point in points}
    adam, slow = by_name["qbert-adam-1024-0.00042-seed1"], by_name["qbert-rmsprop-64-0.0001-seed2"]
    assert (adam.optimizer.optimizer, adam.optimizer.adam_epsilon) == ("adam", 0.01 / 1024)
    assert (slow.optimizer.optimizer, slow.optimizer.learning_rate, slow.batch_size) == ("rmsprop", 1e-4, 64)
    measured = {c.run.norms_every_updates * c.algorithm.steps_per_update for c in by_name.values()}
    assert all(9_900 <= steps <= 10_000 for steps in measured)


def test_setups_of_rmsprop_alone_may_differ_in_an_epsilon_that_only_adam_reads():
    """They differ in more than that; and it is the study that sets it."""
    chosen = dataclasses.replace(q_learning.NORMS.defaults, setups=("rmsprop:64:1e-4", "rmsprop:256:1.1e-3"))
    configs = [point.config for point in q_learning.NORMS.points(chosen, FOUR)]
    assert len({config.optimizer.adam_epsilon for config in configs}) == 2
    refuse_equal(configs)


@pytest.mark.parametrize("words", ["adam", "sgd:32:1e-3", "adam:32", "adam:x:1e-3", "adam:32:2", "adam:32:0"])
def test_setups_that_say_nothing_are_refused(words):
    with pytest.raises(UsageError, match="--setups"):
        dataclasses.replace(q_learning.NORMS.defaults, setups=(words,))


def test_norms_have_a_panel_for_each_quantity_layer_and_optimizer():
    values = {
        f"{q}/{layer}": 3.0 for q in q_learning.QUANTITIES for layer in (*q_learning.NORMS.defaults.layers, "all")
    }
    records = [train(1, 1.0, agent_steps=10, **values)]
    labels = {"game": "qbert", "setup": "64, 0.1"}
    outcomes = [outcome(labels | {"optimizer": optimizer}, records) for optimizer in q_learning.OPTIMIZERS]
    report = q_learning.NORMS.report(q_learning.NORMS.defaults, outcomes)
    assert (len(report.panels), report.columns) == (16, 4)
    assert [panel.curves[0].y for panel in report.panels[2:]] == [[3.0]] * 14
    assert report.tables[0].rows[0][5].mean == 3.0 and report.tables[0].rows[0][4] is None


# secondary learner ----------------------------------------------------------------------------------------------------


def test_both_learners_use_transitions_as_often_in_periods_of_one_length():
    for point in q_learning.SECONDARY_LEARNER.points(q_learning.SECONDARY_LEARNER.defaults, FOUR):
        configs = point.config, q_learning.secondary_config(point)
        assert [c.batch_size for c in configs] == [point.labels["sampler"], point.labels["secondary"]]
        assert {c.batch_size // c.algorithm.steps_per_update for c in configs} == {8}
        assert len({c.algorithm.target_period for c in configs}) == len({c.run.seed for c in configs}) == 1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"pairs": ("64",)}, "--pairs 64"),
        ({"pairs": ("64:0",)}, "--pairs 64:0"),
        ({"score": "online"}, "--score online"),
    ],
)
def test_pairs_that_cannot_be_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(q_learning.SECONDARY_LEARNER.defaults, **changes)


def test_parameters_of_another_run_are_refused_where_both_learners_draw_theirs():
    settings = dataclasses.replace(q_learning.SECONDARY_LEARNER.quick, train_options="--init-from run")
    with pytest.raises(UsageError, match="both learners draw their parameters; leave --init-from out"):
        q_learning.SECONDARY_LEARNER.points(settings, FOUR)


def test_two_learners_really_train(tmp_path):
    settings = dataclasses.replace(
        q_learning.SECONDARY_LEARNER.quick, pairs=("64:32",), agent_steps=2500, eval_every_steps=1000, eval_games=2
    )
    (point,) = q_learning.SECONDARY_LEARNER.points(settings, FOUR)
    point = point._replace(config=point.config.changed(replay={"replay_minimum": 200}))
    q_learning.SECONDARY_LEARNER.run(point, tmp_path / "p")
    assert state_of(tmp_path / "p").status == "finished"
    run = outcome_of(point, tmp_path / "p")
    sampler, secondary = (of_learner(run, learner) for learner in LEARNERS)
    assert 2 * sampler.records[-2]["update"] == secondary.records[-2]["update"] > 400
    assert sampler.records[-1]["kind"] == secondary.records[-1]["kind"] == "evaluation"
    assert sampler.records[0][q_learning.NORM] != secondary.records[0][q_learning.NORM]
    assert "online_score_mean" in sampler.records[-2] and "online_score_mean" not in secondary.records[-2]
    report = q_learning.SECONDARY_LEARNER.report(settings, [run])
    assert [row[2] for row in report.tables[0].rows] == [64, 32] and len(report.panels) == 2
    assert rundir.load_config(tmp_path / "p") == point.config


def test_a_learner_that_cannot_be_says_why(tmp_path):
    (point, *_) = q_learning.SECONDARY_LEARNER.points(q_learning.SECONDARY_LEARNER.quick, FOUR)
    point = point._replace(config=point.config.changed(environment={"game": "no_such_game"}))
    with pytest.raises(UsageError, match="no_such_game"):
        q_learning.SECONDARY_LEARNER.run(point, tmp_path / "p")
    assert state_of(tmp_path / "p").status == "interrupted"
