"""A study packed into small files, and made anew from them."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import math
import os
import re

import pytest

from ddrl import rundir
from ddrl.commands import study as command
from ddrl.errors import UsageError
from ddrl.reporting.metrics import read_metrics
from ddrl.studies import data, plan, provenance
from ddrl.studies.collect import CURVES, RUNS, TABLE, collect
from ddrl.studies.measures import AGENT_STEP_RATE, ONLINE, best_score, rate, rate_per_second
from ddrl.studies.points import State, note_failure, outcome_of
from ddrl.studies.settings import to_json
from tests.studies.support import MACHINE, FakeSettings, Runner, outcome, study, write_run


def failing(error):
    """A function that raises an error, whatever it is given."""

    def function(*args, **kwargs):
        raise error

    return function


@pytest.fixture
def measured(tmp_path):
    """The fake study and the plan of two of its points that have finished, and one that has not."""
    fake = study(Runner())
    points = tuple(fake.points(FakeSettings(minutes=1.0), MACHINE))[:3]
    made = plan.Plan(tmp_path / "study", fake.name, to_json(FakeSettings(minutes=1.0)), points)
    plan.write(made)
    for slope, point in enumerate(points[:2], 1):
        write_run(made.path(point), slope / 4)
    return fake, made


def test_the_report_from_the_data_is_that_of_the_runs(measured, tmp_path, monkeypatch):
    fake, made = measured
    collect(made, fake)
    data.pack(made, tmp_path / "packed")
    again = tmp_path / "again"
    monkeypatch.setattr(command, "STUDIES", {fake.name: "unused"})
    monkeypatch.setattr(command, "study_of", lambda name: fake)
    assert command.main([fake.name, "--from-data", str(tmp_path / "packed"), "--dir", str(again)]) == 0
    for name in (CURVES, RUNS, TABLE):
        assert (again / name).read_text() == (made.directory / name).read_text(), name
    assert read_metrics(made.path(made.points[0])) == read_metrics(again / "points" / made.points[0].name)
    data.pack(plan.load(again, fake.name), tmp_path / "second")
    for name in (plan.PLAN, data.ENDS, data.RECORDS):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "packed" / name).read_bytes(), name


def test_options_are_checked_before_packed_data_become_a_study(measured, tmp_path, monkeypatch):
    fake, made = measured
    data.pack(made, tmp_path / "packed")
    again = tmp_path / "a" / "study"
    words = ["--from-data", str(tmp_path / "packed"), "--dir", str(again)]
    with pytest.raises(UsageError, match="--from-data .*packed: it holds `ddrl study fake`; choose another --from"):
        command.main(["variants", *words])
    monkeypatch.setattr(command, "STUDIES", {fake.name: "unused"})
    monkeypatch.setattr(command, "study_of", lambda name: fake)
    for more, message in (
        (["--sizes", "7"], "--sizes 7: the study in .*packed was begun with 1 2"),
        (["--sizs", "1"], "--sizs"),
        (["--repeats", "0"], "--repeats 0"),
        (["--list"], "--list with --from-data"),
    ):
        with pytest.raises(UsageError, match=message):
            command.main([fake.name, *words, *more])
        assert not again.parent.exists(), more
    assert command.main([fake.name, *words, "--sizes", "1", "2"]) == 0 and (again / TABLE).exists()


def test_a_report_from_data_tells_when_the_runs_ended_not_when_they_were_unpacked(measured, tmp_path):
    _, made = measured
    for point in made.points[:2]:
        os.utime(made.path(point) / rundir.RESULT, (1_700_000_000.5, 1_700_000_000.5))
    data.pack(made, tmp_path / "packed")
    data.unpack(tmp_path / "packed", tmp_path / "again")
    paths = [tmp_path / "again" / "points" / point.name for point in made.points[:2]]
    outcomes = [outcome_of(point, path) for point, path in zip(made.points, paths)]
    day = "2023-11-14 22:13 UTC"
    assert provenance.ended(outcomes) == f"points that ended from {day} to {day}"
    ends = json.loads(gzip.decompress((tmp_path / "packed" / data.ENDS).read_bytes()))
    for end in ends.values():
        del end["ended"]  # as an earlier version packed them
    (tmp_path / "packed" / data.ENDS).write_bytes(gzip.compress(json.dumps(ends).encode()))
    data.unpack(tmp_path / "packed", tmp_path / "earlier")
    paths = [tmp_path / "earlier" / "points" / point.name for point in made.points[:2]]
    outcomes = [outcome_of(point, path) for point, path in zip(made.points, paths)]
    assert provenance.ended(outcomes) == "points of unknown age"


def test_numbers_have_the_digits_of_a_float32(measured, tmp_path):
    fake, made = measured
    write_run(made.path(made.points[0]), 1 / 3)
    data.pack(made, tmp_path / "packed")
    data.unpack(tmp_path / "packed", tmp_path / "again")
    scores = [record.get(ONLINE) for record in read_metrics(tmp_path / "again" / "points" / made.points[0].name)]
    assert 0.3333333 in scores and 1 / 3 not in scores


def test_long_runs_keep_their_ends_and_all_evaluations():
    records = [{"kind": "train", "update": i} for i in range(5000)] + [{"kind": "evaluation", "mean": 1.0}] * 500
    records.insert(7, {"kind": "event", "name": "checkpoint"})
    kept = data.thinned(records, 4000)
    train = [record["update"] for record in kept if record["kind"] == "train"]
    assert len(train) == 4000 and train[0] == 0 and train[-1] == 4999 and len(kept) == 4500
    assert max(b - a for a, b in itertools.pairwise(train)) <= 13


def test_the_record_that_reached_the_target_is_kept():
    records = [{"kind": "train", "update": i, ONLINE: float(i % 998), "episodes": 500} for i in range(1000)]
    kept = [record["update"] for record in data.thinned(records, 100, 995.0)]
    assert 995 in kept and len(kept) == 100 and 995 not in [r["update"] for r in data.thinned(records, 100)]
    assert len(data.thinned(records, 100, 998.0)) == 100, "nothing reached it"


def test_the_best_online_score_is_kept():
    """The first mean is of one lucky game."""
    scores = {0: (99.0, 1), 1234: (9.0, 100)}
    records = [
        {"kind": "train", "update": i, "learner": name, ONLINE: score, "episodes": games}
        for i in range(5000)
        for name in ("sampler", "secondary")
        for score, games in [scores.get(i + (name == "secondary"), (0.0, 100))]
    ]
    kept = data.thinned(records, 100)
    assert len(kept) == 200
    for name in ("sampler", "secondary"):
        whole, thinned = (outcome({}, [r for r in all_of if r["learner"] == name]) for all_of in (records, kept))
        assert best_score(ONLINE)(thinned) == best_score(ONLINE)(whole) == 9.0


def test_the_best_online_score_of_a_run_of_few_games_is_kept():
    records = [{"kind": "train", "update": i, ONLINE: float(i == 1234), "episodes": 9} for i in range(5000)]
    assert best_score(ONLINE)(outcome({}, data.thinned(records, 100))) == 1.0


def accelerating(seconds, began=0):
    """Lines of a run, one a second, whose rate grows all the time."""
    times = range(began + 1, began + seconds + 1)
    return [{"kind": "train", "wall_seconds": float(t), "agent_steps": t * t, "update": t} for t in times]


@pytest.mark.parametrize("kept", [2, 20, 100])
def test_a_thinned_run_has_its_rate_however_few_records_are_kept(kept):
    """It was resumed, and its last lines are those of the final evaluation."""
    resumed = {"kind": "event", "name": "resumed", "text": "", "wall_seconds": 400.0}
    ending = [{"kind": "train", "wall_seconds": 800.0 + t, "agent_steps": 640_000, "update": 800} for t in range(1, 99)]
    records = [*accelerating(400), resumed, *accelerating(400, 400), *ending]
    for warm_up in (10.0, 33.3):
        thinned = data.thinned(records, kept, None, warm_up)
        assert len(thinned) == 1 + max(kept, 8), "the resume, and all that are always kept"
        assert rate_per_second(thinned, AGENT_STEP_RATE, warm_up) == rate_per_second(records, AGENT_STEP_RATE, warm_up)
        assert data.thinned(thinned, kept, None, warm_up) == thinned


def test_a_packed_run_has_the_rate_that_it_had(measured, tmp_path, monkeypatch):
    _, made = measured
    monkeypatch.setattr(data, "KEPT", 40)
    monkeypatch.setattr(data, "KEPT_OF_EACH", 20)
    point = made.points[0]
    lines = [json.dumps(line) + "\n" for line in accelerating(300)]
    (made.path(point) / rundir.METRICS).write_text("".join(lines))
    data.pack(made, tmp_path / "packed")
    data.unpack(tmp_path / "packed", tmp_path / "again")
    before, after = (outcome_of(point, path / "points" / point.name) for path in (made.directory, tmp_path / "again"))
    assert len(after.records) == 20
    assert rate()(after) == rate()(before) == 309.0, "from 10 s to 299 s"


def test_where_a_run_was_resumed_is_kept_since_its_rates_begin_anew_there():
    records = [{"kind": "train", "update": i} for i in range(10)]
    records[5:5] = [{"kind": "event", "name": name} for name in ("checkpoint", "resumed", "started")]
    kept = data.thinned(records, 4)
    assert [record.get("name") or record["update"] for record in kept] == [0, 3, "resumed", 7, 9]


def test_each_of_two_learners_keeps_its_last_record():
    records = [
        {"kind": "train", "update": i, "learner": name} for i in range(1000) for name in ("sampler", "secondary")
    ]
    kept = data.thinned(records, 100)
    assert len(kept) == 200 and [record["update"] for record in kept[-2:]] == [999, 999]


def test_runs_share_the_records_that_are_kept(measured, tmp_path, monkeypatch):
    _, made = measured
    for point in made.points[:2]:
        write_run(made.path(point), points=20)
    lengths = []
    for kept, of_each in ((data.KEPT, data.KEPT_OF_EACH), (12, 2), (12, 8)):
        monkeypatch.setattr(data, "KEPT", kept)
        monkeypatch.setattr(data, "KEPT_OF_EACH", of_each)
        data.pack(made, tmp_path / f"packed-{kept}-{of_each}")
        data.unpack(tmp_path / f"packed-{kept}-{of_each}", tmp_path / f"again-{kept}-{of_each}")
        runs = [tmp_path / f"again-{kept}-{of_each}" / "points" / point.name for point in made.points[:2]]
        lengths.append([sum(record["kind"] == "train" for record in read_metrics(run)) for run in runs])
    assert lengths == [[20, 20], [6, 6], [8, 8]]


def test_a_point_that_failed_has_failed_elsewhere_too(measured, tmp_path):
    fake, made = measured
    failed = made.path(made.points[0])
    (failed / "result.json").unlink()
    note_failure(failed, f"it broke: see {failed}/log.txt")
    data.pack(made, tmp_path / "packed")
    data.unpack(tmp_path / "packed", tmp_path / "again")
    assert plan.load(tmp_path / "again", fake.name).state(made.points[0]) == State(
        "failed", f"it broke: see {failed.name}/log.txt"
    )


def test_no_path_of_the_machine_is_packed(measured, tmp_path):
    fake, made = measured
    run = made.path(made.points[0])
    (run / "config.json").write_text(json.dumps({"run": {"run_dir": str(run)}}))
    data.pack(made, tmp_path / "packed")
    assert str(tmp_path) not in gzip.decompress((tmp_path / "packed" / data.ENDS).read_bytes()).decode()


def test_what_cannot_be_is_refused(measured, tmp_path):
    fake, made = measured
    missing = r"--from-data .*nowhere: it holds no packed study that can be read \(records.csv.gz: No such file"
    with pytest.raises(UsageError, match=missing + ".*; name a directory that --pack wrote"):
        data.unpack(tmp_path / "nowhere", tmp_path / "new")
    data.pack(made, tmp_path / "packed")
    with pytest.raises(UsageError, match="--pack .*: it exists already; name a directory that does not exist yet"):
        data.pack(made, tmp_path / "packed")
    with pytest.raises(UsageError, match="--dir .*: it exists already; name a directory that does not"):
        data.unpack(tmp_path / "packed", made.directory)
    (tmp_path / "packed" / data.RECORDS).write_bytes(b"no gzip")
    with pytest.raises(UsageError, match="it holds no packed study"):
        data.unpack(tmp_path / "packed", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    empty = made._replace(points=made.points[2:])
    with pytest.raises(UsageError, match="no point of .* has finished"):
        data.pack(empty, tmp_path / "none")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda ends, end: ends.update({"../../owned": end}), "names no point with '../../owned'"),
        (lambda ends, end: ends.update({"..": end}), "names no point with '..'"),
        (lambda ends, end: end["files"].update({"../../../owned": {}}), "'../../../owned' is no file that --pack"),
        (lambda ends, end: end["texts"].update({"../../../owned": "x"}), "'../../../owned' is no file that --pack"),
        (lambda ends, end: end["texts"].update({".profile": "x"}), "'.profile' is no file that --pack"),
        (lambda ends, end: end.pop("files"), "'files'"),
        (lambda ends, end: end.update(texts=[]), "the files of size1-seed1 are damaged"),
        (lambda ends, end: end["files"].update({"result.json": []}), "a file of size1-seed1 is damaged"),
        (lambda ends, end: end["files"].update({"result.json": {"score": math.inf}}), "Out of range float"),
    ],
)
def test_packed_data_of_somebody_else_become_files_of_runs_alone(measured, tmp_path, change, message):
    _, made = measured
    data.pack(made, tmp_path / "packed")
    path = tmp_path / "packed" / data.ENDS
    ends = json.loads(gzip.decompress(path.read_bytes()))
    change(ends, ends[made.points[0].name])
    path.write_bytes(gzip.compress(json.dumps(ends).encode()))
    with pytest.raises(UsageError, match=re.escape(message)) as refused:
        data.unpack(tmp_path / "packed", tmp_path / "a" / "new")
    assert "\n" not in str(refused.value) and not (tmp_path / "a").exists()
    assert not list(tmp_path.glob("**/owned"))


def test_packed_data_import_only_plugins_that_are_given(measured, tmp_path, monkeypatch):
    fake, made = measured
    theirs, checked = tmp_path / "theirs.py", tmp_path / "checked" / "theirs.py"
    text = "from ddrl.plugins import register_network\nregister_network('theirs', print)\n"
    theirs.write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n{text}")
    named = [point._replace(config=point.config.changed(run={"plugins": (str(theirs),)})) for point in made.points]
    plan.write(made._replace(points=tuple(named)))
    data.pack(made, tmp_path / "packed")
    monkeypatch.setattr(command, "STUDIES", {fake.name: "unused"})
    monkeypatch.setattr(command, "study_of", lambda name: fake)
    words = [fake.name, "--from-data", str(tmp_path / "packed"), "--dir", str(tmp_path / "again")]
    with pytest.raises(UsageError, match=r"packed: its study\.json names plugins that were not given: .*theirs\.py$"):
        command.main(words)
    assert not (tmp_path / "again").exists()
    checked.parent.mkdir()
    checked.write_text(text)
    assert command.main([*words, "--plugin", str(checked)]) == 0 and (tmp_path / "again" / TABLE).exists()
    assert not (tmp_path / "imported").exists()


def test_runs_in_packed_data_name_no_plugins_that_are_not_given(measured, tmp_path):
    packed = tmp_path / "packed"
    data.pack(measured[1], packed)
    with gzip.open(packed / data.ENDS, "rt") as file:
        ends = json.load(file)
    settings = {"format": rundir.FORMAT, "run": {"plugins": ["/theirs/mine.py"]}}
    next(iter(ends.values()))["files"][rundir.CONFIG] = settings
    with gzip.open(packed / data.ENDS, "wt") as file:
        json.dump(ends, file)
    with pytest.raises(UsageError, match=r"a run in it has the plugin /theirs/mine\.py, which was not given"):
        data.unpack(packed, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "name, content, message",
    [
        (data.RECORDS, gzip.compress(b"x" * 99)[:10] + b"\xff" * 20, "Error -3 while decompressing"),
        (data.RECORDS, gzip.compress(b"point,kind\nsize1-seed1,train,1\n"), "JSON object must be str"),
        (data.RECORDS, gzip.compress(b"point,kind\nsize1-seed1," + b"x" * 200_000), "field larger than field limit"),
        (plan.PLAN, b"{", "no packed study that can be read"),
    ],
    # gzip writes the time into its header, so that ids made of the bytes would differ between test processes
    ids=["not gzip", "not JSON", "field too large", "plan not JSON"],
)
def test_damaged_packed_data_are_one_line_and_leave_nothing(measured, tmp_path, name, content, message):
    _, made = measured
    data.pack(made, tmp_path / "packed")
    (tmp_path / "packed" / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as refused:
        data.unpack(tmp_path / "packed", tmp_path / "new")
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()


def test_a_study_is_packed_and_unpacked_whole_or_not_at_all(measured, tmp_path, monkeypatch):
    _, made = measured
    packed, again = tmp_path / "a" / "packed", tmp_path / "b" / "again"
    fails = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="--pack .*packed: No space left .*another pl"):
        patch.setattr(data, "_csv", failing(fails))
        data.pack(made, packed)
    assert not list(packed.parent.iterdir())
    data.pack(made, packed)
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="--dir .*again: No space left on device; "):
        patch.setattr(data.os, "utime", failing(fails))  # after a run's metrics have been written
        data.unpack(packed, again)
    assert not list(again.parent.iterdir())
    data.unpack(packed, again)
    assert plan.load(again, made.study) is not None
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--dir .*file/again: File exists; name another place"):
        data.unpack(packed, tmp_path / "file" / "again")


def test_a_study_that_another_call_unpacks_meanwhile_is_left_alone(measured, tmp_path, monkeypatch):
    _, made = measured
    packed, again = tmp_path / "packed", tmp_path / "again"
    data.pack(made, packed)
    write = data._write

    def slowly(place, *content):
        write(place, *content)
        again.mkdir()
        (again / "theirs").touch()

    monkeypatch.setattr(data, "_write", slowly)
    with pytest.raises(UsageError, match="--dir .*again: it exists already; name"):
        data.unpack(packed, again)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "packed", "study"]
    assert [path.name for path in again.iterdir()] == ["theirs"]


def test_a_plan_whose_points_would_be_elsewhere_is_refused(measured):
    fake, made = measured
    whole = json.loads((made.directory / plan.PLAN).read_text())
    del whole["sha256"]  # as of a study that somebody else has made
    for points in ([{**whole["points"][0], "name": "../../owned"}], [{}], None):
        (made.directory / plan.PLAN).write_text(json.dumps(whole | {"points": points}))
        with pytest.raises(UsageError, match="study.json is malformed .*: choose another --dir"):
            plan.load(made.directory, fake.name)


def test_packed_data_that_give_too_much_are_refused(measured, tmp_path, monkeypatch):
    """A small file may give more than there is memory."""
    _, made = measured
    packed = tmp_path / "packed"
    data.pack(made, packed)
    monkeypatch.setattr(data, "MOST_BYTES", 10**6)
    data.unpack(packed, tmp_path / "sound")
    for name, content, why in (
        (data.ENDS, gzip.compress(b" " * 10**6 + b"{}"), "ends.json.gz gives more than 1,000,000 bytes"),
        (data.ENDS, gzip.compress(b"[" * 10**5), "recursion"),
        (data.RECORDS, b"\0" * (10**6 + 1), "records.csv.gz: it has more than 1,000,000 bytes"),
    ):
        (packed / name).write_bytes(content)
        with pytest.raises(UsageError, match=f"--from-data .*packed: it holds no packed study .*{why}"):
            data.unpack(packed, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_run_whose_settings_are_damaged_is_packed(measured, tmp_path):
    _, made = measured
    rundir.write_json(made.path(made.points[0]) / rundir.CONFIG, {"run": []})
    data.pack(made, tmp_path / "packed")
    data.unpack(tmp_path / "packed", tmp_path / "again")
    assert rundir.read_json(tmp_path / "again" / "points" / made.points[0].name / rundir.CONFIG) == {"run": []}
