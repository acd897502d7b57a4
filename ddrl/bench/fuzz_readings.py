"""Records everything that the readers of ddrl load from a run directory, in one process and without TensorFlow.

The readers are: a resume, from the newest checkpoint and from each of the others; an evaluation, and one with the
parameters of the best evaluation; the summary and the learning curve; the end of the run.
"""

from __future__ import annotations

import contextlib
import functools
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from ddrl import checkpoint as checkpoints
from ddrl import rundir
from ddrl.apex.memory import segment_format
from ddrl.apex.shard_replay import ShardReplay
from ddrl.builders.replay import replay_size
from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.envs import VectorEnvironment, make_environment
from ddrl.errors import UsageError
from ddrl.launch import outcome
from ddrl.placement import start
from ddrl.replay import storage
from ddrl.replay.replay import Replay
from ddrl.replay_files import check_replays, replays_of
from ddrl.reporting.metrics import read_counted, without_undone
from ddrl.reporting.plots import learning_curve, title
from ddrl.reporting.summary import summary
from ddrl.resumable import AGENT, check_settings
from ddrl.roles.resume import newest_start
from ddrl.wording import counted

Content = dict[str, Any]
"""Name -> value or checksum of everything that a reader has loaded."""


class Reading(NamedTuple):
    """What one reader made of a run.

    Attributes:
        content: what the reader loaded; None if it refused.
        refused: the refusal, or the reader's note about what it left out; else empty.
        trouble: an exception other than UsageError, or a refusal of more than one line; else empty.
    """

    content: Content | None
    refused: str = ""
    trouble: str = ""


class Readers:
    """The readers of one run; it must be undamaged when they are made, as its environment and layout are read then.

    Attributes:
        replays: the replay files that a checkpoint names.
    """

    def __init__(self, run: Path):
        self.run, config = run, rundir.load_config(run)
        self._environment = make_environment(config.environment, num_envs=1)
        self._names = [path.name for path in checkpoints.list_checkpoints(run)]
        loaded = [checkpoints.load(path) for path in checkpoints.list_checkpoints(run)]
        self._layout = loaded[-1].layout
        manifests = [each for checkpoint in loaded for each in replays_of(run, checkpoint)]
        self.replays = {where / entry["name"] for where, each in manifests for entry in storage.entries_in(each)}

    def close(self) -> None:
        self._environment.close()

    def read(self, names: Sequence[str] = (), curve: bool = False) -> dict[str, Reading]:
        """Runs the readers; returns each reader's name -> reading.

        Args:
            names: only these readers, `update` for all of the numbered checkpoints; empty: all readers.
            curve: draw the learning curve, too.
        """
        readers: dict[str, Callable[[], Reading]] = {"resume": self._resume, "evaluation": self._evaluation}
        readers |= {name: functools.partial(self._checkpoint, name) for name in self._names}
        if checkpoints.best_path(self.run).exists():
            readers["best"] = self._best
        readers |= {"metrics": lambda: self._metrics(curve), "end": self._end, "notes": self._notes}
        with contextlib.redirect_stderr(io.StringIO()):
            return {n: _attempt(read) for n, read in readers.items() if not names or n.partition("-")[0] in names}

    def _resume(self) -> Reading:
        config = rundir.load_config(self.run)
        begun = newest_start(self.run, config)
        return Reading(self._loaded(config, begun.checkpoint), "; ".join(text for _, text in begun.notes))

    def _checkpoint(self, name: str) -> Reading:
        """A resume as if this checkpoint were the newest one."""
        config = rundir.load_config(self.run)
        checkpoint = checkpoints.load(self.run / checkpoints.DIRECTORY / name)
        check_replays(self.run, checkpoint)
        check_settings(checkpoint, config, self.run)
        return Reading(self._loaded(config, checkpoint))

    def _best(self) -> Reading:
        """An evaluation with the parameters of the run's best evaluation."""
        checkpoint = checkpoints.load(checkpoints.best_path(self.run))
        check_settings(checkpoint, rundir.load_config(self.run), self.run, AGENT)
        return Reading(dict(contents(checkpoint, "checkpoint")))

    def _loaded(self, config: TrainConfig, checkpoint: Checkpoint) -> Content:
        checkpoints.check_layout(checkpoint, self._layout)
        loaded = dict(contents(checkpoint, "checkpoint")) | dict(contents(rundir.config_to_dict(config), "config"))
        for directory, manifest in replays_of(self.run, checkpoint):
            replay = _empty_replay(config, self._environment)
            replay.load(directory, {"replay": manifest})
            loaded |= contents(replay, directory.name)
        return loaded

    def _evaluation(self) -> Reading:
        config = rundir.load_config(self.run)
        left_out: list[str] = []
        checkpoint = checkpoints.load_latest(self.run, left_out=left_out)
        check_settings(checkpoint, config, self.run, AGENT)
        loaded = dict(contents(checkpoint, "checkpoint")) | dict(contents(config, "config"))
        return Reading(loaded, "; ".join(left_out))

    def _metrics(self, curve: bool) -> Reading:
        records, damaged = read_counted(self.run)
        config = rundir.load_config(self.run)
        Console(file=io.StringIO()).print(summary(self.run, config))
        if curve:
            kept = without_undone(records)
            online: list[Mapping[str, Any]] = [
                record for record in kept if record["kind"] == "train" and "online_score_mean" in record
            ]
            evaluations: list[Mapping[str, Any]] = [record for record in kept if record["kind"] == "evaluation"]
            learning_curve(online, evaluations, title(config)).savefig(io.BytesIO(), dpi=30)
        half = not (self.run / rundir.METRICS).read_bytes().endswith(b"\n")
        said = counted(damaged, "damaged line") if damaged else "a half-written last line" * half
        return Reading({repr(record): i for i, record in enumerate(records)}, said)

    def _end(self) -> Reading:
        said = io.StringIO()
        outcome.report(self.run, 0, "", Console(file=said))
        result = rundir.read_json(self.run / rundir.RESULT)
        return Reading(None, said.getvalue()) if result is None else Reading(dict(contents(result, "result")))

    def _notes(self) -> Reading:
        """Reads the notes of the ranks and the log, which no training depends on; the content is always empty."""
        start.notes(self.run)
        outcome.log_tail(self.run / rundir.LOG)
        return Reading({})


def _attempt(reader: Callable[[], Reading]) -> Reading:
    try:
        return reader()
    except UsageError as error:
        return Reading(None, str(error), "" if "\n" not in str(error) else f"several lines: {error}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any traceback is what is looked for
        return Reading(None, "", f"{type(error).__name__}: {error}")


def _empty_replay(config: TrainConfig, environment: VectorEnvironment) -> Replay | ShardReplay:
    exponent = config.replay.priority_exponent
    if not config.apex.actors:
        return Replay(**replay_size(config, environment), priority_exponent=exponent)
    return ShardReplay(
        segment_format(config, environment),
        config.shard_capacity,
        priority_exponent=exponent,
        eviction_exponent=config.apex.eviction_exponent,
    )


def contents(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields (path, content) for every value inside `value`, recursively; of an array, type, shape and checksum."""
    if isinstance(value, np.ndarray):
        yield name, (str(value.dtype), value.shape, zlib.crc32(np.ascontiguousarray(value).tobytes()))
    elif isinstance(value, np.random.Generator):
        yield from contents(value.bit_generator.state, name)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from contents(each, f"{name}/{key}")
    elif isinstance(value, (list, tuple, range)):
        yield f"{name}/length", len(value)
        for index, each in enumerate(value):
            yield from contents(each, f"{name}/{index}")
    elif hasattr(value, "__dict__"):
        yield from contents(vars(value), name)
    else:
        yield name, repr(value)
