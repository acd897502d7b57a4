"""The race: its points, its verdict, and a peer's program with its end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from ddrl import run_lock, rundir
from ddrl.bench import peer_learner, peer_zoo
from ddrl.errors import UsageError
from ddrl.launch.processes import Interrupts
from ddrl.reporting.metrics import read_metrics
from ddrl.studies import peer, race
from ddrl.studies import plan as plans
from ddrl.studies.collect import collect
from ddrl.studies.measures import EVALUATION
from ddrl.studies.points import Outcome, Point, note_failure
from ddrl.studies.race import RACE, peer_game
from ddrl.studies.settings import to_json
from tests.bench.fake_peer import peer_python
from tests.studies.support import MACHINE

SAYS = """
import json, signal, sys, time
say = lambda **record: print("RECORD " + json.dumps(record), flush=True)
"""


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
    assert [len(panel.curves) for panel in settings().report(runs[:6]).panels] == [7]


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


def test_the_time_that_a_peer_has_left_counts_the_evaluations_that_are_to_come():
    learner = peer_learner.Learner.__new__(peer_learner.Learner)
    learner.options = types.SimpleNamespace(minutes=75.0, agent_steps=0, eval_every_minutes=25.0)
    learner.horizon, learner.model = 10**9, types.SimpleNamespace(num_timesteps=3000)
    learner._before, learner._first_steps, learner.status = 0.0, 0, ""
    learner._next_evaluation, learner._evaluation_seconds = 1500.0, None
    assert learner.seconds_left(1499.0) is None, "none has been timed"
    learner._next_evaluation, learner._evaluation_seconds = 3000.0, 240.0
    assert learner.seconds_left(1500.0) == 3000.0 + 2 * 240.0
    assert learner.seconds_left(2999.0) == 1501.0 + 2 * 240.0
    learner._next_evaluation = 4500.5
    assert learner.seconds_left(4490.0) == 10.0 + 240.0, "the last one is played at the end"
    learner.options.minutes, learner.options.agent_steps = 0.0, 4000
    assert learner.seconds_left(1500.0) == 500.0 + 240.0, "by its rate"
    learner._first_steps = 3000
    assert learner.seconds_left(1500.0) is None, "there is no rate yet"
    learner.status = "finished"
    assert learner.seconds_left(1500.0) == 0.0


def test_a_peer_tells_and_keeps_how_long_its_evaluation_took(tmp_path, monkeypatch, capsys):
    torch = types.ModuleType("torch")
    torch.save = lambda parameters, file: file.write(parameters)
    monkeypatch.setitem(sys.modules, "torch", torch)
    learner = peer_learner.Learner.__new__(peer_learner.Learner)
    learner.options = types.SimpleNamespace(
        target=None, go_on=False, eval_every_minutes=10.0, minutes=75.0, agent_steps=0
    )
    learner.directory, learner._zoo, learner.horizon, learner.status = tmp_path, {}, 10**9, ""
    learner._before, learner._began, learner._paused, learner._watch = 0.0, time.monotonic(), 0.0, None
    learner._first_steps, learner._last_line, learner._reached, learner.online = 7, None, False, []
    learner.model = types.SimpleNamespace(num_timesteps=7, get_parameters=lambda: b"")
    learner.games = types.SimpleNamespace(scores=lambda model, watch: [19.0], statistics=dict)
    learner.evaluate()
    learner._line()
    learner._save()
    evaluation, train = (json.loads(line.removeprefix("RECORD ")) for line in capsys.readouterr().out.splitlines())
    assert json.loads((tmp_path / peer_learner.STATE).read_text())["evaluation_seconds"] == evaluation["seconds"]
    assert train["seconds_left"] > 4000.0


def test_a_peer_goes_on_after_a_stop_with_what_it_knew_of_evaluations(tmp_path, monkeypatch):
    """When the next one is due, and that it has had the target, so that it does not look for it again each minute."""
    torch, model = types.ModuleType("torch"), types.SimpleNamespace(num_timesteps=7, get_parameters=lambda: b"")
    torch.save = lambda parameters, file: file.write(parameters)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(peer_learner, "Games", lambda *_: types.SimpleNamespace(statistics=dict))
    monkeypatch.setattr(peer_learner.Learner, "_new_model", lambda *_: model)
    state = {"seconds": 900.0}  # as an earlier version saved it
    monkeypatch.setattr(peer_learner.Learner, "_load", lambda _: state)
    options = types.SimpleNamespace(
        directory=tmp_path, algorithm="ppo", game="CartPole-v1", atari=False, eval_every_minutes=10.0, go_on=True
    )
    learner = peer_learner.Learner(options)
    assert learner._next_evaluation == pytest.approx(1500.0, abs=60.0)
    assert not learner._reached
    learner._next_evaluation, learner._reached = 1200.0, True
    learner._save()
    state |= json.loads((tmp_path / peer_learner.STATE).read_text())
    again = peer_learner.Learner(options)
    assert again._next_evaluation == 1200.0 and again._reached


def test_a_peer_saves_through_no_link_and_waits_for_no_pipe(tmp_path, monkeypatch):
    """In the directory of somebody else, a link may lead to any file of this user."""
    torch = types.ModuleType("torch")
    torch.save = lambda parameters, file: (file if hasattr(file, "write") else file.open("wb")).write(parameters)
    monkeypatch.setitem(sys.modules, "torch", torch)
    learner = peer_learner.Learner.__new__(peer_learner.Learner)
    learner.directory, learner._zoo, learner._reached = tmp_path, {}, False
    learner._before, learner._began, learner._paused = 0.0, time.monotonic(), 0.0
    learner._next_evaluation, learner._evaluation_seconds = 600.0, None
    learner.model = types.SimpleNamespace(num_timesteps=7, get_parameters=lambda: b"learned")
    learner.games = types.SimpleNamespace(statistics=dict)
    outside, names = tmp_path / "outside", (peer_learner.MODEL, peer_learner.STATE)
    outside.write_text("mine")
    for name in names:
        (tmp_path / f"{name}.partial").symlink_to(outside)
        (tmp_path / name).symlink_to(outside)
    learner._save()
    assert outside.read_text() == "mine" and not any((tmp_path / name).is_symlink() for name in names)
    assert (tmp_path / peer_learner.MODEL).read_bytes() == b"learned"
    (tmp_path / peer_learner.STATE).unlink()
    os.mkfifo(tmp_path / peer_learner.STATE)
    monkeypatch.setattr("pathlib.Path.read_text", None)  # it would wait for ever
    with pytest.raises(OSError, match="no regular file"):
        learner._load()


def test_the_program_of_a_peer_runs_where_ddrl_is_not_installed():
    program = [sys.executable, "-I", "-S", peer_learner.__file__, "--help"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True)
    assert "--eval-every-minutes" in done.stdout


def test_a_peers_dqn_is_evaluated_with_its_last_epsilon(monkeypatch):
    model, seen = types.SimpleNamespace(exploration_rate=0.7, exploration_final_eps=0.01), []

    def evaluate_policy(model, environment, games, greedy, **options):
        seen.append((model.exploration_rate, greedy))
        return [1.0] * games, [7] * games

    evaluation = types.SimpleNamespace(evaluate_policy=evaluate_policy)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.evaluation", evaluation)
    vec_env = types.SimpleNamespace(sync_envs_normalization=None)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", vec_env)
    games = peer_learner.Games.__new__(peer_learner.Games)
    told = []
    environment = types.SimpleNamespace(set_wrapper_attr=lambda name, value: told.append((name, value)))
    games._whole = types.SimpleNamespace(unwrapped=types.SimpleNamespace(envs=[environment]))
    games._options, games._normalizes = types.SimpleNamespace(atari=True, games=3), False
    assert games.scores(model, None) == [1.0] * 3
    assert seen == [(0.01, False)] and model.exploration_rate == 0.7
    assert told == [("was_real_done", True)], "games that older parameters began do not go on"


def test_a_peers_dqn_with_an_empty_replay_acts_as_it_has_learned_to_until_that_is_full():
    asked = []
    model = types.SimpleNamespace(learning_starts=100, _sample_action=lambda warm_up, *rest: asked.append(warm_up))
    peer_learner.refill(model, 5000)
    model._sample_action(model.learning_starts, None, 1)
    assert model.learning_starts == 5100 and asked == [100], "no updates, and no random actions, until then"


def test_a_peer_that_began_with_other_settings_does_not_go_on(tmp_path):
    (tmp_path / peer_learner.STATE).write_text('{"seconds": 1.0, "agent_steps": 7, "settings": {"gamma": 0.9}}')
    learner = peer_learner.Learner.__new__(peer_learner.Learner)
    learner.directory, learner._zoo = tmp_path, {"gamma": 0.99}
    monkeypatched = types.ModuleType("torch")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="began with other settings of the zoo"):
        patch.setitem(sys.modules, "torch", monkeypatched)
        learner._load()


def test_a_peers_records_are_those_of_a_run(tmp_path):
    python = peer_python(
        tmp_path,
        SAYS + 'say(kind="train", wall_seconds=1.0, agent_steps=5)\nprint("other words")\n'
        'say(kind="evaluation", wall_seconds=2.0, mean=3.0, maximum=3.0, games=1, version=5)\n'
        'say(kind="result", status="target", argv=sys.argv)\n',
    )
    peer.run_peer(python, ["--game", "Pong"], tmp_path / "run")
    assert [record["kind"] for record in read_metrics(tmp_path / "run")] == ["train", "evaluation"]
    result = rundir.read_json(tmp_path / "run" / rundir.RESULT)
    assert result["status"] == "target"
    assert result["argv"][-4:] == ["--game", "Pong", "--directory", str(tmp_path / "run")]
    assert result["options"] == ["--game", "Pong"], "without what belongs to the machine"


def test_a_peers_result_is_written_while_no_other_process_can_run_the_point(tmp_path, monkeypatch):
    path, write = tmp_path / "run", rundir.write_json

    def write_locked(file, content):
        with pytest.raises(UsageError, match="being trained by another process"), run_lock.locked(path):
            pass
        write(file, content)

    monkeypatch.setattr(rundir, "write_json", write_locked)
    peer.run_peer(peer_python(tmp_path, SAYS + 'say(kind="result", status="target")\n'), [], path)
    assert rundir.read_json(path / rundir.RESULT)["status"] == "target"


def test_a_peer_that_saved_nothing_begins_anew_and_one_that_did_goes_on(tmp_path):
    run = tmp_path / "run"
    said = 'say(kind="train", wall_seconds=1.0, agent_steps=5)\n'
    with pytest.raises(RuntimeError, match="stable-baselines3 ended with status 1"):
        peer.run_peer(peer_python(tmp_path, SAYS + said + "1 / 0"), [], run)
    python = peer_python(tmp_path, SAYS + said + 'say(kind="result", status="target")\n')
    peer.run_peer(python, [], run)
    assert len(read_metrics(run)) == 1, "those of the first start are undone"
    (run / peer_learner.STATE).touch()
    peer.run_peer(python, [], run)
    assert len(read_metrics(run)) == 2


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        ("sys.exit(3)", UsageError, "--peer-python .*: stable-baselines3 is not installed; python -m venv PEER"),
        ("1 / 0", RuntimeError, "stable-baselines3 ended with status 1: see .*log.txt"),
    ],
)
def test_a_peer_that_ends_without_a_result_is_told_of(tmp_path, program, error, message):
    with pytest.raises(error, match=message):
        peer.run_peer(peer_python(tmp_path, SAYS + program), [], tmp_path / "run")
    assert not (tmp_path / "run" / rundir.RESULT).exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("say(kind='train', wall_seconds=0.5)", "cannot write metrics: No space left"),
        ("print('RECORD {', flush=True)", "JSONDecodeError: Expecting property name"),
        ("print('RECORD 1', flush=True)", "TypeError"),
    ],
)
def test_a_peer_whose_records_cannot_be_kept_is_ended_and_not_waited_for(tmp_path, monkeypatch, line, message):
    def full(writer, record):
        raise UsageError("cannot write metrics: No space left on device")

    monkeypatch.setattr(peer.MetricsWriter, "write", full)
    with pytest.raises(RuntimeError, match=f"{peer.PEER} was ended, as its records could not be kept: {message}"):
        peer.run_peer(peer_python(tmp_path, f"{SAYS}{line}\ntime.sleep(60)\n"), [], tmp_path / "run")
    assert not (tmp_path / "run" / rundir.RESULT).exists()


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_peer_is_asked_to_save_and_killed_where_it_does_not(tmp_path, monkeypatch, stubborn):
    monkeypatch.setattr(peer, "END_SECONDS", 1.0 if stubborn else 60.0)  # to save may take long on a busy machine
    saves = "lambda *_: (say(kind='event', name='saved', text=''), sys.exit(4))"
    handler = "signal.SIG_IGN" if stubborn else saves
    program = f"signal.signal(signal.SIGTERM, {handler})\nsay(kind='train', wall_seconds=0.5)\ntime.sleep(60)\n"
    path = tmp_path / "run"

    def stop():
        while not read_metrics(path):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    with Interrupts():  # so that the signal ends nothing but the peer
        threading.Thread(target=stop, daemon=True).start()
        peer.run_peer(peer_python(tmp_path, SAYS + program), [], path)
    assert not (path / rundir.RESULT).exists(), "the point is interrupted, and goes on"
    assert [record["kind"] for record in read_metrics(path)] == ["train"] + ["event"] * (not stubborn)
