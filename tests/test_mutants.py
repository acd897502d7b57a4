"""The tables of mutants fit the source, and what runs them tells a mutant that is caught from one that survives."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.mutant import Applied, Mutant, mutated
from tests.mutants.runner import Outcome, Runner
from tests.mutants.tables import MUTANTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_fits_its_file_and_changes_it(mutant):
    source = (ROOT / mutant.path).read_text()
    changed = mutated(mutant, source)  # raises unless the text occurs once
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert mutant.why.endswith(".") and "\n" not in mutant.why


def test_names_are_unique_and_there_are_many():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 60
    changes = [(mutant.path, mutant.old, mutant.new) for mutant in MUTANTS]
    assert len(set(changes)) == len(changes)


def test_the_tests_that_are_named_exist():
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    assert all(mutant.tests for mutant in MUTANTS)
    assert [test for test in named if not _exists(test)] == []


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    if not (ROOT / file).exists():
        return False
    defined = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    return not name or name in defined


SOURCE = "def total(a, b):\n    return a + b\n\n\ndef half(a):\n    return a / 2\n"
TEST = "from tiny import half, total\n\n\ndef test_total():\n    assert total(1, 2) == 3 and half(0) == 0\n"


def tiny(name, old, new):
    return Mutant(name, "tiny.py", old, new, ("test_tiny.py::test_total",), "Sums.")


@pytest.mark.slow
def test_one_is_caught_one_survives_and_the_tree_stays_as_it_is(tmp_path):
    for name, text in {"tiny.py": SOURCE, "test_tiny.py": TEST}.items():
        (tmp_path / name).write_text(text)
    caught, survives = tiny("sum", "a + b", "a - b"), tiny("half", "a / 2", "a / 3")
    told = []
    with Runner(tmp_path, ("tiny.py", "test_tiny.py"), limit_seconds=60.0) as runner:
        copies = runner._directory
        assert runner.unchanged([caught, survives]) == ""
        outcomes = runner.run([caught, survives], told.append)
        assert (copies / "0" / "tiny.py").read_text() == SOURCE
    assert [(outcome.name, outcome.caught) for outcome in outcomes] == [("sum", True), ("half", False)]
    assert told == outcomes
    assert "caught by test_tiny.py::test_total" in str(outcomes[0]) and "SURVIVED" in str(outcomes[1])
    assert not copies.exists() and (tmp_path / "tiny.py").read_text() == SOURCE


def test_a_file_is_put_back_with_its_time(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text(SOURCE)
    before = path.stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt), Applied(tiny("sum", "a + b", "a - b"), tmp_path):
        assert "a - b" in path.read_text()
        assert int(path.stat().st_mtime) != before // 10**9, "what was compiled of the source must not be taken for it"
        raise KeyboardInterrupt
    assert path.read_text() == SOURCE and path.stat().st_mtime_ns == before


def test_a_text_that_does_not_occur_once_is_refused():
    with pytest.raises(ValueError, match="occurs 2 times in tiny.py"):
        mutated(tiny("twice", "return a", "return b"), SOURCE)


class Found:
    """A runner that has found something already."""

    def __init__(self, trouble=""):
        self.trouble = trouble

    def unchanged(self, mutants):
        return self.trouble

    def run(self, mutants, tell):
        return [Outcome(mutant.name, mutant.name == "sum", "", 1.0) for mutant in mutants]


def test_the_status_says_whether_one_survived(capsys):
    caught, survives = tiny("sum", "a + b", "a - b"), tiny("half", "a / 2", "a / 3")
    assert command.check(Found(), [caught]) == 0 and "none survived" in capsys.readouterr().out
    assert command.check(Found(), [caught, survives]) == 1 and "survivors: half" in capsys.readouterr().out
    assert command.check(Found("1 failed"), [caught]) == 1 and "as it is" in capsys.readouterr().err


def test_names_select_and_an_unknown_one_is_refused(capsys):
    exact, beginning = MUTANTS[0].name, MUTANTS[-1].name.partition("-")[0]
    assert command.main(["--list", exact, beginning]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [m.name for m in MUTANTS if m.name == exact or m.name.startswith(beginning)]
    assert command.main(["nothing-of-the-kind"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
