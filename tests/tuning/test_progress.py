"""Scores after parts of a budget: of trials that report at any times, comparable with each other."""

from __future__ import annotations

from ddrl.config import RunConfig
from ddrl.tuning.progress import part_done, scores_at_rungs

RUN = RunConfig(minutes=0.0, agent_steps=100)


def train(steps: int, score: float | None = None, **more):
    return {"kind": "train", "agent_steps": steps, **({} if score is None else {"online_score_mean": score}), **more}


def test_the_budget_that_ends_first_counts():
    run = RunConfig(minutes=1.0, agent_steps=100, max_updates=10)
    assert part_done({"agent_steps": 50, "wall_seconds": 6.0, "update": 1}, run) == 0.5
    assert part_done({"agent_steps": 10, "wall_seconds": 6.0, "update": 8}, run) == 0.8
    assert part_done({}, run) == 0.0


def test_every_rung_that_was_passed_has_the_score_of_its_time():
    records = [train(10), train(30, 1.0), {"kind": "event"}, train(70, 2.0), train(100, 3.0)]
    assert scores_at_rungs(records, RUN, "online", 10) == {4: 1.0, 5: 1.0, 6: 1.0, 7: 1.0, 8: 2.0, 9: 2.0, 10: 2.0}


def test_evaluations_that_time_cut_off_do_not_count():
    records = [
        {"kind": "evaluation", "mean": 5.0, "agent_steps": 20},
        {"kind": "evaluation", "mean": 9.0, "agent_steps": 40, "timed_out": 1},
        train(60, 1.0),
        train(200, 1.0),
    ]
    assert scores_at_rungs(records, RUN, "evaluation", 5) == {2: 5.0, 3: 5.0, 4: 5.0, 5: 5.0}
    assert scores_at_rungs([], RUN, "evaluation", 5) == {}
