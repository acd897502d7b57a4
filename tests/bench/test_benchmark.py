"""What all benchmarks share: options, tables, JSON and the exit status."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from ddrl import rundir
from ddrl.algorithms import preset
from ddrl.bench.benchmark import Benchmark, BenchmarkArguments, TakesTrainOptions
from ddrl.bench.runs import mean_parts, train_records
from ddrl.errors import UsageError
from ddrl.types import Machine

ROWS = {"fast": {"updates": 1234.5, "share": 0.25}, "slow": {"updates": 7, "left": 3}}


@dataclasses.dataclass(frozen=True)
class Own(BenchmarkArguments):
    """About this one."""

    rounds: int = 2
    """Of it."""


@dataclasses.dataclass(frozen=True)
class Both(TakesTrainOptions):
    """About that one."""

    rounds: int = 2
    """Of it."""


def benchmark(arguments=Own, **fields):
    measure = lambda arguments: {**arguments.settings(), "rows": ROWS, "bad": [{"file": "x", "bit": 3}], "rate": 0.5}
    return Benchmark("own", arguments, measure, "with {options.rounds} rounds", {"rate": "a note"}, **fields)


def test_a_table_for_each_mapping_of_mappings_and_a_line_for_each_entry_of_a_list(capsys):
    assert benchmark()(["--rounds", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines]
    for row in (["", "updates", "share", "left"], ["fast", "1,234", "0.250", ""], ["slow", "7", "", "3"]):
        assert row in cells
    assert ["rounds", "5", ""] in cells and ["rate", "0.500", "a note"] in cells
    assert "bad: file x, bit 3" in lines and any("with 5 rounds" in line for line in lines)


def test_values_that_look_like_markup_are_shown_as_they_are(capsys):
    measure = lambda arguments: {"directory": "[/x] :dog: [bold]", "rows": {"[/a]": {"[b]": "[/c]"}}}
    assert Benchmark("own", Own, measure, "[/own]")([]) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in ("[/x] :dog: [bold]", "[/a]", "[b]", "[/c]", "[/own]"))


def test_json_has_what_was_measured_and_the_machine(tmp_path):
    target = tmp_path / "result.json"
    assert benchmark()(["--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["rows"] == ROWS and found["rounds"] == 2 and "json" not in found and found["machine"]["cores"] >= 1


def test_numbers_that_are_not_finite_are_null_in_json(capsys):
    values = {"rate": math.nan, "rows": {"fast": {"updates": -math.inf, "rounds": [1.5, (math.inf, True)]}}}
    assert dataclasses.replace(benchmark(), measure=lambda arguments: values)(["--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (found["rate"], found["rows"]) == (None, {"fast": {"updates": None, "rounds": [1.5, [None, True]]}})


def test_a_failure_is_the_exit_status(capsys):
    assert benchmark(failed=lambda values: bool(values["bad"]))([]) == 1
    assert "bad: file x" in capsys.readouterr().out


def test_options_that_are_not_its_own_are_those_of_train(capsys):
    argv = ["dqn", "--rounds", "3", "--game", "pong", "--no-video", "--batch_size", "-3", "--json", "-"]
    assert benchmark(Both)(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 3
    assert found["train_options"] == ["dqn", "--game", "pong", "--no-video", "--batch_size", "-3"]
    with pytest.raises(UsageError, match="dqn belongs to no option"):
        benchmark()(argv)


def test_help_has_the_details(capsys):
    with pytest.raises(SystemExit):
        benchmark(details="kinds:\n  one  what it is")(["--help"])
    text = capsys.readouterr().out
    assert "About this one." in text and "\n  one  what it is\n" in text and "--train-options" not in text


def test_a_file_that_cannot_be_written_is_one_line_before_anything_is_measured(tmp_path):
    (tmp_path / "file").touch()
    unmeasured = dataclasses.replace(benchmark(), measure=lambda arguments: pytest.fail("it was measured"))
    for target in (tmp_path, tmp_path / "no" / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="name a file that can be written"):
            unmeasured(["--json", str(target)])


def launched(monkeypatch, status=0, said=(), stop=lambda path: None):
    """`train_records` without ranks, with a program of its own; the launcher prints these lines and returns this."""

    def train(config, resume, machine, console, ranks, stop_seconds):
        path = Path(config.run.run_dir)
        path.mkdir()
        stop(path)
        for text in said:
            console.print(text, highlight=False, markup=False)
        return status

    monkeypatch.setattr("ddrl.launch.local.train", train)
    config = preset("smoke", None, Machine(2, 1 << 40), "a2c")
    return train_records(config, ["a program"])


def test_control_c_ends_a_program_that_may_end_its_run_itself(monkeypatch):
    assert launched(monkeypatch, stop=lambda path: rundir.ask_to_stop(path, "it has all that it wants")) == []
    with pytest.raises(KeyboardInterrupt):  # as the launcher does
        launched(monkeypatch, stop=lambda path: (path / rundir.STOP).touch())


def test_a_run_that_failed_says_why_and_not_where_its_log_was(monkeypatch):
    why = "worker 0 has ended:" + 20 * " for a reason"
    with pytest.raises(UsageError) as raised:
        launched(monkeypatch, 1, ["run directory x", f"ddrl: the run failed: {why}", "see x/log.txt; go on with it"])
    assert str(raised.value) == f"the run failed: {why}"


def test_means_by_name_leave_out_what_tells_nothing():
    assert mean_parts([{"a": 1.0, "b": 0.5}, {}, {"a": 3.0}]) == {"a": 2.0, "b": 0.25}
