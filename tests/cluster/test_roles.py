from __future__ import annotations

import random
import re
import string

import pytest

from cluster.roles import Assignment, Sizes, assign_roles, place
from cluster.topology import Seat, balanced, made_up


def test_the_laptop():
    assert assign_roles(Sizes(workers=2, parameter_servers=1, evaluator=True)) == (
        Assignment(0, "worker", 0, is_chief=True),
        Assignment(1, "worker", 1),
        Assignment(2, "parameter_server", 0),
        Assignment(3, "evaluator", 0),
    )


def test_a_dedicated_chief_comes_first_and_has_no_worker_id():
    assert assign_roles(Sizes(workers=2, parameter_servers=2, dedicated_chief=True)) == (
        Assignment(0, "chief", 0, is_chief=True),
        Assignment(1, "worker", 0),
        Assignment(2, "worker", 1),
        Assignment(3, "parameter_server", 0),
        Assignment(4, "parameter_server", 1),
    )


def test_the_paper_has_70_ranks_and_one_chief():
    roles = assign_roles(Sizes(workers=64, parameter_servers=4, dedicated_chief=True, evaluator=True))
    assert len(roles) == 70
    assert [assignment.rank for assignment in roles] == list(range(70))
    assert [assignment.rank for assignment in roles if assignment.is_chief] == [0]


@pytest.mark.parametrize("evaluator", [False, True])
def test_a_single_process_evaluates_in_line(evaluator):
    assert assign_roles(Sizes(1, 0, evaluator=evaluator)) == (Assignment(0, "worker", 0, is_chief=True),)


@pytest.mark.parametrize("sizes", [(0, 1), (0, 0), (1, -1)])
def test_sizes_that_make_no_job(sizes):
    with pytest.raises(ValueError):
        assign_roles(Sizes(*sizes))


def test_workers_without_servers_have_an_evaluator():
    assert assign_roles(Sizes(2, 0, evaluator=True)) == (
        Assignment(0, "worker", 0, is_chief=True),
        Assignment(1, "worker", 1),
        Assignment(2, "evaluator", 0),
    )


def test_no_server_and_a_dedicated_chief_make_no_job():
    with pytest.raises(ValueError):
        assign_roles(Sizes(1, 0, dedicated_chief=True))


def seats(*ranks_per_node, cores=4, gpus=0):
    """Ranks node by node, on hosts a, b, c, ..."""
    return made_up(ranks_per_node, cores, gpus, string.ascii_lowercase[: len(ranks_per_node)])


def words(assignments):
    """One word for each rank: w0 s1 e."""
    letters = {"worker": "w", "parameter_server": "s", "evaluator": "e", "chief": "c"}
    return " ".join(
        letters[a.role] + (str(a.index) if a.role in ("worker", "parameter_server") else "") for a in assignments
    )


def test_whole_assignments_on_nodes_of_different_sizes():
    assert place(seats(2, 2, 1, 1), Sizes(3, 2, evaluator=True)) == (
        Assignment(0, "worker", 0, True, "a", 4),
        Assignment(1, "parameter_server", 0, False, "a", 1),
        Assignment(2, "worker", 1, False, "b", 4),
        Assignment(3, "parameter_server", 1, False, "b", 1),
        Assignment(4, "evaluator", 0, False, "c", 4),
        Assignment(5, "worker", 2, False, "d", 4),
    )


@pytest.mark.parametrize(
    "ranks_per_node, sizes, roles",
    [
        ((4,), dict(workers=2, parameter_servers=1, evaluator=True), "w0 w1 s0 e"),
        ((5,), dict(workers=2, parameter_servers=2, dedicated_chief=True), "c w0 w1 s0 s1"),
        ((2, 2), dict(workers=2, parameter_servers=2), "w0 s0 w1 s1"),
        ((2, 2), dict(workers=3, parameter_servers=1), "w0 s0 w1 w2"),  # the chief has most to do
        ((1, 3), dict(workers=2, parameter_servers=2), "w0 w1 s0 s1"),  # the chief's node has no rank to spare
        ((1, 1, 1, 1), dict(workers=2, parameter_servers=1, evaluator=True), "w0 s0 e w1"),
        ((3, 1, 1), dict(workers=2, parameter_servers=3), "w0 w1 s0 s1 s2"),
        ((2, 2), dict(workers=2, parameter_servers=1, evaluator=True), "w0 s0 w1 e"),
        ((1, 2, 2), dict(workers=3, parameter_servers=1, evaluator=True), "w0 w1 s0 w2 e"),  # not the server's
        ((1,), dict(workers=1, parameter_servers=0, evaluator=True), "w0"),
        ((2, 4), dict(workers=2, parameter_servers=2, dedicated_chief=True, evaluator=True), "c s0 w0 w1 s1 e"),
    ],
)
def test_servers_are_spread_and_the_evaluator_is_kept_from_the_chief(ranks_per_node, sizes, roles):
    assert words(place(seats(*ranks_per_node), Sizes(**sizes))) == roles


def test_ranks_dealt_out_in_turn():
    dealt = seats(1, 1) * 3
    assert words(place(dealt, Sizes(workers=3, parameter_servers=2, evaluator=True))) == "w0 w1 w2 s0 s1 e"


def test_the_paper_on_16_nodes():
    assignments = place(made_up(balanced(70, 16), 32), Sizes(64, 4, dedicated_chief=True, evaluator=True))
    servers = [a.host for a in assignments if a.role == "parameter_server"]
    assert servers == ["node2", "node3", "node4", "node5"]  # of the fuller ones, which gain most
    assert [a.host for a in assignments if a.role == "evaluator"] == ["node7"]
    assert {a.cores for a in assignments if a.role == "worker"} == {6, 8, 10}  # 10 beside the evaluator
    assert len(assignments) == 70 and sum(a.role == "worker" for a in assignments) == 64


def wishing(topology, *wishes):
    return tuple(seat._replace(wish=wish) for seat, wish in zip(topology, wishes, strict=True))


def test_a_component_of_servers():
    apart = seats(3) + tuple(seat._replace(host="server-node", wish="parameter_server") for seat in seats(2))
    assert place(apart, Sizes(2, 2, evaluator=True)) == (
        Assignment(0, "worker", 0, True, "a", 2),
        Assignment(1, "worker", 1, False, "a", 2),
        Assignment(2, "evaluator", 0, False, "a", 1),
        Assignment(3, "parameter_server", 0, False, "server-node", 1),
        Assignment(4, "parameter_server", 1, False, "server-node", 1),
    )


@pytest.mark.parametrize(
    "wishes, sizes, roles",
    [
        (("", "parameter_server", "", ""), dict(workers=3, parameter_servers=1), "w0 s0 w1 w2"),
        (("", "parameter_server", "", ""), dict(workers=2, parameter_servers=2), "w0 s0 w1 s1"),
        (("", "evaluator", "", ""), dict(workers=2, parameter_servers=1, evaluator=True), "w0 e w1 s0"),
        (("worker",) * 3 + ("",), dict(workers=2, parameter_servers=1, dedicated_chief=True), "c w0 w1 s0"),
        (("worker", "worker", "worker", ""), dict(workers=3, parameter_servers=1), "w0 w1 w2 s0"),
    ],
)
def test_wishes_are_had(wishes, sizes, roles):
    assert words(place(wishing(seats(2, 2), *wishes), Sizes(**sizes))) == roles


@pytest.mark.parametrize(
    "wishes, sizes, why",
    [
        (("", "server", "", ""), (3, 1), "DDRL_ROLE='server' on rank 1 (a): use one of worker, parameter_server"),
        (
            ("parameter_server", "", "", ""),
            (3, 1),
            "rank 0 (a), which is the chief: start the workers' component first",
        ),
        (("", "parameter_server", "parameter_server", ""), (3, 1), "2 ranks with DDRL_ROLE=parameter_server, and the"),
        (("worker",) * 4, (3, 1), "4 ranks with DDRL_ROLE=worker, and the settings need 3"),
        (("",) + ("worker",) * 3, (3, 1), "4 ranks with DDRL_ROLE=worker, the chief included, and the settings need 3"),
        (("", "", "", "evaluator"), (3, 1), "1 rank with DDRL_ROLE=evaluator, and the settings need 0"),
    ],
)
def test_wishes_that_contradict_the_sizes(wishes, sizes, why):
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        place(wishing(seats(2, 2), *wishes), Sizes(*sizes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_another_number_of_ranks(ranks):
    has = "1 rank" if ranks == 1 else f"{ranks} ranks"
    why = f"this job has {has} and the settings need 4: 2 workers + 1 parameter server + 1 evaluator; start 4 ranks"
    with pytest.raises(ValueError, match=re.escape(why)):
        place(seats(ranks), Sizes(2, 1, evaluator=True))


def cores_of(assignments):
    return [a.cores for a in assignments]


@pytest.mark.parametrize(
    "masks, sizes, cores",
    [
        ([range(8)] * 3, dict(workers=2, parameter_servers=1), [4, 4, 1]),  # unbound: the node is divided
        ([range(8)] * 4, dict(workers=2, parameter_servers=1, evaluator=True), [4, 4, 1, 2]),
        ([range(2)] * 4, dict(workers=3, parameter_servers=1), [1, 1, 1, 1]),  # more ranks than cores
        ([range(2), range(2, 8), range(8)], dict(workers=2, parameter_servers=1), [2, 6, 1]),  # bound apart
        ([range(4)] * 2 + [range(4, 8)] * 2, dict(workers=3, parameter_servers=1), [2, 2, 4, 1]),  # to sockets
        ([()] * 3, dict(workers=2, parameter_servers=1), [1, 1, 1]),  # nobody knows
        ([range(6)], dict(workers=1, parameter_servers=0), [6]),
    ],
)
def test_cores(masks, sizes, cores):
    assert cores_of(place([Seat("a", tuple(mask)) for mask in masks], Sizes(**sizes))) == cores


def gpus_of(assignments):
    return [a.gpu for a in assignments]


@pytest.mark.parametrize(
    "topology, sizes, gpus",
    [
        (seats(3, gpus=2), dict(workers=2, parameter_servers=1), ["0", "1", ""]),
        (seats(3, 3, gpus=2), dict(workers=4, parameter_servers=2), ["0", "1", "", "0", "1", ""]),
        (seats(4, gpus=2), dict(workers=3, parameter_servers=1), ["0", "1", "0", ""]),  # shared only when too few
        (seats(2, gpus=4), dict(workers=1, parameter_servers=1), ["0", ""]),
        (seats(4, gpus=2), dict(workers=2, parameter_servers=1, dedicated_chief=True), ["", "0", "1", ""]),
        ([Seat("a", (), ("0",), own_gpus=True)] * 3, dict(workers=2, parameter_servers=1), ["0", "0", ""]),
        (
            [Seat("a", (), ("GPU-1",)), Seat("a", (), ("GPU-2",)), Seat("a")],
            dict(workers=2, parameter_servers=1),
            ["GPU-1", "GPU-2", ""],
        ),
    ],
)
def test_gpus(topology, sizes, gpus):
    assert gpus_of(place(topology, Sizes(**sizes))) == gpus


def test_servers_take_the_ranks_that_have_no_gpu():
    topology = seats(2, 2, gpus=2) + tuple(seat._replace(host="c") for seat in seats(3))
    assert words(place(topology, Sizes(4, 2, evaluator=True))) == "w0 w1 w2 w3 s0 s1 e"


def random_topology(draw):
    hosts = [f"h{n}" for n in range(draw.randint(1, 8))]
    topology = []
    for host in hosts:
        cores, gpus = tuple(range(draw.randint(1, 8))), tuple(map(str, range(draw.choice((0, 0, 2)))))
        topology += [Seat(host, cores, gpus)] * draw.randint(1, 6)
    if draw.random() < 0.3:
        draw.shuffle(topology)
    return topology


@pytest.mark.parametrize("seed", range(20))
def test_what_holds_for_every_topology(seed):
    draw = random.Random(seed)
    for _ in range(25):
        topology = random_topology(draw)
        dedicated, evaluator = draw.random() < 0.5, draw.random() < 0.5
        most = len(topology) - 1 - dedicated - evaluator
        if most < 1:
            continue
        servers = draw.randint(1, most)
        workers = len(topology) - servers - dedicated - evaluator
        if workers < 1:
            continue
        check(topology, place(topology, Sizes(workers, servers, dedicated, evaluator)), workers, servers)


def check(topology, assignments, workers, servers):
    assert [a.rank for a in assignments] == list(range(len(topology)))
    assert [a.host for a in assignments] == [seat.host for seat in topology]
    assert [a.rank for a in assignments if a.is_chief] == [0]
    assert [a.index for a in assignments if a.role == "worker"] == list(range(workers))
    assert [a.index for a in assignments if a.role == "parameter_server"] == list(range(servers))
    for host in {seat.host for seat in topology}:
        here = [a for a in assignments if a.host == host]
        assert [a.role for a in here if not a.is_chief] == sorted(
            (a.role for a in here if not a.is_chief), key=["worker", "parameter_server", "evaluator"].index
        )
        mine = next(seat for seat in topology if seat.host == host)
        total = sum(a.cores for a in here if a.role == "worker")
        assert total <= max(len(mine.cores), sum(a.role == "worker" for a in here))
        used = [a.gpu for a in here if a.role == "worker"]
        assert set(used) <= (set(mine.gpus) or {""}) and len(set(used)) == min(len(used), max(1, len(mine.gpus)))
    check_spread(topology, assignments)


def check_spread(topology, assignments):
    """No node has two servers while another that has a rank to spare, beyond its GPUs, has none."""
    servers = {seat.host: 0 for seat in topology}
    spare = dict(servers)
    for mine in assignments:
        servers[mine.host] += mine.role == "parameter_server"
        spare[mine.host] += mine.role == "worker" and not mine.is_chief
    for host, count in servers.items():
        gpus = len(next(seat.gpus for seat in topology if seat.host == host))
        computing = sum(a.role == "worker" for a in assignments if a.host == host)
        if count == 0 and spare[host] and computing > gpus:
            assert max(servers.values()) < 2


def test_apex_on_one_machine():
    roles = assign_roles(Sizes(1, 0, evaluator=True, actors=2, replay_shards=1))
    assert [(a.role, a.index) for a in roles] == [
        ("worker", 0),
        ("actor", 0),
        ("actor", 1),
        ("replay_shard", 0),
        ("evaluator", 0),
    ]
    assert [a.is_chief for a in roles] == [True, False, False, False, False]


def test_apex_on_nodes_spreads_shards_and_gives_the_learner_what_actors_leave():
    nodes = seats(3, 3, 2, cores=4)
    roles = place(nodes, Sizes(1, 1, evaluator=True, actors=3, replay_shards=2))
    by_host = {host: [a.role for a in roles if a.host == host] for host in "abc"}
    assert sorted(host for host in by_host for role in by_host[host] if role == "replay_shard") == ["b", "c"]
    assert by_host["a"][0] == "worker" and sum(map(len, by_host.values())) == 8
    learner = roles[0]
    assert learner.cores == 4 - by_host["a"].count("actor") and all(
        a.cores == 1 for a in roles if a.role == "replay_shard"
    )
    alone = [a.cores for a in roles if a.role == "actor" and a.host != "a"]
    assert alone and min(alone) > 1, "where nobody learns, actors divide the processors"


def test_an_actors_wish_is_had():
    wishes = ["worker", "replay_shard", "actor", "actor", "evaluator"]
    nodes = [seat._replace(wish=wish) for seat, wish in zip(seats(5), wishes)]
    assert [a.role for a in place(nodes, Sizes(1, 0, evaluator=True, actors=2, replay_shards=1))] == wishes


@pytest.mark.parametrize(
    "sizes",
    [
        {"actors": 2},
        {"replay_shards": 1},
        {"workers": 2, "actors": 1, "replay_shards": 1},
        {"parameter_servers": 1, "dedicated_chief": True, "actors": 1, "replay_shards": 1},
    ],
)
def test_sizes_that_make_no_apex(sizes):
    with pytest.raises(ValueError):
        assign_roles(Sizes(**{"workers": 1, "parameter_servers": 0} | sizes))
