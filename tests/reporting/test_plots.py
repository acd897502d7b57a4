"""Learning curves of no, one, two and many points: every point visible, units and title right."""

from __future__ import annotations

import itertools
import os

import matplotlib.image
import pytest

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import EnvironmentConfig, ExchangeConfig, OptimizerConfig, TrainConfig
from ddrl.errors import UsageError
from ddrl.reporting import plots
from ddrl.reporting.atari_scores import Reference
from ddrl.reporting.metrics import MetricsWriter, evaluation_record
from ddrl.rundir import config_to_dict, write_json
from tests.studies.test_figures import tick_texts


def records(points: int, seconds_each: float = 60.0) -> tuple[list[dict], list[dict]]:
    online, evaluations = [], []
    for index in range(1, points + 1):
        wall, steps = index * seconds_each, index * 50_000
        at = {"wall_seconds": wall, "agent_steps": steps}
        scored = {"online_score_mean": 2.0 * index, "interval_score_mean": 2.5 * index, "update": index}
        online.append({"kind": "train"} | scored | at)
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
    assert image.shape[:2] == (880, 1800)
    colored = (image[..., :3].max(axis=-1) - image[..., :3].min(axis=-1) > 0.3).sum()
    assert (colored > 100) == (points > 0)


@pytest.mark.parametrize("points", [1, 2, 400])
def test_every_point_lies_within_the_axes(points):
    figure = plots.learning_curve(*records(points), "title")
    figure.canvas.draw()
    ends = {1: (50.0, 60.0), 2: (100.0, 2.0), 400: (20.0, 400 / 60)}[
        points
    ]  # thousands and seconds, thousands and minutes, millions and hours
    for axes, last in zip(figure.axes, ends):
        left, right = axes.get_xlim()
        low, high = axes.get_ylim()
        assert [len(line.get_xdata()) for line in axes.lines] == [points] * 3
        assert axes.lines[0].get_xdata()[-1] == pytest.approx(last)
        for line in axes.lines:
            assert all(left <= x <= right + 1e-9 for x in line.get_xdata())
            assert all(low < y < high for y in line.get_ydata())
        assert left == 0 and right == pytest.approx(last)  # where training ended


def test_lines_show_what_they_are_named():
    online, evaluations = records(3)
    axes = plots.learning_curve(online, evaluations, "title", Reference(1.0, 8.0)).axes[0]
    shown = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert shown == {
        "training, mean of a few seconds": [2.5, 5.0, 7.5],
        "training, mean of the last 100 episodes": [2.0, 4.0, 6.0],
        "evaluation, mean of 50 games": [3.0, 6.0, 9.0],
        "random play (1)": [1.0, 1.0],
        "a person (8)": [8.0, 8.0],
    }


def test_people_far_above_do_not_press_the_curve_to_the_ground():
    axes = plots.learning_curve(*records(3), "title", Reference(1.0, 500.0)).axes[0]
    assert axes.get_ylim()[1] < 15 and not any("a person" in line.get_label() for line in axes.lines)


def test_an_evaluation_that_was_cut_off_is_hollow_and_on_no_line():
    online, evaluations = records(3)
    axes = plots.learning_curve(online, [*evaluations, evaluations[-1] | {"mean": 1.0, "timed_out": 2}], "").axes[0]
    shown = {line.get_label(): line for line in axes.lines}
    assert list(shown["evaluation, mean of 50 games"].get_ydata()) == [3.0, 6.0, 9.0]
    cut = shown["evaluation that was cut off"]
    assert list(cut.get_ydata()) == [1.0] and cut.get_markerfacecolor() == "white" and cut.get_linestyle() == "None"


def test_the_axes_end_where_training_ended(tmp_path):
    """The final evaluation goes on alone, and its lines have no more updates."""
    make_run(tmp_path, 3)
    writer = MetricsWriter(tmp_path)
    for seconds in (240.0, 300.0):
        writer.write(records(3)[0][-1] | {"wall_seconds": seconds})
    writer.close()
    left, right = plots.figure_of_run(tmp_path).axes
    assert (left.get_xlim()[1], right.get_xlim()[1]) == (150.0, 3.0)


LONG = (
    "BA3C on football/academy_run_pass_and_shoot_with_keeper, residual network of many layers and a long name\n"
    "128 workers, effective batch 65,536 (128 x 512), protocol nature"
)


@pytest.mark.parametrize("points", [0, 1, 5, 400])
@pytest.mark.parametrize("heading", ["short", LONG])
def test_all_text_lies_within_the_figure_and_none_overlaps(points, heading):
    online, evaluations = records(points)
    if points == 400:
        online = [record | {"interval_score_mean": -1234567.0} for record in online]
        evaluations[0] |= {"games": 3, "timed_out": 47}
    figure = plots.learning_curve(online, evaluations, heading, Reference(-17098.1, -4336.9) if points else None)
    figure.canvas.draw()
    texts = [figure._suptitle, *(text for axes in figure.axes for text in texts_of(axes))]
    legend = figure.legends[0] if figure.legends else None
    texts += legend.get_texts() if legend else []
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    inside = figure.bbox.padded(1)
    assert all(inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1) for box in boxes)
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].padded(-1).overlaps(pair[1].padded(-1))]
    if legend:
        extent = legend.get_window_extent()
        assert inside.contains(extent.x0, extent.y0) and inside.contains(extent.x1, extent.y1)
        assert not any(axes.get_window_extent().overlaps(extent) for axes in figure.axes)


def texts_of(axes):
    """Labels, texts, and ticks that are drawn: matplotlib also keeps those beyond the limits."""
    ticks = [text for axis in (axes.xaxis, axes.yaxis) for text in tick_texts(axis)]
    return [text for text in [*ticks, axes.xaxis.label, axes.yaxis.label, *axes.texts] if text.get_visible()]


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
    with pytest.raises(UsageError, match="is not a run"):
        plots.plot_learning_curve(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    make_run(tmp_path, 1)
    os.mkdir(tmp_path / "learning_curve.png")
    with pytest.raises(UsageError, match="cannot write .*learning_curve.png"):
        plots.plot_learning_curve(tmp_path)
