"""Videos, read back from the file."""

from __future__ import annotations

from types import SimpleNamespace

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

import tests.envs.scripted  # noqa: F401  (registers)
from ddrl.config import EnvironmentConfig
from ddrl.envs.catch import Catch
from ddrl.errors import UsageError
from ddrl.evaluation import video as video_module
from ddrl.evaluation.video import record_best_game, record_game
from tests.evaluation.test_games import catcher, constant
from tests.test_unfinished import abandon

CATCH = EnvironmentConfig(game="ddrl/Catch-v0")


def read_mp4(path):
    frames = imageio_ffmpeg.read_frames(str(path))
    about = next(frames)
    width, height = about["size"]
    return about, [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]


def test_mp4_of_breakout(tmp_path):
    path = tmp_path / "play.mp4"
    score = record_game(EnvironmentConfig(), constant(3, 4), path, seed=1, max_agent_steps=40)
    about, frames = read_mp4(path)
    assert about["size"] == (320, 210) and about["fps"] == 30.0
    assert about["codec"] == "h264" and about["pix_fmt"].startswith("yuv420p")
    assert len(frames) == 40 * 4 // 2  # one picture for two emulator frames
    assert score == int(score)
    picture = frames[-1].astype(int)
    assert (np.ptp(picture[57:93, 40:280].mean(axis=(1)), axis=1) > 50).any()  # colored bricks
    assert picture[100:150, 40:280].mean() < 20  # black field under them
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_video_plays_the_evaluated_protocol(tmp_path):
    # A player that only moves right never serves: without the forced FIRE the game would go on.
    path = tmp_path / "play.mp4"
    score = record_game(EnvironmentConfig(), constant(2, 4), path, seed=0, max_agent_steps=1500)
    assert 0.0 <= score < 20.0
    assert len(read_mp4(path)[1]) < 2 * 1000


def test_catch_mp4_and_gif(tmp_path):
    assert record_game(CATCH, catcher, tmp_path / "catch.mp4", seed=3) == 1.0
    about, frames = read_mp4(tmp_path / "catch.mp4")
    assert about["size"] == (320, 640) and about["fps"] == 10.0 and len(frames) == 10
    assert record_game(CATCH, catcher, tmp_path / "catch.gif", seed=3) == 1.0
    gif = Image.open(tmp_path / "catch.gif")
    assert gif.size == (320, 640) and gif.n_frames == 10 and gif.info["duration"] == 100
    for k in (0, 9):
        gif.seek(k)
        drawn = np.array(gif.convert("RGB"), int)
        assert np.abs(drawn - frames[k]).mean() < 5


def test_the_options_of_a_game_apply_in_its_video(tmp_path):
    config = EnvironmentConfig(game="ddrl/DeepSea-v0", game_options=("size=3",))
    record_game(config, constant(0, 2), tmp_path / "dive.mp4", seed=1)
    about, frames = read_mp4(tmp_path / "dive.mp4")
    assert about["size"] == (14 * 24, 14 * 24) and len(frames) == 4


def test_it_is_told_whether_the_game_was_over(tmp_path):
    over = []
    for steps in (8, 9, 10):  # of which Catch has nine
        record_game(CATCH, catcher, tmp_path / "catch.gif", seed=3, max_agent_steps=steps, tell=over.append)
    assert over == [False, True, True]


def test_the_best_of_several_games_is_kept(tmp_path, monkeypatch):
    path, scores = tmp_path / "video.mp4", []
    record = video_module.record_game

    def noted(*arguments, **options):
        scores.append(record(*arguments, **options))
        return scores[-1]

    monkeypatch.setattr(video_module, "record_game", noted)
    monkeypatch.setattr(video_module, "PATIENCE_SECONDS", 1000.0)  # all games are recorded, however busy the machine is
    still = constant(1, 3)
    best, games = record_best_game(CATCH, still, path, seed=1)
    assert games == len(scores) == video_module.BEST_GAMES and best == max(scores) == 1.0 > min(scores)
    assert sorted(tmp_path.iterdir()) == [path]
    frames = read_mp4(path)[1]
    number = scores.index(best)
    record(CATCH, still, tmp_path / "again.mp4", seed=1 + number)
    np.testing.assert_array_equal(frames, read_mp4(tmp_path / "again.mp4")[1])


def test_the_best_games_video_ends_after_a_minute_and_no_game_begins_when_its_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(video_module, "BEST_SECONDS", 2.0)
    monkeypatch.setattr(video_module, "PATIENCE_SECONDS", 0.0)
    path = tmp_path / "video.mp4"
    score, games = record_best_game(EnvironmentConfig(), constant(3, 4), path, seed=1)
    assert games == 1 and score >= 0.0 and len(read_mp4(path)[1]) == 2 * video_module.ATARI_FPS


def test_a_game_that_begins_when_its_time_is_up_has_a_picture(tmp_path):
    path = tmp_path / "video.mp4"
    record_game(EnvironmentConfig(), constant(3, 4), path, seed=1, until=0.0)
    assert len(read_mp4(path)[1]) == 2  # of the four frames of one agent step


def test_a_game_that_time_cuts_short_is_not_the_best_for_lack_of_losses(tmp_path, monkeypatch):
    step, now = Catch.step, [0.0]

    def costly(self, action):
        observation, _, *rest = step(self, action)
        return observation, -1.0, *rest

    def policy(observations):  # each step takes a second
        now[0] += 1.0
        return np.tile(np.eye(3)[1], (len(observations), 1))

    monkeypatch.setattr(Catch, "step", costly)
    monkeypatch.setattr(video_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(video_module, "PATIENCE_SECONDS", 12.0)
    path = tmp_path / "video.mp4"
    assert record_best_game(CATCH, policy, path, seed=1) == (-9.0, 1)  # the second one has three seconds
    assert len(read_mp4(path)[1]) == 10 and sorted(tmp_path.iterdir()) == [path]


def test_gif_of_an_atari_game_has_every_second_picture(tmp_path):
    path = tmp_path / "pong.gif"
    record_game(EnvironmentConfig(game="pong"), constant(3, 6), path, seed=1, max_agent_steps=60)
    gif = Image.open(path)
    assert gif.size == (320, 210) and 20 <= gif.n_frames <= 60  # equal pictures are merged


@pytest.mark.parametrize(
    ("config", "name", "message"),
    [
        (CATCH, "play.avi", r"play\.avi: the name must end in .mp4 or .gif"),
        (CATCH, "nowhere/play.mp4", "there is no directory"),
        (EnvironmentConfig(game="ddrl-test/Scripted-v0"), "play.mp4", "cannot draw pictures"),
        (EnvironmentConfig(game="brakout"), "play.mp4", "unknown game"),
    ],
)
def test_bad_input(tmp_path, config, name, message):
    with pytest.raises(UsageError, match=message):
        record_game(config, constant(0, 4), tmp_path / name, seed=0)
    assert not list(tmp_path.iterdir())


def test_a_failing_policy_keeps_the_old_video(tmp_path):
    path = tmp_path / "play.mp4"
    path.write_bytes(b"old")

    def policy(observations):
        raise FloatingPointError("bad weights")

    with pytest.raises(FloatingPointError):
        record_game(CATCH, policy, path, seed=0)
    assert path.read_bytes() == b"old" and sorted(tmp_path.iterdir()) == [path]


def test_a_link_in_the_place_of_the_unfinished_video_is_not_followed(tmp_path, monkeypatch):
    path, outside = tmp_path / "catch.gif", tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setattr("secrets.token_hex", lambda size: "0")
    (tmp_path / ".catch.gif.0.tmp").symlink_to(outside)
    with pytest.raises(FileExistsError, match="/catch.gif"):
        record_game(CATCH, catcher, path, seed=3)
    assert not list(outside.iterdir()) and not path.exists()


def test_what_a_killed_process_has_left_of_a_video_goes_with_the_next_one(tmp_path):
    path = tmp_path / "catch.gif"
    abandon(path)
    abandon(tmp_path / "catch.mp4")
    record_game(CATCH, catcher, path, seed=3)
    assert {each.name for each in tmp_path.iterdir()} == {"catch.gif", ".catch.mp4.0.tmp"}
    record_best_game(CATCH, catcher, tmp_path / "catch.mp4", seed=3)
    assert {each.name for each in tmp_path.iterdir()} == {"catch.gif", "catch.mp4"}


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_two_videos_of_one_name_at_once_are_both_whole(tmp_path, suffix):
    """Two people may call `ddrl play` of one run."""
    path, others = tmp_path / f"catch{suffix}", []

    def policy(observations):
        if not others:
            others.append("begun")
            others.append(record_game(CATCH, catcher, path, seed=3))
        return catcher(observations)

    assert record_game(CATCH, policy, path, seed=3) == others[1] == 1.0
    assert list(tmp_path.iterdir()) == [path]
    assert len(read_mp4(path)[1]) == 10 if suffix == ".mp4" else Image.open(path).n_frames == 10
