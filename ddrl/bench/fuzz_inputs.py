"""Inputs that Hypothesis makes, thrown at the parsers: each is taken, or refused in one line, and soon."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cluster import hostlist, slurm
from cluster.job import detect_job
from ddrl import algorithms, npz, rundir, sealed
from ddrl import checkpoint as checkpoints
from ddrl.apex.child import FrameReader
from ddrl.checkpoint import Checkpoint
from ddrl.checks import flag
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.exchange.messages import HeaderFormat
from ddrl.options import train_options
from ddrl.replay import storage
from ddrl.reporting.metrics import is_sound
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)
LONGEST_LINE = 600  # characters of a refusal
LONGEST_SECONDS = 10.0  # for one input: a parser that takes longer probably has no bound at all

ODD_NUMBERS = ("", "²", "٣", "1e400", "-0", "9" * 400, "9" * 5000)
KNOWN_WORDS = ("None", "True", "swap", "pong", "adam", "linear", "--", "-h")
ENTRY = {"name": "replay-000001-weights.bin", "bytes": 8, "sha256": "0" * 64}
ENVIRONMENT = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip
VARIABLES = (
    *ENVIRONMENT, "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_HET_SIZE", "SLURM_PROCID", "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_RESTART_COUNT",
    "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_ON_NODE", "SLURM_JOB_NODELIST_HET_GROUP_0",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0", "SLURM_CPUS_PER_TASK", "SLURM_JOB_END_TIME",
)  # fmt: skip


def check_hypothesis() -> None:
    """Raises UsageError where Hypothesis is not installed."""
    if importlib.util.find_spec("hypothesis") is None:
        raise UsageError("--inputs: Hypothesis is not installed: pip install 'ddrl[test]', or give --flips alone")


def throw(count: int, seed: int) -> dict[str, dict[str, Any]]:
    """Throws `count` inputs at each parser; returns parser -> how many were accepted, refused and so on."""
    by_parser = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, (strategy, parse, refusal) in _parsers(Path(directory)).items():
            print(f"{count:,} inputs for: {name}", file=sys.stderr, flush=True)
            by_parser[name] = throw_at(strategy, parse, refusal, count, seed)
    return by_parser


def throw_at(
    strategy: Any, parse: Callable[[Any], object], refusal: type[Exception], count: int, seed: int
) -> dict[str, Any]:
    """Throws inputs at one parser, and counts the outcomes; any exception other than `refusal` is a traceback.

    Stops at the first input that ends in a traceback, which Hypothesis then makes as small as it can.
    """
    from hypothesis import HealthCheck, given, settings
    from hypothesis import seed as seeded

    counts: dict[str, Any] = {"inputs": 0, "accepted": 0, "refused": 0, "tracebacks": 0, "longest_ms": 0, "why": ""}
    last: list[Any] = [None]

    @seeded(seed)
    @settings(
        max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def one(value: Any) -> None:
        last[0], began = copy.deepcopy(value), time.monotonic()
        accepted = _attempt(parse, refusal, value)
        seconds = time.monotonic() - began
        counts["inputs"] += 1
        counts["accepted" if accepted else "refused"] += 1
        counts["longest_ms"] = max(counts["longest_ms"], round(1000 * seconds))
        if seconds > LONGEST_SECONDS:
            raise RuntimeError(f"it took {seconds:.0f} s")

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            one()
    except Exception as error:  # noqa: BLE001 - any traceback is what is looked for
        counts |= {"tracebacks": 1, "why": f"{last[0]!r:.200}: {type(error).__name__}: {error!s:.200}"}
    return counts


def _attempt(parse: Callable[[Any], object], refusal: type[Exception], value: Any) -> bool:
    """Whether the parser accepted the value; raises every error that is not a refusal in one short line."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            parse(value)
    except SystemExit:  # the command line parser has printed why it refuses
        return False
    except refusal as error:
        if "\n" in str(error) or len(str(error)) > LONGEST_LINE:
            raise RuntimeError(f"a refusal of {len(str(error))} letters: {error!s:.100}") from error
        return False
    return True


def _parsers(directory: Path) -> dict[str, tuple[Any, Callable[[Any], object], type[Exception]]]:
    """Each parser's name -> Hypothesis strategy for its inputs, the parser, and the exception with which it refuses."""
    from hypothesis import strategies as st

    json_like = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    )
    numbers = st.integers().map(str) | st.floats().map(str) | st.sampled_from(ODD_NUMBERS)
    words = numbers | st.text(max_size=6) | st.sampled_from(KNOWN_WORDS)
    command_lines = st.tuples(
        st.sampled_from(list(algorithms.names())), st.lists(st.tuples(st.sampled_from(_options()), words), max_size=4)
    ).map(lambda line: [line[0], *(word for pair in line[1] for word in pair)])
    ranges = st.from_regex(r"(n\[0*[0-9]{1,6}-[0-9]{1,12}\],?){1,3}", fullmatch=True)
    lists = st.text("n[]-,0129٣² ", max_size=30) | ranges
    counts = st.text("0129,(x)²- ", max_size=20)
    environments = st.dictionaries(
        st.sampled_from(VARIABLES), numbers | lists | counts | st.just("n[1-2]"), max_size=3
    ).map(lambda changed: ENVIRONMENT | changed)
    config = rundir.config_to_dict(algorithms.preset("default", None, MACHINE))
    manifest = json.loads(checkpoints._to_arrays(_checkpoint())["manifest"].tobytes())  # noqa: SLF001 - crafts what the parser reads
    facts = {"kind": {}, "head": 3, "size": 2, "ignored": 0, "largest": 1.0, "waiting": 0}
    facts |= {"segments": [], "weights": ENTRY}
    lines = st.binary(max_size=60) | json_like.map(lambda x: json.dumps({"kind": "train", "update": x}).encode())
    binary = st.binary(max_size=200)
    return {
        "command line": (command_lines, lambda line: train_options.parse(line, MACHINE), UsageError),
        "config.json": (_changed(config, json_like), rundir.config_from_dict, UsageError),
        "Slurm environment": (environments, _read_environment, ValueError),
        "host list": (lists, hostlist.expand, ValueError),
        "counts per node": (counts, hostlist.expand_counts, ValueError),
        "line of metrics": (lines, lambda line: is_sound(sealed.read_line(line).content), ValueError),
        "manifest of a checkpoint": (_changed(manifest, json_like), lambda it: _load(directory, it), UsageError),
        "manifest of a replay": (_changed(facts, json_like), lambda it: storage.facts_in(_as_array(it)), UsageError),
        "npz": (binary, npz.decode_arrays, ValueError),
        "frame of an actor": (binary, _read_frames, ValueError),
        "header of a message": (binary, lambda data: HeaderFormat(3).decode(memoryview(data)), ValueError),
    }


def _options() -> list[str]:
    """Option names of `ddrl train` for any algorithm, and one that does not exist."""
    groups = (field.name for field in dataclasses.fields(TrainConfig))
    names = {
        each.name
        for group in groups
        for each in dataclasses.fields(getattr(algorithms.preset("default", None, MACHINE), group))
    }
    others = ["--preset", "--resume", "--resume-or-start", "--no-video", "--x"]
    return sorted(map(flag, names)) + others


def _changed(content: dict[str, Any], values: Any) -> Any:
    """A Hypothesis strategy: the content with one or two of its values, at any depth, replaced or removed."""
    from hypothesis import strategies as st

    places = list(_places(content))

    def change(changes: list[tuple[tuple[str, ...], Any, bool]]) -> dict[str, Any]:
        changed = copy.deepcopy(content)
        for place, value, gone in changes:
            at: Any = changed
            for name in place[:-1]:
                at = at.get(name) if isinstance(at, dict) else None
            if isinstance(at, dict):
                at.pop(place[-1], None)
                if not gone:
                    at[place[-1]] = value
        return changed

    return st.lists(st.tuples(st.sampled_from(places), values, st.booleans()), min_size=1, max_size=2).map(change)


def _places(content: Any, before: tuple[str, ...] = ()) -> Any:
    for name, value in content.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from _places(value, (*before, name))


def _checkpoint() -> Checkpoint:
    parameters = np.zeros(6, np.float32)
    config = rundir.config_to_dict(algorithms.preset("default", None, MACHINE))
    states = {0: {"count": np.asarray(3)}}
    return Checkpoint(7, 7, 9, 1.0, parameters, {"m": parameters}, 7, (("w", (2, 3)),), {}, states, config)


def _as_array(content: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def _load(directory: Path, manifest: dict[str, Any]) -> Checkpoint:
    path = directory / "crafted.npz"
    arrays = checkpoints._to_arrays(_checkpoint()) | {"manifest": _as_array(manifest)}  # noqa: SLF001 - crafts what the parser reads
    path.write_bytes(sealed.archive_bytes(npz.encode_arrays(arrays)))
    return checkpoints.load(path)


def _read_environment(environ: dict[str, str]) -> None:
    detect_job(environ)
    slurm.read_allocation(environ)


def _read_frames(data: bytes) -> None:
    reader = FrameReader()
    reader.add(data)
    while reader.next() is not None:
        pass
