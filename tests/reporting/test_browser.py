"""Reports opened in a browser: nothing fails, every figure is there, and nothing is fetched."""

from __future__ import annotations

import re

import pytest

from ddrl.commands import study as command
from ddrl.studies import plan as plans
from ddrl.studies.collect import PAGE, collect
from ddrl.studies.engine import run_points
from ddrl.studies.html import render
from ddrl.studies.settings import to_json
from tests.reporting.browser import find, open_page
from tests.studies.support import MACHINE, Runner, points, study
from tests.studies.test_html import REPORT

PROGRAM = find()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here (Debian: chromium)"),
    pytest.mark.timeout(240),
]


def check(opened, figures):
    assert opened.complaints == [] and opened.requested == []
    assert len(opened.images) == figures
    assert all(loaded and width > 100 and height > 100 for loaded, width, height in opened.images)
    assert opened.width[0] <= opened.width[1]  # wide tables scroll in their own frames
    assert opened.screenshot[:4] == b"\x89PNG"


def test_the_report_of_a_study(tmp_path):
    made = study(Runner())
    typed = 'ddrl study fake --train-options="<b>&"'
    plan = plans.Plan(tmp_path / "s", "fake", to_json(made.defaults), tuple(points(made.defaults, MACHINE)), typed)
    plans.write(plan)
    run_points(plan, Runner(size2_seed1="fail"))
    collect(plan, made)
    opened = open_page(PROGRAM, plan.directory / PAGE, tmp_path / "profile")
    check(opened, figures=1)
    for text in (typed, "3 of 4 points have finished", "failed: size2-seed1: broke", "TensorFlow", "Python"):
        assert text in opened.text


def test_the_report_of_a_simulation(tmp_path):
    directory = tmp_path / "s"
    assert command.main(["simulate", "--dir", str(directory), "--workers", "1", "8", "--updates", "50"]) == 0
    page = (directory / PAGE).read_text()
    check(open_page(PROGRAM, directory / PAGE, tmp_path / "profile"), figures=len(re.findall("<img ", page)))


@pytest.mark.parametrize("width", [390, 1400])
def test_a_page_is_read_on_a_phone_and_on_a_desk(tmp_path, width):
    """No table is clipped at 1400 pixels, no picture is shown too small at 390, and no caption is there twice."""
    settings = ["--workers", "64", "1024", "--updates", "20"]
    assert command.main(["simulate", "--dir", str(tmp_path), *settings]) == 0
    opened = open_page(PROGRAM, tmp_path / PAGE, tmp_path / "profile", width)
    assert opened.width[0] <= opened.width[1] == width
    assert min(opened.shown) >= 330 and max(opened.shown) <= width
    assert width < 500 or opened.clipped == 0
    title, _, rest = opened.text.partition("\n")
    assert rest.strip().startswith("With 1,024 workers, the simulated efficiency is ")
    assert opened.text.lower().count("simulated, not measured") == 1 == opened.text.count(title)


def test_a_figure_that_is_none_is_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(render(**REPORT))
    opened = open_page(PROGRAM, page, tmp_path / "profile")
    assert [width for _, width, _ in opened.images] == [0, 0]


def test_what_the_page_asks_for_is_refused_and_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(render(**REPORT).replace("</body>", "<script>undefined_function()</script></body>"))
    opened = open_page(PROGRAM, page, tmp_path / "profile")
    assert any("Content Security Policy" in text for text in opened.complaints)
