"""`ddrl bench profile`: spans, what they come to, and whether the methods that it wraps are still there."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import json
import os
import threading
import time
from pathlib import Path

import pytest

import ddrl.envs
from ddrl import algorithms, cli, rundir
from ddrl.bench.profile import command, parts, rank
from ddrl.bench.profile.parts import GRADIENT, IDLE, PARTS, installed, owner_of
from ddrl.bench.profile.report import REST, Rank, report, trace
from ddrl.bench.profile.spans import Recorder, Span, Total, clipped, self_times, thread_time
from ddrl.envs import envpool_environment
from ddrl.errors import UsageError
from ddrl.types import Machine, Snapshot

MACHINE = Machine(2, 16 * 10**9)
MS = 1_000_000
NAMES = [name for names in PARTS.values() for name in names]


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def recorded(work, *names):
    """The spans of this thread while `work` is called with wrapped functions of these parts."""
    recorder = Recorder()
    recorder.active = True
    functions = {"sleep": time.sleep, "burn": burn}
    work(*(recorder.wrap(name, functions.get(name, lambda run: run())) for name in names))
    ((_, spans),) = recorder.tracks()
    return spans


# spans ----------------------------------------------------------------------------------------------------------------


def test_a_sleep_is_waiting_and_a_loop_is_processor_time():
    def work(sleep, burn):
        sleep(0.05)
        burn(0.05)

    totals = self_times(clipped(recorded(work, "sleep", "burn"), 0, time.monotonic_ns()))
    assert totals["sleep"].wall >= 50 * MS > 10 * MS > totals["sleep"].processor
    assert totals["burn"].processor >= 50 * MS and totals["burn"].busy >= 50 * MS
    assert totals["burn"].wall >= totals["burn"].processor - MS
    assert [total.calls for total in totals.values()] == [1, 1]


def test_what_a_part_calls_is_not_counted_in_it():
    def work(outer, burn):
        outer(lambda: (burn(0.01), burn(0.01)))

    begin = time.monotonic_ns()
    totals = self_times(clipped(recorded(work, "outer", "burn"), 0, time.monotonic_ns()))
    assert totals["burn"].calls == 2 and totals["outer"].calls == 1
    assert totals["burn"].processor >= 20 * MS > 10 * MS > totals["outer"].processor
    assert sum(total.wall for total in totals.values()) <= time.monotonic_ns() - begin


def test_self_times_of_three_levels_and_of_a_part_within_itself():
    spans = [
        Span("a", 0, 100, 80, 90),
        Span("b", 10, 60, 30, 40),
        Span("b", 20, 50, 20, 25),  # a method of the same part, such as an environment around another
        Span("c", 25, 30, 5, 5),
        Span("c", 60, 70, 10, 10),  # begins where the one before it ends
        Span("a", 200, 210, 0, 0),
    ]
    found = self_times(clipped(reversed(spans), 0, 1000))
    assert found == {"a": Total(2, 50, 40, 40), "b": Total(1, 45, 25, 35), "c": Total(2, 15, 15, 15)}


def test_spans_are_cut_where_the_window_begins_and_ends():
    spans = [Span("inner", 5, 100, 50, 95), Span("outer", 0, 100, 60, 100), Span("before", -9, -3, 6, 6)]
    found = clipped(spans, 10, 60)
    assert found == [Span("outer", 10, 60, 30, 50), Span("inner", 10, 60, 26, 50)], "the outer one first, still"
    assert self_times(found)["outer"].wall == 0 and self_times(found)["inner"].wall == 50


def test_a_call_that_is_not_over_is_a_span_until_now():
    recorder, begun, end = Recorder(), threading.Event(), threading.Event()
    recorder.active = True

    def wait():
        begun.set()
        end.wait()

    thread = threading.Thread(target=recorder.wrap("wait", wait), name="waits")
    thread.start()
    begun.wait()
    ((track, spans),) = recorder.tracks()
    end.set()
    thread.join()
    assert track.name == "waits" and [span.part for span in spans] == ["wait"]
    ((_, ended),) = recorder.tracks()
    assert [span.part for span in ended] == ["wait"] and ended[0].stop >= spans[0].stop


def test_an_error_passes_and_ends_its_span():
    recorder = Recorder()
    recorder.active = True

    def fail():
        raise KeyError("x")

    with contextlib.suppress(KeyError):
        recorder.wrap("fails", fail)()
    ((track, spans),) = recorder.tracks()
    assert not track.open and [span.part for span in spans] == ["fails"]


def test_nothing_is_recorded_while_it_is_not_active():
    recorder = Recorder()
    assert recorder.wrap("part", lambda: 3)() == 3 and recorder.tracks() == []


def test_processor_time_of_another_thread():
    burned, end = threading.Event(), threading.Event()

    def work():
        burn(0.03)
        burned.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    burned.wait()
    assert 30 * MS <= thread_time(thread.native_id) < 1000 * MS
    named = parts.threads_now(thread_time)
    assert named[thread.native_id][1] >= 30 * MS and os.getpid() in named
    end.set()
    thread.join()


# the wrapped methods --------------------------------------------------------------------------------------------------


def source_of(module):
    root = Path(ddrl.__file__).parents[1]
    return ast.parse(root.joinpath(*module.split(".")).with_suffix(".py").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_each_wrapped_method_is_defined(name):
    """From the source: ddrl.exchange.mpi would start MPI."""
    module, _, path = name.partition(":")
    owner, _, method = path.partition(".")
    classes = {node.name: node for node in source_of(module).body if isinstance(node, ast.ClassDef)}
    assert owner in classes, f"{name}: the class has another name or place; say so in {parts.__name__}"
    defined = [node.name for node in classes[owner].body if isinstance(node, ast.FunctionDef)]
    assert method in defined, f"{name}: the method has another name; say so in {parts.__name__}"


def test_a_name_that_is_gone_is_an_error():
    for name in ("ddrl.exchange.local:LocalTransport.polled", "ddrl.exchange.local:Local.poll"):
        with pytest.raises(AttributeError):
            owner_of(name)


def test_every_environment_is_wrapped():
    """Each class that steps simulators for an actor."""
    found = set()
    for path in Path(ddrl.envs.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            methods = {each.name for each in getattr(node, "body", []) if isinstance(each, ast.FunctionDef)}
            protocol = any(getattr(base, "id", "") == "Protocol" for base in getattr(node, "bases", []))
            if isinstance(node, ast.ClassDef) and {"recv", "send"} <= methods and not protocol:
                found.add(f"ddrl.envs.{path.stem}:{node.name}")
    assert {name.rpartition(".")[0] for name in PARTS["emulation: receive"]} == found
    assert {name.rpartition(".")[0] for name in PARTS["emulation: send"]} == found


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_an_update_of_every_algorithm_is_in_parts(name, tmp_path):
    """Two gradients, whose batches come through the schedule that the algorithm's run has."""
    from ddrl.builders.agent import make_environments, make_learner, make_schedule, network_for
    from ddrl.reporting.rank_metrics import RankMetrics
    from ddrl.roles.trainer import Trainer

    config = algorithms.preset("smoke", None, MACHINE, name).changed(run={"run_dir": str(tmp_path)})
    environments = make_environments(config)
    network, metrics = network_for(config, environments[0]), RankMetrics("worker", 0)
    schedule = make_schedule(config, environments, network, metrics, 0)
    shape, dtype = environments[0].observation_shape, environments[0].observation_dtype
    learner = make_learner(config, network, shape, dtype)
    woken = threading.Semaphore(0)
    trainer = Trainer(schedule, learner, metrics, woken.release, lambda version: 1.0, network.parameter_shapes, (0, 0))
    recorder = Recorder()
    with installed(recorder):
        recorder.active = True
        begin = time.monotonic_ns()
        schedule.set_state({}, 0)
        trainer.start()
        for version in range(2):
            snapshot = Snapshot(version, version, network.initial_parameters(0))
            schedule.update(snapshot)
            trainer.parameters(snapshot)
            assert woken.acquire(timeout=100)
        end = time.monotonic_ns()
        tracks = recorder.tracks()
        recorder.active = False
        trainer.stop()
    assert trainer.error is None
    totals = {track.name: self_times(clipped(spans, begin, end)) for track, spans in tracks}
    assert totals["trainer"][GRADIENT].calls == 2
    known = {part for total in totals.values() for part in total}
    assert {"emulation: receive", "emulation: send", "inference", "draw actions", "wait: parameters"} <= known
    assert all(sum(part.wall for part in total.values()) <= end - begin for total in totals.values())


def test_methods_are_themselves_again_afterwards():
    module = importlib.import_module("ddrl.exchange.local")
    before = vars(module.LocalTransport)["poll"]
    with installed(Recorder()):
        assert vars(module.LocalTransport)["poll"] is not before
    assert vars(module.LocalTransport)["poll"] is before


def test_threads_of_environments_are_called_so(monkeypatch):
    end, started = threading.Event(), []

    def make():
        started.append(threading.Thread(target=end.wait))
        started[0].start()

    monkeypatch.setattr(ddrl.envs, "_make", make)
    monkeypatch.setattr(envpool_environment, "_make", make)
    parts.name_emulators()
    ddrl.envs._make()
    names = {thread: name for thread, (name, _) in parts.threads_now(thread_time).items()}
    end.set()
    started[0].join()
    assert names[started[0].native_id] == parts.EMULATOR != names[threading.get_native_id()]
    assert envpool_environment._make is not make, "those of EnvPool, too"


# tables and trace -----------------------------------------------------------------------------------------------------


def a_rank(number=0, gradients=4):
    """100 ms on two cores: a trainer, two groups, an emulator and a library's thread."""
    trainer = [Span(GRADIENT, 1000 + 20 * i * MS, 1000 + (20 * i + 15) * MS, 3 * MS, 18 * MS) for i in range(gradients)]
    trainer += [Span("emulation: receive", 1000 + 90 * MS, 1000 + 95 * MS, MS, MS)]
    main = [Span(IDLE, 1000, 1000 + 99 * MS, 0, 100 * MS)]
    group = [Span("inference", 1000, 1000 + 10 * MS, 5 * MS, 10 * MS)]
    threads = {
        10: ("main", MS),
        11: ("trainer", 20 * MS),
        12: ("predictor-0", 8 * MS),
        13: ("predictor-1", 6 * MS),
        14: ("emulator", 30 * MS),
        15: ("python", 40 * MS),
    }
    spans = {10: main, 11: trainer, 12: group, 13: group}
    return Rank(number, 1000, 1000 + 100 * MS, 140 * MS, 150 * MS, 2, 1500.0, threads, spans)


def test_the_tables_are_per_update():
    told = report([a_rank()])
    assert told["updates"] == 4 and told["update_ms"] == 25.0
    row = told["parts"]["trainer: gradient"]
    assert (row["calls"], row["wall_ms"], row["processor_ms"], row["all_threads_ms"]) == (1.0, 15.0, 3.0, 18.0)
    assert row["share"] == 0.6 and row["cores_busy"] == 1.2
    assert told["parts"]["trainer: " + REST]["wall_ms"] == 8.75
    both = told["parts"]["predictor: inference"]
    assert both["calls"] == 0.5 and both["wall_ms"] == 5.0 and both["share"] == 0.1, "two threads of one kind"
    assert list(told["threads"]) == ["libraries", "emulator", "trainer", "predictor", "main"]
    assert told["threads"]["predictor"] == {"threads": 2, "processor_ms": 3.5, "cores_busy": 0.14}


def test_the_wall_times_of_a_thread_are_those_of_the_window():
    told = report([a_rank()])
    for thread, count in (("trainer", 1), ("predictor", 2), ("main", 1)):
        rows = [row for name, row in told["parts"].items() if name.startswith(thread + ": ")]
        assert sum(row["wall_ms"] for row in rows) == pytest.approx(count * told["update_ms"])
        assert sum(row["share"] for row in rows) == pytest.approx(1.0)


def test_one_line_tells_processor_time_and_the_largest_wait_of_the_learning_thread():
    (line,) = report([a_rank()])["ranks"]
    assert line["processor_time_over_wall_time"] == 1.4 and line["cores"] == 2 and line["other_processes"] == 0.1
    assert line["largest_wait"] == "trainer: gradient 12.00 ms with 1.20 cores busy"
    server = a_rank()._replace(spans={10: [Span(IDLE, 1000, 100 * MS, 0, 0)]})
    assert report([server])["ranks"][0]["largest_wait"] == "none", "waiting for messages is no work that waits"


def test_ranks_stand_one_after_the_other_and_an_update_is_that_of_a_worker():
    server = a_rank(1)._replace(spans={10: [Span("optimizer", 1000, 1000 + 8 * MS, 8 * MS, 8 * MS)]})
    told = report([a_rank(), server])
    assert told["parts"]["rank 1 main: optimizer"]["wall_ms"] == 2.0
    assert "rank 0 trainer: gradient" in told["parts"] and [line["rank"] for line in told["ranks"]] == [0, 1]


def test_the_order_does_not_depend_on_times():
    slower = a_rank()._replace(spans={k: [s._replace(stop=s.start + 9) for s in v] for k, v in a_rank().spans.items()})
    assert list(report([a_rank()])["parts"]) == list(report([slower])["parts"])
    assert [name.partition(": ")[2] for name in report([a_rank()])["parts"] if name.startswith("trainer")] == [
        "emulation: receive",
        GRADIENT,
        REST,
    ]


def test_the_trace_is_json_with_names_beginnings_and_ends():
    events = json.loads(json.dumps(trace([a_rank(), a_rank(1)])))
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names[0, 11] == "trainer" and names[1, 12] == "predictor-0"
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    calls = [event for event in events if event["ph"] == "X"]
    assert len(calls) == 16 and all((event["pid"], event["tid"]) in names for event in calls)
    assert all(event["ts"] >= 0 and event["dur"] > 0 and event["ts"] + event["dur"] <= 1e5 for event in calls)
    assert next(event for event in calls if event["name"] == GRADIENT)["dur"] == 15_000.0


# the command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, told",
    [
        (["--seconds", "0"], "ddrl: --seconds 0.0: must be a finite number above 0"),
        (["--seconds", "1e9"], "ddrl: --seconds 1000000000.0: must be between 0 and 600"),
        (["--warm-up", "1e9"], "ddrl: --warm-up 1000000000.0: must be between 0 and 600"),
        (["--overhead-rounds", "-1"], "ddrl: --overhead-rounds -1: must be a finite number of at least 0"),
        (["--trace", "/no/such/place"], "ddrl: --trace /no/such/place: No such file or directory; name a file"),
        (["--simulators", "x"], ""),
        (["no-algorithm"], ""),
    ],
)
def test_wrong_input_is_refused_before_anything_runs(options, told, monkeypatch, capsys):
    monkeypatch.setattr(command, "train_records", lambda *ignored, **settings: pytest.fail("it ran"))
    with contextlib.suppress(SystemExit):
        assert cli.main(["bench", "profile", *(options if "no-algorithm" in options else ["a2c", *options])]) == 2
    error = capsys.readouterr().err
    assert error.startswith(told) and (not told or error.count("\n") == 1)


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "profile", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "ddrl bench profile a2c --simulators 16" in text and "perfetto" in text and "cores busy" in text


def test_what_the_profile_costs_is_the_median_of_pairs_of_runs(monkeypatch, tmp_path):
    rates, asked = iter([100.0, 90.0, 200.0, 190.0, 50.0, 51.0]), []

    def run(config, arguments, record):
        asked.append(record)
        return ([a_rank()] if record else []), next(rates)

    monkeypatch.setattr(command, "_run", run)
    target = tmp_path / "told.json"
    assert cli.main(["bench", "profile", "a2c", "--overhead-rounds", "3", "--json", str(target)]) == 0
    told = json.loads(target.read_text())
    assert asked == [False, True] * 3 and told["agent_steps_per_s"] == 51.0 and told["updates"] == 4
    assert told["rate_with_the_profile_over_without"] == 0.95


def test_rates_that_are_not_there_are_not_compared(monkeypatch, capsys):
    monkeypatch.setattr(command, "_run", lambda config, arguments, record: ([], 0.0))
    assert cli.main(["bench", "profile", "a2c", "--overhead-rounds", "1", "--seconds", "1"]) == 2
    assert capsys.readouterr().err == "ddrl: --seconds 1: too short to compare rates; give more\n"


def test_the_rate_is_that_of_the_window(monkeypatch):
    """The last lines are of the time in which the ranks write what they have recorded."""
    rates = [9.0, 9.0, 9.0, 100.0, 300.0, 1.0, 1.0]

    def train(config, program, **settings):
        rundir.write_json(rank.Request(**json.loads(program[-1])).file(0), {})
        return [{"update": update, "agent_steps_per_s": rate} for update, rate in enumerate(rates)]

    monkeypatch.setattr(command, "train_records", train)
    arguments = command.ProfileArguments(train_options=("a2c",), seconds=2.0, warm_up=1.0)
    assert command.measure(arguments)["agent_steps_per_s"] == 200.0


def test_a_profile_that_fails_ends_the_run_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(rank, "installed", lambda recorder: owner_of("ddrl.exchange.local:Gone.poll"))
    monkeypatch.setattr(rank, "read_metrics", lambda path: [{"kind": "train", "update": 1}])
    request = rank.Request(str(tmp_path), 0.01, 0.0, 1)
    rank.profile(request, 0, tmp_path)
    assert (tmp_path / rundir.STOP).exists()
    assert "has no attribute 'Gone'" in rundir.read_json(request.file(0))["error"]

    def train(config, program, **settings):
        rank.profile(rank.Request(**json.loads(program[-1])), 0, tmp_path)
        return []

    monkeypatch.setattr(command, "train_records", train)
    arguments = command.ProfileArguments(train_options=("a2c",), seconds=0.01, warm_up=0.0)
    with pytest.raises(UsageError, match="rank 0 could not be profiled: .*Gone"):
        command.measure(arguments)


@pytest.mark.parametrize(
    "written, message",
    [
        ([{}, None, {"error": "why"}], "rank 1 ended before it had written its profile"),
        ([{"error": "why"}, None, {}], "rank 0 could not be profiled: why"),
    ],
)
def test_the_first_rank_without_a_profile_is_named(monkeypatch, written, message):
    def train(config, program, **settings):
        request = rank.Request(**json.loads(program[-1]))
        for number in range(request.ranks):
            if written[number] is not None:
                rundir.write_json(request.file(number), written[number])
        return []

    monkeypatch.setattr(command, "train_records", train)
    two_workers = ("a2c", "--workers", "2", "--parameter-servers", "1", "--no-evaluator")
    with pytest.raises(UsageError, match=message):
        command.measure(command.ProfileArguments(train_options=two_workers, seconds=0.01, warm_up=0.0))


def test_a_rank_writes_what_happened_in_the_window_and_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(rank, "read_metrics", lambda path: [{"kind": "train", "update": 1}])
    monkeypatch.setattr(rank, "CALLS", 10)
    monkeypatch.setattr("cluster.topology.cpu_quota", lambda: 1.0)
    end = threading.Event()
    transport = importlib.import_module("ddrl.exchange.local").LocalTransport()

    def poll():
        while not end.wait(0.001):
            transport.poll()

    thread = threading.Thread(target=poll, name="polls-1")
    thread.start()
    request = rank.Request(str(tmp_path), 0.5, 0.01, 1)  # long enough for a few calls on a busy machine
    rank.profile(request, 0, tmp_path)
    end.set()
    thread.join()
    found = Rank.read(0, rundir.read_json(request.file(0)))
    assert (tmp_path / rundir.STOP).exists() and found.wall >= 500 * MS
    assert found.cores == 1, "no more than its quota"
    spans = found.spans[thread.native_id]
    assert len(spans) > 3 and all(found.start <= span.start <= span.stop <= found.stop for span in spans)
    assert found.threads[thread.native_id][0] == "polls-1" and "polls: transport" in report([found])["parts"]
    rank.profile(dataclasses.replace(request, record=False), 0, tmp_path)
    assert rundir.read_json(request.file(0)) == {}, "without recording nothing is told"


def profiled(tmp_path, *options):
    line = ["bench", "profile", *options, "--preset", "smoke", "--seconds", "1", "--warm-up", "0"]
    target, events = tmp_path / "profile.json", tmp_path / "trace.json"
    assert cli.main([*line, "--json", str(target), "--trace", str(events)]) == 0
    return json.loads(target.read_text()), json.loads(events.read_text())["traceEvents"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_in_one_process(tmp_path):
    told, events = profiled(tmp_path, "a2c")
    assert told["updates"] > 3 and told["parts"]["trainer: gradient"]["calls"] == pytest.approx(1, abs=0.3)
    assert "main: optimizer" in told["parts"] and told["threads"]["trainer"]["processor_ms"] > 0
    assert {event["pid"] for event in events} == {0} and GRADIENT in {event["name"] for event in events}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_of_several_ranks(tmp_path):
    told, events = profiled(tmp_path, "ba3c", "--workers", "2", "--parameter-servers", "1")
    assert {event["pid"] for event in events} == {0, 1, 2}
    assert {"rank 0 trainer: gradient", "rank 1 trainer: gradient", "rank 2 main: optimizer"} <= set(told["parts"])
