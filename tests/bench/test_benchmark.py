"""What all benchmarks share: options, tables, JSON and the exit status."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ddrl.bench.benchmark import Benchmark, BenchmarkArguments, TakesTrainOptions
from ddrl.bench.runs import mean_parts
from ddrl.errors import UsageError

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


def test_json_has_what_was_measured_and_the_machine(tmp_path):
    target = tmp_path / "result.json"
    assert benchmark()(["--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["rows"] == ROWS and found["rounds"] == 2 and "json" not in found and found["machine"]["cores"] >= 1


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


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="name a file that can be written"):
        benchmark()(["--json", str(tmp_path / "no" / "file")])


def test_means_by_name_leave_out_what_tells_nothing():
    assert mean_parts([{"a": 1.0, "b": 0.5}, {}, {"a": 3.0}]) == {"a": 2.0, "b": 0.25}
