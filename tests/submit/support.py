"""What these tests share: runs as they leave their directories, and jobs of `job.sh` with stand-ins for Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ddrl import rundir, sealed
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.slurm import site as sites

HOSTILE = "$(touch owned); `touch owned` \"'#%j"
SMOKE = ("submit", "train", "ba3c", "--preset", "smoke")
ESCAPE = "\x1b]0;owned\x07"


def a_run(path: Path, lines=(), result=None) -> Path:
    config = TrainConfig(algorithm=BA3CConfig()).changed(run={"run_dir": str(path), "max_updates": 200, "minutes": 0.0})
    rundir.create_run_dir(config)
    (path / rundir.METRICS).write_bytes(b"".join(sealed.line_bytes(line) for line in lines))
    os.utime(path / rundir.METRICS, (1, 1))  # long ago, so that nothing takes the run for one that goes on
    if result:
        rundir.write_json(path / rundir.RESULT, result)
    return path


def in_job(here, program: str, *words: str, **more: str) -> subprocess.CompletedProcess:
    """Runs a program of bash in a job; `more` are variables of the job."""
    variables = {
        "SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_END_TIME": "1", sites.VARIABLE: "", "LAUNCHER": "srun",
        "PATH": os.environ["PATH"], "HOME": str(here),
    }  # fmt: skip
    command = ["bash", "-c", f'source "{sites.HERE}/job.sh"\n{program}', "job", *words]
    return subprocess.run(command, env=variables | more, capture_output=True, text=True, timeout=100, check=False)


FAKES = """\
PATH=$HOME/bin:$PATH SLURM_JOB_NUM_NODES=1
scontrol() { echo "scontrol $*"; }
srun() { shift 3; "$@"; }
sleep() { case $1 in 60) ;; 1) command sleep 0.1 ;; *) command sleep "$1" ;; esac >/dev/null 2>&1; }
nodes_answer() { :; }
"""
"""What job.sh needs of Slurm; `srun` starts one process. The script goes on after it was put back into the queue.

What it looks at every second, it looks at ten times a second here.
"""


def trained(here, ranks: str, program: str) -> subprocess.CompletedProcess:
    """A job that trains in the directory `run`, where `ranks` is what ddrl does, and `program` what comes before."""
    ddrl = here / "bin" / "ddrl"
    ddrl.parent.mkdir()
    ddrl.write_text(f"#!/bin/bash\n{ranks}\n")
    ddrl.chmod(0o755)
    return in_job(here, f'{FAKES}{program}\ntrain "$HOME/run" 1')


DIES_ONCE = """\
echo "a rank begins, of a job that ends at ${{SLURM_JOB_END_TIME:-a time that is not told}}"
[[ -e $HOME/died ]] || {{ touch "$HOME/died"; exit {status}; }}
echo '{{"status": "stopped"}}' >"$HOME/run/result.json"
"""

STOPS = """\
echo a rank begins
echo '{"status": "stopped"}' >"$HOME/run/result.json"
"""
