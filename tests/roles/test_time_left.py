"""What is said of the time until the command of a run ends."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.checkpoint import Checkpoint
from ddrl.config import EvaluationConfig, RunConfig, TrainConfig
from ddrl.reporting.phases import EVALUATING, STARTING, TRAINING, drawing_seconds
from ddrl.roles.evaluations import Evaluations
from ddrl.roles.time_left import TimeLeft, plan

DRAWING = drawing_seconds(True)


def config(evaluation=None, **run):
    return TrainConfig(algorithm=BA3CConfig(), evaluation=EvaluationConfig(**(evaluation or {})), run=RunConfig(**run))


def time_left(version=0, steps_before=0, **options):
    settings = config(**options)
    start = Checkpoint(version, version, steps_before, 50.0, np.zeros(1, np.float32), {}, version, (("x", (1,)),))
    return TimeLeft(settings, start, Evaluations(settings.evaluation, version))


def test_minutes_of_training_with_all_that_follows():
    left = time_left(minutes=10.0)
    assert left.now(20.0, 0, 0) == {"phase": STARTING, "seconds_left": 580.0 + 48.0 + DRAWING}
    left.first_update(20.0, 0)
    assert left.now(120.0, 5, 50) == {"phase": TRAINING, "seconds_left": 480.0 + 48.0 + DRAWING}
    left.training_over(600.0, evaluates=True)
    assert left.now(603.0, 9, 90) == {"phase": TRAINING, "seconds_left": 48.0 + DRAWING}, "the last checkpoint"
    left.final_evaluation(605.0, 48.0)
    assert left.now(615.0, 9, 90) == {"phase": EVALUATING, "seconds_left": 38.0 + DRAWING}
    left.games_over(25)
    assert left.now(615.0, 9, 90)["seconds_left"] == 10.0 + DRAWING, "half of the games took 10 s"
    assert left.now(700.0, 9, 90)["seconds_left"] == DRAWING


def test_what_starts_that_died_have_spent_is_not_left():
    settings = config(minutes=10.0)
    start = Checkpoint(0, 0, 0, 50.0, np.zeros(1, np.float32), {}, 0, (("x", (1,)),))
    left = TimeLeft(settings, start, Evaluations(settings.evaluation, 0), spent_seconds=400.0)
    assert left.now(20.0, 0, 0)["seconds_left"] == 180.0 + 48.0 + DRAWING, "the final evaluation has its full time"
    assert plan(settings, 400.0).startswith("training for the rest of 10 minutes, then the final evaluation of 48 s ")


def test_who_stops_a_run_waits_for_no_evaluation():
    left = time_left(minutes=10.0)
    left.training_over(30.0, evaluates=False)
    assert left.now(30.0, 3, 30)["seconds_left"] == DRAWING


@pytest.mark.parametrize(
    ("budget", "at", "seconds"),
    [
        ({"agent_steps": 2000}, (7, 1500), 50.0),  # 1,000 steps in 100 s since the first update
        ({"max_updates": 25}, (15, 0), 200.0),  # 5 updates in 100 s
        ({"agent_steps": 2000, "max_updates": 25}, (15, 1500), 50.0),
        ({"agent_steps": 2000, "minutes": 2.0}, (15, 1500), 10.0),
    ],
)
def test_other_budgets_by_the_rate_since_the_first_update(budget, at, seconds):
    left = time_left(10, 500, **{"minutes": 0.0, "video": False} | budget, evaluation={"final_evaluation_minutes": 0.0})
    left.first_update(10.0, 500)
    assert left.now(110.0, *at)["seconds_left"] == seconds + drawing_seconds(False)


def test_filling_a_replay_says_nothing_of_the_rate_of_learning():
    left = time_left(minutes=0.0, agent_steps=2000, video=False, evaluation={"final_evaluation_minutes": 0.0})
    left.first_update(10.0, 900)
    assert left.now(110.0, 7, 1000)["seconds_left"] == 1000.0 + drawing_seconds(False)


def test_nothing_is_said_without_a_budget_or_a_rate():
    assert time_left(minutes=0.0).now(5.0, 100, 1000) == {"phase": STARTING}
    assert time_left(minutes=0.0, max_updates=5).now(5.0, 0, 0) == {"phase": STARTING}


def test_the_plan_in_words():
    text = plan(config(minutes=10.0))
    assert text == (
        "training for 10 minutes, then the final evaluation of 48 s at most (--final-evaluation-minutes), "
        "then the learning curve and a video"
    )
    bare = config({"final_evaluation_minutes": 0.0}, minutes=0.0, video=False)
    assert plan(bare) == "training, then the learning curve"
