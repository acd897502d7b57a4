"""`ddrl study simulate`: what it writes, its settings, calibration on a run directory, comparison with measurements."""

from __future__ import annotations

import json

import pytest

from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.simulation.times import Constant
from ddrl.studies import simulate, simulate_report, simulate_validation
from ddrl.studies.settings import changed
from ddrl.studies.simulate_report import agreement
from ddrl.studies.simulate_validation import Compared, compare_emulated, emulated_rate, fit
from ddrl.types import Machine
from tests.studies.test_html import Page

QUICK = ["--workers", "4", "16", "--updates", "10"]


@pytest.fixture
def known_times(monkeypatch):
    """A server's times are measured; here they are the same each time."""
    monkeypatch.setattr(simulate, "time_server", lambda *_: simulate.ServerTimes(1e-10, 1e-9))


@pytest.fixture
def one_figure(monkeypatch):
    """Without the figure of HTS-RL, which is the same whatever is asked, and takes a second."""
    monkeypatch.setattr(simulate_report, "claims", list)


def test_it_writes_table_figures_and_report(tmp_path, known_times, capsys):
    policies = ["all", "quorum", "deadline", "asynchronous"]
    assert simulate.main([*QUICK, "--dir", str(tmp_path), "--policies", *policies]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    found = {(p["policy"], p["workers"]) for p in results["predictions"]}
    assert found == {(policy, workers) for policy in policies for workers in (4, 16)}
    assert all(0 < p["efficiency"] <= 1.001 for p in results["predictions"])
    page = Page((tmp_path / "report.html").read_text())
    assert page.open == [] and len(page.having("img")) == 2
    assert f"ddrl study simulate --workers 4 16 --updates 10 --dir {tmp_path}" in " ".join(page.text)
    assert "**Predictions**" in capsys.readouterr().out
    assert (tmp_path / "figure.pdf").exists() and (tmp_path / "hts" / "figure.png").exists()


def test_two_calls_predict_the_same(known_times):
    settings = simulate.SimulateSettings(workers=(4, 16), updates=10)
    base, _, _ = simulate.base_system(settings)
    assert simulate.predict(settings, base) == simulate.predict(settings, base)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--workers", "0"],
        ["--workers"],
        ["--updates", "3"],
        ["--bandwidth-gbit", "0"],
        ["--quorum-share", "1.5"],
        ["--slow-factor", "0.5"],
        ["--calibrate", "nowhere"],
    ],
)
def test_bad_settings_are_refused_in_one_line(wrong, tmp_path):
    with pytest.raises((UsageError, SystemExit)) as error:
        simulate.main([*wrong, "--dir", str(tmp_path)])
    assert "\n" not in str(error.value)


def test_sizes_have_the_network_of_the_options():
    settings = simulate.SimulateSettings(bandwidth_gbit=8.0, latency_us=20.0, quorum_share=0.9)
    base = simulate.System(workers=1, compute=Constant(0.1), workers_per_host=0)
    one = simulate.at_workers(settings, base, "quorum", 1000)
    assert (one.servers, one.quorum, one.workers_per_host) == (15, 900, 1)
    assert (one.worker_bandwidth, one.latency) == (1e9, pytest.approx(2e-5))
    assert simulate.at_workers(settings, base, "all", 64).servers == simulate.FEWEST_SERVERS
    assert simulate.at_workers(settings, base, "asynchronous", 64).asynchronous


def test_a_servers_times_are_measured():
    found = simulate.time_server(100_000, repeats=2)
    assert found.average >= 0 and found.apply >= 0 and found.average + found.apply > 0


def a_run(path, servers=1):
    """The directory of a run with two workers, whose updates took 50 ms, 10 of them in the exchange."""
    path.mkdir()
    exchange = {"workers": 2, "parameter_servers": servers, "exchange": "parameter_server" if servers else "allreduce"}
    rundir.write_json(
        path / rundir.CONFIG, rundir.config_to_dict(changed(TrainConfig(algorithm=BA3CConfig()), exchange=exchange))
    )
    line = {
        "kind": "train", "updates_per_s": 20.0, "effective_batch": 64.0,
        "compute_ms": 40.0, "compute_ms_deviation": 0.0,
        "time_split": {"parameter_server": {"receive": 0.01, "apply": 0.01, "send": 0.01}},
    }  # fmt: skip
    lines = [line | {"update": 20 * i, "wall_seconds": float(i)} for i in range(1, 10)]
    (path / rundir.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_directory_is_calibrated_on(tmp_path, monkeypatch, known_times, one_figure):
    a_run(tmp_path / "run")
    monkeypatch.setattr(simulate, "parameters_of", lambda run: 1000)
    found = simulate.calibrated(tmp_path / "run")
    assert found.system.compute.mean == pytest.approx(0.04)
    assert (found.system.batch, found.system.workers, found.system.parameters) == (32, 2, 1000)
    assert simulate.simulate(found.system).updates_per_s == pytest.approx(20.0, rel=0.01)
    simulate.main([*QUICK, "--calibrate", str(tmp_path / "run"), "--dir", str(tmp_path / "out")])
    assert "calibrated on" in (tmp_path / "out" / "report.html").read_text()


def test_a_run_without_servers_is_refused(tmp_path):
    a_run(tmp_path / "run", servers=0)
    with pytest.raises(UsageError, match="no parameter servers"):
        simulate.calibrated(tmp_path / "run")


def test_the_fit_brings_out_what_it_was_fitted_to():
    base = simulate.System(workers=1, servers=4, workers_per_host=0, servers_per_host=0)
    fitted = fit(base, 0.05, {1: 0.058, 64: 0.102})
    assert 1 / emulated_rate(fitted, 1, 0.05) == pytest.approx(0.058, rel=1e-3)
    assert 1 / emulated_rate(fitted, 64, 0.05) == pytest.approx(0.102, rel=1e-3)


def test_predictions_of_what_was_measured_on_a_quiet_machine():
    """docs/results.md, emulated workers on two cores: all within 10%."""
    efficiency = {
        500.0: (1.97, 0.98, 0.87), 200.0: (4.80, 0.97, 0.82), 100.0: (9.21, 0.94, 0.71), 50.0: (17.2, 0.93, 0.57)
    }  # fmt: skip
    rates = {
        (workers, step): first * share
        for step, (first, *shares) in efficiency.items()
        for workers, share in zip((1, 16, 64), (1.0, *shares))
    }
    compared = compare_emulated(rates, 332_295, 4)
    assert len(compared) == 12 and sum(one.fitted for one in compared) == 2
    assert max(abs(one.error) for one in compared) <= simulate_validation.WITHIN
    assert agreement(compared).startswith("validation: 10 of 10 predictions within 10%")


def test_a_validation_is_in_the_report_and_a_failed_one_is_said(tmp_path, monkeypatch, known_times, one_figure):
    compared = [Compared("50 ms", 1, 17.2, 17.2, True), Compared("50 ms", 16, 16.0, 12.8, False)]
    monkeypatch.setattr(simulate_validation, "emulated", lambda arguments: compared)

    def fails(directory):
        raise UsageError("no MPI here")

    monkeypatch.setattr(simulate_validation, "real", fails)
    simulate.main([*QUICK, "--validate", "--dir", str(tmp_path)])
    page = Page((tmp_path / "report.html").read_text())
    text = " ".join(page.text)
    assert "0 of 1 predictions within 10%" in text and "16 workers, -20.0%" in text
    assert "real runs failed: no MPI here" in text
    assert len(page.having("img")) == 2


def test_nothing_measured_is_said():
    assert agreement([]) == "validation: nothing was measured"


def test_the_real_runs_have_simulators_that_sleep(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("ddrl.studies.training.train_point", lambda point, path: asked.append(point.config))
    simulate_validation.train(tmp_path / "workers8", 8, Machine(2, 8 << 30))
    (config,) = asked
    assert (config.exchange.workers, config.exchange.parameter_servers) == (8, 1)
    assert config.environment.step_time_mean_ms == 20.0 and config.run.max_updates == simulate_validation.REAL_UPDATES
    assert not config.evaluation.evaluator
