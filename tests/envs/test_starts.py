"""Evaluation games that begin with what people did."""

from __future__ import annotations

import dataclasses
import os
import zipfile

import numpy as np
import pytest

from ddrl.config import EnvironmentConfig
from ddrl.envs import find_protocol, make_environment
from ddrl.envs import starts as starts_module
from ddrl.envs.atari_frames import AtariFrames
from ddrl.envs.starts import load_starts
from ddrl.errors import UsageError
from ddrl.evaluation.games import evaluate

LONGEST = 400


@pytest.fixture
def file(tmp_path):
    """file(CHANGES...) -> path of a file with three starts of Breakout."""

    def write(**changes):
        generator = np.random.default_rng(0)
        actions = generator.choice([0, 1, 3, 4], (3, LONGEST)).astype(np.uint8)
        content = {"actions": actions, "lengths": np.array([LONGEST, 50, 0]), "seed": np.array(7)} | changes
        path = tmp_path / "starts.npz"
        np.savez(path, **{name: value for name, value in content.items() if value is not None})
        return path

    return write


def emulator_after(actions, seed=7):
    """RAM of Breakout after these actions."""
    game = AtariFrames("breakout", find_protocol("nature"))
    game.env.reset(seed=seed)
    for action in actions:
        game._ale.act(int(action))
    return game._ale.getRAM().tobytes()


def test_a_game_begins_where_the_recorded_actions_lead(file):
    starts = load_starts(file())
    game = AtariFrames("breakout", find_protocol("nature"), starts=starts)
    expected = {emulator_after(row): number for number, row in enumerate(starts.actions)}
    assert len(expected) == 3
    drawn = []
    for seed in range(12):
        observation, _ = game.reset(seed=seed)
        drawn.append(expected[game._ale.getRAM().tobytes()])
        assert observation[-1].any() and not observation[:-1].any()
    assert set(drawn) == {0, 1, 2}
    game.reset(seed=3)
    assert expected[game._ale.getRAM().tobytes()] == drawn[3], "the draw is a function of the seed"


def test_an_evaluation_is_stamped_with_its_starts(file):
    config = EnvironmentConfig(game="breakout")
    starts = load_starts(file())
    policy = lambda observations: np.tile([1.0, 0.0, 0.0, 0.0], (len(observations), 1))
    result = evaluate(dataclasses.replace(config, episode_frames=400), policy, 2, seed=1, starts=starts)
    assert result.stamp["starts"] == "starts.npz" and result.stamp["starts_count"] == 3
    assert len(result.stamp["starts_sha256"]) == 64 and result.stamp["backend"] == "gymnasium"


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"actions": None}, "its arrays cannot be read"),
        ({"actions": np.zeros((3, LONGEST), np.int64)}, r"actions are int64\[3, 400\]"),
        ({"actions": np.full((3, LONGEST), 18, np.uint8)}, "action 18, and ALE has 0 to 17"),
        ({"lengths": np.array([1, 2])}, r"lengths are int64\[2\] for 3 starts"),
        ({"lengths": np.array([1, 2, LONGEST + 1])}, "lengths are 1 to 401 of 400 frames"),
        ({"seed": np.array(-1)}, "seed is not a number"),
        ({"actions": np.array([{}], object)}, "its arrays cannot be read"),
    ],
)
def test_other_files_are_refused(file, changes, said):
    with pytest.raises(UsageError, match=f"--starts .*{said}"):
        load_starts(file(**changes))


def test_what_cannot_be_is_refused(file, tmp_path):
    with pytest.raises(UsageError, match="--starts .*nowhere.npz: No such file"):
        load_starts(tmp_path / "nowhere.npz")
    np.save(tmp_path / "array.npy", np.zeros(3))
    damaged = bytearray(file().read_bytes())
    damaged[100:400] = bytes(300)
    for content in (b"no archive", b"", (tmp_path / "array.npy").read_bytes(), damaged):
        (tmp_path / "other.npz").write_bytes(content)
        with pytest.raises(UsageError, match="--starts .*other.npz: its arrays cannot be read"):
            load_starts(tmp_path / "other.npz")
    starts = load_starts(file())
    with pytest.raises(UsageError, match="CartPole-v1 is not an Atari game"):
        make_environment(EnvironmentConfig(game="CartPole-v1"), 1, training=False, starts=starts)
    with pytest.raises(UsageError, match="machado18.*sticky"):
        make_environment(EnvironmentConfig(game="breakout", protocol="machado18"), 1, training=False, starts=starts)


@pytest.mark.parametrize(
    "place, byte", [(6, 99), (8, 1), (10, 99)], ids=["later version", "encrypted", "unknown compression"]
)
def test_archives_that_python_does_not_read_are_refused(file, place, byte):
    path = file()
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + place] = byte  # of the first header in the central directory
    path.write_bytes(content)
    with pytest.raises(UsageError, match="--starts .*starts.npz: its arrays cannot be read"):
        load_starts(path)


@pytest.mark.timeout(30)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "starts.npz")
    with pytest.raises(UsageError, match="--starts .*starts.npz: it is no regular file"):
        load_starts(tmp_path / "starts.npz")


def test_a_member_that_is_no_array_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "starts.npz", "w") as archive:
        for name in ("actions", "lengths", "seed"):
            archive.writestr(f"{name}.npy", b"no array")
    with pytest.raises(UsageError, match="--starts .*starts.npz: actions are"):
        load_starts(tmp_path / "starts.npz")


def test_a_start_that_ends_the_game_is_refused(file):
    long = np.ones((1, 30_000), np.uint8)  # FIRE for ever: every ball is lost
    starts = load_starts(file(actions=long, lengths=np.array([30_000])))
    game = AtariFrames("breakout", find_protocol("nature"), starts=starts)
    with pytest.raises(UsageError, match="start 0 of starts.npz ends the game"):
        game.reset(seed=0)


def test_arrays_that_take_too_much_once_decompressed_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "starts.npz"
    np.savez_compressed(path, actions=np.zeros((1, 10**6), np.uint8), lengths=np.array([9]), seed=np.array(7))
    assert len(load_starts(path).actions) == 1 and path.stat().st_size < 10**5
    monkeypatch.setattr(starts_module, "MOST_BYTES", 10**5)
    with pytest.raises(UsageError, match=r"its arrays cannot be read .*1,000,\d{3} bytes are more than 100,000"):
        load_starts(path)
