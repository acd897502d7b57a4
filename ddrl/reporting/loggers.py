"""The loggers and callbacks that a run names, and loggers for other systems: Weights & Biases and MLflow.

The packages of these two are extras. A run is one run there, too: RUN/loggers.json has its ids, with which a resume
goes on.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl import plugins
from ddrl.checks import did_you_mean
from ddrl.errors import UsageError, in_one_line, raised_at
from ddrl.plugins import Registry
from ddrl.reporting.callbacks import Callback, CallbackThread, Record, RunContext, check_callback
from ddrl.reporting.metrics import read_metrics, scalars
from ddrl.reporting.tensorboard import TensorBoard
from ddrl.rundir import LOGGERS, config_to_dict, read_json, stop_training, write_json

PROJECT = "ddrl"
"""Project of Weights & Biases and experiment of MLflow, where their own variables name none."""
LONGEST_PARAMETER = 500  # letters, of MLflow
BATCH = 100  # parameters at once, of MLflow
STATUS = {"finished": "FINISHED", "target": "FINISHED", "stopped": "KILLED"}  # of MLflow; else FAILED


@functools.cache
def register() -> None:
    """Makes the built-in loggers known."""
    for name, logger in {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}.items():
        plugins.register_logger(name, logger)


class WeightsAndBiases(Callback):
    """Logs a run to Weights & Biases, over agent steps. The package's own variables say where it goes:
    WANDB_MODE=offline writes only to RUN/wandb (`wandb sync` sends it later), and WANDB_PROJECT names another project
    than ddrl."""

    def __init__(self, context: RunContext) -> None:
        check(type(self))
        self._context, self._step = context, context.lines

    def on_start(self) -> None:
        import wandb

        run_dir = self._context.run_dir
        known = _known(run_dir).get("wandb") or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=known,
            name=os.environ.get("WANDB_NAME", run_dir.absolute().name),
            dir=str(run_dir),
            config=config_to_dict(self._context.config),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        _remember(run_dir, "wandb", known)
        self._run.define_metric("*", step_metric="agent_steps")

    def on_metrics(self, record: Record) -> None:
        # wandb's steps must increase, and a resume may take updates back; the lines of metrics.jsonl only increase.
        self._run.log({**scalars(record), "agent_steps": record.get("agent_steps", 0)}, step=self._step)
        self._step += 1

    on_evaluation = on_metrics

    def on_end(self, result: Record) -> None:
        self._run.summary.update({name: result[name] for name in ("status", "message") if name in result})
        self._run.finish(exit_code=int(result.get("status") == "failed"))


class MLflow(Callback):
    """Logs a run to MLflow, over agent steps: to files in `mlruns` beside the run directory, or to where
    MLFLOW_TRACKING_URI says, in the experiment ddrl or the one that MLFLOW_EXPERIMENT_NAME names."""

    def __init__(self, context: RunContext) -> None:
        check(type(self))
        self._context = context

    def on_start(self) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow prefers a database
        from mlflow import MlflowClient

        run_dir = self._context.run_dir.absolute()
        store = os.environ.get("MLFLOW_TRACKING_URI") or (run_dir.parent / "mlruns").as_uri()
        self._client = MlflowClient(store)
        known = _known(run_dir).get("mlflow")
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            self._id = known
            return
        self._id = self._client.create_run(self._experiment(), run_name=run_dir.name).info.run_id
        _remember(run_dir, "mlflow", self._id)
        self._log_settings()

    def on_metrics(self, record: Record) -> None:
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), int(record.get("agent_steps", 0))
        self._client.log_batch(self._id, metrics=[Metric(name, x, now, step) for name, x in scalars(record).items()])

    on_evaluation = on_metrics

    def on_end(self, result: Record) -> None:
        self._client.set_terminated(self._id, STATUS.get(str(result.get("status")), "FAILED"))

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return self._client.create_experiment(name)
            except MlflowException:  # another run has just made it
                experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id

    def _log_settings(self) -> None:
        from mlflow.entities import Param

        settings = [
            Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in _flat(config_to_dict(self._context.config))
        ]
        for start in range(0, len(settings), BATCH):
            self._client.log_batch(self._id, params=settings[start : start + BATCH])


def check(logger: Any) -> None:
    """Raises UsageError if the package that one of the loggers above needs is not installed; the extra has its name."""
    for needs, name in ((WeightsAndBiases, "wandb"), (MLflow, "mlflow")):
        if logger is needs and importlib.util.find_spec(name) is None:
            raise UsageError(f"--loggers {name}: the package {name} is not installed: pip install 'ddrl[{name}]'")


def check_names(loggers: Sequence[str], callbacks: Sequence[str]) -> None:
    """Refuses loggers and callbacks that nobody has registered, or that lack a package.

    Raises:
        UsageError: there is one; the message lists the registered names, or names the package.
    """
    register()
    for option, registry, names in (("loggers", plugins.loggers, loggers), ("callbacks", plugins.callbacks, callbacks)):
        for text in names:
            name, _ = plugins.split_options(option, text)
            if name not in (known := registry.names()):
                there = f"choose one of {', '.join(known)}" if known else "a --plugin may register one"
                there += did_you_mean(name, known)
                raise UsageError(f"--{option} {name:.80} is not registered; {there}")
            check(maker := registry.get(name))
            if isinstance(maker, type):  # what a function makes is looked at once it is made, by the chief
                check_callback(f"--{option} {name}", maker)


def make_callbacks(context: RunContext) -> dict[str, Callback]:
    """The loggers and callbacks of a run, by name.

    Raises:
        UsageError: one is not known, lacks a package, or cannot be made.
    """
    run = context.config.run
    check_names(run.loggers, run.callbacks)
    made = {name: _made("loggers", plugins.loggers, name, context) for name in run.loggers}
    return made | {f"callback {name}": _made("callbacks", plugins.callbacks, name, context) for name in run.callbacks}


def _made(option: str, registry: Registry[Callable[..., Callback]], name: str, context: RunContext) -> Callback:
    maker = registry.with_options(option, name)
    try:
        made: Callback = maker(context)
    except UsageError:
        raise
    except Exception as error:
        why = f"{in_one_line(error)}{raised_at(error)}"
        raise UsageError(f"--{option} {name} cannot be made: {why}; fix it") from error
    check_callback(f"--{option} {name}", made)
    return made


def start_callbacks(context: RunContext) -> CallbackThread:
    """Starts the thread of a run's loggers and callbacks.

    They first get the events `restarted` at the end of metrics.jsonl. The launcher wrote these when no rank was alive
    to pass them on.

    Raises:
        UsageError: one is not known, or lacks a package.
    """
    thread = CallbackThread(make_callbacks(context), functools.partial(stop_training, context.run_dir))
    behind = itertools.takewhile(
        lambda record: record.get("name") == "restarted", reversed(read_metrics(context.run_dir))
    )
    for record in reversed(list(behind)):
        thread.put(record)
    return thread


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    groups = ([(name, each)] if not isinstance(each, Mapping) else each.items() for name, each in settings.items())
    return itertools.chain.from_iterable(groups)


def _known(run_dir: Path) -> dict[str, Any]:
    """Ids of the run, by logger."""
    return read_json(run_dir / LOGGERS) or {}


def _remember(run_dir: Path, logger: str, identity: str) -> None:
    write_json(run_dir / LOGGERS, _known(run_dir) | {logger: identity})
