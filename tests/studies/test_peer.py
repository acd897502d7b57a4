"""A peer's program: what it saves and tells, and its end."""

from __future__ import annotations

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
from ddrl.bench import peer_learner
from ddrl.errors import UsageError
from ddrl.launch.processes import Interrupts
from ddrl.reporting.metrics import read_metrics
from ddrl.studies import peer
from tests.bench.fake_peer import peer_python

SAYS = """
import json, signal, sys, time
say = lambda **record: print("RECORD " + json.dumps(record), flush=True)
"""


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
