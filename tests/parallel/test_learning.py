"""Whole jobs on Catch, a game that is learned in seconds."""

from __future__ import annotations

import statistics

import pytest

from ddrl.reporting.metrics import read_metrics
from ddrl.reporting.phases import PHASES
from tests.parallel.support import (
    CATCH,
    evaluations,
    events,
    finish,
    forked_light_train,
    lines,
    needs_mpirun,
    newest,
    result,
    train,
)

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """2 workers, 1 server and the evaluator; the rate falls to 0, so that the last version is no lucky one.

    At a constant rate one run of many loses its policy; at this one none did.
    """
    run = tmp_path_factory.mktemp("learning") / "run"
    rate = (
        "--learning-rate",
        "1e-3",
        "--learning-rate-schedule",
        "linear",
        "--learning-rate-updates",
        "1000",
        "--max-updates",
        "1000",
    )
    # Lines come often, so that a fast machine writes some, too.
    flags = ("--log-every-seconds", "0.2", "--eval-games", "50", "--eval-every-updates", "500")
    finish(run, *CATCH, *rate, *flags, program="ranks_counted.py", start=train)
    return run


def test_catch_is_learned(learned):
    assert result(learned)["status"] == "finished"
    assert newest(learned).version == result(learned)["update"] == 1000
    assert evaluations(learned)[-1] >= 0.9
    assert lines(learned)[-1]["online_score_mean"] > 0.5


def test_phases_time_left_and_the_final_evaluation_are_told(learned):
    assert [event["phase"] for event in events(learned, "phase")] == ["training", "evaluating"]
    train = lines(learned)
    phases = [PHASES.index(line["phase"]) for line in train]
    assert phases == sorted(phases) and {"training", "evaluating"} <= {line["phase"] for line in train}
    left = [line["seconds_left"] for line in train if "seconds_left" in line]
    assert left[-1] < left[0] and all(seconds >= 5.0 for seconds in left), "curve and video are still to come"
    played = [record for record in read_metrics(learned) if record["kind"] == "evaluation"]
    assert [record.get("final", False) for record in played] == [False] * (len(played) - 1) + [True]
    last = played[-1]
    assert last["games"] == 50 and last["version"] == 1000 and not last["timed_out"] and not last["unfinished"]


def test_nothing_is_traced_again_and_memory_stays_flat(learned):
    train = lines(learned)
    for worker in ("worker_0", "worker_1"):
        traces = [line[f"traces_{worker}"] for line in train if f"traces_{worker}" in line]
        assert len(traces) > 3 and len(set(traces)) == 1
    assert train[-1]["update"] >= 200
    for rank in ("worker-0", "worker-1", "parameter_server-0"):
        sizes = [line["resident_mb"][rank] for line in train if rank in line["resident_mb"]]
        assert sizes[-1] < sizes[len(sizes) // 2] + 50.0
        assert sizes[-1] < 1500.0
    assert sizes[-1] < 200.0, "the server has imported TensorFlow"


def test_asynchronous_updates_learn_catch_and_report_their_staleness(tmp_path):
    run = tmp_path / "run"
    finish(
        run,
        *CATCH,
        "--updates",
        "asynchronous",
        "--parameter-servers",
        "2",
        "--no-evaluator",
        "--max-updates",
        "2000",
        "--checkpoint-every-updates",
        "500",
        "--clip-global-norm",
        "0",
        "--log-every-seconds",
        "0.5",
        "--learning-rate",
        "3e-4",  # learns in each of 30 runs, by update 1,500; at 1e-3, batches of 32 got stuck below 0.5 in 5 of 20
    )
    train = lines(run)
    assert max(line.get("online_score_mean", -1.0) for line in train) > 0.5  # chance: -0.6
    staleness = [line for line in train if "staleness_mean" in line]
    assert staleness and all(0 <= line["staleness_mean"] <= line["staleness_max"] for line in staleness)
    assert max(line["staleness_max"] for line in staleness) >= 1
    # A line of seconds in which nothing was applied has none.
    batches = [line["effective_batch"] for line in train[2:-1] if "effective_batch" in line]
    assert statistics.median(batches) == pytest.approx(32, rel=0.2)
    assert result(run)["status"] == "finished" and newest(run).version >= 2000
    assert len(events(run, "checkpoint")) >= 3 and not events(run, "checkpoint_failed")


def test_a_dedicated_chief_with_backup_workers_and_clipping(tmp_path):
    run = tmp_path / "run"
    roles = ("--chief", "dedicated", "--quorum", "1", "--no-evaluator", "--parameter-servers", "2")
    finish(run, *CATCH, *roles, "--max-updates", "300", "--clip-global-norm", "0.1", start=forked_light_train)
    train = lines(run)
    assert result(run)["status"] == "finished" and newest(run).version == 300
    assert any("average_gradient_norm" in line for line in train)
    batches = [line["effective_batch"] for line in train if "effective_batch" in line]
    assert batches and all(32 <= batch <= 64 for batch in batches)
    assert set(newest(run).worker_states) == {0, 1}
    assert train[-1]["gradients_dropped"] >= 0
