"""Packs what a study measured into files small enough for a repository (study.json, ends.json.gz, records.csv.gz).

DIR of a study --pack--> PATH --unpack--> DIR, which `ddrl study NAME --collect` reports as if it had run there
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddrl import plugin_modules, rundir, sealed
from ddrl.errors import UsageError, written
from ddrl.files import name_new, read_regular
from ddrl.reporting.metrics import best_online, first_online, is_resumed
from ddrl.studies.engine import MACHINE
from ddrl.studies.measures import WARM_UP_SECONDS, ends_of_rates, warm_up
from ddrl.studies.plan import PLAN, Plan
from ddrl.studies.points import POINTS, Outcome, is_name, outcome_of
from ddrl.studies.provenance import UNKNOWN_TIME
from ddrl.unfinished import unfinished

RECORDS, ENDS = "records.csv.gz", "ends.json.gz"
DIGITS = 7  # significant digits of a number, as many as a float32 has
KEPT, KEPT_OF_EACH = 4000, 100
"""Most train records that are kept: KEPT of all runs together, which makes some 400 kB, but KEPT_OF_EACH of each run if
there are many runs. They are evenly spaced; the first and the last of a run, those at the ends of its rates, that of
its best online score, and all evaluations are always kept."""
OF_PROCESSES = ("time_split", "cpu_cores", "resident_mb")  # no report of a study reads them
FILES = (rundir.RESULT, MACHINE, rundir.CONFIG)
TEXTS = (rundir.HASHES,)
"""Small files of a run that reports read, of JSON and of text."""
MOST_SECONDS = 2.0**33  # since 1970, until which a run may have ended: the year 2242
MOST_BYTES = 1 << 28  # of a packed file, whose text has some megabytes


def pack(plan: Plan, path: Path) -> None:
    """Writes what the finished and failed points of a study measured, in numbers of seven significant digits, whole or
    not at all.

    Raises:
        UsageError: no point has finished, or the path exists already or cannot be written.
    """
    statuses = [plan.state(point).status for point in plan.points]
    if "finished" not in statuses:
        raise UsageError(f"--pack {path}: no point of {plan.directory} has finished")
    ended = [point for point, status in zip(plan.points, statuses) if status in ("finished", "failed")]
    ends = {point.name: _end(plan.path(point)) for point in ended}
    with _whole("--pack", path) as place:
        shutil.copyfile(plan.directory / PLAN, place / PLAN)
        each = max(KEPT // len(ended), KEPT_OF_EACH)
        rows = [
            {"point": point.name, **record}
            for point in ended
            for record in _packed(outcome_of(point, plan.path(point)), each, plan.settings)
        ]
        for name, text in ((ENDS, json.dumps(ends)), (RECORDS, _csv(rows))):
            # Without a time in its header the file is the same whenever the same is packed.
            (place / name).write_bytes(gzip.compress(text.encode(), mtime=0))


def unpack(path: Path, directory: Path) -> None:
    """Makes a study's directory from what `pack` has written, whole or not at all.

    Raises:
        UsageError: there is no packed study, it is damaged, it names a plugin that was not loaded, or the directory
            exists already.
    """
    planned, ends, records = _read_packed(path)
    named = [name for end in ends.values() for name in rundir.plugins_of(end["files"].get(rundir.CONFIG))]
    if strange := plugin_modules.not_loaded(named):
        remedy = f"check it, then give --plugin {strange[0]}"
        raise UsageError(f"--from-data {path}: a run in it has the plugin {strange[0]}, which was not given: {remedy}")
    with _whole("--dir", directory) as place:
        _write(place, planned, ends, records)


@contextlib.contextmanager
def _whole(option: str, directory: Path) -> Iterator[Path]:
    """Context manager that yields a new directory, which has the name `directory` once everything is in it.

    Args:
        option: with which the user has named it.

    Raises:
        UsageError: there is something of that name, or nothing can be written there.
    """
    taken = f"{option} {directory}: it exists already; name a directory that does not exist yet"
    if os.path.lexists(directory):
        raise UsageError(taken)
    with written(f"{option} {directory}", "name another place"):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(directory) as place:
            place.mkdir()
            yield place
            try:
                name_new(place, directory)
            except FileExistsError as error:  # another call has just made it
                raise UsageError(taken) from error


def _write(
    directory: Path, planned: bytes, ends: Mapping[str, Mapping[str, Any]], records: Mapping[str, Sequence[Any]]
) -> None:
    """Fills a study's directory with what `_read_packed` returns."""
    (directory / PLAN).write_bytes(planned)
    for name, end in ends.items():
        run = directory / POINTS / name
        run.mkdir(parents=True)
        (run / rundir.METRICS).write_text("".join(json.dumps(record) + "\n" for record in records[name]))
        for file, content in end["files"].items():  # thousands of new files, which need no sync
            (run / file).write_bytes(sealed.file_bytes(content))
        if rundir.RESULT in end["files"]:  # reports show its time, which data of earlier versions lack
            ended = end.get("ended", UNKNOWN_TIME)
            os.utime(run / rundir.RESULT, (ended, ended))
        for file, text in end["texts"].items():
            (run / file).write_text(text)


def _read_packed(path: Path) -> tuple[bytes, dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """What `pack` has written: study.json, and by name of a point, what `_end` says of its run, and the run's records.

    Raises:
        UsageError: there is no packed study, or it is damaged.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(_decompressed(path / RECORDS))))
        ends = json.loads(_decompressed(path / ENDS))
        _check_ends(ends)
        records = {name: [dict(_record(row)) for row in rows if row["point"] == name] for name in ends}
        planned = read_regular(path / PLAN, MOST_BYTES)
        sealed.read_file(planned)
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, csv.Error, zlib.error) as error:
        file = f"{Path(error.filename).name}: {error.strerror}" if isinstance(error, OSError) and error.filename else ""
        text = f"--from-data {path}: it holds no packed study that can be read ({file or error})"
        raise UsageError(f"{text}; name a directory that --pack wrote") from error
    return planned, ends, records


def _packed(run: Outcome, kept: int, settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The records of a run that are packed; see `thinned`.

    Args:
        settings: of the study, which may have a target score and a warm-up.
    """
    waited = warm_up(run, settings.get("warm_up_seconds", WARM_UP_SECONDS))
    return thinned(run.records, kept, settings.get("target_score"), waited)


def thinned(
    records: Sequence[Mapping[str, Any]], kept: int, target: float | None = None, warm_up_seconds: float = 0.0
) -> list[Mapping[str, Any]]:
    """The records that are packed, with at most `kept` train records of each learner, unless those that are always kept
    are more: the first and the last, those at the ends of its rates, the one with the best online score, and the one
    with which an online score first reached the target. Thinned again, they stay the same.

    Events are left out except `resumed`, at which rates begin anew, and so is what single processes used.

    Args:
        warm_up_seconds: at each start of the run, which rates leave out.
    """
    series: dict[Any, list[int]] = {}  # by learner: there is one, or there are two that share a replay
    for i, record in enumerate(records):
        if record["kind"] == "train":
            series.setdefault(record.get("learner"), []).append(i)
    ends: list[Mapping[str, Any] | None] = [] if target is None else [first_online(records, target)]
    for learner, train in series.items():
        ends += ends_of_rates([each for each in records if each.get("learner", learner) == learner], warm_up_seconds)
        trained = [records[i] for i in train]
        if (best := best_online(trained)) is not None:
            of_few = (each for each in trained if each.get("online_score_mean") == best)  # runs of few games
            ends.append(first_online(trained, best) or next(of_few))
    wanted = {id(record) for record in ends}
    left = {i for i, record in enumerate(records) if record["kind"] == "evaluation" or is_resumed(record)}
    left |= {i for i, record in enumerate(records) if id(record) in wanted}
    left |= {i for train in series.values() for i in (train[0], train[-1])}
    for train in series.values():
        others = [i for i in train if i not in left]
        left |= set(_even(others, kept - len(train) + len(others)))
    those = [record for i, record in enumerate(records) if i in left]
    return [{name: value for name, value in record.items() if name not in OF_PROCESSES} for record in those]


def _even(train: Sequence[int], kept: int) -> list[int]:
    """At most `kept` of these numbers, evenly spaced; none if `kept` is negative."""
    count = max(0, min(kept, len(train)))
    return [train[(2 * i + 1) * len(train) // (2 * count)] for i in range(count)]


def _check_ends(ends: Any) -> None:
    """Checks that packed data, which may come from anywhere, names only files that `pack` writes.

    Raises:
        ValueError: the data is not what `pack` writes.
    """
    if not isinstance(ends, dict):
        raise ValueError(f"{ENDS} is damaged")
    for name, end in ends.items():
        if not is_name(name) or not isinstance(end, dict):
            raise ValueError(f"{ENDS} names no point with {name!r:.80}")
        files, texts = end["files"], end["texts"]
        if not isinstance(files, dict) or not isinstance(texts, dict):
            raise ValueError(f"{ENDS}: the files of {name} are damaged")
        if not 0.0 <= end.get("ended", 0.0) < MOST_SECONDS:
            raise ValueError(f"{ENDS}: {name} did not end at {end['ended']!r:.80}")
        if others := sorted(set(files) - set(FILES) | set(texts) - set(TEXTS)):
            raise ValueError(f"{ENDS}: {others[0]!r:.80} is no file that --pack writes")
        whole = [isinstance(each, dict) for each in files.values()] + [isinstance(each, str) for each in texts.values()]
        if not all(whole):
            raise ValueError(f"{ENDS}: a file of {name} is damaged")
    json.dumps(ends, allow_nan=False)  # a number that is not finite could not be written


def _decompressed(path: Path) -> str:
    """The text in a compressed file. Data of others may be small, and yet give more than there is memory.

    Raises:
        OSError, EOFError, ValueError, zlib.error: it cannot be read, or gives more than MOST_BYTES.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(read_regular(path, MOST_BYTES))) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path.name} gives more than {MOST_BYTES:,} bytes")
    return data.decode()


def _end(run: Path) -> dict[str, Any]:
    """The small JSON and text files of a run by name, and when the run ended, in seconds since 1970."""
    files = {name: content for name in FILES if (content := rundir.read_json(run / name)) is not None}
    # Paths of the machine say nothing elsewhere.
    if isinstance(files.get(rundir.CONFIG, {}).get("run"), dict):  # in a damaged file, anything may be in its place
        files[rundir.CONFIG]["run"]["run_dir"] = ""
    if "message" in files.get(rundir.RESULT, {}):
        files[rundir.RESULT]["message"] = str(files[rundir.RESULT]["message"]).replace(str(run), run.name)
    texts = {name: read_regular(run / name).decode() for name in TEXTS if (run / name).exists()}
    ended = int((run / rundir.RESULT).stat().st_mtime) if rundir.RESULT in files else UNKNOWN_TIME
    return {"files": files, "texts": texts, "ended": ended}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV. Cells are JSON, so that a number is read as one; what a row lacks is an empty cell."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    plain = ("point", "kind")
    for row in rows:
        cells = {name: value if name in plain else json.dumps(_shortened(value)) for name, value in row.items()}
        writer.writerow([cells.get(name, "") for name in columns])
    return text.getvalue()


def _shortened(value: Any) -> Any:
    """The value with its floats, also those in dicts, rounded to DIGITS significant digits."""
    if isinstance(value, dict):
        return {name: _shortened(of_it) for name, of_it in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _record(row: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name, cell in row.items():
        if name == "kind":
            yield name, cell
        elif cell and name != "point":
            yield name, json.loads(cell)
