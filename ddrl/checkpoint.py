"""Checkpoints: one file per version of the parameters, with all that a run needs to go on.

A file is an ordinary `.npz` (readable with `numpy.load`), written atomically, without pickle. Its zip
comment ends in the SHA-256 of every byte before it, so that one changed bit anywhere in the file is found
before anything is read from it. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import math
import operator
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddrl import sealed
from ddrl.config import TrainConfig
from ddrl.errors import UsageError, read_as
from ddrl.files import read_regular, sync_directory, write_whole
from ddrl.npz import decode_arrays, encode_arrays
from ddrl.terminal import printable

FORMAT = "ddrl-checkpoint"
FORMAT_VERSION = 1
DIRECTORY = "checkpoints"
GATHER_SECONDS = 30.0  # time for the parts of a checkpoint to arrive
REPLAY_SECONDS = 300.0  # the same if replays, which may have gigabytes, are written first

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each tensor of the network, in the order of the flat vector."""

_NAME = re.compile(r"update-(\d{9,})\.npz")
_SCALARS = {
    "version": int, "step": int, "agent_steps": int, "wall_seconds": float, "optimizer_count": int, "counters": dict,
    "config": dict, "stamp": dict,
}  # fmt: skip
_OTHER = "use another one"


def gather_seconds(config: TrainConfig) -> float:
    """Seconds for the parts of a checkpoint of this run to arrive."""
    return REPLAY_SECONDS if config.has_replay else GATHER_SECONDS


def new_stamp() -> dict[str, Any]:
    """What wrote a checkpoint: format and package versions, date in UTC."""
    import importlib.metadata

    packages = {}
    for name in ("ddrl", "numpy", "tensorflow", "ale-py", "gymnasium", "mpi4py"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "python": platform.python_version(),
        "packages": packages,
        "date": date,
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """The whole state of a run at one version.

    Attributes:
        version: updates applied.
        step: slot that the next gradient belongs to.
        agent_steps: agent steps taken by all workers, earlier parts of the run included.
        wall_seconds: wall time of the run, earlier parts included.
        parameters: <float32>[N] flat vector.
        slots: optimizer slot name -> <float32>[N] over the whole vector.
        optimizer_count: updates that the optimizer has counted (Adam's t).
        layout: name and shape of each tensor in `parameters`; the sizes add up to N.
        counters: anything JSON can hold (metric totals, last scores, state of schedules).
        worker_states: worker id -> name -> array (environment states, random counters); not looked into.
        config: the whole TrainConfig as a JSON dict.
        stamp: format version, package versions, date.

    Raises:
        UsageError: an array has another type or size than stated here.
    """

    version: int
    step: int
    agent_steps: int
    wall_seconds: float
    parameters: np.ndarray
    slots: dict[str, np.ndarray]
    optimizer_count: int
    layout: Layout
    counters: dict[str, Any] = dataclasses.field(default_factory=dict)
    worker_states: dict[int, dict[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    stamp: dict[str, Any] = dataclasses.field(default_factory=new_stamp)

    def __post_init__(self) -> None:
        for name, array in {"parameters": self.parameters, **self.slots}.items():
            if array.dtype != np.float32 or array.shape != (self.parameters.size,):
                raise UsageError(
                    f"checkpoint array '{name}' is {array.dtype}{list(array.shape)}, not"
                    f" float32[{self.parameters.size}]: use another checkpoint"
                )
        size = sum(math.prod(shape) for _, shape in self.layout)
        if size != self.parameters.size:
            raise UsageError(
                f"checkpoint layout holds {size} numbers, its parameters {self.parameters.size}: use another checkpoint"
            )


def checkpoint_path(run_dir: str | Path, version: int) -> Path:
    """Where the checkpoint of a version lies."""
    return Path(run_dir) / DIRECTORY / f"update-{version:09d}.npz"


def list_checkpoints(run_dir: str | Path) -> list[Path]:
    """Checkpoint files of a run, oldest first, sound or not.

    Raises:
        UsageError: their directory cannot be read.
    """
    directory = Path(run_dir) / DIRECTORY
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as error:
        raise UsageError(f"cannot read {directory}: {error.strerror}; fix its permissions") from error
    versions = [(int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))]
    return [directory / name for _, name in sorted(versions)]


def version_of(path: Path) -> int:
    """The version in the name of a checkpoint file. Raises ValueError for another name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} does not have the name of a checkpoint")
    return int(match[1])


def save(run_dir: str | Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint atomically.

    Raises:
        UsageError: the file cannot be written (disk full, no permission). Older ones stay as they were.
    """
    return _save(checkpoint_path(run_dir, checkpoint.version), checkpoint)


def best_path(run_dir: str | Path) -> Path:
    """The file with the parameters of a run's best evaluation; its counter `evaluation` is that evaluation's report."""
    return Path(run_dir) / DIRECTORY / "best.npz"


def save_best(run_dir: str | Path, checkpoint: Checkpoint) -> Path:
    """Write the parameters of a run's best evaluation atomically, in place of earlier ones.

    No run goes on from this file, so nothing prunes it or takes it for the newest checkpoint.

    Raises:
        UsageError: as `save`; the earlier file stays.
    """
    return _save(best_path(run_dir), checkpoint)


def sweep_best(run_dir: str | Path) -> None:
    """Remove the temporary file that a killed `save_best` left, if possible. No other process may be saving."""
    path = best_path(run_dir)
    with contextlib.suppress(OSError):
        for leftover in path.parent.glob(f".{path.name}*.tmp"):
            leftover.unlink()


def _save(path: Path, checkpoint: Checkpoint) -> Path:
    data = sealed.archive_bytes(encode_arrays(_to_arrays(checkpoint)))
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)  # not the run directory: a lost one is not made anew
        write_whole(path, data)
        sync_directory(path.parent)
    except OSError as error:
        raise UsageError(
            f"cannot write checkpoint {path} ({len(data)} bytes): {error.strerror or error};"
            " older checkpoints are untouched; free space or fix permissions there"
        ) from error
    return path


def load(path: str | Path) -> Checkpoint:
    """Read one checkpoint file.

    Raises:
        UsageError: the file is missing, foreign, damaged, of another format version, or inconsistent.
    """
    try:
        data = read_regular(Path(path))
    except OSError as error:
        raise UsageError(f"cannot read checkpoint {path}: {error.strerror or error}; {_OTHER}") from error
    return decode(Path(path), data)


def decode(path: Path, data: bytes) -> Checkpoint:
    """The checkpoint in `data`, the bytes of the file `path`, which is not read.

    Raises:
        UsageError: it is foreign, damaged, of another format version, or inconsistent.
    """
    trouble = _trouble(data)
    if trouble:
        raise UsageError(f"checkpoint {path} {trouble}: {_OTHER}")
    try:
        with read_as("it", _OTHER):
            checkpoint = _from_arrays(decode_arrays(data))
    except UsageError as error:
        raise UsageError(f"checkpoint {path}: {error}") from error
    if _NAME.fullmatch(path.name) and version_of(path) != checkpoint.version:
        name = checkpoint_path("", checkpoint.version).name
        raise UsageError(f"checkpoint {path} is that of update {checkpoint.version}: rename it to {name}, or {_OTHER}")
    return checkpoint


def load_latest(
    run_dir: str | Path,
    check: Callable[[Checkpoint], None] = lambda checkpoint: None,
    left_out: list[str] | None = None,
) -> Checkpoint:
    """Newest sound checkpoint of a run; each unsound newer one is named in a warning line on stderr.

    Args:
        run_dir: the directory of the run.
        check: raises UsageError for a checkpoint that lacks something outside its file, which then counts as unsound.
        left_out: a list to which the errors of unsound newer checkpoints are appended.

    Raises:
        UsageError: there is none.
    """
    paths = list_checkpoints(run_dir)
    for path in reversed(paths):
        try:
            return _checked(path, check)
        except UsageError as error:
            print(printable(f"ddrl: warning: {error}; trying the next older one"), file=sys.stderr)
            if left_out is not None:
                left_out.append(str(error))
    none = "the only checkpoint is not sound" if len(paths) == 1 else f"none of the {len(paths)} checkpoints is sound"
    why = none if paths else "there is no checkpoint"
    raise UsageError(f"{why} in {Path(run_dir) / DIRECTORY}: give another run directory, or start a new run")


def _checked(path: Path, check: Callable[[Checkpoint], None]) -> Checkpoint:
    checkpoint = load(path)
    try:
        check(checkpoint)
    except UsageError as error:
        raise UsageError(f"checkpoint {path}: {error}") from error
    return checkpoint


def check_layout(
    checkpoint: Checkpoint,
    layout: Sequence[tuple[str, Sequence[int]]],
    remedy: str = "resume with the network and game of the checkpoint",
) -> None:
    """Check that a network has the checkpoint's tensors.

    Raises:
        UsageError: it has not; the first tensor that differs is named, with `remedy`.
    """
    expected = [(name, tuple(shape)) for name, shape in layout]
    for index, (saved, built) in enumerate(itertools.zip_longest(checkpoint.layout, expected)):
        if saved != built:
            raise UsageError(
                f"the checkpoint's network differs at tensor {index}: the checkpoint has {_tensor(saved)}, this run "
                f"has {_tensor(built)}; {remedy}"
            )


def with_slots(checkpoint: Checkpoint, slots: Collection[str]) -> Checkpoint:
    """The checkpoint, with its slots in the order in which an optimizer has them.

    Messages carry slots without their names, and a plugin's optimizer may have been given another order meanwhile.

    Raises:
        UsageError: the optimizer has other slots.
    """
    if set(checkpoint.slots) != set(slots):
        saved, built = (", ".join(sorted(names)) or "none" for names in (checkpoint.slots, slots))
        raise UsageError(
            f"the checkpoint of update {checkpoint.version} has the optimizer slots {saved}, this run's optimizer has "
            f"{built}: resume with the optimizer of the checkpoint, or use another checkpoint"
        )
    return dataclasses.replace(checkpoint, slots={name: checkpoint.slots[name] for name in slots})


def _to_arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    manifest = {name: getattr(checkpoint, name) for name in _SCALARS}
    manifest |= {"format": FORMAT, "format_version": FORMAT_VERSION, "layout": checkpoint.layout}
    manifest["worker_ids"] = sorted(checkpoint.worker_states)
    text = json.dumps(manifest, default=operator.methodcaller("item")).encode()
    arrays = {"manifest": np.frombuffer(text, np.uint8), "parameters": checkpoint.parameters}
    arrays |= {f"slots/{name}": slot for name, slot in checkpoint.slots.items()}
    for worker_id, state in sorted(checkpoint.worker_states.items()):
        arrays |= {f"workers/{worker_id}/{name}": array for name, array in state.items()}
    return arrays


def _from_arrays(arrays: dict[str, np.ndarray]) -> Checkpoint:
    manifest = json.loads(arrays.pop("manifest").tobytes())
    if manifest["format"] != FORMAT or manifest["format_version"] != FORMAT_VERSION:
        raise UsageError(
            f"format version is {manifest['format_version']!s:.40}, this ddrl reads {FORMAT_VERSION}:"
            " use the ddrl that wrote it"
        )
    scalars = {name: _scalar(name, manifest[name], kind) for name, kind in _SCALARS.items()}
    parameters = arrays.pop("parameters")
    slots: dict[str, np.ndarray] = {}
    workers: dict[int, dict[str, np.ndarray]] = {int(worker_id): {} for worker_id in manifest["worker_ids"]}
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "slots":
            slots[rest] = array
            continue
        worker_id, _, key = rest.partition("/")
        if kind != "workers" or not key:
            raise ValueError(f"an array {name}")
        workers[int(worker_id)][key] = array
    layout = tuple((str(name), tuple(map(_length, shape))) for name, shape in manifest["layout"])
    return Checkpoint(parameters=parameters, slots=slots, worker_states=workers, layout=layout, **scalars)


def _scalar(name: str, value: Any, kind: type) -> Any:
    """A value of the manifest, of the right type; numbers are finite and at least 0."""
    right = type(value) is kind or (kind is float and type(value) is int)
    if not right or (kind is not dict and not 0 <= value < math.inf):
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def _length(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a length of {value!r:.40}")
    return value


def _trouble(data: bytes) -> str:
    """What is wrong with the bytes of a file, or an empty string."""
    if sealed.archive_is_sound(data):
        return ""
    if b"manifest.npy" in data[:64] or sealed.is_archive(data):
        return f"is damaged or cut short ({len(data)} bytes do not match their SHA-256)"
    return "was not written by ddrl"


def _tensor(entry: tuple[str, tuple[int, ...]] | None) -> str:
    return "no such tensor" if entry is None else f"'{entry[0]}' {list(entry[1])}"
