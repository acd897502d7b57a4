"""Findings from made-up facts: nothing wrong, then one fault at a time."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from cluster.roles import Sizes
from cluster.topology import Seat
from ddrl.commands.doctor import need_of, parse
from ddrl.doctor import report
from ddrl.doctor.checks import examine, exit_status, numbers
from ddrl.doctor.facts import Place, RankFacts, free_cores
from ddrl.doctor.survey import Finding, LinkSpeed, Need, Survey

GB = 10**9
NEED = Need(sizes=Sizes(2, 1, False, True))


def facts(rank: int, **changes: object) -> RankFacts:
    """Two ranks a node, each bound to a core of its own."""
    whole = RankFacts(
        rank=rank,
        world=4,
        seat=Seat(f"n{rank // 2 + 1}", (rank % 2,)),
        versions={"Python": "3.11", "ddrl": "1"},
        node_cores=2,
        free_cores=1,
        boot_id=f"b{rank // 2 + 1}",
        gpus=None,
        gpus_asked=False,
        memory_bytes=8 * GB,
        run_dir="/runs/a",
        base=Place("/runs", "", 50 * GB),
        places=[Place("/tmp", "", 9 * GB), Place("/dev/shm", "", GB)],
        files_limit=1024,
        locked_bytes=-1,
        rdma=False,
        ulfm=True,
        listens=["127.0.0.1"],
        nonce=f"{rank}",
    )
    return dataclasses.replace(whole, **changes)


def survey(*changed: RankFacts, **changes: object) -> Survey:
    ranks = {rank: facts(rank) for rank in range(4)} | {mine.rank: mine for mine in changed}
    whole = Survey(
        tuple(ranks.values()),
        unresolved={"n1": [], "n2": []},
        links=(LinkSpeed(0, 2, 30e-6, 1.2e9), LinkSpeed(0, 1, 1e-6, 9e9), LinkSpeed(2, 3, 2e-6, 8e9)),
        skews={"n2": -0.004},
    )
    return dataclasses.replace(whole, **changes)


def seat(rank: int, **changes: object) -> RankFacts:
    return facts(rank, seat=facts(rank).seat._replace(**changes))


def worst(findings: list[Finding]) -> tuple[str, str, str]:
    """Level, check and what was found of the first one, when it is the only one that is not fine."""
    assert [finding.level for finding in findings[1:]] == ["fine"] * (len(findings) - 1), findings
    assert findings[0].remedy
    return findings[0][:3]


def test_nothing_wrong():
    findings = examine(survey(), NEED)
    assert [tuple(finding) for finding in findings] == [
        ("fine", "ranks", "4 on 2 nodes: n1 0-1, n2 2-3; 2 workers + 1 parameter server + 1 evaluator", ""),
        ("fine", "versions", "Python 3.11, ddrl 1", ""),
        ("fine", "run directory", "/runs/a, to be made in /runs, writable and shared", ""),
        ("fine", "memory", "n1 has 8.0 GB free and needs 1.2 GB, n2 has 8.0 GB free and needs 2.0 GB", ""),
        ("fine", "cores", "one or more for each worker; each rank may use 1 core", ""),
        ("fine", "GPUs", "none asked for", ""),
        ("fine", "network", "1 pair, median 30 us, 1,200 MB/s, slowest 1,200 MB/s", ""),
        ("fine", "within a node", "2 pairs, median 2 us, 8,500 MB/s, slowest 8,000 MB/s", ""),
        ("fine", "listeners", "n1 127.0.0.1, n2 127.0.0.1", ""),
        ("fine", "host names", "all resolve: n1, n2", ""),
        ("fine", "clocks", "within 4.0 ms of one another", ""),
        ("fine", "free space", "on n1: /runs 50.0 GB, /tmp 9.0 GB, /dev/shm 1.0 GB", ""),
        ("fine", "limits", "open files and locked memory suffice", ""),
        ("fine", "worker loss", "MPI reports dead ranks (ULFM): --on-worker-loss survive works", ""),
    ]
    assert exit_status(findings) == 0


IN_N2 = Place("/runs", "Read-only file system", 50 * GB)
PROBLEMS = {
    "another version": (
        survey(facts(3, versions={"Python": "3.11", "ddrl": "2"})),
        "versions", "ddrl: 1 on n1, n2 (ranks 0-2), 2 on n2 (rank 3)",
    ),
    "no ddrl on one": (
        survey(facts(3, versions={"Python": "3.11", "ddrl": ""})),
        "versions", "ddrl: 1 on n1, n2 (ranks 0-2), nothing on n2 (rank 3)",
    ),
    "no numpy": (survey(*(facts(r, versions={"numpy": ""}) for r in range(4))), "versions", "numpy is not installed"),
    "read-only": (
        survey(facts(2, base=IN_N2), facts(3, base=IN_N2), token_unseen=(2, 3)),
        "run directory", "not writable on n2 (ranks 2-3): /runs: Read-only file system",
    ),
    "not shared": (
        survey(token_unseen=(2,), file_unseen=(3,)),
        "run directory", "/runs on n1 and on n2 (ranks 2-3) are not the same: files did not show up within 10 s",
    ),
    "other working directory": (
        survey(facts(1, run_dir="/b")), "run directory", "/runs/a on n1, n2 (ranks 0, 2-3), /b on n1 (rank 1)",
    ),
    "memory": (
        survey(facts(2, memory_bytes=GB)), "memory", "n2 has 1.0 GB free, its 2 ranks need about 2.0 GB",
    ),
    "disk": (
        survey(facts(0, places=[Place("/tmp", "", 10**6)])), "free space", "/tmp on n1 has 1 MB free",
    ),
    "clock": (survey(skews={"n2": -400.0}), "clocks", "n2 is 400.0 s behind n1"),
    "one name": (
        survey(facts(1, boot_id="b3")), "host names", "2 machines are called n1: those of ranks 0 and 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name):
    state, check, found = PROBLEMS[name]
    findings = examine(state, NEED)
    assert worst(findings) == ("problem", check, found)
    assert exit_status(findings) == 1


WARNINGS = {
    "clock": (survey(skews={"n2": 2.5}), "clocks", "n2 is 2.5 s ahead of n1"),
    "name": (survey(unresolved={"n1": ["n2"]}), "host names", "on n1 no address for n2"),
    "directory": (
        survey(*(facts(r, base=Place("/runs/a", "", GB)) for r in range(4))),
        "run directory", "/runs/a exists, and a new run needs one of its own",
    ),
    "slow network": (survey(links=(LinkSpeed(0, 2, 30e-6, 50e6),)), "network", "n1 - n2: 30 us, 50 MB/s"),
    "slow inside": (
        survey(links=(LinkSpeed(0, 1, 1e-6, 9e9), LinkSpeed(2, 3, 1e-6, 1e9))),
        "within a node", "n2: 1 us, 1,000 MB/s, where the median is 5,000 MB/s",
    ),
    "no ULFM": (
        survey(*(facts(r, ulfm=False) for r in range(4))),
        "worker loss", "MPI without ULFM: the death of any rank ends the job",
    ),
    "files": (survey(facts(3, files_limit=64)), "limits", "64 open files on n2 (rank 3), 260 may be needed"),
    "locked memory": (
        survey(facts(1, rdma=True, locked_bytes=8192)),
        "limits", "8,192 bytes of locked memory on n1 (rank 1): too few for InfiniBand",
    ),
    "bound": (survey(facts(3, free_cores=16)), "cores", "on n2 2 ranks may use 2 of 16 cores"),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings(name):
    state, check, found = WARNINGS[name]
    findings = examine(state, NEED)
    assert worst(findings) == ("warning", check, found)
    assert exit_status(findings) == 0


def test_a_world_of_another_size():
    findings = examine(survey(), Need(sizes=Sizes(4, 1, True, True)))
    assert worst(findings)[:2] == ("problem", "ranks")
    assert findings[0].found.startswith("this job has 4 ranks and the settings need 7: 4 workers")
    assert findings[0].remedy == "start 7 ranks, or change the numbers"
    assert exit_status(examine(survey(), Need())) == 0, "without settings any number will do"


def test_workers_bound_to_one_core():
    state = survey(*(facts(rank, seat=Seat("n1", (0,)), boot_id="b1") for rank in range(4)), links=(), skews={})
    level, check, found = worst(examine(state, NEED))
    assert (level, check) == ("warning", "cores")
    assert found == "on n1 2 workers (ranks 0-1) share 1 of 2 cores"


def test_an_actor_takes_as_much_memory_as_a_worker():
    findings = examine(survey(), Need(sizes=Sizes(1, 1, actors=1, replay_shards=1)))
    assert (
        Finding("fine", "memory", "n1 has 8.0 GB free and needs 1.2 GB, n2 has 8.0 GB free and needs 1.2 GB")
        in findings
    )


def test_the_settings_say_how_much_memory_ranks_need():
    sizes = {"worker": 6 * GB, "parameter_server": GB, "evaluator": 3 * GB}
    need = dataclasses.replace(NEED, memory=lambda assignments: [sizes[rank.role] for rank in assignments])
    findings = examine(survey(), need)
    assert worst(findings) == ("problem", "memory", "n2 has 8.0 GB free, its 2 ranks need about 9.0 GB")
    findings = examine(survey(facts(2, memory_bytes=9 * GB), facts(3, memory_bytes=9 * GB)), need)
    assert (
        Finding("fine", "memory", "n1 has 8.0 GB free and needs 7.0 GB, n2 has 9.0 GB free and needs 9.0 GB")
        in findings
    )


def test_a_replay_that_does_not_fit_is_a_problem():
    need = need_of(parse(["dqn", "--game", "pong"]), alone=True)
    findings = examine(Survey((facts(0, memory_bytes=7 * GB),)), dataclasses.replace(need, outside=""))
    level, check, found = worst(findings)
    assert (level, check) == ("problem", "memory")
    assert found.startswith("n1 has 7.0 GB free, its rank needs about 8.")
    assert need_of(parse(["--run-dir", "run"]), alone=False).memory is None, "no settings are given"


def test_settings_whose_memory_cannot_be_told_are_a_problem():
    need = need_of(parse(["ba3c", "--game", "brekout", "--workers", "2", "--parameter-servers", "1"]), alone=False)
    level, check, found = worst(examine(survey(), need))
    assert (level, check) == ("problem", "settings") and found.startswith("unknown game 'brekout'")


def test_gpus():
    given = [facts(rank, seat=seat(rank, gpus=("0",)).seat, gpus_asked=True, gpus=["H (UUID: 1)"]) for rank in range(4)]
    good = survey(*given, tensorflow_gpus={"n1": 1, "n2": 1})
    assert Finding("fine", "GPUs", "usable: n1 1, n2 1") in examine(good, NEED)
    hidden = survey(*given[:2], *(dataclasses.replace(mine, gpus=[]) for mine in given[2:]), tensorflow_gpus={"n1": 1})
    assert worst(examine(hidden, NEED)) == ("problem", "GPUs", "nvidia-smi on n2 shows 0 of 1 GPU")
    unusable = survey(*given, tensorflow_gpus={"n1": 1, "n2": 0})
    assert worst(examine(unusable, NEED)) == ("problem", "GPUs", "n2 has 1 GPU, and TensorFlow can use none")
    assert examine(survey(), dataclasses.replace(NEED, gpus_per_node=2))[0].level == "problem"


def test_a_rank_that_its_launcher_did_not_bind_has_what_the_launcher_has(monkeypatch):
    masks = {0: {3}, 7: {0, 1, 2, 3}}
    monkeypatch.setattr("cluster.topology.cpu_quota", lambda: math.inf)
    monkeypatch.setattr("cluster.topology.os.sched_getaffinity", lambda process: masks[process])
    assert [free_cores(process, {}) for process in masks] == [1, 4]
    assert free_cores(7, {"SLURM_CPUS_ON_NODE": "2"}) == 2
    monkeypatch.undo()
    assert free_cores(1 << 30, {}) == 0, "no process has this number"


def test_numbers():
    assert numbers([5, 0, 2, 1]) == "0-2, 5"
    assert numbers([]) == ""


def test_facts_survive_json():
    mine = seat(1, gpus=("0", "1"), own_gpus=True)
    assert RankFacts.from_json(json.loads(json.dumps(dataclasses.asdict(mine)))) == mine


def test_findings_come_without_control_characters(capsys):
    report.emit([Finding("problem", "start", "rank 1 said \x1b[2J\x9bK")], None, "")
    assert "rank 1 said ?[2J?K" in capsys.readouterr().out


def test_table_and_json():
    findings = [Finding("problem", "memory", "n1 has none", "ask for more"), Finding("fine", "cores", "many")]
    assert report.table(findings) == (
        "PROBLEM  memory         n1 has none\n"
        "                        -> ask for more\n"
        "fine     cores          many\n"
        "\n"
        "training would fail: 1 problem, 0 warnings\n"
    )
    told = json.loads(json.dumps(report.as_json(findings, survey())))
    assert (told["status"], told["findings"][0]["check"], told["survey"]["ranks"][3]["rank"]) == (1, "memory", 3)
    assert told["survey"]["links"][0] == {"a": 0, "b": 2, "latency": 30e-6, "bandwidth": 1.2e9}


def test_connections_from_other_machines_where_all_ranks_are_on_one():
    alone = Survey(tuple(facts(rank, seat=Seat("n1", (rank,)), listens=["0.0.0.0", "127.0.0.1"]) for rank in range(2)))
    found = [finding for finding in examine(alone, Need()) if finding.check == "listeners"]
    assert [(f.level, "0.0.0.0" in f.found) for f in found] == [("warning", True)] and found[0].remedy
    several = survey(facts(0, listens=["0.0.0.0"]))
    found = [finding for finding in examine(several, NEED) if finding.check == "listeners"]
    assert [tuple(f)[:3] for f in found] == [("fine", "listeners", "n1 0.0.0.0 127.0.0.1, n2 127.0.0.1")]
