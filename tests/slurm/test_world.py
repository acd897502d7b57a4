"""Ranks speak to each other as soon as MPI lets them, on nodes that have other work."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)
BUSY = 4
STARTS = 8  # without the rest two of ten were killed in MPI_Init
START_SECONDS = 120.0  # of eight ranks beside the busy programs, and beside other tests


@pytest.fixture
def busy_machine():
    """Programs that compute for as long as a test."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    yield
    for program in programs:
        program.kill()
        program.wait()


def test_no_rank_is_spoken_to_before_it_has_left_mpi_init(slurm, busy_machine):
    program = Path(__file__).with_name("ranks_speaking.py")
    settings = ("PYTHONPATH=" + str(Path(__file__).parents[2]), "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=tcp,self")
    for _ in range(STARTS):
        ranks = ("srun", "--mpi=pmix", "-N8", "-n8", "--mem-per-cpu=1", sys.executable, program)
        slurm.run("env", *settings, *ranks, seconds=START_SECONDS)
