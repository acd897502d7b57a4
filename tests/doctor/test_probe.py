"""Files by which ranks see each other, the watched child, and the words for what went wrong at the start."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from cluster.job import Job
from ddrl import cli, rundir
from ddrl.doctor import examination, probe
from ddrl.doctor.examination import RankExamination, alone_in_world, late_start, mpi_library, silent_ranks
from ddrl.doctor.probe import RANK_0_FILE, Arrival, Probe, job_name, nearest_existing, rank_file
from ddrl.doctor.survey import Need
from ddrl.doctor.watch import Died, Overdue, guarded


def test_two_ranks_see_each_other_and_leave_nothing(tmp_path):
    run_dir = tmp_path / "a" / "b"
    ranks = [Probe(run_dir, "job", rank) for rank in range(2)]
    for rank in ranks:
        assert rank.arrive(f"n{rank.rank}").error == ""
    ranks[0].write_token("t")
    assert ranks[1].sees({RANK_0_FILE: "t"}) == {RANK_0_FILE}
    assert ranks[0].sees({rank_file(n): ranks[n].nonce for n in (0, 1)}) == {"rank-0", "rank-1"}
    assert ranks[0].arrivals() == {0: Arrival("n0", ""), 1: Arrival("n1", "")}
    ranks[1].clean()
    assert list(ranks[0].arrivals()) == [0]
    ranks[0].clean()
    assert list(tmp_path.iterdir()) == []


def test_another_directory_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "SEEN_SECONDS", 0.1)
    here, there = Probe(tmp_path, "job", 0), Probe(tmp_path, "other", 1)
    here.arrive("n0")
    there.arrive("n1")
    here.write_token("t")
    assert not there.sees({RANK_0_FILE: "t"})
    assert here.sees({rank_file(1): there.nonce}) == set()


def test_a_directory_that_takes_no_file(tmp_path):
    (tmp_path / ".ddrl-doctor-job").write_text("in the way")
    place = Probe(tmp_path, "job", 0).arrive("n0")
    assert (place.path, place.error) == (str(tmp_path), "File exists")


def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path):
    """Where many may write, somebody else may have made it, since the number of a job is known before it begins."""
    own = tmp_path / "own"
    own.mkdir()
    names = ("thesis", RANK_0_FILE, rank_file(0))
    for name in names:
        (own / name).write_text("kept")
    (tmp_path / ".ddrl-doctor-job").symlink_to(own)
    rank = Probe(tmp_path, "job", 0)
    assert rank.arrive("n0").error == ".ddrl-doctor-job is a link"
    rank.write_token("t")
    rank.clean()
    assert {file.name: file.read_text() for file in own.iterdir()} == dict.fromkeys(names, "kept")


def test_a_file_of_somebody_else_ends_in_no_traceback(tmp_path):
    rank = Probe(tmp_path, "job", 0)
    rank.arrive("n0")
    for number, content in enumerate(({"x": 1}, {"host": [], "failure": {}}), 1):
        rundir.write_json(tmp_path / ".ddrl-doctor-job" / rank_file(number), content)
    assert [type(arrival.failure) for arrival in rank.arrivals().values()] == [str] * 3


def test_only_files_that_ranks_write_are_removed(tmp_path):
    rank = Probe(tmp_path, "job", 0)
    rank.arrive("n0")
    for name in ("thesis", "rank-1", ".rank-1.77.tmp", ".token.7f.tmp"):
        (tmp_path / ".ddrl-doctor-job" / name).touch()
    rank.clean()
    assert [file.name for file in (tmp_path / ".ddrl-doctor-job").iterdir()] == ["thesis"]


def test_names():
    assert job_name({"PMIX_NAMESPACE": "prterun-n1@1"}) == "prterun-n1_1"
    assert job_name({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}) == "7-0"
    assert job_name({}) == "job"
    assert mpi_library("Open MPI v5.0.11, package: Open MPI x\nident: 5\0") == "Open MPI v5.0.11"
    assert str(nearest_existing(Path("/nothing/of/that"))) == "/"


def test_the_watched_child():
    assert guarded(lambda began: 3, 20.0, 20.0) == 3
    with pytest.raises(Overdue, match="the start"):
        guarded(lambda began: time.sleep(60.0), 0.1, 60.0)
    with pytest.raises(Overdue, match="the checks"):
        guarded(lambda began: began() or time.sleep(60.0), 60.0, 0.1)
    with pytest.raises(Died):
        guarded(lambda began: os.kill(os.getpid(), 9), 20.0, 20.0)


def test_what_kept_the_ranks_apart():
    arrivals = {0: Arrival("n1", ""), 1: Arrival("n1", "")}
    assert late_start(4, arrivals, 60.0).found == (
        "no sign of ranks 2-3 within 60 s; ranks that came: 0 on n1, 1 on n1"
    )
    assert late_start(2, arrivals, 60.0).found == (
        "MPI did not start within 60 s, though all ranks came: 0 on n1, 1 on n1"
    )
    silent = silent_ranks([1], "its plan", arrivals, 60.0)
    assert silent.found == "rank 1 on n1 did not answer within 60 s (awaited: its plan)"
    assert "name the right one (Open MPI: OMPI_MCA_btl_tcp_if_include=" in silent.remedy
    wrong = alone_in_world(Job(0, 4, "slurm"), 1, "Open MPI v5")
    assert wrong.found == "4 ranks were started, but each is an MPI world of 1: Open MPI v5 does not know its launcher"
    assert wrong.remedy.startswith("srun --mpi=pmix") and wrong.remedy.endswith(", or this MPI's own mpirun")
    assert alone_in_world(Job(0, 4, "slurm"), 4, "") is None
    assert alone_in_world(Job(0, 1, "slurm"), 1, "") is None


def test_one_process_needs_no_mpi(tmp_path, capsys):
    arguments = ["doctor", "--workers", "1", "--parameter-servers", "0"]
    assert cli.main([*arguments, "--run-dir", str(tmp_path / "run")]) in (0, 1)
    assert "run directory  " in capsys.readouterr().out
    assert cli.main([*arguments, "--run-dir", "/proc/x/run"]) == 1
    assert "PROBLEM  run directory  not writable on " in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--timeout", "x"], ["--gpus-per-node", "-1"], ["--workers", "0"]])
def test_bad_input(wrong, capsys):
    assert cli.main(["doctor", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_rank_without_mpi_is_heard_where_no_file_can_be_written(tmp_path, monkeypatch, capfd):
    (tmp_path / ".ddrl-doctor-job").write_text("in the way")
    for name in {name for names in probe.JOB_VARIABLES for name in names}:
        monkeypatch.delenv(name, raising=False)

    def no_mpi():
        raise ImportError("libmpi.so: not found")

    def emit(findings, survey):
        print(findings[0].found, flush=True)  # in the child

    monkeypatch.setattr(examination, "settled_world", no_mpi)
    ranks = [RankExamination(Job(rank, 2, "slurm"), Need(), tmp_path, 0.2, emit) for rank in (0, 1)]
    assert [rank.run() for rank in ranks] == [1, 0]
    out, err = capfd.readouterr()
    host = socket.gethostname()
    assert out.startswith(f"rank 0 on {host}: MPI cannot be loaded: ")
    assert err.startswith(f"rank 1 on {host}: MPI cannot be loaded: ")
