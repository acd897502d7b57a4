"""How `job.sh` checks its nodes, waits when some are gone, and names the ranks of those."""

from __future__ import annotations

import os

import pytest

from ddrl.placement import start
from tests.submit.support import DIES_ONCE, STOPS, in_job, trained


@pytest.mark.parametrize("restarts", [0, 3])
@pytest.mark.parametrize("ranks", [STOPS, "echo a rank begins; exit 9"])
def test_a_run_that_ends_as_a_node_is_gone_waits_for_slurm(here, ranks, restarts):
    settings = f"REQUEUE=yes RESTARTS={restarts} NODE_SECONDS=1"
    done = trained(here, ranks, settings + "\nnodes_answer() { return 1; }")
    waits = "a node does not answer: waiting until Slurm puts the job back into the queue, 1 s at most"
    assert done.stdout.splitlines() == ["a rank begins", waits]
    assert done.returncode == 2 and "Slurm did not put the job back into the queue" in done.stderr


NODES = """\
RESTARTS=3 SLURM_JOB_NODELIST='n[1-3]' SLURM_JOB_NODELIST_HET_GROUP_1=n20,n30
nodes_answer() {{ return 1; }}
export SCRIPT=$$
cat >"$HOME/bin/sinfo" <<'END'
#!/bin/bash
[[ ,$4, == *",n[1-3],"* && ,$4, == *,n20,n30,* ]] || exit 1
{sinfo}
END
chmod +x "$HOME/bin/sinfo"
"""
SILENT = r"printf '%s\n' 'n1 alloc' 'n2 alloc*' 'n2 alloc*' 'n3 down' 'n20 idle' 'n30 down*'"
LATER = f'if [[ -e $HOME/asked ]]; then {SILENT}; kill -USR1 "$SCRIPT"; fi; touch "$HOME/asked"'
GONE = "n2 with the evaluator (rank 10), worker 1 (rank 1), worker 10 (rank 2); n30"


def with_notes(here, monkeypatch) -> None:
    """A run directory with notes of ranks; that of rank 5 is from an earlier job, and rank 6 has no role yet."""
    names = {0: "worker 0, the chief", 1: "worker 1", 2: "worker 10", 3: "worker 3", 5: "worker 5"}
    names[10] = "the evaluator"
    hosts = {0: "n1.site", 3: "n20.site"}
    (here / "run").mkdir()
    for rank, name in names.items():
        host = hosts.get(rank, "n2.site")
        monkeypatch.setattr("ddrl.placement.start.socket.gethostname", lambda host=host: host)
        start.leave_note(here / "run", {"PMIX_RANK": str(rank)}, start.IN_JOB, f"{name} (rank {rank} on {host})")
    os.utime(here / "run" / start.RANKS / "5", (1, 1))
    start.leave_note(here / "run", {"PMIX_RANK": "6"}, start.AT_MPI)


def test_the_ranks_of_nodes_that_do_not_answer_are_named(here, monkeypatch):
    with_notes(here, monkeypatch)
    done = trained(here, "exit 9", f"REQUEUE=no\n{NODES.format(sinfo=SILENT)}")
    said = f"ddrl: a node does not answer, {GONE}: submit the job again (REQUEUE=no)"
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr.splitlines(), done.stderr


@pytest.mark.slow
def test_the_ranks_of_nodes_are_named_as_soon_as_slurm_misses_them(here, monkeypatch):
    with_notes(here, monkeypatch)
    done = trained(here, "exit 9", f"REQUEUE=yes\n{NODES.format(sinfo=LATER)}")
    waits = "a node does not answer: waiting until Slurm puts the job back into the queue, 600 s at most"
    assert done.stdout.splitlines() == [waits, f"Slurm has no answer from {GONE}", "scontrol requeue 1"], done.stderr


def test_nodes_of_all_components_are_asked(here):
    asks = """{ echo "srun $*"; [[ $* != *het-group=1* ]]; }"""
    heterogeneous = "HET_GROUPS=0,1 SLURM_JOB_NUM_NODES_HET_GROUP_0=2 SLURM_JOB_NUM_NODES_HET_GROUP_1=3"
    for settings, sizes, lost in [("SLURM_JOB_NUM_NODES=4", [4], False), (heterogeneous, [2, 3], True)]:
        program = f'{settings}\ntimeout() {{ shift 3; "$@"; }}\nsrun() {asks}\nnodes_answer'
        done = in_job(here, program)
        asked = [line.partition("--nodes=")[2].split()[0] for line in done.stdout.splitlines()]
        assert asked == [str(size) for size in sizes], done.stdout + done.stderr
        assert (done.returncode != 0) == lost


@pytest.mark.parametrize("settings", ["REQUEUE=yes NODE_SECONDS=20", "REQUEUE=no"])
def test_a_slow_answer_of_slurm_is_not_a_node_that_is_gone(here, settings):
    slow = 'nodes_answer() { [[ -e $HOME/asked ]] || { touch "$HOME/asked"; return 1; }; }'
    done = trained(here, DIES_ONCE.format(status=9), f"RESTARTS=1 {settings}\n{slow}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a rank begins") == 2 and done.stdout.count("starts again") == 1


@pytest.mark.parametrize("second", ["no ddrl", "ddrl 0.9, source a", "ddrl 1.0, source b"])
def test_the_nodes_of_all_components_need_one_version_and_source(here, second):
    nodes = [f"SLURM_JOB_NUM_NODES{suffix}=1" for suffix in ("", "_HET_GROUP_0", "_HET_GROUP_1")]
    settings = " ".join(["HET_GROUPS=0,1", *nodes])
    says = f'{{ if [[ $* == *het-group=1* ]]; then echo "n3: {second}"; else echo "n1: ddrl 1.0, source a"; fi; }}'
    done = in_job(here, f'{settings}\ntimeout() {{ shift 3; "$@"; }}\nsrun() {says}\ncheck_nodes')
    assert done.returncode == 2 and f"the nodes differ (n1: ddrl 1.0, source a; n3: {second})" in done.stderr, (
        done.stderr
    )


def test_nodes_that_say_nothing_are_not_waited_for_until_the_time_is_up(here):
    done = in_job(here, "SLURM_JOB_NUM_NODES=2\nsrun() { sleep 99; }\ntimeout() { return 124; }\ncheck_nodes")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == "ddrl: not all nodes said within 600 s which ddrl they have; srun may have said why\n"
