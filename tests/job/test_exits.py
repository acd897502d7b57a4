"""Who may call os._exit: ddrl itself and forked processes; what it calls may not; threads of others end the rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import os, sys, threading
from ddrl.job.exits import EnvironmentExit, refuse_exits
from ddrl.roles.main import leave_now

def ending(status):
    print("ended by", status, flush=True)

refuse_exits(ending)
{body}
"""
BY_OURS = """
ours = {"__name__": "ddrl.example"}
exec("def call(function, *arguments): return function(*arguments)", ours)
call = ours["call"]
"""


@pytest.mark.parametrize(
    "body, status, said",
    [
        (
            BY_OURS + "try:\n    call(lambda: os._exit(3))\nexcept EnvironmentExit as error:\n    print(error)",
            0,
            "__main__ called os._exit(3)",
        ),
        (
            BY_OURS + "thread = threading.Thread(target=os._exit, args=(3,))\ncall(thread.start)\nthread.join()",
            3,
            "ended by 3",
        ),
        ("leave_now(4)", 4, ""),
        (BY_OURS + "call(os._exit, 5)", 5, ""),
        (
            "child = os.fork()\nif not child: os._exit(6)\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
            0,
            "6",
        ),
    ],
)
def test_who_may_exit(body, status, said):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout.strip()) == (status, said), done.stderr
