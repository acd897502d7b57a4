"""The closing summary: what was learned, beside random play and people, where things are, what to do next."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl import checkpoint, plugins, rundir
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.launch.local import summarize
from ddrl.reporting.atari_scores import Reference, reference_of
from ddrl.reporting.metrics import MetricsWriter
from ddrl.reporting.summary import compared
from tests.reporting.test_progress import TRAIN, evaluation, recorded, text_of


def summarized(run_dir, game="breakout", width=60) -> str:
    console, file = recorded(width, terminal=False)
    summarize(TrainConfig(algorithm=BA3CConfig()).changed(environment={"game": game}), run_dir, console)
    return text_of(file)


def write(run_dir, *scores):
    writer = MetricsWriter(run_dir)
    for index, (score, update) in enumerate(scores):
        now = {"wall_seconds": 100.0 * (index + 1), "update": update, "agent_steps": 60_000, "online_score_mean": score}
        writer.write(TRAIN | now)
        writer.write(evaluation(score + 1, wall_seconds=100.0 * (index + 1)))
    writer.event("target_reached", "mean 51.0 at 3:20", 200.0)
    writer.close()


def flat(text):
    return " ".join(text.split())


def test_what_was_learned_and_how_to_go_on(tmp_path):
    write(tmp_path, (2.0, 400), (20.0, 1234), (40.0, 1234))
    saved = checkpoint.Checkpoint(8, 8, 9, 1.0, np.zeros(2, np.float32), {}, 8, (("w", (2,)),))
    path = checkpoint.save(tmp_path, saved)
    (tmp_path / "learning_curve.png").touch()
    (tmp_path / "video.mp4").touch()
    text = summarized(tmp_path)
    for part in (
        "BA3C on breakout",
        "score 41.0, mean of 50 evaluation games, best 82",
        "random play scores 1.7, a professional games tester 30.5: above the tester",
        "in training from 2.0 to 20.0, at best 20.0 (mean of the last 100 training episodes)",
        "60,000 agent steps, 1,234 updates in 3:20, 300 agent steps/s",  # the last evaluation takes the rest
        "target reached: mean 51.0",
        f"{tmp_path}/learning_curve.png the score over time",
        f"{tmp_path}/video.mp4 a game of the agent",
        f"{path} the newest checkpoint",
        f"ddrl play {tmp_path} ",
        f"ddrl train --resume {tmp_path} --minutes 60",
    ):
        assert part in flat(text), part
    assert len(text.splitlines()) < 24
    for line in text.splitlines():  # sentences are wrapped, and paths are not
        assert len(line) <= 60 or str(tmp_path) in line


@pytest.mark.parametrize(
    "budgets, result, said",
    [
        ({"agent_steps": 10**6}, {"status": "finished"}, "--agent-steps 2000000  trains as long again"),
        ({"max_updates": 500}, {"status": "finished"}, "--max-updates 1000  trains as long again"),
        ({"max_updates": 100}, {"status": "finished"}, "--max-updates 1000  trains as long again"),
        ({"max_updates": 501}, {"status": "finished"}, "--minutes 60  trains for another hour"),
        ({"max_updates": 501}, {"status": "target"}, "--no-stop-at-target --minutes 60  trains for another hour"),
        ({"max_updates": 501}, {"status": "stopped"}, "--minutes 60  trains for another hour"),
    ],
    ids=["agent-steps", "updates", "fewer-than-earlier-parts-made", "minutes", "target", "stopped"],
)
def test_the_command_to_go_on_trains_although_a_budget_is_used_up(tmp_path, budgets, result, said):
    write(tmp_path, (2.0, 400))
    checkpoint.save(tmp_path, checkpoint.Checkpoint(8, 8, 9, 1.0, np.zeros(2, np.float32), {}, 8, (("w", (2,)),)))
    rundir.write_json(tmp_path / rundir.RESULT, {**result, "agent_steps": 1_000_300, "update": 500})
    console, file = recorded(200, terminal=False)
    summarize(TrainConfig(algorithm=BA3CConfig()).changed(run=budgets), tmp_path, console)
    assert f"ddrl train --resume {tmp_path} {said}" in text_of(file)


def test_a_path_with_a_space_is_quoted(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    write(run, (2.0, 400))
    checkpoint.save(run, checkpoint.Checkpoint(8, 8, 9, 1.0, np.zeros(2, np.float32), {}, 8, (("w", (2,)),)))
    assert f"ddrl play '{run}'" in summarized(run)


def test_without_evaluations_the_training_score_counts(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(TRAIN | {"episodes": 12, "online_score_mean": 7.25})
    writer.close()
    text = flat(summarized(tmp_path, "CartPole-v1"))
    assert "score 7.2, mean of the last 12 training episodes" in text and "random play" not in text


def test_the_best_training_score_is_of_as_many_episodes_as_it_looks_back_on(tmp_path):
    """The first line has the mean of one game, which was lucky."""
    writer = MetricsWriter(tmp_path)
    for seconds, episodes, score in ((5.0, 1, 90.0), (60.0, 120, 20.0), (70.0, 140, 10.0)):
        now = {"wall_seconds": seconds, "update": int(seconds), "episodes": episodes, "online_score_mean": score}
        writer.write(TRAIN | now)
    writer.write(evaluation(0.4, wall_seconds=70.0) | {"maximum": 0.4})
    writer.close()
    text = flat(summarized(tmp_path))
    assert "in training from 90.0 to 10.0, at best 20.0 (mean of the last 100 training episodes)" in text
    assert "score 0.4, mean of 50 evaluation games, best 0.4 " in text


def test_where_time_cut_the_last_evaluation_off_the_training_score_counts(tmp_path):
    """Those before it are of a younger agent: they are told with their time."""
    write(tmp_path, (0.5, 400), (20.0, 1234))
    writer = MetricsWriter(tmp_path)
    writer.write(TRAIN | {"wall_seconds": 400.0, "update": 1500, "agent_steps": 90_000, "online_score_mean": 25.0})
    writer.write(evaluation(90.0, wall_seconds=400.0) | {"timed_out": 3})
    writer.close()
    text = flat(summarized(tmp_path))
    for part in (
        "score 25.0, mean of the last 100 training episodes random play",
        "tester 30.5: 81% of the way from the one to the other in training from 0.5 to 25.0, at best 25.0 evaluation",
        "evaluation at 3:20: 21.0, mean of 50 evaluation games, best 42",
        "not counted: 1 evaluation cut off by time",
    ):
        assert part in text, (part, text)


def test_counts_are_those_of_the_end_and_the_rate_is_that_of_training(tmp_path):
    """The last line of training is seconds older."""
    write(tmp_path, (2.0, 400), (20.0, 1234))
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "finished", "update": 1250, "agent_steps": 61_000})
    assert "61,000 agent steps, 1,250 updates in 3:20, 300 agent steps/s" in flat(summarized(tmp_path))
    rundir.write_json(tmp_path / rundir.RESULT, {"status": "failed", "update": "many"})
    assert "60,000 agent steps, 1,234 updates in 3:20, 300 agent steps/s" in flat(summarized(tmp_path))


def test_scores_that_are_all_infinite_are_no_lack_of_episodes(tmp_path):
    writer = MetricsWriter(tmp_path)
    now = {"wall_seconds": 100.0, "update": 4, "agent_steps": 60_000, "scores_not_finite": 7}
    writer.write({name: value for name, value in (TRAIN | now).items() if not name.startswith("online")})
    writer.close()
    assert "no episode has had a finite score: fix the rewards of the environment" in flat(summarized(tmp_path))


def test_a_run_that_did_nothing(tmp_path):
    text = summarized(tmp_path)
    assert "no episode has ended" in text and "a game whose episodes never end needs a time limit" in flat(text)
    assert "--resume" not in text and "no checkpoint was saved" in flat(text)


@pytest.mark.parametrize(
    ("score", "verdict"),
    [
        (1.0, "no better than random play"),
        (11.0, "25% of the way from the one to the other"),
        (41.5, "above the tester"),
    ],
)
def test_beside_random_play_and_people(score, verdict):
    assert compared(score, Reference(1.0, 41.0)).endswith(f"tester 41: {verdict}")


@pytest.mark.parametrize("game", ["breakout", "Breakout", "ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_a_game_has_its_scores_however_it_is_written(game):
    assert reference_of(game) == (1.7, 30.5)


def test_an_environment_of_a_plugin_has_no_scores_of_the_atari_game_of_that_name():
    assert reference_of("pong") is not None
    plugins.register_environment("pong", lambda: None)
    assert reference_of("pong") is None


def test_every_row_of_the_table_is_an_atari_game_and_others_have_no_scores():
    from ale_py import roms

    from ddrl.reporting.atari_scores import _table

    assert _table().keys() <= {rom.replace("_", "") for rom in roms.get_all_rom_ids()} and len(_table()) == 57
    assert reference_of("ddrl/Catch-v0") is None and reference_of("CartPole-v1") is None
    assert reference_of("UpNDown").random == 533.4
