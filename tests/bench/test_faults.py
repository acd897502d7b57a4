"""`ddrl bench faults` without runs: what is drawn, what must become of it, and that bad outcomes are called bad."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cluster.roles import assign_roles
from ddrl.bench.faults import command, conduct, processes, records
from ddrl.bench.faults.bounds import BEGIN_SECONDS, Bound, bound
from ddrl.bench.faults.draws import BLOCK, INTERVAL_UPDATES, KINDS, STARTING, SYSTEMS, Draw, draw, victims
from ddrl.bench.faults.outcome import Outcome, judge, summary
from ddrl.bench.faults.runs import ROLES
from ddrl.errors import UsageError
from ddrl.options.train_options import parse
from ddrl.placement.ranks import sizes_of
from ddrl.types import Machine

ALL = tuple(SYSTEMS), tuple(KINDS)


@functools.cache
def many() -> list[Draw]:
    """Draws of one seed; not made while tests are collected, which every process does."""
    return [draw(7, index, *ALL) for index in range(20_000)]


# Draws ---------------------------------------------------------------------------------------------------------


def test_a_fault_of_a_seed_is_the_same_draw_always():
    assert [draw(7, index, *ALL) for index in (0, 123, 19_999)] == [many()[0], many()[123], many()[19_999]]
    assert [draw(8, index, *ALL) for index in range(40)] != many()[:40]


def test_the_draws_reach_every_kind_of_fault_to_every_role_of_every_system():
    found = {(d.system, d.kind, d.victim) for d in many()}
    every = {(name, kind, v) for name, system in SYSTEMS.items() for kind in KINDS for v in victims(system, kind)}
    assert found == every
    assert {d.kind for d in many() if d.starting} == set(STARTING)
    assert {d.wakes for d in many() if d.kind == "rank-stop"} == {True, False}


def test_faults_follow_each_other_in_one_run_and_all_systems_have_their_turn():
    systems = [d.system for d in many()]
    for start in range(0, 300, BLOCK):
        assert len(set(systems[start : start + BLOCK])) == 1
    places = [name for name, system in SYSTEMS.items() if not system.turns_with]
    turn = BLOCK * len(places)
    for start in range(0, 4 * turn, 2 * turn):
        assert set(systems[start : start + turn]) == set(places)
        assert set(systems[start : start + 2 * turn]) == set(SYSTEMS)


def test_a_system_that_shares_a_place_changes_no_other_draw():
    without = [draw(7, index, [name for name in SYSTEMS if name != "local-sgd"], ALL[1]) for index in range(600)]
    changed = [(before, now) for before, now in zip(without, many()) if before != now]
    assert all(dataclasses.replace(now, system="allreduce") == before for before, now in changed)
    assert len(changed) == 600 // (2 * 15), "every other turn of one in fifteen"
    assert {draw(7, index, ["local-sgd"], ALL[1]).system for index in range(20)} == {"local-sgd"}


def test_only_systems_to_which_a_kind_can_happen_are_drawn():
    assert {draw(1, i, ALL[0], ("child-kill",)).system for i in range(60)} == {"ppo", "apex-dqn", "apex-dpg"}
    with pytest.raises(ValueError, match="none of these kinds"):
        draw(1, 0, ("single",), ("mpirun-kill",))


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_says_which_roles_its_ranks_have(name):
    system = SYSTEMS[name]
    config = parse(system.arguments, Machine(2, 16 << 30)).config
    roles = {"chief" if a.is_chief else ROLES.get(a.role, a.role) for a in assign_roles(sizes_of(config))}
    assert roles == set(system.roles) and system.single == config.single_process
    assert bool(system.replays) == config.has_replay


# Bounds --------------------------------------------------------------------------------------------------------


def drawn(system, kind, victim, starting=False, wakes=True):
    return Draw(0, system, kind, victim, 0.3, starting, 0.0, wakes)


def test_every_draw_has_a_bound_with_its_reason():
    for each in many():
        limit = bound(each)
        assert limit.becomes in ("ends", "goes on", "either") and 1.0 < limit.seconds < 400.0
        assert limit.why and (limit.statuses or limit.becomes == "goes on")


@pytest.mark.parametrize(
    "fault, becomes, statuses",
    [
        (drawn("sync", "rank-kill", "server"), "goes on", (1,)),
        (drawn("sync", "rank-kill", "evaluator"), "goes on", (1,)),
        (drawn("sync", "rank-stop", "worker"), "ends", (1,)),
        (drawn("quorum", "rank-stop", "worker"), "goes on", (1,)),
        (drawn("apex-dqn", "rank-stop", "shard"), "goes on", (1,)),
        (drawn("apex-dqn", "rank-stop", "shard", wakes=False), "ends", (0,)),
        (drawn("apex-dqn", "child-kill", "actor"), "goes on", (1,)),
        (drawn("ppo", "child-kill", "simulator"), "ends", (1,)),
        (drawn("ppo", "child-term", "simulator"), "goes on", (1,)),
        (drawn("sync", "rank-term", "server"), "ends", (0,)),
        (drawn("sync", "launcher-int", "launcher"), "ends", (0,)),
        (drawn("sync", "launcher-kill", "launcher"), "ends", (-9,)),
        (drawn("hts", "disk-stays-full", "all"), "ends", (1, 2)),
        (drawn("restart", "rank-kill", "worker"), "goes on", (1,)),
    ],
)
def test_what_must_become_of_a_run(fault, becomes, statuses):
    assert (bound(fault).becomes, bound(fault).statuses) == (becomes, statuses)


def test_mpirun_killed_is_no_end_that_was_asked_for():
    assert 0 not in bound(drawn("sync", "mpirun-kill", "mpirun")).statuses


def test_a_fault_while_the_ranks_begin_has_the_time_of_a_start_in_addition():
    for kind, victim in (("rank-kill", "chief"), ("launcher-kill", "launcher"), ("launcher-term", "launcher")):
        begins = bound(drawn("sync", kind, victim, starting=True))
        assert begins.seconds >= BEGIN_SECONDS
        assert kind.startswith("launcher") == (begins.becomes == "ends")


# Outcomes ------------------------------------------------------------------------------------------------------

ENDS = Bound("ends", 20.0, (0,), "a reason")
GOES_ON = Bound("goes on", 20.0, (1,), "a reason")
GOOD = Outcome(4, "sync", "rank-term", "server", became="ended", seconds=2.0, status=0, resumed=True, updates_lost=40)


def test_good_outcomes_are_good():
    assert judge(GOOD, ENDS) == []
    assert judge(dataclasses.replace(GOOD, became="went on", status=None, resumed=None), GOES_ON) == []
    assert judge(dataclasses.replace(GOOD, updates_lost=INTERVAL_UPDATES + 7, lag=7), ENDS) == []


@pytest.mark.parametrize(
    "change, why",
    [
        ({"became": "neither", "status": None}, "neither ended nor went on within 20 s"),
        ({"seconds": 21.0}, "ended after 21 s; the bound is 20 s"),
        ({"became": "went on", "status": None, "resumed": None}, "went on, but after such a fault a run ends"),
        ({"status": 1}, "exit status 1, not 0"),
        ({"processes_left": 1}, "1 process left"),
        ({"files_left": ["/dev/shm/x"]}, "files left: /dev/shm/x"),
        ({"unsound": ["checkpoint x is damaged"]}, "unsound: checkpoint x is damaged"),
        ({"resumed": False}, "does not train again"),
        ({"resumed": None}, "does not train again"),
        ({"updates_lost": INTERVAL_UPDATES + 8, "lag": 7}, "108 updates lost; the bound is 107"),
        ({"trouble": ["something else"]}, "something else"),
    ],
)
def test_a_bad_outcome_is_called_bad(change, why):
    found = judge(dataclasses.replace(GOOD, **change), ENDS)
    assert any(text.startswith(why) for text in found), found


def test_a_run_that_saves_when_it_ends_loses_no_interval():
    saves = dataclasses.replace(ENDS, saves=True)
    assert judge(dataclasses.replace(GOOD, updates_lost=7, lag=7), saves) == []
    assert judge(dataclasses.replace(GOOD, updates_lost=8, lag=7), saves)[0].startswith("8 updates lost")
    assert bound(drawn("sync", "rank-term", "server")).saves and bound(drawn("ppo", "child-kill", "simulator")).saves
    assert not bound(drawn("sync", "rank-stop", "worker")).saves


def test_an_end_where_the_run_must_go_on_is_bad():
    assert judge(GOOD, GOES_ON)[0] == "ended, but after such a fault a run goes on"


def test_the_table():
    outcomes = [
        GOOD,
        dataclasses.replace(GOOD, index=5, seconds=4.0, updates_lost=60, starting=True),
        Outcome(
            6,
            "hts",
            "rank-kill",
            "chief",
            became="went on",
            bad=["2 processes left"],
            processes_left=2,
            directory="/kept",
        ),
    ]
    found = summary(outcomes, [20.0, 20.0, 110.0])
    assert (found["kinds"]["rank-term"] | {"bound s": 0}) == {
        "faults": 2,
        "ended": 2,
        "went on": 0,
        "median s": 3.0,
        "most s": 4.0,
        "bound s": 0,
        "processes left": 0,
        "files left": 0,
        "unsound": 0,
        "resumed": 2,
        "trained again": 2,
        "updates lost": 60,
        "bad": 0,
    }
    assert found["all"]["faults"] == 3 and found["all"]["processes left"] == 2 and found["all"]["bound s"] == 110.0
    assert found["systems"] == {"hts": 1, "sync": 2}
    (bad,) = found["bad"]
    assert (bad["index"], bad["directory"], bad["why"]) == (6, "/kept", ["2 processes left"])


# What the records say ------------------------------------------------------------------------------------------


def lines(*updates):
    return [{"kind": "train", "update": update} for update in updates]


def event(name, **fields):
    return {"kind": "event", "name": name, **fields}


def test_updates_lost_are_those_between_the_last_line_and_the_resume():
    run = [*lines(90, 180), event("resumed", update=100), *lines(100, 230), event("resumed", update=200), *lines(205)]
    assert records.lost(run, since=0) == 80
    assert records.lost(run, since=3) == 30, "the earlier resume was of another fault"
    assert records.lost(run, since=3, most=210) == 10, "no checkpoint could be written after update 210"


def test_a_run_trains_where_updates_grow_after_its_last_start():
    assert records.trains(lines(10, 20)) and not records.trains(lines(20, 20)) and not records.trains(lines(20))
    again = [*lines(10, 20), event("restarted"), event("resumed", update=0)]
    assert not records.trains(again + lines(0)) and records.trains(again + lines(0, 3))
    assert not records.trains(lines(10, 20), beyond=20)


def test_the_lag_is_that_of_checkpoints_and_of_lines():
    run = [*lines(80, 95), event("checkpoint", update=100), *lines(112, 130)]
    assert records.lag(run) == 12 + 18
    assert records.lag([*lines(500), event("resumed", update=400), *lines(400, 405)]) == 5


def test_updates_that_a_full_disk_took_no_checkpoint_of_are_no_loss_of_the_run():
    before = [*lines(276), event("checkpoint_failed"), *lines(290), event("checkpoint", update=300), *lines(310)]
    full = [event("checkpoint_failed"), *lines(360, 438), event("checkpoint_failed"), *lines(447)]
    assert records.unsaved([*before, *full, event("resumed", update=300), *lines(305)], len(before)) == 447 - 310
    assert records.unsaved([*before, *full, event("checkpoint", update=500), *lines(510)], len(before)) == 447 - 310
    assert records.unsaved([*before, *lines(320)], len(before)) == 0


# Processes -----------------------------------------------------------------------------------------------------

WRITER = "import sys, time; file = open(sys.argv[1], 'ab', buffering=0); sys.stdin.read(1); file.write(b'x' * 9000)"


def started(mark, *argv):
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stderr=pipe, env=os.environ | {processes.MARK: mark})


def test_a_process_that_is_left_is_found_and_killed(tmp_path):
    mark = str(tmp_path)  # another run of the tests may be in the same test
    with started(mark, "sh", "-c", "echo 1 >&2; read line") as process:
        process.stderr.read(1)  # while a program begins (exec) the kernel shows no environment
        (found,) = processes.of_mark(mark)
        assert (found.pid, found.what) == (process.pid, processes.OTHER)
        processes.kill_all(mark)
        assert processes.of_mark(mark) == []
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "words, what",
    [
        (["python", "-m", "ddrl.roles", "RUN"], "rank"),
        (["/bin/prterun", "-n", "3", "python", "-m", "ddrl.roles", "RUN"], "mpirun"),
        (["python", "-m", "ddrl.apex.acting", "RUN"], "actor"),
        (["python", "-m", "ddrl.envs.simulator_process", "{}"], "simulator"),
        (["python", "-m", "ddrl.cli", "train"], "other"),
    ],
)
def test_processes_are_told_apart(words, what):
    assert processes._process(1, words, "A=1\0OMPI_COMM_WORLD_RANK=2\0").what == what


def test_a_limit_of_files_keeps_a_process_from_writing_until_it_ends(tmp_path):
    for number, limits in enumerate(([4000], [4000, None])):
        target = tmp_path / str(number)
        with started(str(target), sys.executable, "-c", WRITER, str(target)) as process:
            while not target.exists():
                time.sleep(0.01)
            for limit in limits:
                processes.limit_files(processes.of_mark(str(target)), *([limit] if limit else []))
            process.communicate(b"x")
            assert target.stat().st_size == (4000 if len(limits) == 1 else 9000)


def test_a_process_is_killed_when_its_temporary_file_appears(tmp_path, monkeypatch):
    """And not when the evaluator saves beside it."""
    writes = "".join(f"time.sleep(0.3); open('{tmp_path}/.{name}.tmp', 'w'); " for name in ("best.npz", "part"))
    program = f"import sys, time; sys.stdin.read(1); {writes}time.sleep(60)"
    with started("saver", sys.executable, "-c", program) as process:

        class Watching(processes.Appearances):
            """Has the process begin once its directory is watched."""

            def __enter__(self):
                process.stdin.write(b"x")
                process.stdin.flush()
                return self

        monkeypatch.setattr(processes, "Appearances", Watching)
        assert processes.kill_while_saving(process.pid, tmp_path, many()[0], 60.0)
        assert process.wait() == -signal.SIGKILL
    assert (tmp_path / ".part.tmp").exists()


class Ended:
    """A run that ends well, and what each of its ends leaves behind."""

    def __init__(self, *left):
        self._left, self.starts = list(left), 0

    def files_left(self):
        return self._left.pop(0)

    def begin(self):
        self.starts += 1

    def ask_to_end(self):
        pass

    wait = wait_gone = unsound = lambda self, *arguments: []
    wait_until_trained = lambda self, seconds: True
    status = lambda self: 0


@pytest.mark.parametrize(
    "left, starts, trouble",
    [([[]], 0, []), ([["part"], []], 1, []), ([["part"], ["part"]], 1, ["files left when it had ended: part"])],
)
def test_files_that_the_next_start_sweeps_are_not_left(tmp_path, left, starts, trouble):
    conductor = conduct.Conductor(tmp_path)
    conductor._alive = Ended(*left)
    assert conductor._end() == trouble and conductor._run.starts == starts


# The command line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--systems", "sink"], "--systems sink: there is none of that name; use some of sync, async"),
        (["--kinds", "earthquake"], "--kinds earthquake: there is none of that name"),
        (["--systems", "single", "--kinds", "mpirun-kill"], "none of these kinds can happen to these systems"),
        (["--faults", "0"], "--faults 0"),
    ],
)
def test_bad_options_are_one_line(argv, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        command.main([*argv, "--directory", str(tmp_path)])


def test_help_names_all_systems_and_kinds(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in [*SYSTEMS, *KINDS])


def test_a_directory_of_other_draws_is_refused(tmp_path):
    arguments = command.FaultsArguments(faults=3)
    outcomes = [Outcome(i, d.system, d.kind, d.victim) for i, d in enumerate(map(arguments.draw, range(2)))]
    log = tmp_path / command.LOG
    log.write_text("".join(json.dumps(dataclasses.asdict(outcome)) + "\n" for outcome in outcomes))
    assert [outcome.index for outcome in command.earlier(arguments, log)] == [0, 1]
    with pytest.raises(UsageError, match="drawn with another --seed, --systems, or --kinds"):
        command.earlier(dataclasses.replace(arguments, seed=99), log)


def test_runs_of_a_call_that_was_cut_off_are_removed_and_bad_ones_stay(tmp_path):
    for name in ("run-00000", "run-00000-2", "run-00005", "run-00005.tmp", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "run-00005.txt").touch()
    command._sweep(tmp_path, {"run-00000"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run-00000"]
    assert conduct._free(tmp_path, "run-00000") == "run-00000-2" and conduct._free(tmp_path, "run-00007") == "run-00007"


def test_two_calls_do_not_share_a_directory(tmp_path):
    with command.held(tmp_path), pytest.raises(UsageError, match="another call is using it"):
        command.main(["--faults", "1", "--directory", str(tmp_path)])


def test_a_call_that_is_terminated_ends_the_run_that_is_alive(tmp_path):
    argv = [sys.executable, "-m", "ddrl.cli", "bench", "faults", "--systems", "single", "--directory", str(tmp_path)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, env=os.environ | {processes.MARK: "not of the run"}) as process:
        try:
            while not (running := [path for path in tmp_path.glob("run-*.txt") if path.stat().st_size]):
                assert process.poll() is None
                time.sleep(0.05)
            process.terminate()
            assert process.wait(timeout=60.0) == 130
        finally:
            process.kill()  # else a test that fails waits for all of its faults
    left = [entry for entry in os.listdir("/proc") if entry.isdigit() and _mentions(entry, str(tmp_path))]
    assert running and left == [] and [path.name for path in tmp_path.iterdir()] == [command.LOG]


def _mentions(pid, text):
    try:
        with open(f"/proc/{pid}/cmdline", errors="replace") as file:
            return text in file.read()
    except OSError:
        return False


def test_runs_of_others_are_not_swept(tmp_path):
    (tmp_path / "run-00001").mkdir()
    with pytest.raises(UsageError, match="run-00001 was not made by this command"):
        command.main(["--faults", "1", "--directory", str(tmp_path)])
    assert (tmp_path / "run-00001").exists()
