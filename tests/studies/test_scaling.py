"""The scaling study: batches and roles of its points; efficiency, time to score, and what is missing in its report."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from ddrl import rundir
from ddrl.errors import UsageError
from ddrl.studies import engine
from ddrl.studies import plan as plans
from ddrl.studies.collect import collect, runs_table
from ddrl.studies.figures import Curve, Mark, Panel, draw
from ddrl.studies.papers.ba3c import scaling
from ddrl.studies.points import Outcome, Point
from ddrl.studies.settings import to_json
from ddrl.studies.slurm import cores_of
from ddrl.studies.statistics import Interval
from ddrl.types import Machine

FOUR = Machine(4, 1 << 40)
CATCH = ("ddrl/Catch-v0",)


def settings(**changes):
    return dataclasses.replace(scaling.SCALING.defaults, preset="smoke", games=CATCH, **changes)


def by_workers(**changes):
    """The first seed's points."""
    return {
        point.labels["workers"]: point
        for point in scaling.SCALING.points(settings(**changes), FOUR)
        if point.config.run.seed == 1
    }


def records(rate, seconds=60, score=1.0, until=60.0):
    """Data-points at a rate, and evaluations that reach the score at `until` seconds."""
    lines = []
    for t in range(1, seconds + 1):
        at = {"wall_seconds": float(t), "agent_steps": round(rate * t)}
        lines.append({"kind": "train", "datapoints_per_s": rate} | at)
        lines.append({"kind": "evaluation", "mean": score * t / until, "games": 10} | at)
    return lines


def finished(chosen, rate, seconds=lambda point: 60, until=lambda point: 60.0, path="nowhere"):
    made = scaling.SCALING.points(chosen, FOUR)
    return [Outcome(p, {"status": "finished"}, records(rate(p), seconds(p), 1.0, until(p)), Path(path)) for p in made]


def test_strong_scaling_divides_the_batch_down_to_the_smallest():
    points = by_workers(workers=(1, 2, 4, 8, 16), effective_batch=256, min_batch_per_worker=32)
    assert {n: p.config.batch_size for n, p in points.items()} == {1: 256, 2: 128, 4: 64, 8: 32, 16: 32}
    assert {n: p.config.effective_batch for n, p in points.items()} == {1: 256, 2: 256, 4: 256, 8: 256, 16: 512}
    assert [n for n, p in points.items() if p.labels["at_least"]] == [16]


def test_weak_scaling_has_one_batch_for_each_worker():
    points = by_workers(mode="weak", workers=(1, 3), batch_per_worker=48)
    assert {n: p.config.batch_size for n, p in points.items()} == {1: 48, 3: 48}
    assert points[3].config.effective_batch == 144
    assert not any(p.labels["at_least"] for p in points.values())


def test_both_modes_and_all_seeds_have_names_of_their_own():
    points = scaling.SCALING.points(settings(mode="both", workers=(1, 2), repeats=2), FOUR)
    assert len({point.name for point in points}) == len(points) == 8
    assert {point.config.run.seed for point in points} == {1, 2}
    assert all(json.loads(json.dumps(point.labels)) == point.labels for point in points)


def test_roles_grow_with_the_workers_and_one_worker_is_one_process():
    points = by_workers(workers=(1, 2, 8, 9), effective_batch=72, min_batch_per_worker=8, workers_per_server=4)
    assert {n: p.config.exchange.servers for n, p in points.items()} == {1: 0, 2: 1, 8: 2, 9: 3}
    assert points[1].config.single_process and points[1].config.ranks == 1
    assert points[8].config.ranks == 10
    assert cores_of(points[8]) == 8  # what Slurm is asked for: the servers share the workers' cores
    assert cores_of(by_workers(workers=(2,), cores_per_worker=0)[2]) == 3


def test_a_target_needs_an_evaluator_which_ends_the_run():
    config = by_workers(workers=(4,), target_score=0.9, eval_every_steps=5120, effective_batch=512)[4].config
    assert config.evaluation.evaluator and config.evaluation.target_score == 0.9
    assert config.evaluation.eval_every_updates == 10
    assert not by_workers(workers=(4,))[4].config.evaluation.evaluator


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"workers": (0, 1)}, "--workers 0 1: each must be at least 1"),
        ({"workers": (2, 2)}, "--workers 2 2: give one or more, each once"),
        ({"workers": (3,)}, "--effective-batch 512: must be a multiple of the number of workers, 3"),
        ({"minutes": 0.0}, "--minutes 0.0: a point would never end"),
        ({"workers_per_server": 0}, "--workers-per-server 0"),
        ({"target_score": float("nan")}, "--target-score nan"),
        ({"mode": "sideways"}, "--mode sideways"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        settings(**changes)


def test_a_batch_that_is_not_divided_may_be_anything():
    settings(mode="weak", workers=(3,))
    settings(workers=(3, 64), effective_batch=96)  # 64 have the smallest batch


def test_speed_up_and_efficiency_of_known_rates():
    chosen = settings(workers=(1, 2, 4), warm_up_seconds=5.0, effective_batch=64)
    found = scaling.SCALING.report(chosen, finished(chosen, lambda p: 100.0 * p.labels["workers"] ** 0.5))
    (table,) = found.tables
    column = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
    assert [rate.mean for rate in column["data-points/s"]] == pytest.approx([100.0, 141.42, 200.0], rel=1e-3)
    assert column["speed-up"][0] is None and column["efficiency"][0] is None
    assert column["speed-up"][2].mean == pytest.approx(2.0)
    assert column["efficiency"][2] == Interval(0.5, None, None, 3)
    assert column["batch rule"] == ["constant in all", "constant in all", "at least 32 per worker"]
    rate, share = found.panels
    assert [curve.label for curve in rate.curves][-1] == "linear" and rate.curves[-1].y == [100.0, 200.0, 400.0]
    assert share.curves[0].y == pytest.approx([1.0, 0.5**0.5, 0.5])
    assert rate.marks == [Mark(8**0.5, "strong: 32 per worker to the right")]
    assert any("4 workers have 32 data-points each" in note for note in found.notes)


def test_a_target_that_some_never_reach_is_never_dropped():
    chosen = settings(workers=(1, 2, 4), target_score=1.0, repeats=2, minutes=1.5)
    late = {1: 40.0, 2: 20.0, 4: 1000.0}

    def until(point):
        return 10.0 if (point.labels["workers"], point.config.run.seed) == (4, 2) else late[point.labels["workers"]]

    outcomes = finished(chosen, lambda p: 100.0, until=until)
    found = scaling.SCALING.report(chosen, outcomes)
    rows = {row[2]: dict(zip(found.tables[1].columns, row)) for row in found.tables[1].rows}
    assert rows[1]["time to score"] == "0.667; 0.667 min"
    assert rows[2]["speed-up"].mean == pytest.approx(2.0) and rows[2]["efficiency"].mean == pytest.approx(1.0)
    assert rows[4]["time to score"] == "1 of 2 in 0.167 min, 1 not reached in 1 min"
    assert rows[4]["speed-up"] is None and "interquartile mean, min" not in rows[4]
    least = next(curve for curve in found.panels[2].curves if curve.points)
    assert least.x == [4] and least.y == pytest.approx([(10.0 + 60.0) / 2]) and "not all reached it" in least.label
    runs = runs_table(chosen, outcomes)
    assert [row[runs.columns.index("seconds to score")] for row in runs.rows] == [40.0, 40.0, 20.0, 20.0, None, 10.0]


def test_without_minutes_a_miss_is_as_long_as_the_run_was():
    chosen = settings(workers=(1,), target_score=1.0, repeats=1, minutes=0.0, agent_steps=1000)
    found = scaling.SCALING.report(chosen, finished(chosen, lambda p: 100.0, lambda p: 30, lambda p: 99.0))
    assert found.tables[1].rows[0][5] == "not reached in 0.5 min"


def test_more_workers_than_cores_are_called_oversubscribed(tmp_path):
    rundir.write_json(tmp_path / engine.MACHINE, {"cores": 2})
    chosen = settings(workers=(1, 2, 4), repeats=1)
    found = scaling.SCALING.report(chosen, finished(chosen, lambda p: 100.0, path=tmp_path))
    assert [row[5] for row in found.tables[0].rows] == [1, 2, "2 (oversubscribed)"]
    assert any(note.startswith("oversubscribed: 4 workers (5 ranks on 2 cores)") for note in found.notes)
    assert any(note.startswith("more ranks than cores: 2 workers (3 ranks on 2 cores)") for note in found.notes)
    assert [mark.label for mark in found.panels[0].marks] == ["more workers than cores to the right"]
    assert "one seed, so the spread is unknown" in found.caption


def test_what_is_relative_to_more_than_one_worker_says_so():
    chosen = settings(workers=(2, 4))
    found = scaling.SCALING.report(chosen, finished(chosen, lambda p: 100.0))
    assert any("relative to 2 workers" in note for note in found.notes)


def test_a_run_that_was_too_short_for_a_rate_is_named():
    chosen = settings(workers=(1, 2), repeats=1)
    seconds = {1: 60, 2: 2}
    found = scaling.SCALING.report(chosen, finished(chosen, lambda p: 100.0, lambda p: seconds[p.labels["workers"]]))
    assert found.tables[0].rows[1][-2:] == [None, None]
    assert "no rate, as too little was reported after the warm-up: strong-catch-v0-2workers-seed1" in found.notes


def test_marks_and_short_logarithmic_axes_can_be_read():
    curves = [Curve("a", [1, 2, 4], [23.0, 24.0, 21.0]), Curve("b", [4], [25.0], points=True)]
    panel = Panel("p", "workers", "s", curves, log_x=True, log_y=True, marks=[Mark(1.4, "one"), Mark(3.0, "two")])
    axes = draw([panel], "h", "c", 1).axes[0]
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "one", "two"]


def test_a_run_uses_the_cores_of_its_workers(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(scaling, "train_point", lambda point, path: seen.append(len(os.sched_getaffinity(0))))
    before = os.sched_getaffinity(0)
    for cores in (1, 0, 10_000):
        scaling.run_scaled(Point("p", None, {"cores": cores}), tmp_path)
    assert seen == [1, len(before), len(before)] and os.sched_getaffinity(0) == before


def test_finished_failed_and_running_points_are_collected(tmp_path, capsys):
    chosen = settings(workers=(1, 2), repeats=3)
    plan = plans.Plan(tmp_path, "scaling", to_json(chosen), tuple(scaling.SCALING.points(chosen, FOUR)))
    plans.write(plan)
    with pytest.raises(UsageError, match="no point has finished"):
        collect(plan, scaling.SCALING)
    for point, result in zip(plan.points, ('{"status": "finished"}', '{"status": "failed", "message": "broke"}', "{")):
        plan.path(point).mkdir(parents=True)
        (plan.path(point) / rundir.RESULT).write_text(result)
        (plan.path(point) / rundir.METRICS).write_text("\n".join(map(json.dumps, records(50.0))))
    collect(plan, scaling.SCALING)
    said = capsys.readouterr().out
    assert "failed: strong-catch-v0-1workers-seed2: broke" in said and "3 waiting" in said
    assert "strong-catch-v0-1workers-seed3: its result.json is half-written" in said
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    first = dict(zip(lines[0].split(","), lines[1].split(",")))
    assert len(lines) == 2 and first["point"] == "strong-catch-v0-1workers-seed1"
    assert (first["mode"], first["workers"], first["seed"]) == ("strong", "1", "1")
    assert (first["data-points/s"], first["agent steps/s"]) == ("50.0", "50.0")
    assert json.loads((tmp_path / "results.json").read_text())["runs"]["rows"][0][0] == first["point"]
