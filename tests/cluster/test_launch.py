from __future__ import annotations

import sys

from cluster import launch
from cluster.launch import (
    LOCAL_TRANSPORTS,
    Launcher,
    local_environment,
    mpirun_command,
    mpirun_environment,
    parse_version,
    rank_environment,
)
from cluster.session import SessionFiles

NEW = Launcher("/x/mpirun", open_mpi=True, major=5)
OLD = Launcher("/x/mpirun", open_mpi=True, major=4)
OTHER = Launcher("/x/mpirun", open_mpi=False, major=0)


def test_commands():
    assert mpirun_command(4, ["a", "b c"], True, NEW) == (
        ["/x/mpirun", "--with-ft", "ulfm", "--host", "localhost:4", "--bind-to", "none", "-n", "4", "a", "b c"]
    )
    assert mpirun_command(4, ["a"], False, NEW) == [
        "/x/mpirun",
        "--host",
        "localhost:4",
        "--bind-to",
        "none",
        "-n",
        "4",
        "a",
    ]
    assert mpirun_command(2, ["a"], True, OLD) == [
        "/x/mpirun",
        "--host",
        "localhost:2",
        "--bind-to",
        "none",
        "-n",
        "2",
        "a",
    ]
    assert mpirun_command(2, ["a"], True, OTHER) == ["/x/mpirun", "-n", "2", "a"]


def test_versions():
    assert parse_version("m", "mpirun (Open MPI) 5.0.11\n\nReport bugs to ...") == Launcher("m", True, 5)
    assert parse_version("m", "mpirun (Open MPI) 4.1.4") == Launcher("m", True, 4)
    assert parse_version("m", "HYDRA build details:\n Version: 4.2.1") == Launcher("m", False, 0)
    assert NEW.ulfm and not OLD.ulfm and not OTHER.ulfm


def test_what_a_command_prints_need_not_be_text():
    assert launch.output_of([sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'a\\xff')"]).startswith("a")


def test_an_mpirun_that_cannot_run_is_unknown(tmp_path):
    assert launch.inspect_mpirun(str(tmp_path / "none")) == Launcher(str(tmp_path / "none"), False, 0)


def test_rank_environment():
    plain = rank_environment(as_root=False)
    assert plain["OMP_NUM_THREADS"] == "1" and "OMPI_ALLOW_RUN_AS_ROOT" not in plain
    added = rank_environment(as_root=True)
    assert added["OMPI_ALLOW_RUN_AS_ROOT"] == added["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_an_allocation_is_left_behind_and_tuning_kept():
    environ = {"SLURM_NTASKS": "1", "PMIX_RANK": "0", "PATH": "/bin", "OMPI_MCA_btl": "tcp,self"}
    # Slurm sets these since 23.11, and the mpirun of MPICH would start its ranks with srun
    environ |= {"HYDRA_BOOTSTRAP": "slurm", "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher"}
    environ |= {f"I_MPI_{name}": "slurm" for name in ("HYDRA_BOOTSTRAP", "HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")}
    assert local_environment(environ) == {"PATH": "/bin", "OMPI_MCA_btl": "tcp,self"}
    given = environ | {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "4", "SLURM_JOB_GPUS": "1,3"}
    has = {"PATH": "/bin", "OMPI_MCA_btl": "tcp,self", "SLURM_CPUS_ON_NODE": "4"}
    assert local_environment(given) == has | {"CUDA_VISIBLE_DEVICES": "1,3"}
    del given["SLURM_JOB_GPUS"]
    assert local_environment(given) == has | {"CUDA_VISIBLE_DEVICES": "-1"}, "the node's GPUs are somebody else's"


def test_mpirun_beside_this_python_comes_first(tmp_path, monkeypatch):
    for name in ("env", "path"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mpirun").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    assert launch.find_mpirun(str(tmp_path / "path")) == str(tmp_path / "env" / "mpirun")
    (tmp_path / "env" / "mpirun").unlink()
    assert launch.find_mpirun(str(tmp_path / "path")) == str(tmp_path / "path" / "mpirun")
    assert launch.find_mpirun(str(tmp_path / "nothing")) is None


def test_ranks_of_one_machine_use_no_network_whatever_a_sites_modules_say(tmp_path):
    with SessionFiles(str(tmp_path)) as files:
        found = mpirun_environment({"PATH": "/bin", "OMPI_MCA_btl": "^openib", "OMPI_MCA_pml": "ucx"}, False, files)
    assert found.items() >= ({"PATH": "/bin"} | LOCAL_TRANSPORTS | files.variables).items()
