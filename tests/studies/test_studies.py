"""The studies: their points are what the papers varied, and their reports say what was measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.commands import study as command
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies.papers import hts
from ddrl.studies.papers.stooke import sampling, simulators, speed
from ddrl.studies.point_checks import refuse_equal
from ddrl.studies.points import Outcome
from ddrl.studies.statistics import Interval
from ddrl.types import Machine
from tests.studies.support import outcome

STUDIES = [command.study_of(name) for name in command.STUDIES if name != "simulate"]  # which trains nothing
FOUR = Machine(4, 1 << 40)


def settings(study, **changes):
    return dataclasses.replace(study.defaults, **changes)


def lines(rate=100.0, seconds=40, score=1.0):
    """A run that makes `rate` agent steps/s, and an evaluation every second."""
    records = []
    for i in range(1, seconds + 1):
        at = {"wall_seconds": float(i), "agent_steps": round(rate * i)}
        records.append({"kind": "train", "online_score_mean": score * i, "update": i} | at)
        records.append({"kind": "evaluation", "version": i, "mean": score * i / seconds, "games": 10} | at)
    return records


def finished(study, chosen, records_of):
    """Every point of a study as if it had run."""
    return [
        Outcome(p, {"status": "finished", **extra}, records, Path("nowhere"))
        for p in study.points(chosen, FOUR)
        for records, extra in [records_of(p)]
    ]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
@pytest.mark.parametrize("which", ["defaults", "quick"])
def test_points_have_names_that_are_directories_and_an_end(study, which):
    points = study.points(getattr(study, which), FOUR)
    names = [point.name for point in points]
    assert len(set(names)) == len(names) > 1
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-_") for name in names)
    runs = [point.config.run for point in points]
    assert all(run.minutes or run.agent_steps or run.max_updates for run in runs)
    assert all(json.loads(json.dumps(point.labels)) == point.labels for point in points)
    refuse_equal(point.config for point in points)  # which refuses nothing that the study varies


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_reports_of_a_single_point_and_of_all(study):
    outcomes = finished(study, study.quick, lambda point: (lines(), {sampling.RATE: 100.0}))
    for some in (outcomes[:1], outcomes):
        report = study.report(study.quick, some)
        assert report.panels and all(len(table.columns) == len(row) for table in report.tables for row in table.rows)
        assert "seed" in report.caption


def test_repeats_have_seeds_of_their_own():
    points = simulators.SIMULATORS.points(settings(simulators.SIMULATORS, repeats=3, seed=5, algorithms=("a2c",)), FOUR)
    assert {point.config.run.seed for point in points} == {5, 6, 7}


# simulators -----------------------------------------------------------------------------------------------------------


def by_size(algorithm, **more):
    chosen = settings(simulators.SIMULATORS, algorithms=(algorithm,), **more)
    return {point.labels["size"]: point.config for point in simulators.SIMULATORS.points(chosen, FOUR)}


def test_the_a2c_batch_grows_with_the_simulators_and_the_rate_with_its_root():
    configs = by_size("a2c")
    assert list(configs) == [16, 32, 64, 128, 256]
    assert [config.effective_batch for config in configs.values()] == [80, 160, 320, 640, 1280]
    optimizer = configs[64].optimizer
    assert (optimizer.learning_rate_scaling, optimizer.learning_rate_batch, optimizer.learning_rate) == (
        "sqrt",
        80,
        7e-4,
    )


def test_a3c_gets_learners():
    configs = by_size("a3c")
    assert list(configs) == [1, 2, 4]
    assert (configs[1].title, configs[4].title, configs[4].exchange.workers) == ("a2c", "a3c", 4)


def test_the_ppo_rollout_has_the_same_data_points_whatever_the_simulators():
    configs = by_size("ppo", sizes=("ppo=8,64,512",))
    assert [(c.rollout_length, c.rollout_length * c.sampling.simulators) for c in configs.values()] == [
        (256, 2048),
        (32, 2048),
        (4, 2048),
    ]
    assert {config.batch_size for config in configs.values()} == {512}
    with pytest.raises(UsageError, match="ppo with 48 simulators: they do not divide the rollout of 2048"):
        by_size("ppo", sizes=("ppo=48",))


def test_appo_gets_local_steps_and_learners():
    configs = by_size("appo", learners=3)
    assert [(c.exchange.local_steps, c.exchange.workers) for c in configs.values()] == [(1, 3), (2, 3), (4, 3)]


@pytest.mark.parametrize("words", ["a2c", "a2c=", "a2c=0", "dqn=1", "a2c=1;2"])
def test_sizes_that_say_nothing_are_refused(words):
    with pytest.raises(UsageError, match="--sizes"):
        settings(simulators.SIMULATORS, sizes=(words,))


def test_simulators_reports_the_score_that_was_asked_for():
    chosen = settings(simulators.SIMULATORS, algorithms=("a2c",), sizes=("a2c=16",), repeats=2)
    outcomes = finished(simulators.SIMULATORS, chosen, lambda p: (lines(score=float(p.config.run.seed)), {}))
    report = simulators.SIMULATORS.report(chosen, outcomes)
    (row,) = report.tables[0].rows
    assert row[:5] == ["a2c", "breakout", 16, "simulators", 2]
    assert row[6] == Interval(60.0, None, None, 2, (40.0, 80.0)) and row[7].mean == pytest.approx(100.0)
    assert report.caption.startswith("online score")
    evaluated = dataclasses.replace(chosen, score="evaluation")
    report = simulators.SIMULATORS.report(evaluated, outcomes)
    assert report.tables[0].rows[0][6].mean == pytest.approx(1.5)
    assert report.caption.startswith("evaluation score")


# speed ----------------------------------------------------------------------------------------------------------------


def test_workers_have_their_cores_and_their_exchange():
    points = {point.name: point for point in speed.SPEED.points(speed.SPEED.defaults, FOUR)}
    assert points["a2c-breakout-1workers-seed1"].config.single_process
    assert points["a2c-breakout-4workers-seed1"].config.exchange.exchange == "allreduce"
    assert points["appo-breakout-2workers-seed1"].config.exchange.exchange == "central_store"
    assert points["a2c-breakout-4workers-seed1"].cores == 4 and "a3c-breakout-1workers-seed1" not in points
    with pytest.raises(UsageError, match="--workers 8 x --cores-per-worker 1: this machine has 4 cores"):
        speed.SPEED.points(settings(speed.SPEED, workers=(8,)), FOUR)


def test_workers_share_the_batch_of_q_learning_and_use_each_transition_as_often():
    points = speed.SPEED.points(settings(speed.SPEED, algorithms=("dqn", "categorical-dqn")), FOUR)
    configs = {(point.labels["algorithm"], point.labels["workers"]): point.config for point in points}
    assert len(configs) == 6
    for (algorithm, workers), config in configs.items():
        size = {"dqn": 512, "categorical-dqn": 2048}[algorithm]
        assert config.exchange.workers == workers and config.exchange.exchange == (
            "allreduce" if workers > 1 else configs[algorithm, 1].exchange.exchange
        )
        assert config.effective_batch == size and config.agent_steps_per_update == size / 8
        assert config.optimizer.learning_rate == configs[algorithm, 1].optimizer.learning_rate
        assert config.replay.replay_minimum == size


def test_hours_are_those_of_the_rate_and_stand_beside_the_papers():
    chosen = settings(speed.SPEED, algorithms=("a2c",), workers=(1, 2))
    outcomes = finished(speed.SPEED, chosen, lambda p: (lines(rate=1000.0 * p.labels["workers"] ** 0.5), {}))
    rows = speed.SPEED.report(chosen, outcomes).tables[0].rows
    assert rows[0][5].mean == pytest.approx(1000.0) and rows[0][6].mean == pytest.approx(50e6 / 1000 / 3600)
    assert rows[0][7] is None and rows[1][7].mean == pytest.approx(2**0.5, rel=1e-3)
    assert [row[8] for row in rows] == [3.8, 2.2]


def test_bounds_of_hours_change_places():
    assert speed.hours(Interval(100.0, 50.0, 200.0, 3)) == Interval(*(50e6 / r / 3600 for r in (100, 200, 50)), 3)
    assert speed.hours(None) is None


# sampling -------------------------------------------------------------------------------------------------------------


def test_sampling_compares_with_the_fastest_inference_free_rate_of_as_many_cores():
    chosen = settings(sampling.SAMPLING, simulators_per_core=(1, 8), cores=(1, 2), repeats=1)
    rates = {("random", 1): 50.0, ("random", 8): 200.0, ("one", 1): 40.0, ("one", 8): 100.0, ("alternating", 8): 160.0,
             ("alternating", 1): 10.0, ("in-turn", 1): 10.0, ("in-turn", 8): 170.0,
             ("barrier", 1): 30.0, ("free", 1): 60.0, ("barrier", 8): 1.0, ("free", 8): 1.0}  # fmt: skip
    outcomes = finished(
        sampling.SAMPLING,
        chosen,
        lambda p: ([], {sampling.RATE: p.labels["cores"] * rates[p.labels["kind"], p.labels["per_core"]]}),
    )
    report = sampling.SAMPLING.report(chosen, outcomes)
    groups = {(row[0], row[1], row[2]): row[5] for row in report.tables[0].rows}
    assert groups[1, 8, "two alternating groups"].mean == pytest.approx(0.8)
    assert groups[2, 8, "one group"].mean == pytest.approx(0.5)
    assert groups[1, 8, "random actions, no inference"] is None
    assert (1, 1, "two alternating groups") not in groups and (2, 1, "two alternating groups") in groups
    assert [row[4].mean for row in report.tables[1].rows] == pytest.approx([0.5, 1.0])
    line = [curve for curve in report.panels[1].curves if curve.reference]
    assert line[0].y == [200.0, 200.0]  # of one core


def test_with_one_predictor_a_query_holds_one_group_and_no_padding():
    chosen = settings(sampling.SAMPLING, parts=("groups",), simulators_per_core=(1, 8), cores=(1, 2))
    points = sampling.SAMPLING.points(chosen, FOUR)
    found = {p.config.sampling for p in points if p.labels["kind"] == "in-turn"}
    assert {(s.simulators, s.groups, s.predictors, s.predict_batch) for s in found} == {
        (2, 2, 1, 1),
        (8, 2, 1, 4),
        (16, 2, 1, 8),
    }


# hts ------------------------------------------------------------------------------------------------------------------


def test_hts_learns_from_as_much_data_in_each_update_as_its_synchronous_algorithm():
    for algorithm in hts.ALGORITHMS:
        points = hts.HTS.points(settings(hts.HTS, parts=("speed-up",), algorithms=(algorithm,)), FOUR)
        base, ours = points[0].config, points[1].config
        assert (base.sampling.groups, ours.sampling.groups, ours.sampling.predictors) == (1, 4, 4)
        assert base.batch_size == ours.batch_size and ours.title == f"hts-{algorithm}"
        assert base.environment == ours.environment and base.environment.step_time_mean_ms == 5.0
        assert ours.rollout_length % base.rollout_length == 0 and ours.rollout_length >= 20


def test_the_size_of_a_query_is_the_same_for_any_number_of_predictors():
    points = hts.HTS.points(settings(hts.HTS, parts=("predictors",), algorithms=("a2c",)), FOUR)
    sampling_of = [p.config.sampling for p in points]
    assert [(s.predictors, s.predict_batch) for s in sampling_of] == [(1, 4), (4, 4), (8, 4), (16, 4)]
    assert all(p.config.run.deterministic for p in points)
    (one,) = hts.HTS.points(settings(hts.HTS, parts=("alpha",), algorithms=("a2c",), alphas=(4,), groups=2), FOUR)
    assert (one.config.sampling.groups, one.config.sampling.predict_batch) == (2, 8)
    (none,) = hts.HTS.points(settings(hts.HTS, parts=("alpha",), algorithms=("a2c",), alphas=(4,), predictors=0), FOUR)
    assert (none.config.sampling.predictors, none.config.sampling.predict_batch) == (0, 0)


def test_alpha_is_the_rollout_and_unrolls_divide_it():
    points = hts.HTS.points(settings(hts.HTS, parts=("alpha",)), FOUR)
    assert [p.config.rollout_length for p in points] == [4, 16, 64, 128, 256, 512] * 2
    assert [p.config.algorithm.unroll_length for p in points] == [4] * 6 + [4, 16, 64, 128, 128, 128]
    assert all(p.config.environment.step_time_cv == 1.0 for p in points)


def test_scores_are_those_of_ten_games_for_each_policy():
    points = hts.HTS.points(settings(hts.HTS, parts=("scores",), impala=True, repeats=5), FOUR)
    assert len(points) == 5 * 5
    assert {(p.config.evaluation.evaluator, p.config.evaluation.eval_games) for p in points} == {(True, 10)}
    assert all(p.config.environment.step_time_mean_ms == 0.0 for p in points)


@pytest.mark.parametrize(
    "part, changes, only",
    [
        ("scores", {"simulators": 32}, "--simulators 32: only --parts speed-up alpha predictors uses it"),
        ("scores", {"least_alpha": 60}, "--least-alpha 60: only --parts speed-up predictors uses it"),
        ("predictors", {"alphas": (8, 32, 64)}, "--alphas 8 32 64: only --parts alpha uses it"),
        ("speed-up", {"impala": True}, "--impala: only --parts scores uses it"),
        ("alpha", {"games": ("pong", "breakout")}, "--games pong breakout: only --parts scores plays more than"),
    ],
)
def test_an_option_of_another_part_is_refused(part, changes, only):
    with pytest.raises(UsageError, match=only):
        hts.HTS.points(settings(hts.HTS, parts=(part,), **changes), FOUR)
    assert hts.HTS.points(settings(hts.HTS, **changes), FOUR), "with all parts, one reads it"
    quick = dataclasses.replace(hts.HTS.quick, parts=(part,))
    assert hts.HTS.points(quick, FOUR), "what --quick changes was not given"


def test_the_speed_up_is_the_ratio_at_each_variance():
    chosen = settings(hts.HTS, parts=("speed-up",), algorithms=("a2c",), variations=(0.0, 2.0))
    outcomes = finished(
        hts.HTS,
        chosen,
        lambda p: (lines(rate=300.0 if p.labels["method"] == "hts" else 200.0 - 50.0 * p.labels["variation"]), {}),
    )
    report = hts.HTS.report(chosen, outcomes)
    assert [(row[2], round(row[5].mean, 3)) for row in report.tables[0].rows] == [(0.0, 1.5), (100.0, 3.0)]
    assert list(report.panels[0].curves[0].x) == [0.0, 100.0]
    half = hts.HTS.report(chosen, outcomes[:3])  # the last ratio lacks its HTS-RL
    assert half.tables[0].rows[1][5] is None


def hashed(path, predictors, seed, lines):
    path.mkdir()
    (path / rundir.HASHES).write_text("".join(f"{version} {value}\n" for version, value in lines))
    labels = {"part": "predictors", "algorithm": "a2c", "game": "g", "predictors": predictors}
    return outcome(labels, [], TrainConfig(algorithm=BA3CConfig()).changed(run={"seed": seed}), path)


def test_a_game_can_keep_its_own_step_times():
    chosen = settings(hts.HTS, parts=("speed-up",), algorithms=("a2c",), step_time_ms=0.0, variations=(0.0,))
    points = hts.HTS.points(chosen, FOUR)
    assert [point.config.environment.step_time_mean_ms for point in points] == [0.0, 0.0]
    outcomes = finished(hts.HTS, chosen, lambda p: (lines(rate=100.0), {}))
    assert hts.HTS.report(chosen, outcomes).tables[0].title.endswith("steps as long as the environment takes")


def test_parameters_are_compared_between_runs_of_one_seed(tmp_path):
    one = hashed(tmp_path / "1", 1, 1, [(1, "a"), (2, "b"), (3, "c")])
    four = hashed(tmp_path / "4", 4, 1, [(1, "a"), (2, "b")])
    other_seed = hashed(tmp_path / "o", 4, 2, [(1, "z")])
    assert hts.compared([one, four, other_seed]) == (2, "equal")
    wrong = hashed(tmp_path / "8", 8, 1, [(1, "a"), (2, "x")])
    assert hts.compared([one, four, wrong]) == (2, "differ from version 2 on")
    assert hts.compared([one]) == (0, "not compared")
    assert hts.compared([one, outcome({"predictors": 2}, [])]) == (0, "not compared")


def test_scores_use_the_time_of_the_method_that_ends_first():
    chosen = settings(hts.HTS, parts=("scores",), algorithms=("a2c",), required_scores=(0.4, 2.0))
    outcomes = finished(hts.HTS, chosen, lambda p: (lines(seconds=20 if p.labels["method"] == "hts-a2c" else 40), {}))
    assert hts.fastest_end(outcomes) == 20.0
    rows = {row[1]: row for row in hts.HTS.report(chosen, outcomes).tables[0].rows}
    base, ours = rows["a2c"], rows["hts-a2c"]
    assert base[4].mean == pytest.approx(sum(range(31, 41)) / 400)  # the whole run
    assert base[6].mean == pytest.approx(sum(range(11, 21)) / 400)  # its first 20 s
    assert ours[6].mean == ours[4].mean == pytest.approx(sum(range(11, 21)) / 200)
    assert base[7].mean == pytest.approx(21 / 60) and ours[7].mean == pytest.approx(13 / 60)
    assert base[8] is None and base[5] == pytest.approx(20 / 60)


@pytest.mark.parametrize(
    "options, games",
    [
        ("--eval-epsilon 0", "greedy games"),
        ("--eval-epsilon 0.02", "games of epsilon 0.02"),
        ("--eval-epsilon 0 --eval-actions drawn", "games with drawn actions"),
    ],
)
def test_a_caption_says_how_evaluation_games_are_played(options, games):
    chosen = settings(hts.HTS, parts=("scores",), algorithms=("a2c",), train_options=options)
    caption = hts.HTS.report(chosen, finished(hts.HTS, chosen, lambda p: (lines(), {}))).caption
    assert f"evaluation score: {games} with frozen parameters" in caption


@pytest.mark.parametrize(
    "study, changes, message",
    [
        (hts.HTS, {"parts": ("nix",)}, "--parts nix: choose from"),
        (hts.HTS, {"seconds": 16.0}, "--seconds 16.0: must be at least 3 more"),
        (hts.HTS, {"step_time_ms": 0.0}, "--step-time-ms 0.0: there are no step times to vary"),
        (hts.HTS, {"agent_steps": 0}, "a point would never end"),
        (hts.HTS, {"alphas": (0,)}, "--alphas 0: each must be at least 1"),
        (simulators.SIMULATORS, {"algorithms": ("dqn",)}, "--algorithms dqn: choose from"),
        (simulators.SIMULATORS, {"score": "best"}, "--score best"),
        (speed.SPEED, {"workers": (0,)}, "--workers"),
        (sampling.SAMPLING, {"simulators_per_core": (0,)}, "--simulators-per-core"),
        (sampling.SAMPLING, {"seconds": 0.0}, "--seconds 0.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(study, changes, message):
    with pytest.raises(UsageError, match=message):
        settings(study, **changes)
