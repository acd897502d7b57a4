"""`ddrl bench train`, on lines of metrics that no run has made."""

from __future__ import annotations

import pytest

from ddrl import algorithms, rundir
from ddrl.bench import train
from ddrl.errors import UsageError
from ddrl.types import Machine

CONFIG = algorithms.preset("default", None, Machine(2, 16 * 10**9), "a2c")

OTHERS = (*train.times(CONFIG), "inference_batch", "gradient_batch", "network", "dtype", "game")


def line(update, **more):
    rates = {
        "datapoints_per_s": 80.0,
        "updates_per_s": 1.0,
        "effective_batch": 80.0,
        "lag_mean": 0.0,
        "exchange_ms": 2.0,
    }
    split = {"time_split": {"worker": {"inference": 0.5}}, "cpu_cores": {"0": 1.5}, "resident_mb": {"0": 1.0}}
    return {"update": update, "agent_steps_per_s": 100.0} | (rates if update else {}) | split | more


def test_a_run_without_updates_in_its_time_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(train, "run_for", lambda config, seconds: [line(0), line(1), line(1)])
    with pytest.raises(UsageError, match="--seconds 20: too few updates to measure; give more"):
        train._run(CONFIG, 20.0)


@pytest.mark.parametrize(
    "after, said", [(1769.0, "slower by a factor of 1.81"), (5000.0, "faster by a factor of 1.56")]
)
def test_a_machine_that_changed_meanwhile_is_told(monkeypatch, after, said):
    rooflines = iter([{"roofline": each, **dict.fromkeys(OTHERS, 1.0)} for each in (3209.0, after, 3209.0, 3300.0)])
    monkeypatch.setattr(train, "measure_roofline", lambda config, seconds, cores: next(rooflines))
    monkeypatch.setattr(train, "_run", lambda config, seconds: {"agent_steps_per_s": 2407.0})
    values = train.measure(CONFIG, 20.0, 1.0)
    assert f"the machine became {said} during the measurement (roofline 3,209, then {after:,.0f})" in values["warning"]
    assert "warning" not in train.measure(CONFIG, 20.0, 1.0)


def test_warm_up_and_the_unfinished_last_line_do_not_count(monkeypatch):
    rates = [9e9] * train.WARM_UP_LINES + [100.0, 200.0, 9e9]
    lines = [line(i + 1, agent_steps_per_s=rate) for i, rate in enumerate(rates)]
    monkeypatch.setattr(train, "run_for", lambda config, seconds: [line(0), *lines])
    assert train._run(CONFIG, 20.0)["agent_steps_per_s"] == 150.0


def test_an_interval_without_agent_steps_counts_in_their_rate(monkeypatch):
    """On a slow machine PPO acts for seconds, and then learns for as long; such a line lacks the rate."""
    warm_up = [line(i + 1) for i in range(train.WARM_UP_LINES)]
    learning = {name: value for name, value in line(8).items() if name != "agent_steps_per_s"}
    lines = [*warm_up, line(7, agent_steps_per_s=300.0), learning, line(9)]
    monkeypatch.setattr(train, "run_for", lambda config, seconds: lines)
    assert train._run(CONFIG, 20.0)["agent_steps_per_s"] == 150.0


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_a_roofline_without_an_end_is_refused(seconds):
    with pytest.raises(UsageError, match=f"--roofline-seconds {float(seconds)}: must be a finite number above 0"):
        train.EndToEndArguments(roofline_seconds=float(seconds))


def test_the_preset_of_a_settings_file_is_kept(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("preset: smoke\n")
    assert train.config_of(["a2c", "--config", str(file)]).environment.game == "ddrl/Catch-v0"
    assert train.config_of(["a2c", "--preset=smoke"]).environment.game == "ddrl/Catch-v0"


def test_a_run_to_resume_gives_the_settings(tmp_path):
    target = {"target_score": 30.0, "stop_at_target": False}
    run = {"run_dir": str(tmp_path / "run"), "seed": 7}
    begun, _ = rundir.create_run_dir(CONFIG.changed(run=run, evaluation=target))
    found = train.config_of(["--resume", str(begun)])
    assert (found.run.seed, found.optimizer) == (7, CONFIG.optimizer)
    assert not found.evaluation.evaluator and found.evaluation.target_score is None
