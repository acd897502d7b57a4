"""The race: its points, its verdict, and what its peers are told."""

from __future__ import annotations

import dataclasses
import json
import time
import types

import pytest

from ddrl import rundir
from ddrl.bench import peer_learner, peer_zoo
from ddrl.errors import UsageError
from ddrl.studies import plan as plans
from ddrl.studies import race
from ddrl.studies.collect import collect
from ddrl.studies.measures import EVALUATION
from ddrl.studies.points import Outcome, Point, note_failure
from ddrl.studies.race import RACE, peer_game
from ddrl.studies.settings import to_json
from tests.studies.support import MACHINE


def settings(**changes):
    return dataclasses.replace(RACE.defaults, peer_python="python", repeats=2, **changes)


def test_each_seed_has_all_systems_and_the_peers_know_what_they_need():
    points = RACE.points(settings(), MACHINE)
    assert [point.name for point in points[:6]] == [
        *(f"pong-ddrl-{name}-seed1" for name in ("ba3c", "ppo", "apex-dqn")),
        *(f"pong-SB3-{name}-seed1" for name in ("a2c", "ppo", "dqn")),
    ]
    assert len(points) == 12 and all(point.config.evaluation.target_score == 18.0 for point in points)
    known = {"eval_every_minutes": 10.0, "peer_replay": 0, "target_score": 18.0, "stop_at_target": True}
    assert points[-1].labels["rival"] == known
    assert len(RACE.points(dataclasses.replace(settings(), peer_python=""), MACHINE)) == 6, "ours alone"


def test_a_game_has_the_name_of_the_library():
    assert peer_game("space_invaders") == ("SpaceInvaders", True) and peer_game("Hopper-v5") == ("Hopper-v5", False)
    assert peer_zoo.settings_of("ppo", "Hopper-v5", False)["clip_range"] == 0.2
    assert peer_zoo.settings_of("a2c", "SpaceInvaders", True)["n_envs"] == 16
    atari = peer_zoo.settings_of("dqn", "Pong", True)
    assert (atari["buffer_size"], atari["target_update_interval"], atari["exploration_final_eps"]) == (1e5, 1000, 0.01)


def test_what_the_zoo_does_not_have_is_refused():
    with pytest.raises(UsageError, match="--peers sac: choose from a2c, ppo, dqn"):
        settings(peers=("sac",))
    with pytest.raises(UsageError, match="--peers dqn: ddrl has no settings of the zoo for Hopper-v5; choose other"):
        settings(peers=("dqn",), games=("Hopper-v5",))


@pytest.mark.parametrize(
    "option, name, value",
    [
        ("--game-options mode=1", "game_options", ("mode=1",)),
        ("--wrappers every:skip=4", "wrappers", ("every:skip=4",)),
        ("--step-time-mean-ms 5.0", "step_time_mean_ms", 5.0),
    ],
)
def test_a_peer_cannot_play_what_makes_another_game_of_it(option, name, value):
    optioned = settings(train_options=option)
    with pytest.raises(UsageError, match=f"{option}: stable-baselines3 plays the game without it; leave"):
        RACE.points(optioned, MACHINE)
    (point, *_) = RACE.points(dataclasses.replace(optioned, peer_python=""), MACHINE)
    assert getattr(point.config.environment, name) == value


def outcome(library, algorithm, seed, minutes, score=19.0):
    labels = {"game": "pong", "library": library, "algorithm": algorithm}
    record = {"kind": "evaluation", EVALUATION: score, "games": 50, "wall_seconds": 60.0 * minutes, "agent_steps": 7}
    point = Point(f"{library}-{algorithm}-{seed}", RACE.points(settings(), MACHINE)[0].config, labels)
    return Outcome(point, {"status": "target"}, [record], None)


def test_the_verdict_compares_the_medians_of_the_fastest():
    runs = [outcome("ddrl", "ba3c", seed, minutes) for seed, minutes in enumerate((4, 5, 30))]
    runs += [outcome("ddrl", "ppo", seed, 9) for seed in range(3)]
    runs += [outcome("SB3", "a2c", seed, minutes) for seed, minutes in enumerate((20, 40, 60))]
    runs += [outcome("SB3", "dqn", seed, 180, score=3.0) for seed in range(3)]
    report = settings().report(runs)
    ran = {"ours": ("ba3c", "ppo"), "peers": ("a2c", "dqn")}
    assert report.notes[0] == (
        "pong: ddrl ba3c reaches 18 after 5.0 min and SB3 a2c after 40.0 min (medians): 8.0 times as long; "
        "some runs of the slower one were faster than some of the other; ddrl apex-dqn, SB3 ppo not run yet"
    )
    apart = [run for run in runs if run.records[0]["wall_seconds"] not in (30 * 60.0, 20 * 60.0)]
    apart += [outcome("ddrl", "ba3c", 3, 6), outcome("SB3", "a2c", 3, 50)]
    assert settings(**ran).report(apart).notes[0].endswith("SB3 a2c after 50.0 min (medians): 10.0 times as long")
    never = settings(**ran).report([run for run in apart if run.point.labels["algorithm"] != "a2c"])
    assert never.notes[0] == (
        "pong: ddrl ba3c reaches 18 after 5.0 min (median), and not SB3 dqn within 180.0 min, 36.0 times as long; "
        "SB3 a2c not run yet"
    )
    cut = [outcome("ddrl", "ba3c", seed, minutes) for seed, minutes in enumerate((4, 5, 30))]
    cut += [outcome("SB3", "dqn", seed, 20, score=3.0) for seed in range(3)]
    less = "some runs of the slower one had less time than some of the other took"
    assert less in settings().report(cut).notes[0], "whether they would have been faster is not known"
    stopped = [outcome("ddrl", "ba3c", 1, 5), outcome("SB3", "dqn", 1, 3, score=3.0)]
    assert "and not SB3 dqn within 3.0 min; one run says little" in settings().report(stopped).notes[0]
    lost = [outcome("ddrl", "ppo", 1, 180, score=3.0), outcome("SB3", "a2c", 1, 20)]
    assert settings(ours=("ppo",), peers=("a2c",)).report(lost).notes[0] == (
        "pong: SB3 a2c reaches 18 after 20.0 min (median), and not ddrl ppo within 180.0 min, 9.0 times as long; "
        "one run says little about chance"
    )
    assert report.finding.startswith("Pong: ddrl ba3c reaches 18") and report.heading.endswith("Stable-Baselines3")
    nobody = settings().report([outcome(library, "ppo", 1, 180, score=3.0) for library in ("ddrl", "SB3")])
    assert not nobody.notes[:-1] and nobody.finding == "Runs that reached 18: 0 of 1 of ddrl ppo, 0 of 1 of SB3 ppo."
    untargeted = settings(target_score=None).report(runs[:3])
    assert untargeted.finding == "The last evaluation score is 19.0; 19.0; 19.0."
    ours = settings().report(runs[:6])
    assert ours.finding == "Runs that reached 18: 3 of 3 of ddrl ba3c, 3 of 3 of ddrl ppo."
    assert not ours.notes and ours.heading == "Score against time", "without a peer there is no verdict"


def test_a_run_of_the_faster_system_that_missed_the_target_is_counted():
    ran = settings(ours=("ba3c",), peers=("dqn",))
    ours = [outcome("ddrl", "ba3c", 1, 4), outcome("ddrl", "ba3c", 2, 5), outcome("ddrl", "ba3c", 3, 180, score=3.0)]
    theirs = [outcome("SB3", "dqn", seed, 180, score=3.0) for seed in range(3)]
    begun = "pong: ddrl ba3c reaches 18 after 5.0 min (median), and not SB3 dqn within 180.0 min, 36.0 times as long; "
    assert ran.report([*ours, *theirs]).notes[0] == f"{begun}1 of 3 runs of the faster one missed it, too"
    reached = [outcome("SB3", "dqn", 4, 100), *theirs[1:]]
    faster = "some runs of the slower one were faster than some of the other"
    assert ran.report([*ours, *reached]).notes[0] == f"{begun}{faster}"
    shorter = [*ours[:2], outcome("ddrl", "ba3c", 3, 20, score=3.0)]
    late = [outcome("SB3", "dqn", seed, 100) for seed in range(3)]
    assert ran.report([*shorter, *late]).notes[0].endswith("long; 1 of 3 runs of the faster one missed it")


def test_a_system_whose_runs_failed_is_not_one_that_has_not_run(tmp_path, capsys):
    chosen = settings(ours=("ppo",))
    plan = plans.Plan(tmp_path, "race", to_json(chosen), tuple(RACE.points(chosen, MACHINE)))
    for point in plan.points:
        path, algorithm = plan.path(point), point.labels["algorithm"]
        if algorithm == "dqn":
            note_failure(path, "broke")
        elif algorithm == "ppo":
            path.mkdir(parents=True)
            minutes = {"ddrl": 5, "SB3": 20}[point.labels["library"]]
            (record,) = outcome(point.labels["library"], algorithm, 1, minutes).records
            (path / rundir.METRICS).write_text(json.dumps(record | {"maximum": 21.0, "version": 7}) + "\n")
            rundir.write_json(path / rundir.RESULT, {"status": "target"})
    collect(plan, RACE)
    assert (
        "pong: ddrl ppo reaches 18 after 5.0 min and SB3 ppo after 20.0 min (medians): 4.0 times as long; "
        "2 runs say little about chance; SB3 a2c not run yet; 2 of 2 runs of SB3 dqn failed\n"
    ) in capsys.readouterr().out


def test_a_failure_at_another_game_is_none_at_this_one():
    runs = [outcome("ddrl", "ba3c", 1, 5), outcome("SB3", "a2c", 1, 20)]
    failed = [run.point._replace(labels=run.point.labels | {"algorithm": "dqn"}) for run in runs[1:]]
    elsewhere = [point._replace(labels=point.labels | {"game": "breakout"}) for point in failed]
    ran = settings(ours=("ba3c",), peers=("a2c", "dqn"))
    assert ran.report(runs, elsewhere).notes[0].endswith("; SB3 dqn not run yet")
    assert ran.report(runs, failed).notes[0].endswith("chance; 1 of 2 runs of SB3 dqn failed")


def test_runs_of_one_system_whose_rates_are_far_apart_are_named():
    def run(library, algorithm, seed, rate, game="pong"):
        """Which makes `rate` agent steps/s once it has begun."""
        made = outcome(library, algorithm, seed, 9)
        lines = [
            {"kind": "train", "wall_seconds": second, "agent_steps": rate * max(0.0, second - 5.0)}
            for second in (5.0, 60.0, 120.0, 180.0)
        ]
        labels = made.point.labels | {"game": game}
        return made._replace(point=made.point._replace(labels=labels), records=[*lines, *made.records])

    even = [run("ddrl", "ba3c", seed, rate) for seed, rate in enumerate((1000.0, 1149.0))]
    even += [run("SB3", "ppo", 1, 10.0), outcome("SB3", "ppo", 2, 9)]
    assert not settings().report(even).careful
    apart = [run("SB3", "a2c", seed, rate) for seed, rate in enumerate((1012.0, 603.0, 1000.0))]
    what = "agent steps/s differ by more than 15% between the runs of one system, as on a machine that is not quiet: "
    assert settings().report([*even, *apart]).careful == [f"{what}SB3 a2c (1,012; 603; 1,000)"]
    elsewhere = [run("ddrl", "ba3c", seed, rate, "breakout") for seed, rate in enumerate((10.0, 20.0))]
    (line,) = settings(games=("pong", "breakout")).report([*even, *apart, *elsewhere]).careful
    assert line == f"{what}SB3 a2c on pong (1,012; 603; 1,000), ddrl ba3c on breakout (10.0; 20.0)"


def test_a_run_of_the_peer_with_other_options_than_planned_is_named():
    point = next(point for point in RACE.points(settings(), MACHINE) if point.labels["library"] == "SB3")
    earlier, planned = outcome("SB3", "a2c", 1, 9)._replace(point=point), race.peer_options(point)
    same = earlier._replace(result={"status": "target", "options": planned})
    assert not settings().report([earlier, same]).careful
    other = ["60.0" if word == "180.0" else word for word in planned if word != "--atari"]
    copied = earlier._replace(result={"status": "target", "options": other})
    (line,) = settings().report([same, copied]).careful
    assert line == (
        "pong-SB3-a2c-seed1 ran with other settings than planned: minutes 60.0 (planned: minutes 180.0, atari)"
    )


def test_agent_steps_to_the_target_are_of_every_run():
    runs = [outcome("ddrl", "ba3c", seed, 9, score) for seed, score in enumerate((19.0, 3.0))]
    (rows,) = (found.rows for found in settings().report(runs).tables)
    assert rows[0][:4] == ["ddrl ba3c", 2, "1 of 2 in 9 min, 1 not reached in 9 min", "7; never"]


def test_runs_may_go_on_to_the_end_of_their_budget():
    points = RACE.points(settings(stop_at_target=False), MACHINE)
    told = {(point.config.evaluation.target_score, point.config.evaluation.stop_at_target) for point in points}
    assert told == {(18.0, False)}, "the evaluator plays all games where the first ones reach it"
    assert "18" in settings(stop_at_target=False).report([outcome("ddrl", "ba3c", 1, 5)]).tables[0].columns[2]


def test_many_systems_are_drawn_in_several_panels():
    runs = [outcome("ddrl", f"system{number}", 1, 9) for number in range(11)]
    panels = settings().report(runs).panels
    assert [len(panel.curves) for panel in panels] == [7, 6], "with the target's line"
    assert panels[0].x_label == panels[1].x_label
    assert [panel.curves[0].label for panel in panels] == ["ddrl system0", "ddrl system6"]
    low, high = panels[0].y_range
    assert panels[1].y_range == (low, high) and all(
        low < y < high for panel in panels for curve in panel.curves for y in curve.y
    )
    (panel,) = settings().report(runs[:6]).panels
    assert len(panel.curves) == 7 and panel.y_range is None


def test_the_target_is_a_line_as_long_as_the_longest_curve():
    runs = [outcome("ddrl", "ba3c", 1, 9), outcome("SB3", "ppo", 1, 30)]
    *curves, line = settings().report(runs).panels[0].curves
    assert line.reference and line.label == "target 18" and line.y == [18.0, 18.0]
    assert line.x == [0.0, max(x for curve in curves for x in curve.x)]
    without = settings(target_score=None, stop_at_target=False).report(runs).panels[0].curves
    assert not any(curve.reference for curve in without)


def test_runs_of_as_many_agent_steps_are_drawn_against_these():
    report = settings(minutes=0.0, agent_steps=100).report([outcome("ddrl", "ba3c", 1, 9)])
    assert report.heading == "Score against agent steps" and report.panels[0].x_label == "agent steps (thousands)"
    assert settings().report([outcome("ddrl", "ba3c", 1, 9)]).panels[0].x_label == "wall time (minutes)"


@pytest.mark.parametrize("go_on", [False, True])
def test_a_peer_is_evaluated_at_once_when_it_may_have_the_score_and_may_go_on(tmp_path, monkeypatch, go_on):
    """Two evaluations have the score; one that goes on does not look for it again."""
    point = next(
        point for point in RACE.points(settings(stop_at_target=not go_on), MACHINE) if point.labels["library"] == "SB3"
    )
    told = []
    monkeypatch.setattr(race, "run_peer", lambda python, words, path: told.extend(words))
    race.run_point(point, tmp_path, "python")
    assert told[told.index("--target") + 1] == "18.0" and ("--go-on" in told) == go_on
    learner = peer_learner.Learner.__new__(peer_learner.Learner)
    learner.options = types.SimpleNamespace(target=18.0, go_on=go_on, eval_every_minutes=10.0)
    learner.online, learner.status, learner._reached = [3.0] * 80 + [19.0] * 20, "", False
    learner._next_evaluation, learner._evaluated_at, learner._paused = 600.0, 0.0, 0.0
    learner._before, learner._began, learner._watch = 100.0, time.monotonic(), None
    learner.model = types.SimpleNamespace(num_timesteps=7)
    learner.games = types.SimpleNamespace(scores=lambda model, watch: [19.0])
    assert learner._due(100.0)
    learner.evaluate()
    assert learner.status == ("" if go_on else "target") and not learner._due(300.0) and learner._due(800.0)
