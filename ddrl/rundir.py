"""The run directory: made at once or not at all, and its config.json.

A run directory holds config.json, metrics.jsonl, evaluations.jsonl, log.txt, checkpoints, what loggers write, and at
the end result.json, learning_curve.png and a video. The file `stop` asks the ranks to checkpoint and end; a line in it
says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import time
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddrl import checks, plugin_modules, sealed
from ddrl.algorithms import ALGORITHMS
from ddrl.config import TrainConfig
from ddrl.errors import UsageError, read_as
from ddrl.files import leave_mark, read_regular, tail, write_whole
from ddrl.named_runs import go_on
from ddrl.run_lock import LOCK, locked

FORMAT = 1
CONFIG, METRICS, EVALUATIONS, LOG = "config.json", "metrics.jsonl", "evaluations.jsonl", "log.txt"
RESULT, STOP, STALLED, TRAINED = "result.json", "stop", "stalled", "trained"
RESULT_BEFORE = "result-before.json"
"""The result of a run that has finished, while a start that is to go on with it has not begun to. The chief removes it
as it begins; `job.sh` knows the name, too."""
LOGGERS, HASHES = "loggers.json", "parameter_hashes.txt"
GOES_ON = "ddrl: warning: the run goes on: "
"""Begins the line of LOG that says which process a run does without, behind the last words of that process."""
STALE = (STOP, RESULT, STALLED, TRAINED)
"""Files that the ranks of one start leave for the process that waits for them, and that must be gone at the next."""
LEFT_BY_A_START = re.compile(
    r"config(-\d+)?\.json|metrics\.jsonl|log\.txt|result\.json|stop|stalled|trained|lock|stacks-\d+\.txt|parameter_hashes\.txt|ranks/\d+|"
    r"events\.out\.tfevents\..+|loggers\.json|wandb/.+|\.?([a-z]+(-\d+)?\.json|stop|job\.sbatch)\.[0-9a-f]+\.tmp|"
    r"job\.sbatch|slurm-jobs\.tsv|slurm-\d+\.out"
)

MOST_BYTES = 1 << 26
"""Of a JSON file that is read: one that somebody else has put there may have more than there is memory."""

_EARLIER = re.compile(r"config-(\d+)\.json")


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Every setting of a run, as JSON types."""
    return {"format": FORMAT, "algorithm_name": config.algorithm.name, **dataclasses.asdict(config)}


def config_from_dict(data: Any, where: str = CONFIG, load: bool = True) -> TrainConfig:
    """The inverse of config_to_dict. A missing setting has its default.

    Args:
        where: what the data was read from, for errors.
        load: whether to import the plugins that the data names; if not, this process must have loaded them before, from
            whatever place.

    Raises:
        UsageError: the data is no configuration, or a plugin cannot be loaded or has not been.
    """
    named = plugins_of(data)
    if load:
        plugin_modules.load(named)
    elif strange := plugin_modules.not_loaded(named):
        remedy = f"check it, then give --plugin {strange[0]}"
        raise UsageError(f"{where} names plugin {strange[0]}, which {CONFIG} does not: {remedy}")
    if named and isinstance(name := data.get("algorithm_name"), str) and name not in ALGORITHMS:
        theirs = " or ".join(named)
        raise UsageError(f"{where} is of algorithm {name:.80}, which {theirs} no longer registers: restore it there")
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("algorithm_name") not in list(ALGORITHMS):
        names = ", ".join(ALGORITHMS)
        raise UsageError(
            f"{where} is not a configuration of this version of ddrl (format {FORMAT}, one of {names}): restore it "
            "from a copy, or use the version that wrote it"
        )
    with read_as(where, "restore it from a copy, or start a new run"):
        return _config_from(data, where)


def plugins_of(data: Any) -> list[str]:
    """The plugins that a configuration names; empty for what is no list of names, which is refused later."""
    run = data.get("run") if isinstance(data, dict) and data.get("format") == FORMAT else None
    named = run.get("plugins") if isinstance(run, dict) else None
    return named if isinstance(named, list) and all(isinstance(name, str) for name in named) else []


def _config_from(data: dict[str, Any], where: str) -> TrainConfig:
    groups = {name: value for name, value in data.items() if name not in ("format", "algorithm_name")}
    kind = ALGORITHMS[data["algorithm_name"]].settings
    algorithm = _decode(kind, groups.pop("algorithm", {}), f"{where}: algorithm")
    # Decoded with the algorithm in place, since whether the other settings are right depends on it.
    return _decode(TrainConfig, groups, where, algorithm=algorithm)


def _decode(kind: type, data: Any, where: str, **decoded: Any) -> Any:
    if not isinstance(data, dict):
        raise UsageError(f"{where}: {kind.__name__} must be an object, not {data!r:.80}")
    hints = checks.hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        writer = "another version of ddrl, or of the run's plugin"
        raise UsageError(f"{where}: unknown setting {unknown[0]!r}; it was written by {writer}: use that one")
    return kind(
        **{name: decode_value(hints[name], value, f"{where}: {name}") for name, value in data.items()}, **decoded
    )


def decode_value(hint: Any, value: Any, where: str) -> Any:
    """A JSON value as a setting of type `hint`. Raises UsageError for another type; `where` says what was read."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode(hint, value, where)
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value  # the dataclass checks it
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"{where} is {value!r:.80}, which is not a list")
        return tuple(decode_value(typing.get_args(hint)[0], item, where) for item in value)
    kinds = typing.get_args(hint) if origin in (typing.Union, types.UnionType) else (hint,)
    if float in kinds and type(value) is int:
        return float(value)
    if type(value) not in kinds:
        raise UsageError(f"{where} is {value!r:.80}, which is not of type {' or '.join(k.__name__ for k in kinds)}")
    return value


def default_run_dir(config: TrainConfig) -> str:
    """The run directory if none is named: runs/ALGORITHM-GAME-TIME, in local time."""
    game = config.environment.game.replace("/", "-").lower()
    return os.path.join("runs", f"{config.title}-{game}-{time.strftime('%Y%m%d-%H%M%S')}")


def create_run_dir(config: TrainConfig) -> tuple[Path, TrainConfig]:
    """Makes the run's directory with its config.json; returns its path, and the config that names it.

    An existing directory is taken if it is named and holds only what a start without training leaves.

    Raises:
        UsageError: the directory holds more, is that of a run that is going on, or cannot be made.
    """
    path = Path(config.run.run_dir) if config.run.run_dir else new_directory(default_run_dir(config))
    config = config.changed(run={"run_dir": str(path)})
    make_run_dir(path)
    with locked(path):
        _check_untrained(path)
        write_json(path / CONFIG, config_to_dict(config))
    return path, config


def numbered(name: str) -> Iterator[str]:
    """Yields NAME, NAME-2, NAME-3, ...: names to try until one is free."""
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def new_directory(name: str) -> Path:
    """Makes a directory of this name, or a numbered one if another run has it that began in the same second."""
    return next(path for path in map(Path, numbered(name)) if makes(path))


def makes(path: Path) -> bool:
    """Makes a directory; false if there is one. One that cannot be made is left to `make_run_dir`, which says why."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o775, exist_ok=True)
        path.mkdir(mode=0o775)
        return True
    return not os.path.lexists(path)


def make_run_dir(path: Path) -> None:
    """Makes the directory of a new run, or takes an existing one that holds only what a start without training leaves.

    Raises:
        UsageError: the directory holds more, or cannot be made.
    """
    _check_name(str(path))
    try:
        for directory in [*reversed([parent for parent in path.parents if not parent.exists()]), path]:
            directory.mkdir(mode=0o775, exist_ok=True)  # whatever the umask of a user's Python program is
    except OSError as error:
        why = _why_no_directory(path) if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(f"cannot make run directory {path}: {why}; choose another --run-dir") from error
    _check_untrained(path)  # before anything is written there


def _why_no_directory(path: Path) -> str:
    return (
        f"it is a link to {os.readlink(path)}, which does not exist" if path.is_symlink() else "it is not a directory"
    )


def _check_name(path: str) -> None:
    if path.startswith("~"):
        home = os.path.expanduser("~")
        raise UsageError(f"--run-dir {path}: the shell did not expand ~; write {home}, or ./~ if you mean that")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise UsageError(f"--run-dir {path!r}: it has control characters; choose another name")


def _check_untrained(path: Path) -> None:
    if not untrained(path):
        if not (path / CONFIG).exists():
            raise UsageError(f"run directory {path} holds other files: choose another --run-dir")
        raise UsageError(
            f"run directory {path} exists, and nothing in it is overwritten; {go_on(path)}, or choose another --run-dir"
        )


def untrained(path: Path) -> bool:
    """Whether directory `path` holds only what a start without training leaves.

    Raises OSError if it cannot be read.
    """
    files = [entry for entry in path.iterdir() if not _is_directory(entry)]
    files += [file for entry in path.iterdir() if _is_directory(entry) for file in entry.iterdir()]
    if not all(LEFT_BY_A_START.fullmatch(str(file.relative_to(path))) for file in files):
        return False
    if path / CONFIG in files and not _ours(path / CONFIG):
        return False
    result = read_json(path / RESULT)
    if result is not None and result.get("status") != "failed":
        return False
    lines = read_regular(path / METRICS).splitlines() if path / METRICS in files else []
    return all(b'"kind": "event"' in line for line in lines)


def _ours(path: Path) -> bool:
    """Whether a config.json was written by ddrl, or is empty, as on a disk that was full."""
    data = read_regular(path)
    return not data or b'"algorithm_name"' in data


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def update_run_dir(path: Path, config: TrainConfig) -> None:
    """Writes the config of a resumed run if it is a new one; the earlier one stays beside it as config-N.json."""
    before, is_sealed = read_config(path / CONFIG)
    if is_sealed and before == config:
        return
    _keep_config(path)
    write_json(path / CONFIG, config_to_dict(config))


def _keep_config(path: Path) -> None:
    """Copies config.json to the next config-N.json."""
    numbers = [int(match[1]) for file in path.iterdir() if (match := _EARLIER.fullmatch(file.name))]
    write_whole(path / f"config-{max(numbers, default=-1) + 1}.json", (path / CONFIG).read_bytes())


def load_config(path: str | Path) -> TrainConfig:
    """The configuration of the run in directory `path`.

    Raises:
        UsageError: it is no run directory, or its config.json cannot be read.
    """
    return read_config(Path(path) / CONFIG)[0]


def read_config(path: Path, load: bool = True) -> tuple[TrainConfig, bool]:
    """The configuration in a config.json, and whether it has a checksum, which those of earlier versions lack.

    Args:
        load: as in `config_from_dict`.

    Raises:
        UsageError: as `load_config`, or the file does not match its checksum.
    """
    try:
        data, is_sealed = sealed.read_file(read_regular(path, MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError) as error:
        why = _why_no_run(path.parent)
        raise UsageError(
            f"{path.parent} {why}, so it is not a run; name the run directory of an earlier `ddrl train`",
            str(path.parent),
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; fix that, or restore it from a copy") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is damaged or was edited ({error}): restore it from a copy, or remove its {sealed.FILE_KEY} and "
            "the comma before it; to change settings, give them after --resume"
        ) from error
    return config_from_dict(data, str(path), load), is_sealed


def _why_no_run(path: Path) -> str:
    """Why a path without config.json is no run directory."""
    if path.is_dir():
        return f"holds no {CONFIG}" if any(path.iterdir()) else "is empty"
    if path.is_symlink():
        return f"is a link to {os.readlink(path)}, which does not exist"
    return "is a file" if path.exists() else "does not exist"


def earlier_configs(path: Path) -> Iterator[tuple[str, TrainConfig]]:
    """Yields name and content of each config-N.json of a run that can be read. One with a plugin that this process has
    not loaded is left out, and the plugin is not imported."""
    files = {int(match[1]): file for file in path.glob("config-*.json") if (match := _EARLIER.fullmatch(file.name))}
    for _, file in sorted(files.items()):
        with contextlib.suppress(UsageError):
            yield file.name, read_config(file, load=False)[0]


def write_json(path: Path, data: dict[str, Any], new: bool = False) -> None:
    """Writes a JSON file whole or not at all, with its checksum; `new` and errors are those of `write_whole`."""
    write_whole(path, sealed.file_bytes(data), new)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, without its checksum; None if there is no file, or it is damaged or no JSON object."""
    try:
        return sealed.read_file(read_regular(path, MOST_BYTES)).content
    except (OSError, ValueError):
        return None


LAUNCHER_PID = "DDRL_LAUNCHER_PID"
REASON_BYTES = 300  # that are read of the file `stop`


def stop_requested(path: Path) -> bool:
    """Whether the ranks should checkpoint and end: the file `stop` is there, or their launcher is gone."""
    return os.path.exists(path / STOP) or _launcher_gone(os.environ.get(LAUNCHER_PID, ""))


def ask_to_stop(path: Path, why: str) -> None:
    """Asks the ranks of a run to checkpoint and end, unless it has its result or was asked before.

    Raises OSError if the file `stop` cannot be written.

    Args:
        why: the reason, a line for the result of the run.
    """
    if not (path / RESULT).exists() and not (path / STOP).exists():
        write_whole(path / STOP, f"{why}\n".encode())


def stop_training(path: Path, why: str) -> None:
    """As `ask_to_stop`, but leaves a run alone whose training is over: the request would cut its final evaluation."""
    if not (path / TRAINED).exists():
        ask_to_stop(path, why)


def note_trained(path: Path) -> None:
    """Notes for `stop_training` that training is over. An error in writing is ignored."""
    with contextlib.suppress(OSError):
        leave_mark(path / TRAINED)


def stop_reason(path: Path) -> str:
    """The text of the file `stop` in one line; empty if the file is, as `touch` makes it, or cannot be read."""
    return " ".join(tail(path / STOP, REASON_BYTES).decode(errors="replace").split())


def why_lost(path: Path) -> str:
    """Why a run directory that was locked before can no longer be written; empty if it can."""
    try:
        os.close(os.open(path / LOCK, os.O_RDWR))
    except OSError as error:
        return str(error.strerror)
    return ""


def _launcher_gone(pid: str) -> bool:
    if not pid.isdecimal():
        return False  # started by a job, not by `ddrl train` on this machine
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
