"""The board in a real browser, wide and narrow: runs that grow, names that are markup, every pane, one file."""

from __future__ import annotations

import json

import pytest

from ddrl.bench.board import served
from ddrl.board.server import MOST_RUNS
from ddrl.commands import board as command
from tests.board.runs import end, evaluation, make_bare_runs, make_run, train_record
from tests.reporting.browser import find, tab

PROGRAM = find()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here (Debian: chromium)"),
    pytest.mark.timeout(240),
]

HOSTILE = "<img src=x onerror=hacked=1>"
SCRIPT = "</script><script>hacked=1</script>"
DESKTOP, PHONE = (1280, 900), (390, 844)
READY = "document.documentElement?.dataset.ready"
POINTS = r"""Number(document.querySelector('.chart [aria-label^="Score"]').ariaLabel.match(/(\d+) point/)[1])"""
PANES = ("curves", "time", "lag", "settings", "videos", "events")
HELD = "h1, h3, .tabs button, .chip span, .segments button, .lead, .legend span"
CUT = f"""[...document.querySelectorAll('{HELD}')]
    .filter((each) => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).textOverflow !== 'ellipsis')
    .map((each) => each.textContent)"""


@pytest.fixture
def runs(tmp_path):
    """A run that goes on, whose metrics it returns, beside one that has ended, whose texts are markup."""
    root = tmp_path / "runs"
    ended = make_run(root / HOSTILE, seed=2)
    for line in range(30):
        ended.write(train_record(line))
    ended.write(evaluation(29, 3.0))
    ended.event("odd", HOSTILE, 3.0)
    (root / HOSTILE / "log.txt").write_text(f"{SCRIPT}\n{HOSTILE}\n")
    end(root / HOSTILE, "failed", SCRIPT)
    growing = make_run(root / "growing", agent_steps=10_000)
    for line in range(20):
        growing.write(train_record(line))
    growing.write(evaluation(10, 1.0))
    return root, growing


def points(opened):
    """Of the chart of the score."""
    return opened.value(POINTS)


def check(opened, size):
    """Nothing ran that is text, nothing failed, nothing is cut off or wider than the window."""
    assert (
        opened.value("typeof hacked") == "undefined"
        and opened.value("document.querySelectorAll('img[onerror]').length") == 0
    )
    assert opened.complaints() == []
    assert opened.value("document.documentElement.scrollWidth") <= size[0]
    assert opened.value(CUT) == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_run_that_grows_and_texts_that_are_markup(tmp_path, runs, size):
    root, growing = runs
    with served(root) as (address, _), tab(PROGRAM, address, tmp_path / "profile", *size) as opened:
        opened.wait_until(READY)
        text = opened.value("document.body.innerText")
        assert HOSTILE in text and "growing" in text and "19%" in text
        before = points(opened)
        for line in range(20, 60):
            growing.write(train_record(line))
        growing.write(evaluation(55, 8.25))
        opened.wait_until("document.querySelector('#rows').innerText.includes('8.25')")
        opened.wait_until("document.querySelector('#rows').innerText.includes('59%')")
        opened.wait_until(f"{POINTS} > {before + 20}")
        for pane in PANES:
            opened.value(f"document.getElementById('tab-{pane}').click()")
            opened.wait_until("document.getElementById('pane').innerText.length > 20")
            check(opened, size)
        for text in (SCRIPT, HOSTILE):
            opened.wait_until(f"document.getElementById('pane').innerText.includes({json.dumps(text)})")
        assert all(address.partition("?")[0] in url for url in opened.requested())
        assert opened.screenshot()[:4] == b"\x89PNG"


def test_sorting_filtering_selecting_and_zooming(tmp_path, runs):
    root, _ = runs
    with served(root) as (address, _), tab(PROGRAM, address, tmp_path / "profile", *DESKTOP) as opened:
        opened.wait_until(READY)
        names = lambda: opened.value(
            "[...document.querySelectorAll('#rows tbody tr .of-name')].map((cell) => cell.firstChild.textContent)"
        )
        press = lambda title: opened.value(
            f"[...document.querySelectorAll('#rows thead button')].find((b) => b.textContent === '{title}').click()"
        )
        press("Agent steps")
        assert names() == [HOSTILE, "growing"]
        press("Agent steps")
        assert names() == ["growing", HOSTILE]
        opened.value("filter = document.getElementById('filter'); filter.value = 'GROW run'; filter.oninput()")
        assert names() == ["growing"]
        opened.value("filter.value = ''; filter.oninput(); document.querySelector('#rows tbody tr').click()")
        assert opened.value("document.querySelectorAll('.chip').length") == 1
        opened.value("document.getElementById('tab-settings').click()")
        opened.wait_until("document.getElementById('pane').innerText.includes('learning-rate')")
        opened.value("document.querySelectorAll('#rows tbody .pick input')[1].click()")
        opened.wait_until("document.querySelectorAll('.settings thead td').length === 2")
        differ = opened.value(
            "[...document.querySelectorAll('.settings tbody th[scope=row]')].map((cell) => cell.textContent)"
        )
        assert sorted(differ) == ["agent-steps", "seed"]
        opened.value("document.getElementById('tab-curves').click()")
        opened.wait_until("document.querySelector('.bar input[type=checkbox]')")
        opened.value("document.querySelector('.bar input[type=checkbox]').click()")
        opened.wait_until("document.querySelector('[aria-label^=\"Score: 1 run\"]')")
        opened.value("document.getElementById('tab-settings').click()")
        opened.wait_until("document.querySelector('.settings')")
        opened.value("document.getElementById('theme').click(); window.before = true; location.reload()")
        opened.wait_until(f"!window.before && {READY} && document.querySelector('.settings')")
        assert opened.value("document.querySelectorAll('.chip').length") == 2, "the address keeps what is selected"
        check(opened, DESKTOP)


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_file_needs_no_network(tmp_path, runs, size):
    root, _ = runs
    output = tmp_path / "board.html"
    assert command.main([str(root), "--output", str(output)]) == 0
    with tab(PROGRAM, output.as_uri(), tmp_path / "profile", *size) as opened:
        opened.wait_until(READY)
        assert points(opened) > 20 and opened.requested() == []
        assert "a saved snapshot" in opened.value("document.body.innerText")
        for pane in PANES:
            opened.value(f"document.getElementById('tab-{pane}').click()")
            opened.wait_until("document.getElementById('pane').innerText.length > 20")
            check(opened, size)


def test_more_runs_than_one_request_may_name(tmp_path):
    root = tmp_path / "runs"
    growing = make_run(root / "growing")
    growing.write(train_record(1))
    make_bare_runs(root, MOST_RUNS)
    with served(root) as (address, _), tab(PROGRAM, address, tmp_path / "profile", *DESKTOP) as opened:
        opened.wait_until(READY)
        growing.write(evaluation(1, 8.25))
        opened.wait_until("document.querySelector('#rows').innerText.includes('8.25')")
        opened.value(f"delete {READY}; document.querySelector('#rows thead input').click()")
        opened.wait_until(READY)
        assert opened.value("document.getElementById('count').textContent").endswith(f"{MOST_RUNS + 1} selected")
        assert opened.complaints() == []


def test_a_board_that_has_ended_is_said_to_be(tmp_path, runs):
    with served(runs[0]) as (address, _), tab(PROGRAM, address, tmp_path / "profile", *DESKTOP) as opened:
        opened.wait_until(READY)
        opened.value("ServedSource.prototype.runs = async () => { throw new Error('gone'); }")
        opened.wait_until("document.getElementById('status').textContent.startsWith('no answer')")
        assert json.loads(opened.value("JSON.stringify(document.querySelectorAll('#rows tbody tr').length)")) == 2
