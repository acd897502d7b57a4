from __future__ import annotations

import json

import pytest

from cluster.topology import Seat
from ddrl import cli
from ddrl.commands import plan
from ddrl.types import Machine

CATCH = ["ba3c", "--game", "ddrl/Catch-v0", "--network", "mlp"]
ALLOCATION = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2),2(x2)",
    "SLURM_TASKS_PER_NODE": "2(x2),1(x2)",
}


def planned(capsys, *options, environ=None):
    assert plan.main([*CATCH, *options, "--json", "-"], environ or {}) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_of_nodes_that_are_not_there(capsys):
    answer = planned(
        capsys,
        "--workers",
        "3",
        "--parameter-servers",
        "2",
        "--nodes",
        "2",
        "--cpus-per-node",
        "4",
        "--gpus-per-node",
        "1",
        "--simulators",
        "8",
        "--batch-size",
        "10",
    )
    # An mlp of two towers: 50 -> 64 -> 64 -> 3 and 1.
    parameters = 2 * (50 * 64 + 64 + 64 * 64 + 64) + 64 * 3 + 3 + 64 + 1
    assert [rank["name"] for rank in answer["ranks"]] == [
        "worker 0, chief",
        "worker 1",
        "server 0",
        "worker 2",
        "server 1",
        "evaluator",
    ]
    assert [rank["host"] for rank in answer["ranks"]] == ["node1"] * 3 + ["node2"] * 3
    assert [rank["gpu"] for rank in answer["ranks"]] == ["0", "0", "", "0", "", ""]
    assert answer["ranks"][3] == {
        "rank": 3,
        "host": "node2",
        "role": "worker",
        "name": "worker 2",
        "index": 2,
        "is_chief": False,
        "cores": 4,
        "gpu": "0",
        "threads": {"intra_op": 2, "inter_op": 2},
        "simulators": 8,
        "simulator_threads": 2,
        "shard_bytes": 0,
        "memory_bytes": 1_000_000_000 + 8 * (5 + 1) * 50,
    }
    assert [rank["shard_bytes"] for rank in answer["ranks"] if rank["role"] == "parameter_server"] == [
        4 * (parameters - parameters // 2),
        4 * (parameters // 2),
    ]
    total = answer["totals"]
    assert (total["nodes"], total["ranks"], total["cores"], total["gpus"], total["gpus_used"]) == (2, 6, 8, 2, 2)
    assert (total["simulators"], total["parameters"], total["effective_batch"]) == (24, parameters, 30)
    assert total["bytes_per_update"] == 2 * 3 * 4 * parameters
    assert total["memory_bytes"] == sum(rank["memory_bytes"] for rank in answer["ranks"])
    assert answer["warnings"] == ["node1: 2 workers share 1 GPU: start one for each GPU"]


def test_a_slurm_allocation(capsys):
    sizes = ["--workers", "3", "--parameter-servers", "2"]
    answer = planned(capsys, *sizes, environ=ALLOCATION)
    assert answer["source"] == "Slurm job 7"
    assert [(rank["host"], rank["name"]) for rank in answer["ranks"]] == [
        ("n1", "worker 0, chief"),
        ("n1", "server 0"),
        ("n2", "worker 1"),
        ("n2", "server 1"),
        ("n3", "evaluator"),
        ("n4", "worker 2"),
    ]
    other = planned(capsys, "--workers", "2", "--ranks-per-node", "1", environ=ALLOCATION)
    assert [rank["host"] for rank in other["ranks"]] == ["n1", "n2", "n3", "n4"]


def test_this_machine_when_there_is_nothing_else(capsys):
    answer = planned(capsys, "--workers", "1", "--parameter-servers", "0", environ={"DDRL_ROLE": "evaluator"})
    assert answer["source"] == "this machine"
    assert [(rank["rank"], rank["role"], rank["shard_bytes"]) for rank in answer["ranks"]] == [(0, "worker", 0)]
    assert answer["totals"]["bytes_per_update"] == 0


def test_the_table(capsys):
    assert plan.main([*CATCH, "--nodes", "2", "--cpus-per-node", "1", "--workers", "4"], {}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ddrl/Catch-v0 on nodes as given"
    assert lines[2].split() == ["rank", "host", "role", "cores", "GPU", "TensorFlow", "simulators", "shard", "memory"]
    assert lines[3].split()[:6] == ["0", "node1", "worker", "0,", "chief", "1"]
    assert "6 ranks on 2 nodes with 2 cores and 0 GPUs" in "\n".join(lines)
    assert lines[-1].startswith("warning: node") and "workers share 1 core" in lines[-1]
    assert max(map(len, lines)) <= 110


def test_workers_that_take_turns_on_this_machine_are_told_once(capsys, monkeypatch):
    monkeypatch.setattr(plan, "this_machine", lambda: Machine(2, 64 * 10**9))
    monkeypatch.setattr(plan, "this_seat", lambda environ: Seat("here", (0, 1)))
    answer = planned(capsys, "--workers", "4", "--parameter-servers", "1")
    assert answer["warnings"] == ["4 workers share 2 cores: expect them to take turns"]


@pytest.mark.parametrize(
    "updates, batch, gradients", [(["--quorum", "2"], 64, 3), (["--updates", "asynchronous"], 32, 1), ([], 96, 3)]
)
def test_the_data_points_and_the_bytes_of_an_update(updates, batch, gradients, capsys):
    totals = planned(capsys, "--workers", "3", "--batch-size", "32", "--nodes", "1", *updates)["totals"]
    assert totals["effective_batch"] == batch
    assert totals["bytes_per_update"] == 2 * gradients * 4 * totals["parameters"]


@pytest.mark.parametrize(
    "options, why",
    [
        (["--nodes", "0"], "--nodes 0: must be between 1 and"),
        (["--gpus-per-node", "-1"], "--gpus-per-node -1: must be between 0 and"),
        (["--nodes", "two"], "--nodes two: must be a whole number"),
        (["--nodes", "2", "--ranks-per-node", "3"], "this job has 6 ranks and the settings need 4"),
        (["--nodes", "2", "--game", "brekout", "--network", "a3c"], "unknown game 'brekout'; did you mean breakout"),
        (["--nodes", "2", "--network", "nature"], "too small for network nature"),
        (["--nodes", "1", "--json", "/nowhere/plan.json"], "--json /nowhere/plan.json: No such file"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(options, why, capsys):
    assert cli.main(["plan", *CATCH, *options]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("ddrl: ")]
    assert len(lines) == 1 and why in lines[0] and captured.out == ""


def test_a_plan_starts_nothing_so_it_is_made_for_what_does_not_fit_here(capsys, monkeypatch):
    monkeypatch.setattr(plan, "this_machine", lambda: Machine(2, 8 * 10**9))
    assert plan.main(["--preset", "ba3c-paper", "--agent-steps", "1e6", "--json", "-"], {}) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["ranks"]) == 70
    assert answer["warnings"][0].startswith("`ddrl train` refuses this here: 70 ranks need about 66.0 GB of memory and")


@pytest.mark.parametrize(
    "machine, refused",
    [
        (Machine(2, 2 * 10**9), "6 ranks need about"),
        (Machine(1, 1 << 40), "5 ranks that compute are too many for 1 core,"),
    ],
)
def test_a_plan_tells_of_the_crowd_where_train_refuses_it_too(machine, refused, capsys, monkeypatch):
    monkeypatch.setattr(plan, "this_machine", lambda: machine)
    warnings = planned(capsys, "--workers", "4", "--parameter-servers", "1")["warnings"]
    assert [text for text in warnings if text.startswith(f"`ddrl train` refuses this here: {refused}")], warnings
    assert [text for text in warnings if text.startswith("4 workers share ") and text.endswith("take turns")], warnings


@pytest.mark.parametrize(
    "line, why",
    [
        ("dqn", "the replay needs 7,"),
        ("rainbow --workers 2 --parameter-servers 1", "the replays of 2 workers need 1"),
        ("hts-ppo --unroll-length 1e5 --batch-size 0", "rollouts of 100000 steps of 16 simulators need 90.3 GB"),
        (
            "ppo --workers 3 --parameter-servers 1 --simulators 4 --unroll-length 20000 --batch-size 0",
            (
                "rollouts of 20000 steps of 4 simulators need 2.3 GB of memory for observations alone (6.8 GB with all "
                "else of 3 workers), and 6.0 GB are free here: lower --unroll-length or --simulators, or --workers"
            ),
        ),
        (
            "impala --simulators 8 --unroll-length 20000 --batch-size 0",
            (
                "rollouts of 20000 steps of 8 simulators need 4.5 GB of memory for observations alone (9.0 GB with all "
                "else of the worker), and 6.0 GB are free here: lower --unroll-length or --simulators"
            ),
        ),
    ],
)
def test_a_plan_warns_of_data_that_train_refuses_here(line, why, capsys, monkeypatch):
    monkeypatch.setattr(plan, "this_machine", lambda: Machine(2, 6 * 10**9))
    assert plan.main([*line.split(), "--game", "pong", "--json", "-"], {}) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [text for text in warnings if text.startswith(f"`ddrl train` refuses this here: {why}")], warnings


def test_a_plan_tells_of_what_the_actions_of_the_game_make_vain(capsys):
    line = "ppo --preset smoke --game Pendulum-v1 --eval-epsilon 0.1 --nodes 1 --json -"
    assert plan.main(line.split(), {}) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    vain = "--eval-epsilon 0.1 does nothing in this run: only a game with discrete actions uses it"
    assert vain in warnings


def test_rollouts_and_pools_are_in_the_memory_of_workers(capsys):
    """Where acting and learning use two rollouts by turns, both."""
    line = "hts-ppo --game pong --unroll-length 2048 --batch-size 0 --nodes 1 --json -"
    assert plan.main(line.split(), {}) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["memory_bytes"] == 1_000_000_000 + 2 * 16 * (2048 + 1) * 4 * 84 * 84
    alone = ["--workers", "1", "--parameter-servers", "0", "--simulators", "8", "--batch-size", "10", "--nodes", "1"]
    (rank,) = planned(capsys, *alone, "--epochs", "2", "--pool-batches", "8")["ranks"]
    pool = 10 * 8 * (2 + 1) // 2 + 10
    assert rank["memory_bytes"] == 1_000_000_000 + (8 * (5 + 1) + pool) * 50


def test_wrong_variables_of_slurm(capsys, monkeypatch):
    for name, value in (ALLOCATION | {"SLURM_TASKS_PER_NODE": "2"}).items():
        monkeypatch.setenv(name, value)
    assert cli.main(["plan", *CATCH]) == 2
    assert "SLURM_TASKS_PER_NODE='2' is for 1 node" in capsys.readouterr().err
