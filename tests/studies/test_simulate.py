"""`ddrl study simulate`: what it writes, its settings, calibration on a run directory, comparison with measurements."""

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
from ddrl.simulation.calibration import Calibration
from ddrl.simulation.predict import simulate as run_of
from ddrl.simulation.system import System, Times
from ddrl.studies import simulate, simulate_report
from ddrl.studies.points import Outcome
from ddrl.studies.simulate import SIMULATE
from ddrl.studies.simulate_report import NAMES, WITHIN, agreement, compare_emulated, emulated_rate, fit
from ddrl.types import Machine
from tests.studies.test_html import Page

QUICK = ["--workers", "4", "16", "--updates", "10"]
TWO = Machine(2, 8 << 30)


def settings(**changes):
    return dataclasses.replace(SIMULATE.defaults, **changes)


@pytest.fixture
def known_times(monkeypatch):
    """A server's times are measured; here they are the same each time."""
    monkeypatch.setattr(
        simulate, "time_server", lambda *_: {"average_seconds_per_byte": 1e-10, "apply_seconds_per_byte": 1e-9}
    )


def test_it_writes_table_figures_and_report(tmp_path, known_times, capsys):
    policies = ["all", "quorum", "deadline", "asynchronous"]
    assert command.main(["simulate", *QUICK, "--dir", str(tmp_path), "--policies", *policies]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    (table,) = results["tables"]
    assert [row[:2] for row in table["rows"]] == [
        [NAMES[policy], workers] for policy in policies for workers in (4, 16)
    ]
    assert all(0 < row[table["columns"].index("efficiency")]["mean"] <= 1.001 for row in table["rows"])
    page = Page((tmp_path / "report.html").read_text())
    assert page.open == [] and len(page.having("img")) == len(results["curves"])
    assert f"ddrl study simulate --workers 4 16 --updates 10 --dir {tmp_path}" in " ".join(page.text)
    assert "by the settings" not in " ".join(page.text)  # no game was played
    assert "**Predictions**" in capsys.readouterr().out
    titles = {curve["title"] for curve in results["curves"]}
    assert {"Speed", "Efficiency", "Gradients that are dropped", "Claim 2: asynchronous systems"} <= titles


def test_two_calls_predict_the_same_and_seeds_differ(known_times):
    points = SIMULATE.points(settings(workers=(4, 16), updates=10, repeats=2), TWO)
    assert [simulate.predicted(point) for point in points] == [simulate.predicted(point) for point in points]
    assert len({point.name for point in points}) == 3 * 2 * 2 == len(points)
    assert simulate.predicted(points[0]) != simulate.predicted(points[1])
    assert all(json.loads(json.dumps(point.labels)) == point.labels for point in points)


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
        command.main(["simulate", *wrong, "--dir", str(tmp_path)])
    assert "\n" not in str(error.value)


def test_sizes_have_the_network_of_the_options():
    chosen = settings(bandwidth_gbit=8.0, latency_us=20.0, quorum_share=0.9)
    base = System(workers=1, compute=Times(0.1), workers_per_host=0)
    one = chosen.at_workers(base, "quorum", 1000)
    assert (one.servers, one.quorum, one.workers_per_host) == (15, 900, 1)
    assert (one.worker_bandwidth, one.latency) == (1e9, pytest.approx(2e-5))
    assert chosen.at_workers(base, "all", 64).servers == simulate.FEWEST_SERVERS
    assert chosen.at_workers(base, "asynchronous", 64).asynchronous


def test_a_servers_times_are_measured():
    found = simulate.time_server(100_000, repeats=2)
    assert set(found) == {"average_seconds_per_byte", "apply_seconds_per_byte"}
    assert min(found.values()) >= 0 and sum(found.values()) > 0


def a_run(path, servers=1):
    """The directory of a run with two workers, whose updates took 50 ms, 10 of them in the exchange."""
    path.mkdir()
    exchange = {"workers": 2, "parameter_servers": servers, "exchange": "parameter_server" if servers else "allreduce"}
    rundir.write_json(
        path / rundir.CONFIG, rundir.config_to_dict(TrainConfig(algorithm=BA3CConfig()).changed(exchange=exchange))
    )
    line = {
        "kind": "train", "updates_per_s": 20.0, "effective_batch": 64.0,
        "compute_ms": 40.0, "compute_ms_deviation": 0.0,
        "time_split": {"parameter_server": {"receive": 0.01, "apply": 0.01, "send": 0.01}},
    }  # fmt: skip
    lines = [line | {"update": 20 * i, "wall_seconds": float(i)} for i in range(1, 10)]
    (path / rundir.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_directory_is_calibrated_on(tmp_path, monkeypatch, known_times):
    a_run(tmp_path / "run")
    monkeypatch.setattr(simulate, "parameters_of", lambda run: 1000)
    found = simulate.calibrated(tmp_path / "run")
    assert found.system.compute.mean == pytest.approx(0.04)
    assert (found.system.batch, found.system.workers, found.system.parameters) == (32, 2, 1000)
    assert run_of(found.system).updates_per_s == pytest.approx(20.0, rel=0.01)
    command.main(["simulate", *QUICK, "--calibrate", str(tmp_path / "run"), "--dir", str(tmp_path / "out")])
    assert "calibrated on" in (tmp_path / "out" / "report.html").read_text()


def test_a_real_point_keeps_what_it_was_calibrated_to(tmp_path, monkeypatch, known_times):
    """So that a report from packed data, which has no checkpoint and may be of another machine, says the same."""

    def train(point, path):
        a_run(path)
        rundir.write_json(path / rundir.RESULT, {"status": "finished"})

    monkeypatch.setattr(simulate, "train_point", train)
    monkeypatch.setattr(simulate, "parameters_of", lambda run: 1000)
    simulate.real(SIMULATE.points(settings(validate=True), TWO)[-1], tmp_path / "run")
    result = rundir.read_json(tmp_path / "run" / rundir.RESULT)
    assert result["status"] == "finished"
    assert Calibration.from_json(result["calibration"]) == simulate.calibrated(tmp_path / "run")


def test_a_real_point_that_was_stopped_is_not_calibrated(tmp_path, monkeypatch):
    monkeypatch.setattr(simulate, "train_point", lambda point, path: a_run(path))
    simulate.real(SIMULATE.points(settings(validate=True), TWO)[-1], tmp_path / "run")
    assert not (tmp_path / "run" / rundir.RESULT).exists()


def test_a_run_without_servers_is_refused(tmp_path):
    a_run(tmp_path / "run", servers=0)
    with pytest.raises(UsageError, match="no parameter servers"):
        simulate.calibrated(tmp_path / "run")


def test_the_fit_brings_out_what_it_was_fitted_to():
    base = System(workers=1, servers=4, workers_per_host=0, servers_per_host=0)
    fitted = fit(base, 0.05, {1: 0.058, 64: 0.102})
    assert 1 / emulated_rate(fitted, 1, 0.05) == pytest.approx(0.058, rel=1e-3)
    assert 1 / emulated_rate(fitted, 64, 0.05) == pytest.approx(0.102, rel=1e-3)


def test_predictions_of_what_was_measured_on_a_quiet_machine():
    """docs/results/scaling.md, emulated workers on two cores: all within 10%."""
    efficiency = {
        500.0: (1.97, 0.98, 0.87), 200.0: (4.80, 0.97, 0.82), 100.0: (9.21, 0.94, 0.71), 50.0: (17.2, 0.93, 0.57)
    }  # fmt: skip
    rates = {
        (workers, step): first * share
        for step, (first, *shares) in efficiency.items()
        for workers, share in zip((1, 16, 64), (1.0, *shares))
    }
    compared = compare_emulated(rates)
    assert len(compared) == 12 and sum(one.fitted for one in compared) == 2
    assert max(abs(one.error) for one in compared) <= WITHIN
    assert agreement(compared).startswith("validation: 10 of 10 predictions within 10%")


def measured(point):
    """What a point would leave: workers of which 16 are slower than predicted."""
    if point.labels["part"] == "emulated":
        slow = 0.5 if point.labels["workers"] == 16 else 1.0
        return {"rates": {f"{ms:g}": slow * 1000 / (ms + 10) for ms in simulate.EMULATED_MS}}
    if point.labels["part"] == "predicted":
        return simulate.predicted(point)
    workers = point.labels["workers"]
    calibration = Calibration(System(workers=workers, compute=Times(0.1)), 10.0 if workers < 8 else 20.0)
    return json.loads(json.dumps({"calibration": calibration.to_json()}, allow_nan=False))


def test_what_is_measured_stands_beside_its_prediction(known_times):
    chosen = settings(workers=(4,), updates=10, validate=True)
    points = SIMULATE.points(chosen, TWO)
    outcomes = [Outcome(point, measured(point), [], Path()) for point in points]
    report = simulate_report.report(chosen, outcomes)
    _, table = report.tables
    rows = {(row[0], row[1]): row for row in table.rows}
    assert len(rows) == 4 * 4 + 4 and [row[5] for row in rows.values()].count("fitted to") == 3
    assert (
        rows["500 ms", 16][4] == "+100.0%" and rows["CartPole", 2][4] == "+0.0%" and rows["CartPole", 8][4] == "-50.0%"
    )
    assert report.notes[0].startswith("validation: 12 of 17 predictions within 10%")
    assert [panel.title for panel in report.panels][4] == "Lines: predicted, hollow: measured"
    alone = simulate_report.report(chosen, [run for run in outcomes if run.point.labels["workers"] != 1])
    assert not [row for row in alone.tables[-1].rows if row[0] == "CartPole"]  # calibrated on one worker alone


@pytest.mark.parametrize("share, text", [(-0.0004, "+0.0%"), (0.0004, "+0.0%"), (-0.0006, "-0.1%"), (0.25, "+25.0%")])
def test_no_error_is_minus_zero(share, text):
    assert simulate_report.signed_percent(share) == text


def test_nothing_measured_is_said():
    assert agreement([]) == "validation: nothing was measured"


def test_the_emulated_workers_are_those_of_the_bench(monkeypatch, known_times):
    def measure(arguments):
        (workers,) = arguments.workers
        return {f"updates_per_s_at_{ms:g}_ms": {str(workers): 1000 / ms} for ms in arguments.step_ms}

    monkeypatch.setattr("ddrl.bench.emulated.exchange.measure_scaling", measure)
    points = SIMULATE.points(settings(workers=(4,), validate=True), TWO)
    point = next(point for point in points if point.labels["part"] == "emulated")
    assert simulate.emulated(point) == {"rates": {"500": 2.0, "200": 5.0, "100": 10.0, "50": 20.0}}


def test_the_real_runs_have_simulators_that_sleep(known_times):
    points = SIMULATE.points(settings(workers=(4,), validate=True), TWO)
    config = {point.labels["part"]: point.config for point in points}["real"]
    assert (config.exchange.workers, config.exchange.parameter_servers) == (8, 1)
    assert config.environment.step_time_mean_ms == 20.0 and config.run.max_updates == simulate.REAL_UPDATES
    assert not config.evaluation.evaluator
