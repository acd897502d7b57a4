"""The launcher with fake ranks, as a program for a terminal: launch_fake.py BEHAVIOR RUN_DIR [--resume].

--impatient: the ranks get little time to end once they were asked to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from ddrl import cli
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import ExchangeConfig, RunConfig, TrainConfig
from ddrl.launch import local as launch
from ddrl.launch import supervisor
from ddrl.types import Machine

STOP_SECONDS = 40.0  # for ranks that end, also on a busy machine
IMPATIENT_SECONDS = 3.0  # for ranks that do not


def run() -> int:
    behavior, run_dir = sys.argv[1], sys.argv[2]
    launch.finish = lambda path, console, *more: console.print("fake curve")  # no plot of a fake run
    supervisor.KILL_SECONDS = 1.0
    config = TrainConfig(
        algorithm=BA3CConfig(),
        run=RunConfig(run_dir=run_dir),
        exchange=ExchangeConfig(
            workers=2, parameter_servers=1, on_server_loss="stop" if behavior == "polite" else "restart"
        ),
    )
    program = (sys.executable, str(Path(__file__).with_name("fake_ranks.py")), behavior)
    resume = Path(run_dir) if "--resume" in sys.argv else None
    patience = IMPATIENT_SECONDS if "--impatient" in sys.argv else STOP_SECONDS
    return launch.train(config, resume, Machine(8, 1 << 40), Console(soft_wrap=True), program, patience)


if __name__ == "__main__":
    cli.dispatch = lambda arguments: run()  # the same handling of errors as the real command
    sys.exit(cli.main())
