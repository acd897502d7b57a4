"""Learning curves of no, one, two and many points: every point visible, units and title right."""

from __future__ import annotations

import os

import matplotlib.image
import pytest

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import EnvironmentConfig, ExchangeConfig, OptimizerConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting import plots
from ddrl.reporting.metrics import MetricsWriter, evaluation_record
from ddrl.rundir import config_to_dict, write_json


def records(points: int, seconds_each: float = 60.0) -> tuple[list[dict], list[dict]]:
    online, evaluations = [], []
    for index in range(1, points + 1):
        wall, steps = index * seconds_each, index * 50_000
        at = {"wall_seconds": wall, "agent_steps": steps}
        online.append({"kind": "train", "online_score_mean": 2.0 * index} | at)
        scores = {"mean": 3.0 * index, "maximum": 9.0 * index, "games": 50, "unfinished": 0}
        evaluations.append(evaluation_record(**scores, **at, version=index, seconds=5.0, protocol="nature"))
    return online, evaluations


def make_run(run_dir, points: int):
    write_json(run_dir / "config.json", config_to_dict(TrainConfig(algorithm=BA3CConfig())))
    writer = MetricsWriter(run_dir)
    for pair in zip(*records(points)):
        for record in pair:
            writer.write(record)
    writer.close()
    return run_dir


@pytest.mark.parametrize("points", [0, 1, 2, 400])
def test_png_is_written_for_any_number_of_points(tmp_path, points):
    path = plots.plot_learning_curve(make_run(tmp_path, points))
    assert path == tmp_path / "learning_curve.png"
    image = matplotlib.image.imread(path)
    assert image.shape[:2] == (800, 1800)
    coloured = (image[..., :3].max(axis=-1) - image[..., :3].min(axis=-1) > 0.3).sum()
    assert (coloured > 100) == (points > 0)


@pytest.mark.parametrize("points", [1, 2, 400])
def test_every_point_lies_within_the_axes(points):
    figure = plots.learning_curve(*records(points), "title")
    figure.canvas.draw()
    ends = {1: (0.05, 60.0), 2: (0.1, 2.0), 400: (20.0, 400 / 60)}[points]  # seconds, minutes, hours
    for axes, last in zip(figure.axes, ends):
        left, right = axes.get_xlim()
        low, high = axes.get_ylim()
        assert [len(line.get_xdata()) for line in axes.lines] == [points] * 3
        assert axes.lines[0].get_xdata()[-1] == pytest.approx(last)
        for line in axes.lines:
            assert all(left <= x <= right for x in line.get_xdata())
            assert all(low < y < high for y in line.get_ydata())
        assert left == 0 and right < 1.1 * max(axes.lines[0].get_xdata())


def test_lines_show_what_they_are_named():
    online, evaluations = records(3)
    axes = plots.learning_curve(online, evaluations, "title").axes[0]
    shown = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert shown == {
        "training, mean of last 100 episodes": [2.0, 4.0, 6.0],
        "evaluation, mean of 50 games": [3.0, 6.0, 9.0],
        "evaluation, best game": [9.0, 18.0, 27.0],
    }


def test_an_evaluation_that_was_cut_off_is_hollow_and_on_no_line():
    online, evaluations = records(3)
    axes = plots.learning_curve(online, [*evaluations, evaluations[-1] | {"mean": 1.0, "timed_out": 2}], "").axes[0]
    shown = {line.get_label(): line for line in axes.lines}
    assert list(shown["evaluation, mean of 50 games"].get_ydata()) == [3.0, 6.0, 9.0]
    cut = shown["evaluation cut off by time"]
    assert list(cut.get_ydata()) == [1.0] and cut.get_markerfacecolor() == "white" and cut.get_linestyle() == "None"


def test_legend_lies_outside_of_both_panels():
    figure = plots.learning_curve(*records(5), "title")
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert not any(axes.get_window_extent().overlaps(legend) for axes in figure.axes)


@pytest.mark.parametrize(
    ("seconds", "unit", "last"), [(30.0, "seconds", 30.0), (600.0, "minutes", 10.0), (7200.0 * 4, "hours", 8.0)]
)
def test_time_has_the_unit_that_fits(seconds, unit, last):
    right = plots.learning_curve(*records(1, seconds), "title").axes[1]
    assert right.get_xlabel() == f"wall time ({unit})"
    assert list(right.lines[0].get_xdata()) == [last]


def test_title_names_the_experiment():
    config = TrainConfig(
        algorithm=BA3CConfig(),
        environment=EnvironmentConfig(game="pong", protocol="ba3c"),
        optimizer=OptimizerConfig(batch_size=32),
        exchange=ExchangeConfig(workers=64, parameter_servers=4, quorum=60),
    )
    assert plots.title(config) == (
        "BA3C on pong, nature network\n64 workers, effective batch 1,920 (60 x 32), protocol ba3c"
    )
    one = TrainConfig(algorithm=BA3CConfig(), exchange=ExchangeConfig(workers=1, parameter_servers=0))
    assert "1 worker, effective batch 32, protocol " in plots.title(one)
    other = TrainConfig(algorithm=BA3CConfig(), environment=EnvironmentConfig(game="Pendulum-v1"))
    assert "protocol" not in plots.title(other)


def test_a_resumed_run_shows_one_line_through_time(tmp_path):
    make_run(tmp_path, 5)
    writer = MetricsWriter(tmp_path)
    writer.event("resumed", "from update 3", wall_seconds=180.0)
    for record in records(4)[0][3:]:
        writer.write(record)
    seen = []
    real = plots.learning_curve
    plots.learning_curve = lambda online, *rest: (seen.extend(online), real(online, *rest))[1]
    try:
        plots.plot_learning_curve(tmp_path)
    finally:
        plots.learning_curve = real
    assert [record["wall_seconds"] for record in seen] == [60.0, 120.0, 180.0, 240.0]


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="config.json"):
        plots.plot_learning_curve(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    make_run(tmp_path, 1)
    os.mkdir(tmp_path / "learning_curve.png")
    with pytest.raises(UsageError, match="cannot write .*learning_curve.png"):
        plots.plot_learning_curve(tmp_path)
