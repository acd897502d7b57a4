"""A bare job over two machines, which mpirun starts as it does through ssh. They are namespaces of this one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cluster.launch import find_mpirun, rank_environment
from cluster.session import SEGMENT_DIRECTORY, SESSION_DIRECTORY
from cluster.topology import usable_cores
from ddrl.placement.start import notes
from tests.parallel.light import LIGHT
from tests.parallel.support import (
    CATCH,
    HERE,
    Job,
    command_of,
    finish,
    forked_light_train,
    kill,
    marked,
    needs_mpirun,
    newest,
    result,
)

pytestmark = [needs_mpirun, pytest.mark.timeout(300)]
SCRIPT = str(HERE / "two_machines.sh")
SPACES = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--uts", "--ipc", "sh")
TRIAL = """
PATH=$PATH:/usr/sbin:/sbin
mount -t tmpfs tmpfs /dev/shm
ip link add link0 type veth peer name link1
nsenter --version
hostname
"""
SMALL = (*CATCH, "--workers", "1", "--parameter-servers", "1", "--no-evaluator")
FORWARDED = ("PATH", "PYTHONPATH", LIGHT, "TEST_SHARE_SECONDS", "TEST_CONTACT_SHARE")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory for both machines, whose name is short: sockets have short names."""
    tried = subprocess.run(["env", *SPACES, "-euc", TRIAL], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no namespaces for two machines: {tried.stderr.strip()}")
    path = Path(tempfile.mkdtemp(prefix="ddrl-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def start(
    folder: Path, run_dir: Path, *argv: str, bind: str = "none", machines: Mapping[str, str] | None = None
) -> Job:
    """Two ranks of a program: rank 0 on m1, rank 1 on m2, bound to so many cores. The script reads `machines`."""
    mpirun = [find_mpirun() or "", "--prtemca", "plm_ssh_agent", f"sh {SCRIPT}", "--host", "m1:1,m2:1", "-n", "2"]
    forwarded = [word for name in FORWARDED for word in ("-x", name)]
    words = [*mpirun, "--with-ft", "ulfm", "--bind-to", bind, *forwarded, sys.executable, *argv]
    own = [f"--unset={name}" for name in (SESSION_DIRECTORY, SEGMENT_DIRECTORY)]  # of the shared memory of neither
    environment = {LIGHT: "1", "PYTHONPATH": str(HERE.parents[1]), "TEST_SHARE_SECONDS": "1"}
    environment |= {"TEST_CONTACT_SHARE": "1"} | rank_environment(as_root=True) | dict(machines or {})
    return Job([*SPACES, SCRIPT, str(folder), "env", *own, *words], run_dir, environment)


def train(folder: Path, run_dir: Path, *flags: str, machines: Mapping[str, str] | None = None) -> Job:
    argv = (str(HERE / "ranks_bare.py"), *SMALL, *flags, "--run-dir", str(run_dir))
    return start(folder, run_dir, *argv, machines=machines)


def test_ranks_on_two_machines_train_together(folder):
    with train(folder, folder / "run", "--max-updates", "3") as job:
        assert job.wait() == 0, job.output
    assert {rank: note.host for rank, note in notes(job.run_dir).items()} == {0: "m1", 1: "m2"}
    assert result(job.run_dir)["status"] == "finished"


@pytest.mark.parametrize(
    "machines, second, network",
    [({"NAME_OF_M2": "m1"}, "m1", "link0"), ({"BRIDGE": "1"}, "m2", "docker0, link0")],
    ids=["one name", "a bridge of one address"],
)
def test_ranks_whose_messages_do_not_arrive_say_where_they_are_and_what_to_do(folder, machines, second, network):
    with train(folder, folder / "run", machines=machines | {"TEST_CONTACT_SHARE": "0.01"}) as job:
        job.wait()
    said = [line for line in job.output.splitlines() if "ddrl: " in line]
    for rank, host in enumerate(("m1", second)):
        where = f"ddrl: rank {rank}, the first on {host} (network interfaces: {network}), gets no messages"
        assert sum(where in line for line in said) == 1, job.output
    assert "ddrl: MPI has started 2 ranks, but their messages did not arrive within 1.8 s: if the lines" in said[-1]
    assert "(OMPI_MCA_btl_tcp_if_include is not set; " in said[-1] and len(said) == 3, job.output
    assert not (folder / "run").exists()


def test_a_directory_that_only_has_the_same_name_on_both_is_refused_in_one_line(folder):
    for place in ("m2/run", "local"):
        (folder / place).mkdir(parents=True)
    with train(folder, folder / "local" / "run", "--max-updates", "3") as job:
        assert job.wait() == 2, job.output
    why = "is not the same directory as on rank 0; choose a --run-dir that all nodes share"
    line = f"ddrl: rank 1 on m2: {folder}/local/run {why}"
    assert job.output.count("ddrl: ") == job.output.count(line) == 1, job.output
    assert not any((folder / "m2" / "run").iterdir())


def test_a_machine_that_is_lost_ends_the_job_and_the_other_one_resumes_it(folder):
    with train(folder, folder / "run", "--max-updates", "100000", "--checkpoint-every-updates", "5") as job:
        job.wait_for_update(20)
        for pid in marked(job.mark):
            if "--kill-child" in command_of(pid):
                kill(pid)
        job.wait(60.0)
    saved = newest(job.run_dir).version
    assert saved >= 5
    finish(job.run_dir, "--resume", str(job.run_dir), "--max-updates", str(saved + 2), start=forked_light_train)
    assert result(job.run_dir)["update"] == saved + 2


def test_doctor_sees_both_machines_and_that_their_ranks_are_bound(folder):
    argv = ("-m", "ddrl.cli", "doctor", *SMALL, "--run-dir", str(folder / "run"))
    with start(folder, folder / "none", *argv, bind="hwthread") as job:
        assert job.wait() == 0, job.output
    said, cores = " ".join(job.output.split()), len(usable_cores())
    assert "fine ranks 2 on 2 nodes: m1 0, m2 1; 1 worker + 1 parameter server" in said, job.output
    assert f"{folder / 'run'}, to be made in {folder}, writable and shared" in said, job.output
    for machine in ("m1", "m2"):
        assert (f"warning cores on {machine} 1 rank may use 1 of {cores} cores" in said) == (cores > 1), job.output
