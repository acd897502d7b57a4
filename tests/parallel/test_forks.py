"""Forks stand for ranks: they end as the ranks' processes do, and say how they ended."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.parallel.ranks_forked import PASSED_ON
from tests.parallel.support import kill, program

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "text, status",
    [
        ("raise SystemExit(3)", 3), ("1 / 0", 1), ("import os; os._exit(4)", 4), ("", 0),
        ("import os; os.abort()", -signal.SIGABRT), ("import ctypes; ctypes.CDLL(None)._exit(5)", 5),
    ],
)  # fmt: skip
def test_the_status_is_the_forks(tmp_path, text, status):
    path = tmp_path / "ends.py"
    path.write_text(text)
    with program(str(path), tmp_path) as job:
        assert job.wait(100.0) == status
    assert ("ZeroDivisionError" in job.output) == (status == 1 and "/" in text)


def test_a_fork_finds_the_modules_of_pythons_path(tmp_path):
    path, module = tmp_path / "imports.py", tmp_path / "modules" / "elsewhere.py"
    module.parent.mkdir()
    module.write_text("WORD = 'found'\n")
    path.write_text("import elsewhere; print(elsewhere.WORD)\n")
    with program(str(path), tmp_path, environment={"PYTHONPATH": str(module.parent)}) as job:
        assert job.wait(100.0) == 0, job.output
    assert "found" in job.output


def test_a_fork_has_arguments_and_environment_and_dies_with_its_process(tmp_path):
    path, told = tmp_path / "stays.py", tmp_path / "told"
    path.write_text(
        "import os, sys, time\n"
        'told = f\'{os.getpid()} {sys.argv[1]} {os.environ["TEST_WORD"]} {"tensorflow" in sys.modules}\'\n'
        f"open({str(told)!r}, 'w').write(told)\n"
        "time.sleep(100)\n"
    )
    with program(str(path), tmp_path, "first", environment={"TEST_WORD": "word"}) as job:
        job.wait_for(lambda: told.exists() and told.read_text(), "word of the fork")
        pid, *words = told.read_text().split()
        assert words == ["first", "word", "True"] and int(pid) != job.process.pid
        os.kill(int(pid), signal.SIGSTOP)  # that it cannot end by itself
        kill(job.process.pid)
        job.process.wait(60.0)
        end = time.monotonic() + 60.0
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{pid}")
        job.process.returncode = 0  # it was meant to be killed


def test_a_fork_gets_the_signals_that_ask_for_an_end(tmp_path):
    path, told = tmp_path / "hears.py", tmp_path / "told"
    path.write_text(
        "import signal, sys, time\n"
        f"for each in {list(map(int, PASSED_ON))}:\n"
        "    signal.signal(each, lambda number, frame: sys.exit(number))\n"
        f"open({str(told)!r}, 'w').close()\n"
        "time.sleep(100)\n"
    )
    for number in PASSED_ON:
        told.unlink(missing_ok=True)
        with program(str(path), tmp_path) as job:
            job.wait_for(told.exists, "word of the fork")
            job.process.send_signal(number)
            assert job.wait(100.0) == number
