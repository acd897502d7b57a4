"""`ddrl evaluate`, `ddrl play` and what is made at the end of a run, with an untrained network."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ddrl import algorithms, checkpoint, cli, plugins, rundir, unfinished
from ddrl.commands import evaluate
from ddrl.evaluation import agent as agents
from ddrl.evaluation import newest
from ddrl.launch import finish
from ddrl.types import Machine


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of the smoke preset with one checkpoint of initial parameters."""
    return untrained(tmp_path_factory.mktemp("runs") / "run")


def untrained(path, game=None):
    """The directory of a run with one checkpoint of initial parameters."""
    from ddrl.envs import make_environment
    from ddrl.networks import build_network

    config = algorithms.preset("smoke", game, Machine(2, 16 * 10**9))
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, run_dir=str(path), video=True))
    path, config = rundir.create_run_dir(config)
    env = make_environment(config.environment, num_envs=1)
    network = build_network(config.network, env.observation_shape, env.observation_dtype, env.action_space)
    env.close()
    state = checkpoint.Checkpoint(
        version=7,
        step=7,
        agent_steps=1120,
        wall_seconds=1.0,
        parameters=network.initial_parameters(1),
        slots={},
        optimizer_count=7,
        layout=network.parameter_shapes,
        config=rundir.config_to_dict(config),
    )
    checkpoint.save(path, state)
    return path


def test_evaluate_prints_and_records(run_dir, capsys):
    assert cli.main(["evaluate", str(run_dir), "--games", "6", "--seed", "3"]) == 0
    output = capsys.readouterr().out
    assert "ddrl/Catch-v0, update 7 (1,120 agent steps), 6 games" in output
    assert "protocol: " in output and "human starts" not in output
    record = json.loads((run_dir / rundir.EVALUATIONS).read_text().splitlines()[-1])
    assert (record["version"], record["games"], len(record["scores"])) == (7, 6, 6)
    assert record["mean"] == pytest.approx(sum(record["scores"]) / 6)
    assert record["maximum"] == max(record["scores"])
    assert record["minimum"] == min(record["scores"])
    assert cli.main(["evaluate", str(run_dir), "--games", "6", "--seed", "3"]) == 0
    again = json.loads((run_dir / rundir.EVALUATIONS).read_text().splitlines()[-1])
    assert again["scores"] == record["scores"], "one seed, one result"


def test_an_evaluation_is_not_added_to_half_a_line(tmp_path):
    """As a full disk leaves; neither of the two could be read."""
    file = tmp_path / rundir.EVALUATIONS
    file.write_bytes(b'{"mean": 1.0}\n{"mean": 2')
    assert all(newest._added(file, line) for line in (b"", b'{"mean": 3.0}\n', b'{"mean": 4.0}\n'))
    assert file.read_text().split("\n") == ['{"mean": 1.0}', '{"mean": 2', '{"mean": 3.0}', '{"mean": 4.0}', ""]


@pytest.mark.parametrize("kind, why", [("link", "a link, which is not followed"), ("pipe", "no regular file")])
def test_scores_that_cannot_be_added_to_a_run_are_printed(tmp_path, capsys, kind, why):
    """In a run of somebody else, whose link would lead to a file of this user, and whose pipe nobody reads."""
    run_dir, outside = untrained(tmp_path / "run"), tmp_path / "outside"
    file = run_dir / rundir.EVALUATIONS
    outside.write_text("mine")
    if kind == "link":
        file.symlink_to(outside)
    else:
        os.mkfifo(file)
    assert cli.main(["evaluate", str(run_dir), "--games", "1"]) == 0
    said = capsys.readouterr()
    assert "score: mean " in said.out and outside.read_text() == "mine"
    (line,) = [line for line in said.err.splitlines() if rundir.EVALUATIONS in line]
    assert line.startswith(f"warning: {file}: it is {why}")
    assert line.endswith("; the evaluation is not added to the run")


def test_evaluate_draws_actions_where_that_is_asked_for(run_dir, capsys):
    command = ["evaluate", str(run_dir), "--games", "6", "--seed", "3"]
    records = []
    for words in ([], ["--actions", "drawn"], ["--actions", "greedy", "--epsilon", "0.5"]):
        assert cli.main([*command, *words]) == 0
        records.append(json.loads((run_dir / rundir.EVALUATIONS).read_text().splitlines()[-1]))
    assert [record["protocol"].get("actions") for record in records] == [None, "drawn", None]
    assert [record["protocol"].get("epsilon") for record in records] == [0.0, None, 0.5]
    capsys.readouterr()
    assert cli.main([*command, "--actions", "drawn", "--epsilon", "0.1"]) == 2
    assert "--epsilon 0.1: drawn actions are random by themselves; leave it out" in capsys.readouterr().err


def test_a_checkpoint_is_named_by_its_file_or_its_update(run_dir, capsys, tmp_path):
    file = str(run_dir / "checkpoints" / "update-7.npz")
    plugin = tmp_path / "brings_a_wrapper.py"
    plugin.write_text("import ddrl\nddrl.register_wrapper('brought', lambda env: env)\n")
    for words in ([file], [str(run_dir), "--checkpoint", "7"], [str(run_dir), "--plugin", str(plugin)]):
        assert cli.main(["evaluate", *words, "--games", "1"]) == 0
        assert "update 7 (" in capsys.readouterr().out
    assert "brought" in plugins.wrappers.names()
    for command in ("evaluate", "play", "export"):
        assert cli.main([command, str(run_dir), "--checkpoint", "8"]) == 2
        assert "has no checkpoint of update 8, only of update 7\n" in capsys.readouterr().err


def test_the_best_evaluations_parameters_play(tmp_path, capsys):
    run_dir = untrained(tmp_path / "run")
    for command in ("evaluate", "play", "export"):
        assert cli.main([command, str(run_dir), "--checkpoint", "best"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "has no checkpoints/best.npz: no evaluation of it has ended" in line
    newest_one = checkpoint.load(checkpoint.checkpoint_path(run_dir, 7))
    checkpoint.save_best(run_dir, dataclasses.replace(newest_one, version=4, slots={}))
    for words in ([str(run_dir), "--checkpoint", "best"], [str(run_dir / "checkpoints" / "best.npz")]):
        assert cli.main(["evaluate", *words, "--games", "1"]) == 0
        assert "update 4 (" in capsys.readouterr().out
    assert cli.main(["play", str(run_dir), "--checkpoint", "best", "--max-agent-steps", "5"]) == 0
    assert "update 4" in capsys.readouterr().out
    assert cli.main(["evaluate", str(run_dir), "--games", "1"]) == 0
    assert "update 7 (" in capsys.readouterr().out, "the newest stays the newest"


def test_an_evaluation_of_atari_says_that_human_starts_were_not_measured():
    lines = io.StringIO()
    record = {
        "version": 1,
        "agent_steps": 2,
        "games": 1,
        "seconds": 1.0,
        "mean": 1.0,
        "maximum": 1.0,
        "minimum": 1.0,
        "deviation": 0.0,
        "unfinished": 0,
        "protocol": {},
        "human_starts": newest.HUMAN_STARTS,
    }
    evaluate.show("pong", record, Console(file=lines, width=200))
    assert "human starts: not measured" in lines.getvalue()
    assert "stuck" not in lines.getvalue()
    forced = {"stuck": 3, "forced_actions": 1234, "protocol": {"repeat_fire_after": 30}}
    evaluate.show("pong", record | forced, Console(file=lines, width=200))
    assert "stuck: 3 of them, without a reward for 1,000 agent steps" in lines.getvalue()
    assert "sent action 1 (FIRE) 1,234 times, after 30 identical actions in a row" in lines.getvalue()


def test_scores_have_all_their_digits_and_one_game_no_deviation(run_dir, capsys):
    lines = io.StringIO()
    record = {"version": 1, "agent_steps": 2, "games": 3, "seconds": 1.0, "unfinished": 0, "protocol": {}}
    record |= {"mean": 1234567.333, "maximum": 3703702.0, "minimum": -0.125, "deviation": 12.5}
    evaluate.show("pong", record, Console(file=lines, width=200))
    assert "score: mean 1234567.33, maximum 3703702, minimum -0.12, standard deviation 12.50\n" in lines.getvalue(), (
        lines.getvalue()
    )
    assert cli.main(["evaluate", str(run_dir), "--games", "1"]) == 0
    assert "deviation" not in json.loads((run_dir / rundir.EVALUATIONS).read_text().splitlines()[-1])
    output = capsys.readouterr().out
    assert "deviation" not in output and " 1 game, " in output


def test_recorded_starts_are_for_atari(run_dir, tmp_path, capsys):
    file = tmp_path / "starts.npz"
    np.savez(file, actions=np.zeros((1, 3), np.uint8), lengths=np.array([3]), seed=np.array(0))
    assert cli.main(["evaluate", str(run_dir), "--starts", str(file)]) == 2
    assert "--starts: ddrl/Catch-v0 is not an Atari game" in capsys.readouterr().err
    assert cli.main(["evaluate", str(run_dir), "--starts", str(tmp_path / "none.npz")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_tensorflow_is_not_heard_and_python_is(run_dir):
    load = (
        "import sys; from pathlib import Path; from ddrl.evaluation import agent; inner = agent.Agent\n"
        "agent.Agent = lambda *settings: (print('loading', file=sys.stderr), inner(*settings))[1]\n"
        "agent.load_agent(Path(sys.argv[1]), (1,)); print('loaded', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", load, str(run_dir)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "loading\nloaded\n")


def test_play_writes_the_video(run_dir, tmp_path, capsys):
    video = tmp_path / "out.mp4"
    assert cli.main(["play", str(run_dir), "--video", str(video)]) == 0
    assert video.stat().st_size > 0
    output = capsys.readouterr().out
    assert f"{video}: score" in output and "not over" not in output
    assert cli.main(["play", str(run_dir), "--video", str(video), "--max-agent-steps", "3"]) == 0
    cut = f"{video}: score 0, update 7; the game was not over after 3 agent steps (--max-agent-steps)\n"
    assert capsys.readouterr().out == cut


@pytest.mark.parametrize(
    "words, message",
    [
        (["play", "--video", "out.avi"], "ddrl: video out.avi: the name must end in .mp4 or .gif\n"),
        (["play", "--video", "no/out.gif"], "ddrl: video no/out.gif: there is no directory 'no'; make it, or name ano"),
        (["play", "--video", "out.gif"], "{here}: Permission denied; fix its permissions, or name another place\n"),
        (["export", "--output", "out"], "{here}: Permission denied; fix its permissions, or name another place\n"),
        (["export", "--output", "no/such/out"], "{here}: Permission denied; fix its permissions, or name another pla"),
        (["export", "--output", "link/out"], "{here}/link: Not a directory; name another place\n"),
        (["export", "--output", "file/out"], "{here}/file: Not a directory; name another place\n"),
        (["export", "--output", "file"], "ddrl: file exists, and nothing is overwritten: choose another name\n"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_agent_is_loaded(
    run_dir, tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.setattr(agents, "load_agent", lambda *arguments, **options: pytest.fail("loaded"))
    monkeypatch.setattr(unfinished.os, "access", lambda path, mode: False)
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("link").symlink_to("nowhere")
    assert cli.main([words[0], str(run_dir), *words[1:]]) == 2
    assert message.format(here=tmp_path) in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_run_without_checkpoint(tmp_path, capsys):
    config = algorithms.preset("smoke", None, Machine(2, 16 * 10**9))
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, run_dir=str(tmp_path / "run")))
    path, _ = rundir.create_run_dir(config)
    assert cli.main(["evaluate", str(path)]) == 2
    assert "there is no checkpoint" in capsys.readouterr().err


def test_finish_makes_curve_and_video(run_dir, capsys):
    assert finish.main([str(run_dir)]) == 0
    output = capsys.readouterr().out
    assert f"learning curve: {run_dir / 'learning_curve.png'}" in output, output
    assert f"video: {run_dir / 'video.mp4'}" in output, output
    assert (run_dir / "video.mp4").stat().st_size > 0


def test_what_fails_at_the_end_is_a_warning():
    def fail():
        raise OSError("disk full")

    assert finish.attempt("video", fail) == "warning: no video: OSError: disk full"
    assert finish.attempt("video", lambda: "v.mp4") == "video: v.mp4"
