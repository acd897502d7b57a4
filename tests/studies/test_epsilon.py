"""The study of Adam's epsilon: its grid, its best cells and their options, heat maps, and the median rule."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
import time
from pathlib import Path

import pytest

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.options.train_options import parse
from ddrl.studies import plan as plans
from ddrl.studies.collect import runs_table
from ddrl.studies.figures import Panel, draw
from ddrl.studies.heat import HeatMap
from ddrl.studies.measures import EVALUATION, ONLINE
from ddrl.studies.papers.ba3c import ending, epsilon
from ddrl.studies.papers.ba3c.ending import MARK, Other, train_until
from ddrl.studies.papers.ba3c.median_rule import Rule, verdict
from ddrl.studies.points import Outcome, Point, state_of
from ddrl.studies.settings import to_json
from ddrl.studies.tables import text
from ddrl.studies.training import train_point
from ddrl.types import Machine
from tests.studies.test_figures import all_texts

TWO = Machine(2, 1 << 40)
CATCH = ("ddrl/Catch-v0",)


def settings(**changes):
    chosen = {"preset": "smoke", "games": CATCH, "epsilon": (1e-3, 1e-8), "batch_size": (64, 256)} | changes
    return dataclasses.replace(epsilon.EPSILON.defaults, **chosen)


def grown(slope, seconds=100, kind="train"):
    """A score that grows by `slope` in a second."""
    names = {"train": ONLINE, "evaluation": EVALUATION}
    more = {"episodes": 500} if kind == "train" else {"games": 20}
    return [
        {"kind": kind, "wall_seconds": float(t), "agent_steps": 10 * t, names[kind]: slope * t, **more}
        for t in range(1, seconds + 1)
    ]


def finished(chosen, slope, **results):
    return [
        Outcome(p, {"status": "finished", **results.get(p.name, {})}, grown(slope(p)), Path("nowhere"))
        for p in epsilon.EPSILON.points(chosen, TWO)
    ]


def rows_of(table):
    return [dict(zip(table.columns, row)) for row in table.rows]


# points ---------------------------------------------------------------------------------------------------------------


def test_every_combination_is_a_point_with_an_effective_batch():
    chosen = settings(beta1=(0.9, 0.8), repeats=2, workers=4)
    points = epsilon.EPSILON.points(chosen, TWO)
    assert len({point.name for point in points}) == len(points) == 2 * 2 * 2 * 2
    assert all(set(p.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-_") for p in points)
    for point in points:
        optimizer, labels = point.config.optimizer, point.labels
        assert point.config.effective_batch == labels["batch"] == 4 * optimizer.batch_size
        assert (optimizer.adam_epsilon, optimizer.beta1) == (labels["epsilon"], labels["beta1"])
        assert (labels["beta2"], labels["learning_rate"]) == (0.999, 1e-3)  # the preset's
    assert [point.config.run.seed for point in points] == [1] * 8 + [2] * 8  # half a study compares all cells


def test_one_worker_is_one_process_and_evaluations_have_an_evaluator():
    alone = epsilon.EPSILON.points(settings(workers=1), TWO)[0].config
    assert alone.single_process and not alone.evaluation.evaluator
    scored = epsilon.EPSILON.points(settings(score="evaluation", target_score=0.5, eval_every_steps=640), TWO)[0].config
    assert scored.evaluation.evaluator and scored.evaluation.eval_every_updates == 10
    # Runs go on, so that final scores can be compared; all games are played where the first ones reach the target.
    assert (scored.evaluation.target_score, scored.evaluation.stop_at_target) == (0.5, False)
    ends = epsilon.EPSILON.points(settings(score="evaluation", target_score=0.5, stop_at_target=True), TWO)
    assert {(p.config.evaluation.target_score, p.config.evaluation.stop_at_target) for p in ends} == {(0.5, True)}
    online = epsilon.EPSILON.points(settings(target_score=0.5), TWO)[0].config.evaluation
    assert (online.target_score, online.stop_at_target) == (None, True)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"epsilon": ()}, "--epsilon .nothing.: give one or more"),
        ({"beta1": (0.9, 0.9)}, "--beta1 0.9 0.9: give one or more, each once"),
        ({"stop_after": 1.5}, "--stop-after 1.5"),
        ({"minutes": 0.0}, "--minutes 0.0: a point would never end"),
        ({"stop_at_target": True}, "--stop-at-target.*: there is no target; give --target-score"),
        ({"batch_size": (65,)}, "--batch-size 65: must be a multiple of the number of workers, 2"),
        ({"epsilon": (0.0,)}, "--adam-epsilon 0.0"),
        ({"train_options": "--optimizer rmsprop"}, "this study is about Adam's epsilon"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        epsilon.EPSILON.points(settings(**changes), TWO)


# report ---------------------------------------------------------------------------------------------------------------


def test_the_best_epsilon_of_each_batch_and_what_it_is_not_told_apart_from():
    def slope(point):
        good = {64: 1e-3, 256: 1e-8}[point.labels["batch"]] == point.labels["epsilon"]
        return (2.0 if good else 1.0) + 0.01 * point.config.run.seed

    chosen = settings(target_score=50.0, repeats=5)
    found = epsilon.EPSILON.report(chosen, finished(chosen, slope))
    best = rows_of(found.tables[1])
    assert [(row["effective batch"], row["epsilon"]) for row in best] == [(64, "0.001"), (256, "1e-08")]
    assert [row["not told apart from"] for row in best] == ["none", "none"]
    assert best[0]["final score"].mean == pytest.approx(203.0)
    assert len(found.tables[0].rows) == 4 and "of 5 seeds" in found.caption
    assert [panel.heat is not None for panel in found.panels] == [False, False, True]
    heat = found.panels[-1].heat
    assert (heat.columns, heat.rows) == (["64", "256"], ["0.001", "1e-08"])
    assert heat.values[0][0] == pytest.approx(25 / 60) and heat.values[0][1] == pytest.approx(0.828, rel=1e-2)
    close = epsilon.EPSILON.report(chosen, finished(chosen, lambda point: 1.0 + 0.1 * point.config.run.seed))
    assert {row["not told apart from"] for row in rows_of(close.tables[1])} == {"ε 1e-08"}
    assert found.finding.startswith("The final online score ranges from 103 (ε ") and "overlap" not in found.finding, (
        "four cells"
    )


def test_two_seeds_are_points_without_interval_or_verdict():
    chosen = settings(target_score=50.0, repeats=2)
    found = epsilon.EPSILON.report(chosen, finished(chosen, lambda point: 1.0 + 0.1 * point.config.run.seed))
    (scores,) = found.tables  # no table of best cells
    assert "interquartile mean" not in scores.columns and "[" not in scores.markdown()
    assert text(rows_of(scores)[0]["final score"]) == "110; 120"
    assert "interval" not in found.caption and "fewer than 5 say little about the spread" in found.caption
    assert not any("best at" in note for note in found.notes)
    assert any("no epsilon is called the best" in note for note in found.notes)
    curves = next(panel for panel in found.panels if panel.heat is None).curves
    assert [len(curve.low) for curve in curves] == [0] * 4 and curves[0].label == curves[1].label
    assert found.panels[-1].heat.texts[0][0].count(";") == 1


def test_one_run_of_each_cell_tells_nothing_apart():
    chosen = settings(repeats=1)
    found = epsilon.EPSILON.report(chosen, finished(chosen, lambda point: point.labels["epsilon"]))
    assert len(found.tables) == 1
    assert "one seed, so the spread is unknown" in found.caption
    assert found.panels[-1].heat.texts[0][0].endswith("one run")


def test_cells_that_never_reach_the_target_stay_and_come_last():
    chosen = settings(target_score=150.0, batch_size=(64,))
    slopes = {1: 1.4, 2: 1.6, 3: 2.0}
    outcomes = finished(chosen, lambda p: 1.0 if p.labels["epsilon"] == 1e-3 else slopes[p.config.run.seed])
    found = epsilon.EPSILON.report(chosen, outcomes)
    first, second = rows_of(found.tables[0])
    assert first["time to 150"] == "not reached in 1.67 min"
    assert second["time to 150"].startswith("2 of 3 in") and second["time to 150"].endswith("1 not reached in 1.67 min")
    assert first["agent steps to it"] == "never; never; never" and second["agent steps to it"].count("never") == 1
    assert len(found.tables) == 1
    times, scores = (panel.heat for panel in found.panels[1:])
    assert times.values[0] == [None] and times.texts[0] == ["not reached\nin 1.67 min"]
    assert times.texts[1][0].startswith("≥ ") and "1 of 3 missed" in times.texts[1][0]
    assert scores.values[0] == [pytest.approx(100.0)]


def test_what_was_stopped_early_is_marked():
    chosen = settings(target_score=150.0, batch_size=(64,))
    points = epsilon.EPSILON.points(chosen, TWO)
    early = {points[0].name: {"stopped_early": {"best": 1.0}}}
    outcomes = finished(chosen, lambda p: 2.0 if p.labels["epsilon"] == 1e-8 else 1.0, **early)
    found = epsilon.EPSILON.report(chosen, outcomes)
    row = rows_of(found.tables[0])[0]
    assert row["stopped early"] == 1 and row["runs"] == 3
    assert row["time to 150"] == "not reached in 1.67 min (1 stopped early)"  # which they had, not what was planned
    assert "1 stopped early" in found.panels[1].heat.texts[0][0]
    assert any(note.startswith("stopped early by the median rule: 1 of 6 runs") for note in found.notes)
    assert [row["stopped early"] for row in rows_of(runs_table(chosen, outcomes))].count(True) == 1


def test_the_options_of_the_best_cell_make_its_settings():
    chosen = settings(train_options="--network mlp --clip-global-norm 0.25", beta1=(0.8,), learning_rate=(3e-4,))
    for point in epsilon.EPSILON.points(chosen, TWO):
        words = shlex.split(chosen.options_of(point.config))
        assert words[:2] == ["ddrl", "train"]
        made = parse(words[2:], TWO).config
        for group in ("environment", "network", "algorithm", "sampling", "optimizer"):
            assert getattr(made, group) == getattr(point.config, group), group
        assert made.exchange.servers == point.config.exchange.servers
        assert made.exchange.workers == point.config.exchange.workers


def test_no_more_curves_than_can_be_told_apart():
    chosen = settings(epsilon=tuple(10.0**-k for k in range(1, 11)), batch_size=(64,), repeats=1)
    panel = epsilon.EPSILON.report(chosen, finished(chosen, lambda p: p.labels["epsilon"])).panels[0]
    assert len(panel.curves) == 8 and panel.title.endswith("the first 8 of 10")
    assert [curve.style for curve in panel.curves] == list(range(8))


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 3), (6, 4)])
def test_texts_of_a_heat_map_stay_in_their_cells(rows, columns):
    texts = [["≥ 12.3\n[11.0, 13.5]\n1 stopped early"] * columns] * rows
    values = [[float(x * y) if x else None for x in range(columns)] for y in range(rows)]
    names = [f"1e-{k:02d}" for k in range(rows)]
    heat = HeatMap([f"{2**k}" for k in range(columns)], names, values, texts, "time to online score 50 (min)", True)
    panels = [Panel("a heat map", "effective batch", "ε", (), heat=heat)] * 2
    figure = draw(panels, "A heading", "a caption", 2)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    cells = [text for axes in figure.axes for text in axes.texts]
    assert len(cells) == 2 * rows * columns
    boxes = [text.get_window_extent(renderer) for text in [*all_texts(figure), *cells]]
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].padded(-1).overlaps(pair[1].padded(-1))]


def test_runs_that_end_at_the_target_have_times_and_no_final_scores():
    chosen = settings(target_score=50.0, batch_size=(64,), stop_at_target=True)
    found = epsilon.EPSILON.report(chosen, finished(chosen, lambda p: 1.0 if p.labels["epsilon"] == 1e-3 else 2.0))
    (times,) = found.tables
    assert "final score" not in times.columns and "interquartile mean" not in times.columns
    assert times.title == "Time to online score 50 by effective batch and epsilon"
    assert "time to 50 in minutes" in found.finding and "0.417" in found.finding
    missed = epsilon.EPSILON.report(chosen, finished(chosen, lambda p: 400 * p.labels["epsilon"] + 0.2))
    assert missed.finding.endswith("Runs that reached 50: 0 of 3 of ε 1e-08 with an effective batch of 64.")
    assert "runs end at the target" in missed.notes  # three of a cell have a curve each
    (heat,) = [panel.heat for panel in missed.panels if panel.heat is not None]  # that of the times alone
    assert heat.texts[1] == ["not reached\nin 1.67 min"]


def test_no_epsilon_is_best_while_runs_that_take_longer_are_missing():
    chosen = settings(target_score=50.0, batch_size=(64,), stop_at_target=True, repeats=6)
    outcomes = finished(chosen, lambda p: 1.0 if p.labels["epsilon"] == 1e-3 else 2.0)
    whole = epsilon.EPSILON.report(chosen, outcomes)
    assert len(whole.tables) == 2 and "runs end at the target; in the curves, they keep their last score" in whole.notes
    partly = epsilon.EPSILON.report(chosen, outcomes[:-1])
    assert len(partly.tables) == 1
    assert "the runs that take longest may be among those that have not ended" in partly.notes
    assert any("or some have not ended" in note for note in partly.notes)


def test_a_budget_of_agent_steps_is_what_cells_are_compared_by():
    """Whoever shares the processor changes the minutes, and not the agent steps."""
    chosen = settings(target_score=50.0, repeats=5, batch_size=(64,), minutes=0.0, agent_steps=1000)
    slowed = {
        p.name: [record | {"wall_seconds": 9.0 * record["wall_seconds"]} for record in grown(2.0)]
        for p in epsilon.EPSILON.points(chosen, TWO)
        if p.labels["epsilon"] == 1e-8
    }
    outcomes = [
        run._replace(records=slowed.get(run.point.name, run.records)) for run in finished(chosen, lambda point: 1.0)
    ]
    found = epsilon.EPSILON.report(chosen, outcomes)
    (best,) = rows_of(found.tables[1])
    assert (best["epsilon"], best["not told apart from"]) == ("1e-08", "none")
    assert text(best["time to 50"]).startswith("3.75 min")
    assert "then the fewest agent steps" in " ".join(found.notes)
    curves, heat = found.panels
    assert curves.x_label == "agent steps (thousands)"
    assert [values[0] for values in heat.heat.values] == [pytest.approx(0.5), pytest.approx(0.25)]
    assert heat.title == "ddrl/Catch-v0: agent steps to score 50"
    assert heat.heat.label == "agent steps to online score 50 (thousands)"
    never = settings(target_score=150.0, batch_size=(64,), minutes=0.0, agent_steps=1000)
    partly = epsilon.EPSILON.report(never, finished(never, lambda p: 2.0 if p.labels["epsilon"] == 1e-8 else 1.0))
    assert partly.panels[1].heat.texts[0] == ["not reached\nin 1 thousand"]


# runs that end early --------------------------------------------------------------------------------------------------


def test_a_run_is_over_at_its_target():
    at_once = epsilon.over(settings(target_score=50.0, stop_at_target=True))
    assert at_once(grown(1.0, 49), []) is None
    assert at_once(grown(1.0, 50), []) == {"message": "ended at the target score, 50"}
    few = [record | {"episodes": 99} for record in grown(1.0, 60)]
    assert at_once(few, []) is None  # a mean of fewer games than the score has
    taken_back = [*grown(1.0, 60), {"kind": "event", "name": "resumed", "wall_seconds": 40.0}]
    assert at_once(taken_back, []) is None
    by_evaluations = epsilon.over(settings(score="evaluation", target_score=50.0, stop_at_target=True))
    assert by_evaluations(grown(1.0, 60, "evaluation"), []) is None  # the run ends by itself
    both = epsilon.over(settings(target_score=50.0, stop_at_target=True, stop_hopeless=True, minutes=1.0))
    assert both(grown(1.0, 40), others(2.0, 3.0))["stopped_early"]["others"] == 2


RULE = Rule(ONLINE, "wall_seconds", 30.0)


def others(*slopes, seconds=100):
    return [Other(grown(slope, seconds), False) for slope in slopes]


def test_a_run_below_the_median_is_hopeless_after_the_warm_up():
    result = verdict(RULE, grown(1.0, 30), others(0.5, 2.0, 3.0))
    assert result["stopped_early"] == {"best": 30.0, "median": 31.0, "others": 3, "wall_seconds": 30.0}
    assert "below the median of the means of 3 others, 31" in result["message"]
    assert verdict(RULE, grown(1.0, 29), others(0.5, 2.0, 3.0)) is None  # too early
    assert verdict(RULE, grown(1.0, 31), others(0.5, 62 / 32, 3.0)) is None  # at the median
    assert verdict(RULE, [], others(2.0, 3.0)) is None


def test_the_best_score_counts_so_that_a_dip_ends_nothing():
    dipped = [*grown(3.0, 40), {"kind": "train", "wall_seconds": 41.0, ONLINE: 0.0}]
    assert verdict(RULE, dipped, others(2.0, 2.5)) is None


def test_only_those_that_got_as_far_are_compared_with():
    assert verdict(RULE, grown(1.0, 50), others(2.0, 3.0, seconds=40)) is None
    assert verdict(RULE, grown(1.0, 50), others(2.0)) is None  # one other makes no median
    ended = [Other(grown(0.1, 40), True), Other(grown(0.2, 40), True), *others(9.0)]
    assert verdict(RULE, grown(1.0, 50), ended) is None  # those that ended early still count


def test_a_run_that_has_ended_keeps_its_last_score():
    """Two that ended at their target after 40 s: the mean of their rise is 41, and that until 80 s is 60.5."""
    ended = [Other(grown(2.0, 40), True)] * 2
    assert verdict(RULE, grown(0.6, 80), ended)["stopped_early"]["median"] == 60.5
    assert verdict(RULE, grown(0.8, 80), ended) is None


def test_steps_and_evaluations_may_be_compared_too():
    rule = Rule(EVALUATION, "agent_steps", 300.0)
    theirs = [Other(grown(2.0, 100, "evaluation"), True)] * 2
    assert verdict(rule, grown(1.0, 30, "evaluation"), theirs)["stopped_early"]["agent_steps"] == 300.0
    cut_off = [record | {"timed_out": 1} for record in grown(1.0, 30, "evaluation")]
    assert verdict(rule, cut_off, theirs) is None


def test_who_is_compared_with_whom(tmp_path, monkeypatch):
    chosen = settings(stop_hopeless=True, epsilon=(1e-3, 1e-5, 1e-8), repeats=2)
    plan = plans.Plan(tmp_path, "epsilon", to_json(chosen), tuple(epsilon.EPSILON.points(chosen, TWO)))
    plans.write(plan)
    asked = []
    monkeypatch.setattr(epsilon, "train_until", lambda train, *rest: asked.append(rest))
    epsilon.run_cell(plan.points[0], plan.path(plan.points[0]))
    ((path, compared, _),) = asked
    assert path.name == "catch-v0-batch64-epsilon0.001-seed1"
    assert chosen.rule == Rule(ONLINE, "wall_seconds", 180.0)
    assert sorted(p.name for p in compared) == [
        f"catch-v0-batch64-epsilon{e}-seed{s}" for e in ("1e-05", "1e-08") for s in (1, 2)
    ]


def never(ours, others):
    return None


def test_a_mark_whose_run_had_already_stopped_is_completed(tmp_path):
    rundir.write_json(tmp_path / MARK, {"message": "stopped early: low", "stopped_early": {"best": 1.0}})
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "stopped"})
    train_until(lambda: pytest.fail("it has ended"), tmp_path, [], never)
    assert state_of(tmp_path) == ("finished", "stopped early: low")


def test_a_run_that_ends_by_itself_is_not_marked(tmp_path):
    rundir.write_json(tmp_path / MARK, {"message": "of a start that was killed"})
    finish = lambda: rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished"})
    train_until(finish, tmp_path, [], never)
    assert state_of(tmp_path) == ("finished", "") and not (tmp_path / MARK).exists()


def test_a_run_whose_final_evaluation_the_rule_ends_is_finished(tmp_path):
    def end():
        rundir.write_json(tmp_path / MARK, {"message": "stopped early: low"})
        rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished", "unevaluated": True})

    train_until(end, tmp_path, [], never)
    assert state_of(tmp_path) == ("finished", "") and not (tmp_path / MARK).exists()


def test_records_that_a_resume_takes_back_end_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(ending, "LOOK_SECONDS", 0.01)
    metrics = tmp_path / rundir.METRICS
    metrics.write_text("".join(json.dumps(line) + "\n" for line in grown(1.0, 60)))  # of a start that was killed
    at_target = epsilon.over(settings(target_score=50.0, stop_at_target=True))
    seen = []

    def train():
        time.sleep(0.1)
        seen.append((tmp_path / MARK).exists())
        lines = [{"kind": "event", "name": "resumed", "wall_seconds": 40.0}, *grown(1.0, 45)[40:]]
        with metrics.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        time.sleep(0.1)
        seen.append((tmp_path / MARK).exists())
        with metrics.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in grown(1.0, 60)[45:]))
        end = time.monotonic() + 60.0
        while not (tmp_path / MARK).exists() and time.monotonic() < end:
            time.sleep(0.01)
        seen.append((tmp_path / MARK).exists())

    train_until(train, tmp_path, [], at_target)
    assert seen == [False, False, True]


@pytest.mark.timeout(240)
def test_a_real_run_is_stopped_early_and_marked(tmp_path, monkeypatch, forked_ranks):
    monkeypatch.setattr(ending, "LOOK_SECONDS", 0.2)
    chosen = settings(workers=1, repeats=1)
    config = epsilon.EPSILON.points(chosen, TWO)[0].config.changed(run={"minutes": 2.0, "log_every_seconds": 0.3})
    better = [tmp_path / name for name in ("a", "b")]
    for path in better:
        path.mkdir()
        (path / rundir.METRICS).write_text("".join(json.dumps(line) + "\n" for line in grown(100.0, 200)))
    path = tmp_path / "points" / "p"
    rule = RULE._replace(begin=1.0)
    train_until(lambda: train_point(Point("p", config, {}), path), path, better, lambda *runs: verdict(rule, *runs))
    result = rundir.read_json(path / rundir.RESULT)
    assert result["status"] == "finished" and result["stopped_early"]["others"] == 2
    assert state_of(path).why.startswith("stopped early: its best score")


@pytest.mark.timeout(240)
def test_a_real_run_ends_at_its_target(tmp_path, monkeypatch, forked_ranks):
    monkeypatch.setattr(ending, "LOOK_SECONDS", 0.2)
    chosen = settings(workers=1, repeats=1, batch_size=(64,), target_score=-0.95, stop_at_target=True, minutes=3.0)
    plan = plans.Plan(tmp_path, "epsilon", to_json(chosen), tuple(epsilon.EPSILON.points(chosen, TWO)))
    plans.write(plan)
    point = plan.points[1]
    path = plan.path(point)
    epsilon.run_cell(point, path)
    result = rundir.read_json(path / rundir.RESULT)
    assert (result["status"], result["message"]) == ("finished", "ended at the target score, -0.95")
    assert "stopped_early" not in result and state_of(path) == ("finished", "")
