"""Whole jobs of the algorithms on rollouts, in one process, on Catch."""

from __future__ import annotations

import pytest

from tests.parallel.support import evaluations, finish, hashes, lines, newest, result

pytestmark = pytest.mark.timeout(300)

SMOKE = ("--preset", "smoke", "--minutes", "3")


@pytest.mark.parametrize(
    "name, flags",
    [("a2c", ("--max-updates", "500")), ("hts-ppo", ("--max-updates", "1600", "--eval-every-updates", "800"))],
)
def test_catch_is_learned(name, flags, tmp_path):
    rate = ("--learning-rate-schedule", "linear", "--learning-rate-updates", flags[1])
    finish(tmp_path / "run", name, *SMOKE, *flags, *rate, "--eval-games", "50", "--evaluation-minutes", "1")
    assert result(tmp_path / "run")["status"] == "finished"
    assert evaluations(tmp_path / "run")[-1] >= 0.9  # chance: -0.6


def test_a_budget_of_agent_steps_is_noticed_before_the_next_line_of_metrics(tmp_path):
    budget = ("--agent-steps", "1000", "--log-every-seconds", "100", "--no-evaluator")
    finish(tmp_path / "run", "a2c", *SMOKE, *budget)
    ended = result(tmp_path / "run")
    assert ended["message"] == "the budget of 1,000 agent steps is used up" and ended["wall_seconds"] < 100.0


def test_impala_corrects_a_lag_that_it_reports(tmp_path):
    finish(tmp_path / "run", "impala", *SMOKE, "--max-updates", "200", "--no-evaluator", "--log-every-seconds", "0.3")
    train = lines(tmp_path / "run")
    assert max(line["lag_max"] for line in train if "lag_max" in line) >= 1
    ratios = [line["importance_ratio_mean"] for line in train if "importance_ratio_mean" in line]
    assert ratios and all(0.0 < ratio < 2.0 for ratio in ratios)
    assert newest(tmp_path / "run").version == 200


def test_a_deterministic_run_is_the_same_whatever_the_number_of_predictors(tmp_path):
    flags = ("hts-ppo", *SMOKE, "--deterministic", "--max-updates", "50", "--groups", "8", "--no-evaluator")
    for predictors in ("1", "4"):
        finish(tmp_path / predictors, *flags, "--predictors", predictors)
    one, four = hashes(tmp_path / "1"), hashes(tmp_path / "4")
    assert one == four and len(one) == 51 and len(set(one.values())) == 51
    finish(tmp_path / "other", *flags, "--predictors", "4", "--seed", "2")
    assert hashes(tmp_path / "other")["50"] != one["50"]


def test_a_run_of_two_storages_resumes_to_the_bit(tmp_path):
    flags = ("hts-ppo", *SMOKE, "--deterministic", "--no-evaluator", "--checkpoint-every-updates", "10")
    finish(tmp_path / "whole", *flags, "--max-updates", "50")
    finish(tmp_path / "parts", *flags, "--max-updates", "23")
    finish(tmp_path / "parts", "--resume", str(tmp_path / "parts"), "--max-updates", "50", "--minutes", "3")
    assert hashes(tmp_path / "parts") == hashes(tmp_path / "whole")
