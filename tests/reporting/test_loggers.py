"""Weights & Biases without a network and MLflow in files, where they are installed; a resume goes on in each."""

from __future__ import annotations

import importlib.util
import json
import struct

import pytest

from ddrl import algorithms
from ddrl.errors import UsageError
from ddrl.reporting.callbacks import CallbackThread, RunContext
from ddrl.reporting.loggers import MLflow, WeightsAndBiases, check_names
from ddrl.reporting.metrics import MetricsWriter, evaluation_record, lines_of
from ddrl.rundir import LOGGERS, read_json
from ddrl.types import Machine

CONFIG = algorithms.preset("smoke", None, Machine(2, 16 * 10**9))


def run_part(logger, run_dir, updates, status, resumed=False):
    """Writes a part of a run as the chief does."""
    thread = CallbackThread({"logger": logger(RunContext(CONFIG, run_dir, resumed, lines_of(run_dir)))})
    writer = MetricsWriter(run_dir, thread.put)
    if resumed:
        writer.event("resumed", "from update 2", 2.0, update=2)
    for update in updates:
        numbers = {"update": update, "agent_steps": 10 * update, "loss": 0.5 * update, "split": {"a": 1.0}}
        writer.write({"kind": "train", "wall_seconds": float(update), **numbers})
    times = {"wall_seconds": 9.0, "seconds": 1.0}
    writer.write(
        evaluation_record(
            mean=3.0, maximum=4.0, games=2, unfinished=0, version=3, agent_steps=30, protocol="nature", **times
        )
    )
    assert thread.close({"status": status, "message": "m"}) == []
    writer.close()


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("name, package", [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_package_that_is_missing_is_named(name, package, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as refused:
        check_names([name], [])
    line = f"--loggers {name}: the package {package} is not installed: pip install 'ddrl[{name}]'"
    assert str(refused.value) == line


BLOCK, HEADER = 32768, struct.Struct("<IHB")  # of LevelDB's log format: CRC, length, type (1 whole, 4 last part)


def log_records(data):
    """The records of a file of Weights & Biases, which is LevelDB's log behind 7 bytes."""
    at, record = 7, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        at += HEADER.size
        record += data[at : at + length]
        at += length
        if kind in (1, 4):
            yield record
            record = b""


def offline_records(run_dir, number):
    """What part `number` of a run wrote for Weights & Biases: its id, and history rows."""
    from wandb.proto import wandb_internal_pb2

    file = sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)[number]
    identity, rows = "", []
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        identity = record.run.run_id or identity
        if record.HasField("history"):
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append(items)
    return identity, rows


def test_weights_and_biases_offline_and_resumed(run_dir, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_part(WeightsAndBiases, run_dir, (1, 2, 3), "stopped")
    run_part(WeightsAndBiases, run_dir, (3, 4), "finished", resumed=True)
    (first, before), (second, after) = offline_records(run_dir, 0), offline_records(run_dir, 1)
    assert first == second == read_json(run_dir / LOGGERS)["wandb"]
    assert [row["train/loss"] for row in before if "train/loss" in row] == [0.5, 1.0, 1.5]
    assert [row["agent_steps"] for row in before] == [10, 20, 30, 30]
    assert [row["evaluation/mean"] for row in after if "evaluation/mean" in row] == [3.0]
    steps = [row["_step"] for row in [*before, *after]]
    assert steps == sorted(set(steps)), "a step that does not grow would be thrown away"


def test_mlflow_in_files_and_resumed(run_dir):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    run_part(MLflow, run_dir, (1, 2, 3), "stopped")
    identity = read_json(run_dir / LOGGERS)["mlflow"]
    client = MlflowClient((run_dir.parent / "mlruns").as_uri())
    assert client.get_run(identity).info.status == "KILLED"
    run_part(MLflow, run_dir, (3, 4), "finished", resumed=True)
    (run,) = client.search_runs([client.get_experiment_by_name("ddrl").experiment_id])
    assert (run.info.run_id, run.info.status, run.info.run_name) == (identity, "FINISHED", "run")
    assert run.data.params["game"] == "ddrl/Catch-v0"
    history = client.get_metric_history(identity, "train/loss")
    assert [(each.step, each.value) for each in history] == [(10, 0.5), (20, 1.0), (30, 1.5), (30, 1.5), (40, 2.0)]
    assert [each.value for each in client.get_metric_history(identity, "evaluation/mean")] == [3.0, 3.0]
