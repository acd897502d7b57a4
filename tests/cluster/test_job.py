from __future__ import annotations

import pytest

from cluster.job import Job, detect_job

BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "70", "SLURM_NNODES": "8"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
INTERACTIVE = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "2"}


@pytest.mark.parametrize(
    "environ, job",
    [
        ({}, None),
        (BATCH_SCRIPT, None),
        (OPEN_MPI, Job(2, 4, "openmpi")),
        (BATCH_SCRIPT | OPEN_MPI, Job(2, 4, "openmpi")),
        (BATCH_SCRIPT | STEP, Job(3, 4, "slurm")),
        (BATCH_SCRIPT | STEP | {"PMIX_RANK": "1"}, Job(1, 4, "pmix")),
        ({"PMIX_RANK": "1", "SLURM_NTASKS": "6"}, Job(1, 6, "pmix")),
        ({"PMIX_RANK": "1"}, Job(1, None, "pmix")),
        ({"PMI_RANK": "0", "PMI_SIZE": "3"}, Job(0, 3, "pmi")),
        (BATCH_SCRIPT | STEP | {"PMI_RANK": "5", "PMI_SIZE": "9"}, Job(5, 9, "pmi")),
        (BATCH_SCRIPT | INTERACTIVE, None),
        (BATCH_SCRIPT | INTERACTIVE | {"PMIX_RANK": "0"}, None),
        (BATCH_SCRIPT | INTERACTIVE | OPEN_MPI, Job(2, 4, "openmpi")),
        (BATCH_SCRIPT | STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PTY_PORT": "40000"}, None),
        (BATCH_SCRIPT | STEP | {"SLURM_PTY_PORT": "40000"}, Job(3, 4, "slurm")),
        ({"SLURM_PROCID": "nonsense", "SLURM_STEP_NUM_TASKS": "4"}, None),
        ({"SLURM_PROCID": "\u00b2", "SLURM_STEP_NUM_TASKS": "4"}, None),
        ({"PMIX_RANK": "9" * 5000}, None),
    ],
)
def test_whose_rank_this_is(environ, job):
    assert detect_job(environ) == job
