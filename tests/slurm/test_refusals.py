"""What cannot be: one line from rank 0, status 2, and the job is gone from the queue. No rank loads TensorFlow."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ddrl.reporting.machine import ddrl_version
from tests.slurm.conftest import VENV

pytestmark = pytest.mark.timeout(400)
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")
SETTINGS = """\
SERVERS=1 REQUEUE=yes RESTARTS=2
OPTIONS=(--preset smoke --no-evaluator --workers 1 {options})
{more}
"""
STAND_IN = """\
#!/bin/bash
if [[ $SLURMD_NODENAME == n2 ]]; then {there}; fi
exec {ddrl} "$@"
"""


class Case(NamedTuple):
    """A job that cannot be, and what its one line says.

    Attributes:
        more, site: lines for the script's settings, and for the site's.
        there: what `ddrl` does on node n2 alone, in place of or before its work.
    """

    said: str
    options: str = ""
    more: str = ""
    site: str = ""
    sbatch: tuple[str, ...] = ()
    launcher: str = "mpirun"
    mpi: str = "pmix"
    there: str = ""


READ_ONLY = (
    'mkdir -p "$RUNS"; exec unshare --mount bash -c \'mount --bind -r "$RUNS" "$RUNS"; exec "$0" "$@"\' {ddrl} "$@"'
)
CASES = {
    "more roles than ranks": Case("has 2 ranks and the settings need 10: 9 workers + 1 par", "--workers 9"),
    "no rank for a worker": Case(
        "2 ranks leave none for workers beside 2 parameter servers and 1 evaluator", more="SERVERS=2 OPTIONS=()"
    ),
    "a mistake": Case("adam-epsilon", "--adam-epsilon -1", launcher="srun"),
    "a game that is not": Case("brakeout", "--game brakeout --network a3c", launcher="srun"),
    "no directory": Case("cannot make run directory /sys/ddrl", site="RUNS=/sys/ddrl"),
    "too short": Case("the first checkpoint is due after 5", "--minutes 9", sbatch=("--time=3",), launcher="srun"),
    "MPI of another kind": Case("the launcher started 2 ranks, but MPI sees 1", launcher="srun", mpi="none"),
    "a node without ddrl": Case(f"n1: ddrl {ddrl_version()}; n2: no ddrl", there="exit 127", launcher="srun"),
    "two versions": Case(f"n1: ddrl {ddrl_version()}; n2: ddrl 0.0.1", there='echo "ddrl 0.0.1"; exit'),
    "read-only on one node": Case(
        "rank 1 on n2: cannot write in", site="export RUNS", launcher="srun", there=READ_ONLY
    ),
    "no number of ranks": Case("SLURM_NTASKS='many'", more="export SLURM_NTASKS=many"),
}


@pytest.fixture(scope="module")
def jobs(submit, tmp_path_factory):
    """All cases at once, as each waits more than it works."""
    submitted = {}
    for name, case in CASES.items():
        site = case.site
        if case.there:
            program = tmp_path_factory.mktemp("venv") / "bin" / "ddrl"
            program.parent.mkdir()
            program.write_text(STAND_IN.replace("{there}", case.there).replace("{ddrl}", f"{VENV}/bin/ddrl"))
            program.chmod(0o755)
            site += f"\nVENV={program.parents[1]}; load_modules() {{ export PATH={VENV}/bin:$PATH; }}"
        submitted[name] = submit(
            "train.sbatch",
            SETTINGS.format(options=case.options, more=case.more),
            *TWO_NODES,
            "--nodelist=n1,n2",
            *case.sbatch,
            launcher=case.launcher,
            mpi=case.mpi,
            site=site,
        )
    return submitted


@pytest.mark.parametrize("name", CASES)
def test_refused_in_one_line(jobs, name):
    job = jobs[name]
    assert job.wait() == ("FAILED", "2:0"), job.output
    said = [line for line in job.output.splitlines() if line.startswith("ddrl: ")]
    assert len(said) == 1 and CASES[name].said in said[0], job.output
    assert "Traceback" not in job.output
