"""report.html and what it is careful about: mixed points, lost metrics, half-written results."""

from __future__ import annotations

import csv
import dataclasses
import json

import pytest

from ddrl import rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.studies import comparable, provenance
from ddrl.studies import plan as plans
from ddrl.studies.collect import CURVES, PAGE, RESULTS, collect
from ddrl.studies.engine import MACHINE, run_points
from ddrl.studies.settings import to_json
from tests.studies.support import MACHINE as HERE
from tests.studies.support import FakeSettings, Runner, outcome, points, study
from tests.studies.test_html import Page

STAMP = {"protocol": "nature", "game": "breakout", "stickiness": 0.0, "epsilon": 0.0, "games": 50}


def collected(directory, runner=None, command="ddrl study fake --sizes 1 2"):
    made = study(Runner())
    plan = plans.Plan(directory, "fake", to_json(made.defaults), tuple(points(made.defaults, HERE)), command)
    plans.write(plan)
    run_points(plan, runner or Runner())
    return made, plan


def evaluated(name, config=None, path=None, **changes):
    """A point with one evaluation by a protocol that differs in `changes`."""
    record = {"kind": "evaluation", "mean": 1.0, "protocol": {**STAMP, "seed": hash(name), **changes}}
    return outcome({"name": name}, [record], config, *([path] if path else []))


def machine(path, python="3.12.1", **packages):
    path.mkdir(parents=True, exist_ok=True)
    found = {"processor": "P", "cores": 2, "python": python, "packages": {"ddrl": "0.1.0"} | packages}
    rundir.write_json(path / MACHINE, found)
    return path


def test_every_report_has_its_command_its_versions_and_its_figure(tmp_path, capsys):
    made, plan = collected(tmp_path)
    collect(plan, made)
    shown = Page((tmp_path / PAGE).read_text())
    text = " ".join(shown.text)
    for expected in (
        "A fake",
        "ddrl study fake --sizes 1 2",
        f"ddrl study fake --dir {tmp_path} --collect",
        "4 of 4 points",
        "TensorFlow",
        "mpi4py",
        "Python",
        "processor",
        "game breakout",
        "nature, by the settings",
        "--sizes",
        "made up",
        "UTC",
        RESULTS,
        CURVES,
        "figure.png",
    ):
        assert expected in text, expected
    assert shown.open == [] and len(shown.having("img")) == 1
    assert f"report: {tmp_path / PAGE}" in capsys.readouterr().out
    assert json.loads((tmp_path / RESULTS).read_text())["command"] == "ddrl study fake --sizes 1 2"


def test_curves_are_there_as_csv(tmp_path):
    made, plan = collected(tmp_path)
    collect(plan, made)
    with (tmp_path / CURVES).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["curve"] for row in rows} == {"1", "2"}
    assert {row["run"] for row in rows} == {"1", "2"}
    first = rows[0]
    assert (first["panel"], first["x is"], float(first["x"])) == ("fake", "agent steps (thousands)", 0.1)
    assert first["low"] == first["high"] == ""  # of two runs


def test_a_directory_with_a_space_is_quoted_in_the_command(tmp_path):
    directory = tmp_path / "a study"
    made, plan = collected(directory)
    collect(plan, made)
    text = " ".join(Page((directory / PAGE).read_text()).text)
    assert f"ddrl study fake --dir '{directory}' --collect  # this page" in text


def test_the_command_is_kept_and_older_directories_have_none(tmp_path):
    made, plan = collected(tmp_path)
    assert plans.load(tmp_path, "fake").command == "ddrl study fake --sizes 1 2"
    data = rundir.read_json(tmp_path / plans.PLAN)
    del data["command"]
    (tmp_path / plans.PLAN).write_text(json.dumps(data))
    older = plans.load(tmp_path, "fake")
    assert older == plan._replace(command="")
    collect(older, made)
    assert "an earlier version of ddrl began" in (tmp_path / PAGE).read_text()


def test_a_half_written_result_is_named_and_the_rest_is_reported(tmp_path, capsys):
    made, plan = collected(tmp_path)
    (plan.path(plan.points[0]) / rundir.RESULT).write_text('{"status": "fini')
    collect(plan, made)
    said = capsys.readouterr().out
    assert "not finished: 1 interrupted" in said
    assert "interrupted: size1-seed1: its result.json is half-written or damaged" in said
    assert "3 of 4 points have finished" in (tmp_path / PAGE).read_text()


def test_one_line_where_nothing_can_be_read(tmp_path):
    made, plan = collected(tmp_path)
    for point in plan.points:
        (plan.path(point) / rundir.RESULT).write_text("")
    with pytest.raises(UsageError, match="no point has finished .*4 interrupted.*half-written") as refusal:
        collect(plan, made)
    assert "\n" not in str(refusal.value)


def test_mixed_points_are_told_on_the_terminal_and_on_the_page(tmp_path, capsys):
    made, plan = collected(tmp_path)
    machine(plan.path(plan.points[0]), python="3.10.9")
    other = plan.points[1].config.changed(environment={"protocol": "machado18"})
    rundir.write_json(plan.path(plan.points[1]) / rundir.CONFIG, rundir.config_to_dict(other))
    resumed = plan.points[3].config.changed(evaluation={"final_evaluation_minutes": 4.8}, run={"minutes": 1.0})
    rundir.write_json(plan.path(plan.points[3]) / rundir.CONFIG, rundir.config_to_dict(resumed))
    (plan.path(plan.points[2]) / rundir.METRICS).write_text("")
    outcomes = mixed_of(plan)
    told = comparable.warnings(outcomes)
    assert any(
        line.startswith("careful: points of different versions of Python: 3.10.9 (size1-seed1)") for line in told
    )
    assert any(
        "size1-seed2 ran with other settings than planned: environment protocol machado18 (planned: nature)" in line
        for line in told
    )
    assert sum("other settings than planned" in line for line in told) == 1  # not of the one that was resumed
    (plan.path(plan.points[2]) / rundir.RESULT).write_text("{}")
    collect(plan, made)
    said, shown = capsys.readouterr().out, " ".join(Page((tmp_path / PAGE).read_text()).text)
    for text in ("points of different versions of Python", "size1-seed2 ran with other settings"):
        assert text in said and text in shown


def mixed_of(plan):
    from ddrl.studies.points import outcome_of

    return [outcome_of(point, plan.path(point)) for point in plan.points]


def test_points_alike_are_not_warned_of(tmp_path):
    made, plan = collected(tmp_path)
    assert comparable.warnings(mixed_of(plan)) == []
    resumed = plan.points[0].config.changed(run={"minutes": 0.3, "run_dir": "elsewhere"})
    rundir.write_json(plan.path(plan.points[0]) / rundir.CONFIG, rundir.config_to_dict(resumed))
    assert comparable.warnings(mixed_of(plan)) == []


def test_metrics_that_are_lost_are_told(tmp_path):
    _, plan = collected(tmp_path)
    (plan.path(plan.points[2]) / rundir.METRICS).unlink()
    assert comparable.warnings(mixed_of(plan)) == [
        "careful: finished, but metrics.jsonl has no readable records: size2-seed1"
    ]
    (plan.path(plan.points[2]) / rundir.RESULT).unlink()  # a run that has not begun to train has no metrics either
    assert comparable.warnings(mixed_of(plan)) == []


def test_versions_of_packages_and_of_mpi(tmp_path):
    paths = [
        machine(tmp_path / "1", openmpi="5.0.1", numpy="2.0"),
        machine(tmp_path / "2", openmpi="5.0.2", numpy="2.0"),
    ]
    some = [outcome({"n": i}, [{"kind": "train"}], None, path) for i, path in enumerate(paths)]
    some.append(outcome({"n": 2}, [{"kind": "train"}], None, tmp_path / "none"))  # which does not say
    assert comparable.warnings(some) == [
        "careful: points of different versions of MPI: Open MPI 5.0.1 (0); Open MPI 5.0.2 (1)"
    ]
    machines = [provenance.machine_of(one.path) for one in some]
    assert provenance.versions(machines)["MPI"] == "Open MPI 5.0.1, Open MPI 5.0.2, unknown"
    assert provenance.versions(machines[:2])["NumPy"] == "2.0"


def test_ddrl_is_told_with_its_commit_where_that_is_known(tmp_path, capsys):
    made, plan = collected(tmp_path)
    known = {"processor": "P", "cores": 2, "python": "3.12.1", "packages": {"ddrl": "0.1.0"}}
    machines = [known, known | {"commit": None}, known | {"commit": "0123456789ab"}, known | {"commit": "ab+changes"}]
    for point, machine in zip(plan.points, machines, strict=True):
        rundir.write_json(plan.path(point) / MACHINE, machine)
    assert provenance.versions(machines[:2])["ddrl"] == "0.1.0"
    assert comparable.warnings(mixed_of(plan)[:2]) == []
    assert comparable.warnings(mixed_of(plan)[2:]) == [
        (
            "careful: points of different versions of ddrl: 0.1.0 at 0123456789ab (size2-seed1); "
            "0.1.0 at ab+changes (size2-seed2)"
        )
    ]
    collect(plan, made)
    text = "measured on P, 2 cores; ddrl 0.1.0, 0.1.0 at 0123456789ab, 0.1.0 at ab+changes"
    assert text in capsys.readouterr().out and text in (tmp_path / PAGE).read_text()


def test_points_of_different_machines_are_told(tmp_path):
    known = {"processor": "AMD EPYC", "cores": 2, "bfloat16": True}
    outcomes = []
    for i, machine in enumerate((known, known, known | {"processor": "Intel Xeon"}, {})):
        (tmp_path / f"{i}").mkdir()
        rundir.write_json(tmp_path / f"{i}" / MACHINE, machine)
        outcomes.append(outcome({"n": i}, [{"kind": "train"}], None, tmp_path / f"{i}"))
    assert comparable.warnings(outcomes[:2] + outcomes[3:]) == []
    (line,) = comparable.warnings(outcomes)
    assert line.startswith("careful: points of different machines") and "AMD EPYC, 2 cores (0, 1); Intel Xeon" in line


def test_a_last_score_that_is_of_an_earlier_evaluation_or_missing_is_told(tmp_path):
    whole = {"kind": "evaluation", "mean": 1.0, "games": 20, "of_games": 20, "timed_out": 0, "wall_seconds": 1.0}
    cut = whole | {"games": 7, "timed_out": 13, "wall_seconds": 2.0}
    runs = {"a": [whole], "b": [whole, cut], "c": [cut], "d": [cut, whole]}
    outcomes = [outcome({"n": name}, records, None, tmp_path / name) for name, records in runs.items()]
    assert comparable.warnings(outcomes) == [
        "careful: the last evaluation had no time for all games, so that an earlier one gives the last score: b",
        "careful: no evaluation had time for all games, so that these runs have no last evaluation score: c",
    ]
    assert comparable.warnings(outcomes[:1]) == []


def test_versions_of_the_peers_environment_are_compared_with_each_other_alone(tmp_path):
    peers = [{}, {"torch": "2.1", "gymnasium": "1.0"}, {"torch": "2.2", "gymnasium": "1.0"}]
    outcomes = [
        outcome({"n": i}, [{"kind": "train"}], None, tmp_path / f"{i}")._replace(result={"peer": peer})
        for i, peer in enumerate(peers)
    ]
    assert comparable.warnings(outcomes) == [
        "careful: points of different versions of torch of the peer: 2.1 (1); 2.2 (2)"
    ]


def test_a_damaged_machine_file_is_unknown(tmp_path):
    (tmp_path / MACHINE).write_text("[1]")
    assert provenance.machine_of(tmp_path) == {} and provenance.hardware([{}])["processor"] == "unknown"


def test_the_page_names_points_that_were_resumed_since_only_their_last_start_is_described(tmp_path):
    made, plan = collected(tmp_path)
    assert provenance.resumed(mixed_of(plan)) == {}
    resumed = {"kind": "event", "name": "resumed", "text": "from update 3", "wall_seconds": 9.0}
    for point in plan.points[1:3]:
        with (plan.path(point) / rundir.METRICS).open("a") as file:
            file.write(json.dumps(resumed) + "\n")
    collect(plan, made)
    text = " ".join(Page((tmp_path / PAGE).read_text()).text)
    assert "stopped and resumed" in text and "size1-seed2, size2-seed1: only their last start is described" in text


def test_what_a_study_itself_warns_of_stands_above_the_figure_too(tmp_path, capsys, monkeypatch):
    made, plan = collected(tmp_path)
    report = FakeSettings.report
    warned = lambda settings, outcomes: dataclasses.replace(report(settings, outcomes), careful=["rates differ"])
    monkeypatch.setattr(FakeSettings, "report", warned)
    collect(plan, made)
    assert "\n- careful: rates differ\n" in capsys.readouterr().out
    text = " ".join(Page((tmp_path / PAGE).read_text()).text)
    assert text.index("careful: rates differ") < text.index("Figure 1.")


def test_a_peer_is_not_said_to_play_by_our_protocol():
    record = {"kind": "evaluation", "mean": 1.0, "wall_seconds": 1.0}  # without a stamp
    peers = [outcome({"algorithm": name, "rival": {}}, [record]) for name in ("a2c", "ppo", "dqn")]
    atari = "NoFrameskip-v4 in the wrappers of its zoo, actions {}, raw scores of whole games"
    drawn, greedy = atari.format("drawn from the policy"), atari.format("greedy, or random with probability 0.01 (DQN)")
    assert provenance.protocols([evaluated("a"), *peers]) == {
        "game breakout": "nature, epsilon 0.0, game breakout, stickiness 0.0",
        "game breakout, Stable-Baselines3": f"{drawn} | {greedy}",
    }
    other = peers[0].point.config.changed(environment={"game": "CartPole-v1"})
    assert provenance.protocols([outcome({"algorithm": "ppo", "rival": {}}, [record], other)]) == {
        "game CartPole-v1, Stable-Baselines3": "the game's own rules, greedy actions, raw scores of whole games"
    }


def test_protocols_are_compared_where_one_was_planned():
    one, two = evaluated("a"), evaluated("b", stickiness=0.25)
    assert comparable.warnings([one, two]) == [
        "careful: points of different protocols in breakout: nature, stickiness 0.0 (a); nature, stickiness 0.25 (b)"
    ]
    varied = evaluated(
        "c", TrainConfig(algorithm=BA3CConfig()).changed(environment={"step_time_mean_ms": 5.0}), step_time_mean_ms=5.0
    )
    assert comparable.warnings([one, varied]) == []  # planned so
    assert provenance.protocols([one, two]) == {
        "game breakout": "nature, epsilon 0.0, game breakout, stickiness 0.0 | "
        "nature, epsilon 0.0, game breakout, stickiness 0.25"
    }
