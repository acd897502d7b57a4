"""`ddrl bench profile`: its tables, its trace, and the command."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import threading

import pytest

from ddrl import cli, rundir
from ddrl.bench.profile import command, rank
from ddrl.bench.profile.parts import GRADIENT, IDLE, owner_of
from ddrl.bench.profile.report import REST, Rank, report, trace
from ddrl.bench.profile.spans import Span
from ddrl.errors import UsageError

MS = 1_000_000


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
