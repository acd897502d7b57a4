"""Runs from Python that no one has trained: what is handed on of a game to record, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ddrl
from ddrl import cli, rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig


@pytest.fixture
def run(tmp_path, monkeypatch) -> ddrl.Run:
    """A run without a checkpoint, in `run` of the current directory."""
    monkeypatch.chdir(tmp_path)
    rundir.create_run_dir(TrainConfig(algorithm=BA3CConfig()).changed(run={"run_dir": "run"}))
    return ddrl.load("run")


@pytest.fixture
def recorded(monkeypatch) -> list:
    """What is handed to `record_game`, in whose place the game is not over."""
    told = []

    def load_agent(path, batch_sizes, checkpoint):
        told.append(checkpoint)
        return SimpleNamespace(config=rundir.load_config(path), policy=None, checkpoint=SimpleNamespace(version=5))

    def record_game(config, policy, video, *, seed, max_agent_steps, drawn, tell):
        told.extend([video, seed, max_agent_steps])
        tell(False)
        return -1.0

    monkeypatch.setattr("ddrl.envs.control.choose_renderer", lambda: None)
    monkeypatch.setattr("ddrl.evaluation.agent.load_agent", load_agent)
    monkeypatch.setattr("ddrl.evaluation.video.record_game", record_game)
    return told


def test_a_video_has_the_defaults_of_the_command(run, recorded, capsys):
    assert run.play() == run.play(None, checkpoint=None) == run.path / "play.mp4"
    assert recorded == [None, run.path / "play.mp4", 0, 3000] * 2
    assert cli.main(["play", "run"]) == 0
    assert recorded[-4:] == [None, Path("run", "play.mp4"), 0, 3000]
    said = "run/play.mp4: score -1, update 5; the game was not over after 3,000 agent steps (--max-agent-steps)"
    assert capsys.readouterr().out == f"{said}\n"


def test_what_is_asked_of_a_video_is_handed_on(run, recorded):
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "update-000000007.npz").touch()
    video = run.play(Path("a.gif"), seed=np.int64(4), max_agent_steps=9, checkpoint=np.int64(7))
    assert video == Path("a.gif")
    assert recorded == [run.path / "checkpoints" / "update-000000007.npz", Path("a.gif"), 4, 9]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--video", "x.avi"], {"video": "x.avi"}),
        (["--seed", "-1"], {"seed": -1}),
        (["--max-agent-steps", "0"], {"max_agent_steps": 0}),
        (["--max-agent-steps", "1000001"], {"max_agent_steps": 1_000_001}),
        (["--checkpoint", "best"], {"checkpoint": "best"}),
    ],
)
def test_a_refusal_of_a_video_is_the_line_of_the_command(run, recorded, capsys, words, names):
    assert cli.main(["play", str(run.path), *words]) == 2
    line = capsys.readouterr().err.splitlines()[-1].removeprefix("ddrl: ")
    with pytest.raises(ddrl.UsageError) as refused:
        run.play(**names)
    assert " ".join(str(refused.value).split()) == line
    assert recorded == []


def test_numbers_of_a_video_are_numbers(run, recorded):
    with pytest.raises(ddrl.UsageError, match="^seed is '3', which is not of type int$"):
        run.play(seed="3")
    assert recorded == []
