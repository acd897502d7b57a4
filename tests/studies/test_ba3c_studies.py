"""Studies of BA3C: their points are what the paper varied, and their reports say what was measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from ddrl import plugins
from ddrl.errors import UsageError
from ddrl.studies.measures import rate_per_second
from ddrl.studies.papers.ba3c import collapse, communication, games
from ddrl.studies.papers.ba3c.collapse import Level, collapsed, columns, learned, levels
from ddrl.studies.points import Group, Outcome
from ddrl.studies.statistics import Interval
from ddrl.types import Machine
from tests.options.begins import DISCRETE, Begins
from tests.studies.support import outcome

FOUR = Machine(4, 1 << 40)


def chosen(study, **changes):
    return dataclasses.replace(study.defaults, **changes)


def finished(study, settings, records_of):
    points = study.points(settings, FOUR)
    return [Outcome(point, {"status": "finished"}, records_of(point), Path("nowhere")) for point in points]


def counts(runs, found):
    """How many learned, and how many of these collapsed."""
    return tuple(columns(found)[name](Group({}, runs)) for name in ("learned", "then collapsed"))


def online(*scores, **more):
    return [
        {"kind": "train", "wall_seconds": 10.0 * i, "agent_steps": 1000 * i, "online_score_mean": score} | more
        for i, score in enumerate(scores, 1)
    ]


# rates and collapse ---------------------------------------------------------------------------------------------------


def test_a_rate_counts_for_as_long_as_it_tells_of():
    seconds, rates = (1.0, 5.0, 6.0, 9.0, 10.0), (9.0, 9.0, 2.0, 4.0, 100.0)
    records = [{"kind": "train", "wall_seconds": s, "datapoints_per_s": r} for s, r in zip(seconds, rates)]
    assert rate_per_second(records, "datapoints_per_s", 5.0) == pytest.approx((1 * 2.0 + 3 * 4.0) / 4)
    assert rate_per_second(records, "updates_per_s", 0.0) is None
    assert rate_per_second(records[:2], "datapoints_per_s", 0.0) is None


def test_a_run_that_forgets_has_learned_and_then_collapsed():
    game = {"game": "breakout"}
    good, bad, flat = (outcome(game, online(*s)) for s in ((0, 50, 100), (0, 90, 10), (0, 2, 1)))
    found = levels([good, bad, flat])
    assert found == {"breakout": Level(0.0, 50.0, 100.0)}
    level = found["breakout"]
    assert [learned(run, level) for run in (good, bad, flat)] == [True, True, False]
    assert [collapsed(run, level) for run in (good, bad, flat)] == [False, True, False]
    assert counts([good, bad, flat], found) == ("2 of 3", "1 of 2")
    assert counts([flat], levels([flat], learned_score=1.5)) == ("1 of 1", "0 of 1")


def test_nothing_is_learned_where_no_score_rose_or_there_is_none():
    sunk, silent = outcome({"game": "g"}, online(5, 4, 3)), outcome({"game": "h"}, [])
    found = levels([sunk, silent])
    assert counts([sunk], found) == ("0 of 1", "0 of 0") and counts([silent], found) == ("-", "-")
    falling = levels([outcome({"game": "g"}, online(*s)) for s in ((5, 4), (3, 2))])
    assert falling["g"].learned == float("inf"), "nobody rose"
    few = outcome({"game": "g"}, online(90, episodes=3) + online(1, 2, episodes=200))
    assert levels([few])["g"].best == 2.0  # means of few games are left out


def test_some_learn_before_their_first_line():
    early, late, lost = (outcome({"game": "g"}, online(*s)) for s in ((90, 100), (-10, 80), (80, 10)))
    found = levels([early, late, lost])
    assert found["g"] == Level(-10.0, 45.0, 100.0)
    assert counts([early, late, lost], found) == ("3 of 3", "1 of 3")


# communication --------------------------------------------------------------------------------------------------------


def test_neurons_and_servers_vary_one_at_a_time():
    points = communication.COMMUNICATION.points(communication.COMMUNICATION.defaults, FOUR)
    pairs = [(p.config.network.fc_neurons, p.config.exchange.parameter_servers) for p in points]
    assert pairs == [(256, 1), (128, 1), (64, 1), (32, 1), (16, 1), (256, 2), (256, 4)]
    assert {(p.config.network.network, p.config.batch_size) for p in points} == {("ba3c", 32)}
    assert {p.config.exchange.workers for p in points} == {4}
    alone = communication.COMMUNICATION.points(communication.COMMUNICATION.defaults, Machine(1, 1 << 40))
    assert {p.config.exchange.workers for p in alone} == {2}


def test_speed_by_size_beside_the_papers_weights():
    settings = chosen(communication.COMMUNICATION, neurons=(128, 16), parameter_servers=(1, 2), repeats=2)

    def records_of(point):
        rate = 100.0 * (2 if point.labels["neurons"] == 16 else 1) + 10.0 * (point.config.run.seed - 1)
        waits = {"exchange_ms_by_worker": {"worker-0": 3.0, "worker-1": 9.0}}
        return [{"kind": "train", "wall_seconds": float(s), "datapoints_per_s": rate} | waits for s in range(60)]

    report = communication.COMMUNICATION.report(settings, finished(communication.COMMUNICATION, settings, records_of))
    first, small, servers = report.tables[0].rows
    assert first[:4] == ["breakout", 128, 1, 2] and first[6] == 332_295 and first[9] is None
    assert first[4] == pytest.approx(332_295, rel=0.01)  # with the same number of actions it would be equal
    assert first[7] == pytest.approx(8e-6 * 4 * first[4])
    assert first[8] == Interval(105.0, None, None, 2, (100.0, 110.0)) and small[9].mean == pytest.approx(205 / 105)
    assert small[5] == "46%" and servers[1:3] == [128, 2] and servers[10].mean == 3.0
    shown = [(list(panel.curves[0].x), panel.title, panel.y_label) for panel in report.panels]
    assert shown == [
        ([16, 128], "1 server", "data-points/s"),
        ([1, 2], "128 neurons", "data-points/s"),
        ([16, 128], "1 server", "time of an exchange (ms)"),
        ([1, 2], "128 neurons", "time of an exchange (ms)"),
    ]
    assert "2 seeds" in report.caption


def test_the_weights_of_all_points_take_one_trial_of_their_game():
    """It may take minutes to make a user's environment."""
    calls: list[str] = []
    picture = np.zeros((4, 84, 84), np.uint8)
    game = type("Pictures", (Begins,), {"observation_space": gymnasium.spaces.Box(0, 255, picture.shape, np.uint8)})
    step = (picture, 0.0, False, False, {})
    plugins.register_environment("test-weights", lambda: game(picture, DISCRETE, step, calls.append))
    settings = chosen(communication.COMMUNICATION, games=("test-weights",), neurons=(64, 16))
    points = communication.COMMUNICATION.points(settings, FOUR)
    large, small, *_ = [communication.weights(Group({}, [Outcome(point, {}, [], Path())])) for point in points]
    assert large > small > 0 and calls == ["make", "reset", "step"]


# synchronous-vs-asynchronous ------------------------------------------------------------------------------------------


def test_both_modes_have_the_same_workers_and_budget():
    one, two = collapse.STALENESS.points(collapse.STALENESS.defaults, FOUR)
    assert (one.config.exchange.updates, two.config.exchange.updates) == collapse.UPDATES
    assert one.config == dataclasses.replace(two.config, exchange=one.config.exchange)
    assert one.config.exchange.workers == 4 and one.config.exchange.servers == 1
    alone = collapse.STALENESS.points(collapse.STALENESS.defaults, Machine(1, 1 << 40))
    assert {p.config.exchange.workers for p in alone} == {4} and {p.config.exchange.servers for p in alone} == {1}
    several = collapse.STALENESS.points(chosen(collapse.STALENESS, workers=(2, 4)), FOUR)
    assert [p.config.exchange.workers for p in several] == [2, 2, 4, 4] and len({p.name for p in several}) == 4
    with pytest.raises(UsageError, match="a single worker has nothing to wait for"):
        chosen(collapse.STALENESS, workers=(2, 1))


def test_staleness_and_collapse_stand_in_the_table():
    def records_of(point):
        if point.labels["mode"] == "synchronous":
            return online(0, 50, 100, 100, loss=0.1, updates_per_s=10.0)
        return online(0, 100, 100, 0, loss=0.5, updates_per_s=40.0, staleness_mean=2.5, staleness_max=7)

    settings = chosen(collapse.STALENESS, repeats=2)
    report = collapse.STALENESS.report(settings, finished(collapse.STALENESS, settings, records_of))
    calm, wild = report.tables[0].rows
    assert calm[1:5] == ["synchronous", 2, 4, 4000] and calm[7:9] == [0, 0] and calm[-2:] == ["2 of 2", "0 of 2"]
    assert wild[7].mean == 2.5 and wild[8] == 7 and wild[-2:] == ["2 of 2", "2 of 2"]
    assert [panel.y_label for panel in report.panels] == [
        "raw score",
        "raw score",
        "training loss",
        "mean staleness (versions)",
    ]
    assert set(report.panels[3].curves[0].y) == {0.0} and report.caption.startswith("online score")
    assert report.finding == (
        "With synchronous updates 2 of 2 runs learned, and none of them then collapsed; "
        "with asynchronous updates 2 of 2 runs learned, and 2 of them then collapsed."
    )
    nothing = collapse.STALENESS.report(settings, finished(collapse.STALENESS, settings, lambda point: []))
    assert nothing.finding.endswith("with asynchronous updates 0 of 2 runs learned.")


# learning-rate --------------------------------------------------------------------------------------------------------


def test_the_linear_rule_multiplies_the_rate_with_the_batch():
    points = collapse.LEARNING_RATE.points(collapse.LEARNING_RATE.defaults, FOUR)
    found = [(p.labels["rule"], p.config.effective_batch, p.config.optimizer.learning_rate) for p in points]
    assert found == [
        ("constant", 128, 1e-3),
        ("constant", 512, 1e-3),
        ("linear", 512, 4e-3),
        ("constant", 2048, 1e-3),
        ("linear", 2048, 16e-3),
    ]
    with pytest.raises(UsageError, match="--batch-size 130: must be a multiple of the gradients in an update, 4"):
        collapse.LEARNING_RATE.points(chosen(collapse.LEARNING_RATE, batch_size=(130,)), FOUR)


def test_rules_are_compared_at_each_batch():
    def records_of(point):
        return online(0, 100, 1 if point.labels["rule"] == "linear" else 90)

    settings = chosen(collapse.LEARNING_RATE, batch_size=(128, 512))
    report = collapse.LEARNING_RATE.report(settings, finished(collapse.LEARNING_RATE, settings, records_of))
    rows = {(row[1], row[2]): row for row in report.tables[0].rows}
    assert list(rows) == [(128, "both"), (512, "constant"), (512, "linear")]
    assert rows[512, "linear"][3] == "0.004" and rows[512, "linear"][-2:] == ["1 of 1", "1 of 1"]
    assert [[curve.label for curve in panel.curves] for panel in report.panels] == [
        ["both rules, 0.001"],
        ["constant, 0.001", "linear, 0.004"],
    ]
    assert "one seed" in report.caption
    assert report.finding == (
        "With either rule at 128 1 of 1 run learned, and none of them then collapsed; with a constant rate 1 of 1 run "
        "learned, and none of them then collapsed; with one that grows with the batch 1 of 1 run learned, and 1 of "
        "them then collapsed."
    )


# games ----------------------------------------------------------------------------------------------------------------


def test_six_games_are_evaluated_as_in_the_paper():
    points = games.GAMES.points(games.GAMES.defaults, FOUR)
    assert [p.labels["game"] for p in points] == [
        "beam_rider",
        "breakout",
        "boxing",
        "pong",
        "seaquest",
        "space_invaders",
    ]
    evaluation = points[0].config.evaluation
    assert (evaluation.evaluator, evaluation.eval_games, evaluation.eval_epsilon, evaluation.target_score) == (
        True,
        50,
        0.01,
        None,
    )


def test_scores_stand_beside_the_published_ones():
    def records_of(point):
        means = (10.0, 30.0, 20.0, 99.0)
        return [
            {
                "kind": "evaluation",
                "wall_seconds": 3600.0 * i,
                "agent_steps": 1000 * i,
                "mean": mean,
                "maximum": mean + 5,
                "games": 50,
                "timed_out": int(mean == 99.0),
            }
            for i, mean in enumerate(means, 1)
        ]

    settings = chosen(games.GAMES, games=("ALE/Breakout-v5", "boxing", "ddrl/Catch-v0"))
    report = games.GAMES.report(settings, finished(games.GAMES, settings, records_of))
    breakout, boxing, catch = report.tables[0].rows
    assert breakout[1] == "greedy, epsilon 0.01"
    assert breakout[5:10] == [3, Interval(20.0), Interval(30.0), Interval(2.0), 35.0], "without the one that was cut"
    assert breakout[10:] == ["350 (0.5h)", "350 (21h)", "400 (15h)", "500 (11h)"]
    assert boxing[10:] == ["98 (0.5h)", "92 (2h)", None, None] and catch[10:] == [None] * 4
    assert [curve.label for curve in report.panels[0].curves] == ["mean", "maximum"]
    assert report.panels[0].curves[1].y == [15.0, 35.0, 25.0] and report.caption.startswith("evaluation score")


def evaluations(*means, minutes=1.0):
    return [
        {"kind": "evaluation", "wall_seconds": 60.0 * minutes * i, "agent_steps": i, "mean": mean, "games": 50}
        for i, mean in enumerate(means, 1)
    ]


def test_the_largest_number_of_agent_steps_of_several_runs_is_called_that():
    settings = chosen(games.GAMES, games=("pong",), repeats=3)

    def records_of(point):
        return [record | {"agent_steps": 1000 * point.config.run.seed} for record in evaluations(12.0)]

    scores = games.GAMES.report(settings, finished(games.GAMES, settings, records_of)).tables[0]
    shown = dict(zip(scores.columns, scores.rows[0]))
    assert shown["most agent steps"] == 3000 and "agent steps" not in shown


def test_games_end_at_the_published_target_where_that_is_chosen():
    settings = chosen(games.GAMES, games=("breakout", "pong"), to_target=True, repeats=3)
    points = games.GAMES.points(settings, FOUR)
    assert [p.config.evaluation.target_score for p in points] == [300.0] * 3 + [10.0] * 3
    assert points[0].config.evaluation.eval_epsilon == 0.01, "as the preset has it"

    def records_of(point):
        if point.labels["game"] == "pong":
            return evaluations(-21.0, 12.0, minutes=5 * point.config.run.seed)
        return evaluations(90.0, 310.0 if point.config.run.seed == 1 else 200.0)

    report = games.GAMES.report(settings, finished(games.GAMES, settings, records_of))
    assert report.finding == "1 of 2 games reaches its target within 30 minutes by the median of the runs."
    outcomes = finished(games.GAMES, settings, records_of)
    partly = games.GAMES.report(settings, [run for run in outcomes if run.point.labels["game"] == "pong"])
    assert partly.finding.startswith("1 of 2 games") and partly.finding.endswith(" No run of breakout has ended.")
    breakout, pong = report.tables[0].rows
    assert [breakout[0], *breakout[2:5]] == ["breakout", 3, 300.0, "1 of 3 in 2 min, 2 not reached in 2 min"]
    assert [pong[0], *pong[2:5]] == ["pong", 3, 10.0, "10.0; 20.0; 30.0 min"]
    assert len(report.tables) == 1, "runs that end at a target have no final score"
    whole = chosen(games.GAMES, games=("breakout", "pong"), repeats=3)
    of_all = games.GAMES.report(whole, finished(games.GAMES, whole, records_of))
    assert of_all.tables[1].rows[0][:3] == ["BA3C", 2, 6] and of_all.tables[1].rows[0][3].bounds
    assert [panel.title for panel in of_all.panels] == ["breakout", "pong", "Performance profile"]
    assert report.panels[0].curves[-1].y == [300.0, 300.0]
    assert "games of epsilon 0.01 with frozen parameters, 50 where time was enough" in report.caption


@pytest.mark.parametrize(
    "study, changes, message",
    [
        (communication.COMMUNICATION, {"neurons": ()}, "--neurons"),
        (communication.COMMUNICATION, {"parameter_servers": (0,)}, "--parameter-servers 0: each must be at least 1"),
        (communication.COMMUNICATION, {"workers": 1}, "--workers 1: a single worker exchanges nothing"),
        (communication.COMMUNICATION, {"seconds": 16.0}, "--seconds 16.0: must be at least 3 more"),
        (collapse.STALENESS, {"modes": ("both",)}, "--modes both: choose from"),
        (collapse.STALENESS, {"workers": (1,)}, "--workers 1"),
        (collapse.STALENESS, {"agent_steps": 0}, "a point would never end"),
        (collapse.LEARNING_RATE, {"rules": ("sqrt",)}, "--rules sqrt: choose from"),
        (collapse.LEARNING_RATE, {"batch_size": (0,)}, "--batch-size 0"),
        (collapse.LEARNING_RATE, {"learning_rate": 0.0}, "--learning-rate 0.0"),
        (games.GAMES, {"eval_games": 0}, "--eval-games 0"),
        (games.GAMES, {"minutes": 0.0}, "a point would never end"),
        (games.GAMES, {"to_target": True}, "--to-target: beam_rider has no published target; choose from breakout"),
    ],
)
def test_settings_that_cannot_be_are_refused(study, changes, message):
    with pytest.raises(UsageError, match=message):
        study.points(chosen(study, **changes), FOUR)
