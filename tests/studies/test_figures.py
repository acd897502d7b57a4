"""Curves over seeds, figures and tables: the numbers shown are the numbers measured, and nothing overlaps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ddrl.studies import figures
from ddrl.studies.curves import SECONDS, STEPS, curve_of, interval_curve, score_curves, spread_text, unit_of
from ddrl.studies.figures import Curve, Panel, draw, on_one_scale, save, through
from ddrl.studies.measures import ONLINE
from ddrl.studies.statistics import Interval, bootstrap
from ddrl.studies.tables import Table
from tests.studies.support import outcome


def run(seed, slope, points=10):
    records = [
        {"kind": "train", "agent_steps": 100 * i, "wall_seconds": 2.0 * i, ONLINE: slope * i}
        for i in range(1, points + 1)
    ]
    return outcome({"size": 1}, [*records, {"kind": "event", "wall_seconds": 1.0}])


def test_one_run_is_shown_as_it_is():
    (curve,) = score_curves([run(1, 2.0, 3)], ONLINE, "agent_steps", 100.0, "one")
    assert curve == Curve("one", [1.0, 2.0, 3.0], [2.0, 4.0, 6.0])


def seeds(*lengths):
    """Runs of growing slopes, the first 1."""
    return [run(seed, float(seed), points) for seed, points in enumerate(lengths, 1)]


def test_runs_of_several_seeds_are_averaged_where_all_of_them_are():
    (curve,) = score_curves(seeds(10, 10, 10, 10, 5), ONLINE, "agent_steps")
    assert curve.x[0] == 100 and curve.x[-1] == 500
    assert np.allclose(curve.y, np.array(curve.x) / 100 * 3.0)
    assert all(low <= y <= high for low, y, high in zip(curve.low, curve.y, curve.high))
    assert 5.0 <= curve.low[-1] < 15.0 < curve.high[-1] <= 25.0


def test_runs_that_ended_with_their_score_keep_it():
    (curve,) = score_curves(seeds(10, 10, 10, 10, 5), ONLINE, "agent_steps", hold=True)
    assert curve.x[-1] == 1000 and curve.y[-1] == pytest.approx((10 + 20 + 30 + 40 + 25) / 5)


def test_fewer_than_five_runs_are_drawn_one_by_one_and_named_once():
    curves = score_curves(seeds(10, 5, 5, 5), ONLINE, "agent_steps", label="few", hold=True, style=2)
    assert [curve.x[-1] for curve in curves] == [1000.0, 500.0, 500.0, 500.0] and not any(c.low for c in curves)
    legend = draw([Panel("p", "x", "y", curves)], "h", "c", 1).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["few"]
    assert len(score_curves(seeds(5, 5, 5, 5, 5), ONLINE, "agent_steps")) == 1
    assert score_curves([], ONLINE, "agent_steps", label="none") == [Curve("none", [], [])]


def test_runs_that_never_overlap_or_have_no_score_make_no_curve():
    apart = [(np.array([0.0, 1.0]), np.zeros(2)), (np.array([2.0, 3.0]), np.zeros(2))]
    assert curve_of(apart) == Curve("", [], [])
    assert score_curves([outcome({"size": 1}, [])], ONLINE, "agent_steps") == [Curve("", [], [])]


def test_an_x_without_values_is_left_out_and_one_value_has_no_band():
    assert interval_curve([(1, bootstrap([1.0, 3.0])), (2, bootstrap([None])), (3, bootstrap([5.0]))]) == Curve(
        "", [1, 3], [2.0, 5.0], each=[(1, 1.0), (1, 3.0)]
    )


def test_units_suit_the_longest_run():
    assert unit_of([run(1, 1.0)], STEPS) == (1e3, "agent steps (thousands)")
    assert unit_of([outcome({}, [{"agent_steps": 2_000_000}])], STEPS) == (1e6, "agent steps (millions)")
    assert [unit_of([outcome({}, [{"wall_seconds": s}])], SECONDS)[1] for s in (9.0, 999.0, 9999.0)] == [
        "wall time (s)",
        "wall time (minutes)",
        "wall time (hours)",
    ]


def test_what_is_said_of_the_seeds():
    assert spread_text([run(1, 1.0)]) == "one seed, so the spread is unknown"
    assert spread_text([run(s, 1.0) for s in range(3)]).startswith("each of 3 seeds by itself")
    assert spread_text([run(s, 1.0) for s in range(5)]) == "mean and 95% bootstrap interval of 5 seeds"
    scoreless = outcome({"size": 1}, [])
    drawn = spread_text([*(run(s, 1.0) for s in range(4)), scoreless], ONLINE)
    assert drawn.startswith("each of 4 seeds by itself"), "as the curves are drawn"
    assert spread_text([scoreless] * 3, ONLINE).startswith("each of 3 seeds by itself")
    mixed = spread_text([*(run(s, 1.0) for s in range(5)), outcome({"size": 2}, [])])
    assert mixed == "mean and 95% bootstrap interval of 5 seeds; where there are fewer than 5, each seed by itself"


def many(number=8, points=30):
    x = np.linspace(1, 100, points)
    return [
        Curve(f"{2**k} simulators", x.tolist(), (x * k).tolist(), (x * k - 9).tolist(), (x * k + 9).tolist())
        for k in range(number)
    ]


@pytest.mark.parametrize("columns", [0, 1, 2, 3])
def test_no_text_overlaps_or_leaves_the_figure(columns):
    """Of a page's picture of one panel (0), and of figures of so many columns."""
    panels = [
        Panel("A2C on breakout", "agent steps (millions)", "raw score", many()),
        Panel("no curve", "x", "y", [Curve("a", [], [])]),
        Panel("powers", "simulators per core", "agent steps/s", [
            Curve("two alternating groups", [1, 2, 4, 64], [1e5, 2e5, 3e5, 4e5]),
            Curve("random actions, no inference", [1, 64], [5e5, 5e5], reference=True),
            Curve("a hollow one", [1, 64], [1e5, 5e5], style=3, reference=True),
        ], log_x=True, zero=True),
        Panel("hours", "workers", "hours", [Curve("", [1, 2, 8], [8.0, 4.0, 1.0])], log_x=True, log_y=True),
    ]  # fmt: skip
    caption = "a caption of some length, which says what the scores are; " * 4  # longer than any figure is wide
    for figure in (
        [draw(panels, "A heading", caption, columns)]
        if columns
        else [draw([panel], "", "", 1, figures.PICTURE_WIDTH) for panel in panels]
    ):
        check_texts(figure)


def test_panels_on_one_scale_have_the_same_y_axis_each_alone_too():
    few, many = through([(0.0, 1.0), (1.0, 3.0)], "few"), through([(0.0, 2.0), (1.0, 21.0)], "many")
    panels = on_one_scale([Panel("p", "x", "y", [curve]) for curve in (few, many)])
    together, alone = draw(panels, "h", "c", 2).axes, draw(panels[:1], "h", "c", 1).axes
    assert [axes.get_ylim() for axes in (*together, *alone)] == 3 * [(0.0, 22.0)]
    assert on_one_scale(panels[:1]) == panels[:1] and on_one_scale([]) == []
    level = through([(0.0, 2.0)], "level")
    assert on_one_scale(2 * [Panel("p", "x", "y", [level])])[0].y_range == (1.5, 2.5)


def test_single_runs_are_inside_an_axis_that_begins_at_0():
    curve = Curve("a", [1, 2], [10.0, 9.0], each=[(1, 1.0), (1, 19.0), (2, 9.0)])
    axes = draw([Panel("p", "servers", "updates/s", [curve], zero=True)], "h", "c", 1).axes[0]
    low, high = axes.get_ylim()
    assert low == 0 and 19.0 < high < 21.0


def check_texts(figure):
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in all_texts(figure)]
    inside = figure.bbox.padded(1)
    assert all(inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1) for box in boxes)
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].padded(-1).overlaps(pair[1].padded(-1))]


def all_texts(figure):
    texts = [text for text in (figure._suptitle, figure._supxlabel) if text is not None]
    for axes in figure.axes:
        if axes.axison:
            texts += [axes.title, axes.xaxis.label, axes.yaxis.label]
            texts += [text for axis in (axes.xaxis, axes.yaxis) for text in tick_texts(axis)]
            texts += axes.get_legend().get_texts() if axes.get_legend() else []
    return [text for text in texts if text.get_visible() and text.get_text()]


def tick_texts(axis):
    """Of the ticks that are drawn: matplotlib also keeps those beyond the limits."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def test_curves_differ_in_more_than_color():
    axes = draw([Panel("p", "x", "y", many(8, 3))], "h", "c", 1).axes[0]
    looks = {(line.get_marker(), line.get_linestyle()) for line in axes.get_lines() if line.get_label()[0] != "_"}
    assert len(looks) == 8
    assert len({line.get_color() for line in axes.get_lines() if line.get_label()[0] != "_"}) == 8


def test_files_are_written(tmp_path):
    png, pdf = save(draw([Panel("p", "x", "y", many(2))], "h", "c", 2), tmp_path)
    assert png.read_bytes()[:4] == b"\x89PNG" and pdf.read_bytes()[:4] == b"%PDF"
    assert len(figures.COLORS) == len(set(figures.COLORS)) == len(set(figures.MARKERS))


def test_tables_align_and_say_what_is_missing():
    rows = [["a2c", 16, 1234.5, Interval(1.0, 0.5, 1.5, 5)], ["hts-a2c", 2048, 0.0123, None]]
    assert Table("t", ("name", "n", "rate", "score"), rows).markdown().splitlines()[2:] == [
        "| name    |     n |   rate |        score |",
        "|---------|------:|-------:|-------------:|",
        "| a2c     |    16 |  1,234 | 1 [0.5, 1.5] |",
        "| hts-a2c | 2,048 | 0.0123 |            - |",
    ]


def test_a_table_without_rows_still_has_its_columns():
    assert "| name |" in Table("t", ("name",), []).markdown()
