"""Runs side by side: which are a group, what is said of few and of many, and what of runs that are no good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddrl import cli, rundir
from ddrl.options.train_options import parse
from ddrl.studies import compare, figures
from ddrl.studies.measures import EVALUATION, ONLINE
from ddrl.studies.statistics import Interval
from ddrl.studies.tables import text
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)


def write(path: Path, slope: float, *words: str, evaluated: bool = False, ended: bool = True) -> str:
    """A run whose score grows by `slope` in 100 agent steps, 10 updates and a second."""
    config = parse(["ppo", "--preset", "smoke", *words, "--run-dir", str(path)], MACHINE).config
    rundir.create_run_dir(config)
    lines = []
    for i in range(1, 41):
        told = {"wall_seconds": float(i), "agent_steps": 100 * i, "update": 10 * i, "updates_per_s": 10.0}
        lines.append({"kind": "train", **told, "online_score_mean": slope * i})
    if evaluated:
        last = {"wall_seconds": 40.0, "agent_steps": 4000, "version": 400}
        scores = {"mean": 100 * slope, "maximum": 1.0, "games": 5, "unfinished": 0, "timed_out": 0, "seconds": 1.0}
        lines.append({"kind": "evaluation", **last, **scores, "protocol": "made up"})
    (path / rundir.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if ended:
        rundir.write_json(path / rundir.RESULT, {"status": "finished"})
    return str(path)


def many(directory: Path, count: int, *words: str) -> list[str]:
    return [write(directory / str(seed), float(seed), "--seed", str(seed), *words) for seed in range(1, count + 1)]


def groups(paths: list[str]) -> dict[str, int]:
    labels = [run.point.labels[compare.GROUP] for run in compare.read_runs(paths)]
    return {label: labels.count(label) for label in labels}


def test_groups_are_of_equal_settings_but_for_the_seed_and_the_length(tmp_path):
    usual = [*many(tmp_path / "a", 2), write(tmp_path / "long", 1.0, "--minutes", "3", "--no-evaluator")]
    other = many(tmp_path / "b", 2, "--learning-rate", "0.5")
    assert groups(usual) == {"ppo": 3}
    assert groups([*usual, *other]) == {"learning-rate 0.002": 3, "learning-rate 0.5": 2}
    much = ("--epochs", "1", "--beta1", "0", "--beta2", "0", "--discount", "0")
    assert groups([usual[0], write(tmp_path / "c", 1.0, *much)]) == {"ppo (1)": 1, "ppo (2)": 1}


def resumed(run: str, *words: str) -> str:
    rundir.update_run_dir(Path(run), parse(["--resume", run, *words], MACHINE).config)
    return run


def test_a_run_that_was_resumed_with_other_settings_is_in_no_group_of_runs_that_had_them_throughout(tmp_path, capsys):
    usual = write(tmp_path / "usual", 1.0, "--learning-rate", "1e-4")
    longer = resumed(write(tmp_path / "longer", 1.0, "--learning-rate", "1e-4"), "--minutes", "3")
    other = resumed(write(tmp_path / "other", 1.0), "--learning-rate", "1e-4")
    assert groups([usual, longer, other]) == {"ppo": 2, "ppo, changed at a resume": 1}
    assert cli.main(["compare", usual, longer, other, "--output", str(tmp_path / "out")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "was resumed with other settings" in line]
    assert line.startswith(f"careful: {other} was") and line.endswith("kept theirs: learning-rate 0.002, now 0.0001")


def test_the_earlier_settings_of_a_run_are_read_once(tmp_path, monkeypatch):
    run = resumed(write(tmp_path / "run", 1.0), "--learning-rate", "1e-4")
    read, earlier = [], rundir.earlier_configs
    monkeypatch.setattr(rundir, "earlier_configs", lambda path: read.append(str(path)) or earlier(path))
    assert cli.main(["compare", run, "--output", str(tmp_path / "out")]) == 0
    assert read == [run]


def test_runs_of_a_group_that_were_evaluated_by_different_rules_are_told(tmp_path, capsys):
    runs = [write(tmp_path / epsilon, 1.0, "--eval-epsilon", epsilon, evaluated=True) for epsilon in ("0.05", "0")]
    assert groups(runs) == {"ppo": 2}
    assert cli.main(["compare", *runs, "--output", str(tmp_path / "out")]) == 0
    said = "careful: runs of ppo were evaluated by different rules: eval-epsilon 0.05 and 0\n"
    assert said in capsys.readouterr().out
    assert compare._rules(compare.read_runs(runs[:1])) == []


def test_groups_of_different_games_may_have_one_name(tmp_path):
    runs = [write(tmp_path / name, 1.0, "--game", "CartPole-v1", "--network", "mlp", *more) for name, more in
            (("a", ()), ("b", ("--adam-epsilon", "0.123456")))]  # fmt: skip
    runs.append(write(tmp_path / "c", 1.0, "--network", "mlp"))
    assert groups(runs) == {"adam-epsilon 1e-08": 2, "adam-epsilon 0.1235": 1}
    rows = compare.groups_table(compare.read_runs(runs), ONLINE).rows
    assert [row[:3] for row in rows] == [
        ["adam-epsilon 1e-08", "CartPole-v1", 1], ["adam-epsilon 0.1235", "CartPole-v1", 1],
        ["adam-epsilon 1e-08", "ddrl/Catch-v0", 1],
    ]  # fmt: skip


def test_groups_are_called_by_the_options_of_their_game(tmp_path):
    words = ("--game", "CartPole-v1", "--network", "mlp")
    own = write(tmp_path / "a", 1.0, *words, "--game-options", "sutton_barto_reward=True", "max_episode_steps=200")
    assert groups([own, write(tmp_path / "b", 1.0, *words)]) == {
        "game-options sutton_barto_reward=True max_episode_steps=200": 1, "game-options -": 1,
    }  # fmt: skip


def test_other_algorithms_are_called_so(tmp_path):
    config = parse(["a2c", "--preset", "smoke", "--run-dir", str(tmp_path / "b")], MACHINE).config
    rundir.create_run_dir(config)
    assert groups([write(tmp_path / "a", 1.0), str(tmp_path / "b")]) == {"ppo": 1, "a2c": 1}


def test_few_runs_are_shown_as_they_are(tmp_path):
    outcomes = compare.read_runs(many(tmp_path, 3))
    assert text(compare.groups_table(outcomes, ONLINE).rows[0][3]) == "40.0; 80.0; 120"
    by_steps, by_updates, by_time, final, *_ = compare.panels_of(outcomes, ONLINE)
    assert [curve.y[-1] for curve in by_steps.curves] == [40.0, 80.0, 120.0]
    assert not any(curve.low for curve in by_steps.curves)
    assert [by_steps.curves[0].x[-1], by_updates.curves[0].x[-1], by_time.curves[0].x[-1]] == [4.0, 400.0, 40.0]
    assert final.curves[0].y == [40.0, 80.0, 120.0] and len(final.curves) == 1
    assert "as fewer than 5 of a group do not show its spread" in compare._spread(outcomes)


def test_many_runs_are_their_interquartile_mean(tmp_path):
    paths = [*many(tmp_path, 6), write(tmp_path / "far", 1000.0, "--seed", "7")]
    outcomes = compare.read_runs(paths)
    middle = compare.groups_table(outcomes, ONLINE).rows[0][3]
    assert isinstance(middle, Interval) and middle.bounds
    assert middle.mean == pytest.approx(40 * 4.0), "of 1 to 6 and 1000 the middle ones are 2 to 6"
    curve = compare.panels_of(outcomes, ONLINE)[0].curves[0]
    assert curve.low and curve.y[-1] == pytest.approx(40 * 4.0) and curve.label == "ppo (7 runs)"


def test_the_score_is_of_evaluations_where_all_have_one(tmp_path):
    one, two = (write(tmp_path / name, 1.0, evaluated=True) for name in ("one", "two"))
    outcomes = compare.read_runs([one, two])
    assert compare.score_of(outcomes, "auto") == EVALUATION and compare.score_of(outcomes, "online") == ONLINE
    assert compare.panels_of(outcomes, EVALUATION)[1].curves[0].x == [400.0], "an evaluation's update is its version"
    assert compare.score_of(compare.read_runs([one, write(tmp_path / "three", 1.0)]), "auto") == ONLINE


def append(run: str, record: dict) -> None:
    with (Path(run) / rundir.METRICS).open("a") as file:
        file.write(json.dumps(record) + "\n")


def test_an_evaluation_of_older_parameters_does_not_say_how_far_a_run_is(tmp_path):
    run = write(tmp_path / "run", 1.0)
    of_then = {"wall_seconds": 20.0, "agent_steps": 2000, "version": 200}
    append(run, {"kind": "evaluation", **of_then, "mean": 1.0, "maximum": 1.0, "games": 5, "protocol": "made up"})
    (row,) = compare.runs_table(compare.read_runs([run]), ONLINE).rows
    assert row[4:6] == [4000, 400]


def test_one_lucky_game_at_the_beginning_is_not_the_best_mean_of_100(tmp_path):
    run = write(tmp_path / "run", 1.0)
    metrics = Path(run) / rundir.METRICS
    lucky = {"wall_seconds": 0.5, "agent_steps": 50, "update": 5, "online_score_mean": 1000.0, "episodes": 1}
    metrics.write_text(json.dumps({"kind": "train", **lucky}) + "\n" + metrics.read_text())
    assert text(compare.groups_table(compare.read_runs([run]), ONLINE).rows[0][4]) == "40.0"


def test_a_curve_tells_how_many_runs_it_is_of(tmp_path):
    paths = many(tmp_path, 6)
    (Path(paths[0]) / rundir.METRICS).unlink()
    assert compare.panels_of(compare.read_runs(paths), ONLINE)[0].curves[0].label == "ppo (5 runs)"


def test_the_caption_says_how_evaluation_games_are_played(tmp_path, capsys):
    one = write(tmp_path / "one", 1.0, "--eval-epsilon", "0.05", evaluated=True)
    two = write(tmp_path / "two", 1.0, evaluated=True)
    for runs, games in (([one], "games of epsilon 0.05"), ([one, two], "games of epsilons up to 0.05")):
        assert cli.main(["compare", *runs, "--output", str(tmp_path / str(len(runs)))]) == 0
        page = (tmp_path / str(len(runs)) / compare.PAGE).read_text()
        assert f"{games} with frozen parameters" in page and "greedy games" not in page


def test_the_page_and_the_figure(tmp_path, capsys):
    paths = [*many(tmp_path / "<a>", 5), *many(tmp_path / "b", 2, "--adam-epsilon", "1e-3")]
    paths.append(write(tmp_path / "c", 1.0, "--game", "CartPole-v1", "--network", "mlp", ended=False))
    assert cli.main(["compare", *paths, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / compare.FIGURE).read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / compare.PAGE).read_text()
    assert "&lt;a&gt;" in page and "<a>" not in page and "http" not in page.split("<body>")[1]
    printed = capsys.readouterr().out
    assert "careful: " in printed and "was stopped before its end" in printed
    for name in ("adam-epsilon", "game", "seed", "agent steps/s"):
        assert name in page and name in printed


def test_texts_of_runs_give_a_terminal_no_commands(tmp_path, capsys):
    run = write(tmp_path / "run", 1.0)
    rundir.write_json(Path(run) / rundir.RESULT, {"status": "failed", "message": "broke\x1b[2J\x9bK"})
    assert cli.main(["compare", run, "--output", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "failed: broke?[2J?K" in told and not {"\x1b", "\x9b"} & set(told)


def test_refusals(tmp_path, capsys, monkeypatch):
    run = write(tmp_path / "run", 1.0)
    monkeypatch.delattr(figures, "draw")  # each is refused before that
    config = parse(["ppo", "--preset", "smoke", "--run-dir", str(tmp_path / "new")], MACHINE).config
    rundir.create_run_dir(config)
    (tmp_path / "file").touch()
    for words, message in (
        ([], "name the directories of runs"),
        ([str(tmp_path / "nowhere")], "does not exist, so it is not a run"),
        ([run, run + "/"], "is named twice"),
        ([str(tmp_path / "new")], "no records in metrics.jsonl yet"),
        ([run, "--score", "onlin"], "did you mean online?"),
        ([run, "--output", str(tmp_path / "file")], "choose one that can be written"),
    ):
        assert cli.main(["compare", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
