"""Studies of Ape-X: what their points are, and what their reports make of runs."""

from __future__ import annotations

import dataclasses

import pytest

from ddrl.errors import UsageError
from ddrl.studies.papers.apex.actors import ACTORS
from ddrl.studies.papers.apex.replay import REPLAY
from ddrl.studies.points import Outcome
from ddrl.types import Machine

FOUR = Machine(4, 1 << 40)


def runs_of(study, chosen, records_of):
    return [Outcome(p, {"status": "finished"}, records_of(p.labels), None) for p in study.points(chosen, FOUR)]


def lines(rate):
    """Seconds 1 to 40; the score of evaluations grows by rate / 100 a second, up to 1."""
    records = []
    for i in range(1, 41):
        at = {"wall_seconds": float(i), "agent_steps": round(rate * i)}
        rates = {"updates_per_s": 50.0, "inserts_per_s": rate}
        records.append({"kind": "train", "update": 50 * i, "online_score_mean": 0.0, **rates} | at)
        records.append({"kind": "evaluation", "version": 50 * i, "mean": min(1.0, rate * i / 100), "games": 30} | at)
    return records


def test_parts_share_their_points_and_say_what_they_vary():
    points = ACTORS.points(dataclasses.replace(ACTORS.defaults, actors=(2, 8), simulators=4), FOUR)
    found = {point.name.removesuffix("-seed1"): point.config for point in points}
    assert list(found) == [
        "breakout-prioritized-2actors",
        "breakout-prioritized-8actors",
        "breakout-uniform-2actors",
        "breakout-uniform-8actors",
        "breakout-prioritized-2actors-x4",
        "breakout-prioritized-8actors-6epsilons",
    ]
    assert found["breakout-prioritized-2actors-x4"].apex.duplicates == 4
    few = found["breakout-prioritized-8actors-6epsilons"].algorithm
    assert (few.epsilon_values, few.epsilon_ladder, few.epsilon_end) == (6, 7.0, 0.4)
    uniform, prioritized = found["breakout-uniform-8actors"], found["breakout-prioritized-8actors"]
    assert (uniform.replay.priority_exponent, prioritized.replay.priority_exponent) == (0.0, 0.6)
    assert {config.sampling.simulators for config in found.values()} == {4}
    evaluation = prioritized.evaluation
    assert evaluation.evaluator and evaluation.eval_epsilon == 0.00164 and evaluation.target_score is None


def test_the_learner_makes_as_many_updates_with_any_number_of_actors():
    """What is drawn in a second, samples per insert times what is inserted, is the same in all points."""
    chosen = dataclasses.replace(ACTORS.defaults, train_options="--samples-per-insert 40", actors=(2, 4, 8))
    runs = [point.config.apex for point in ACTORS.points(chosen, FOUR)]
    assert {(run.actors, run.duplicates, run.samples_per_insert) for run in runs} == {
        (2, 1, 160.0),
        (4, 1, 80.0),
        (8, 1, 40.0),
        (2, 4, 40.0),
    }
    assert all(point.config.apex.samples_per_insert == 0 for point in ACTORS.points(ACTORS.defaults, FOUR))


def test_uniform_replay_may_have_a_learning_rate_of_its_own_and_simulators_may_be_slow():
    chosen = dataclasses.replace(
        ACTORS.defaults, uniform_learning_rate=2.5e-4, step_time_ms=50.0, target_score=10.0, stop_at_target=True
    )
    by_replay = {point.labels["replay"]: point.config for point in ACTORS.points(chosen, FOUR)}
    assert by_replay["uniform"].optimizer.learning_rate == 2.5e-4
    assert all(config.environment.step_time_mean_ms == 50.0 for config in by_replay.values())
    assert all(config.evaluation.target_score == 10.0 for config in by_replay.values())


def test_more_actors_that_are_sooner_are_seen_to_be():
    chosen = dataclasses.replace(ACTORS.defaults, parts=("number",), repeats=2, target_score=0.8)
    report = ACTORS.report(chosen, runs_of(ACTORS, chosen, lambda labels: lines(labels["actors"])))
    table, gains = report.tables
    assert len(gains.rows) == len(chosen.replays)
    timed = table.columns.index("time to 0.8")
    assert [row[timed].split("; ")[0] for row in table.rows if row[1] == "prioritized"] == ["0.667", "0.333", "0.167"]
    *curves, end, time, updates = report.panels
    assert [curve.label for curve in curves[0].curves] == ["2 actors"] * 2 + ["4 actors"] * 2 + ["8 actors"] * 2
    assert [panel.title for panel in curves] == ["breakout: prioritized"] * 2 + ["breakout: uniform"] * 2
    assert list(updates.curves[0].x) == [2, 4, 8] and list(updates.curves[0].y) == [2000, 1000, 500]
    assert list(time.curves[0].x) == [2, 4, 8] and list(end.curves[0].y) == [0.8, 1.0, 1.0]


def test_runs_that_end_with_the_target_have_no_scores_to_compare_at_the_end():
    chosen = dataclasses.replace(
        ACTORS.defaults, parts=("number",), target_score=0.8, stop_at_target=True, replays=("prioritized",)
    )
    report = ACTORS.report(chosen, runs_of(ACTORS, chosen, lambda labels: lines(labels["actors"])))
    titles = [panel.title.removeprefix("breakout: ") for panel in report.panels]
    assert titles == ["prioritized", "prioritized", "time to the score", "updates to the score"]
    assert any("partly luck" in note for note in report.notes)
    table, gains = report.tables
    assert len(gains.rows) == len(chosen.replays)
    assert "final score" not in table.columns and all(len(row) == len(table.columns) for row in table.rows)


def test_what_actors_gain_is_told_by_the_updates_that_the_target_took():
    """Prioritized replay needs a fourth of the updates with 4 times the actors, uniform replay a half."""
    speeds = {("prioritized", 2): 2.5, ("prioritized", 8): 10.0, ("uniform", 2): 2.5, ("uniform", 8): 5.0}

    def records(labels):
        speed = speeds[labels["replay"], labels["actors"]]
        return lines(speed / 2 if labels["duplicates"] > 1 or labels["epsilons"] else speed)

    chosen = dataclasses.replace(ACTORS.defaults, actors=(2, 8), repeats=5, target_score=0.9, stop_at_target=True)
    report = ACTORS.report(chosen, runs_of(ACTORS, chosen, records))
    finding = report.finding
    assert (
        "The number of updates to 0.9 of 8 actors with prioritized replay is 450, that of 2 actors with prioritized "
        "replay 1,800, and the 95% interval of their difference excludes 0." in finding
    )
    assert (
        "The ratio of these updates of 8 actors to those of 2 with prioritized replay is 0.25, that of 8 actors to "
        "those of 2 with uniform replay 0.5, and the 95% interval of their difference excludes 0." in finding
    )
    assert "No number of updates to 0.9 of 2 actors, each 4 times was measured." in finding  # too slow
    assert (
        "of the whole ladder is 450, that of 6 epsilons 900, and the 95% interval of their difference excludes 0."
        in finding
    )
    table, gains = report.tables
    assert [row[-1].mean for row in gains.rows] == [0.25, 0.5]
    told = [row[table.columns.index("updates to it")] for row in table.rows]
    assert [each if isinstance(each, str) else each.mean for each in told][:5] == [1800, 450, 1800, 900, "never"]


@pytest.mark.parametrize("options, said", [("", False), ("--samples-per-insert 8", True)])
def test_a_learner_held_to_the_inserts_is_said_to_be(options, said):
    chosen = dataclasses.replace(ACTORS.defaults, train_options=options)
    report = ACTORS.report(chosen, runs_of(ACTORS, chosen, lambda labels: lines(labels["actors"])))
    assert any("that of the most actors" in note for note in report.notes) == said


def test_a_number_that_missed_the_score_has_no_time():
    chosen = dataclasses.replace(ACTORS.defaults, parts=("number",), target_score=0.9, replays=("uniform",))
    report = ACTORS.report(chosen, runs_of(ACTORS, chosen, lambda labels: lines(labels["actors"])))
    times, updates = report.panels[-2:]
    assert list(times.curves[0].x) == list(updates.curves[0].x) == [4, 8]
    assert report.tables[0].rows[0][report.tables[0].columns.index("time to 0.9")] == "not reached in 0.667 min"


@pytest.mark.parametrize("part, titles", [("recency", 3), ("diversity", 2)])
def test_the_other_parts_have_a_panel_each(part, titles):
    chosen = dataclasses.replace(ACTORS.defaults, parts=(part,))
    report = ACTORS.report(chosen, runs_of(ACTORS, chosen, lambda labels: lines(labels["actors"])))
    (panel,) = report.panels
    assert len(panel.curves) == titles == len({curve.label for curve in panel.curves})


def test_one_actor_is_no_plural():
    chosen = dataclasses.replace(ACTORS.defaults, parts=("recency",), actors=(1, 8))
    report = ACTORS.report(chosen, runs_of(ACTORS, chosen, lambda labels: lines(labels["actors"])))
    (panel,) = report.panels
    assert [curve.label for curve in panel.curves] == ["1 actor", "1 actor, each 8 times", "8 actors"]


def test_the_replays_points_change_one_thing():
    configs = {point.name.removesuffix("-seed1"): point.config for point in REPLAY.points(REPLAY.defaults, FOUR)}
    assert len(configs) == 16
    small = configs["capacity-breakout-25000"].replay
    assert (small.replay_capacity, small.replay_minimum) == (25_000, 10_000)
    assert configs["batch-size-breakout-1024"].batch_size == 1024
    assert configs["exponent-breakout-0.2"].replay.priority_exponent == 0.2
    assert len({config.optimizer.learning_rate for config in configs.values()}) == 1


def test_a_capacity_below_the_minimum_lowers_it():
    chosen = dataclasses.replace(REPLAY.defaults, parts=("capacity",), capacities=(5_000,))
    (point,) = REPLAY.points(chosen, FOUR)
    assert point.config.replay.replay_minimum == 2_500


def test_the_replays_report_has_a_table_for_each_part():
    chosen = dataclasses.replace(REPLAY.defaults, repeats=2)
    report = REPLAY.report(chosen, runs_of(REPLAY, chosen, lambda labels: lines(2.0)))
    assert [table.title for table in report.tables] == ["Replay capacity", "Batch size", "Priority exponent"]
    assert [len(panel.curves) for panel in report.panels] == [8, 1, 12, 1, 12, 1]  # two runs of each
    assert [curve.label for curve in report.panels[0].curves][1:3] == ["25,000", "50,000"]


@pytest.mark.parametrize("stop, beside", [(False, ["at the end", "time to the score"]), (True, ["time to the score"])])
def test_the_replays_report_has_times_to_a_target(stop, beside):
    chosen = dataclasses.replace(REPLAY.defaults, parts=("exponent",), target_score=0.8, stop_at_target=stop)
    report = REPLAY.report(chosen, runs_of(REPLAY, chosen, lambda labels: lines(2.0 + 2.0 * labels["value"])))
    assert [panel.title.removeprefix("breakout: ") for panel in report.panels] == ["priority exponent", *beside]
    assert report.columns == 1 + len(beside)
    (times,) = report.panels[-1].curves
    assert times.x[0] == 0.0 and [60 * times.y[0], 60 * times.y[-1]] == pytest.approx([40.0, 20.0])
    assert any("partly luck" in note for note in report.notes) == stop


@pytest.mark.parametrize(
    "study, changes, text",
    [
        (ACTORS, {"actors": (3, 8)}, "for the part recency"),
        (ACTORS, {"actors": (0, 8)}, "at least 1"),
        (ACTORS, {"stop_at_target": True}, "--stop-at-target"),
        (ACTORS, {"epsilons": 1}, "--epsilons 1"),
        (ACTORS, {"replays": ("oldest",)}, "--replays oldest"),
        (REPLAY, {"priority_exponents": (1.5,)}, "--priority-exponents 1.5: each must be between 0 and 1"),
        (REPLAY, {"batch_sizes": (0,)}, "--batch-sizes"),
        (REPLAY, {"minutes": 0.0}, "--minutes"),
        (REPLAY, {"eval_epsilon": 2.0}, "--eval-epsilon 2.0"),
        (REPLAY, {"eval_every_updates": 0}, "--eval-every-updates 0"),
        (REPLAY, {"actors": -1}, "--actors -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(study, changes, text):
    with pytest.raises(UsageError, match=text):
        study.points(dataclasses.replace(study.defaults, **changes), FOUR)
