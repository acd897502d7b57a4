"""How fast Chromium shows a board of many long runs: `python -m tests.board.measure [RUNS [LINES]]`, beside
`ddrl bench board`, which asks without a browser."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ddrl.bench.board import served, write_runs
from tests.reporting import browser
from tests.reporting.browser import find, tab

READY = "document.documentElement.dataset.ready"


def main(runs: int = 200, lines: int = 10_000) -> None:
    """Prints seconds from the address to the curves, those until all runs are drawn, and MB of the page."""
    browser.SECONDS = 600.0
    program = find()
    assert program is not None, "there is no Chromium here"
    with tempfile.TemporaryDirectory(prefix="ddrl-board-") as directory:
        root = Path(directory) / "runs"
        root.mkdir()
        write_runs(root, runs, lines)
        with served(root) as (address, _), tab(program, address, Path(directory) / "profile", 1440, 1000) as opened:
            opened.wait_until(READY, 60)
            print(f"curves of the first runs: {opened.value('performance.now()') / 1000:.2f} s after the address")
            start = time.perf_counter()
            opened.wait_until("!document.getElementById('status').textContent.startsWith('reading')", 300)
            print(f"all lines of all runs read: {time.perf_counter() - start:.1f} s later")
            start = time.perf_counter()
            opened.value(f"delete {READY}; document.querySelector('#rows thead input').click()")
            opened.wait_until(READY, 60)
            print(f"curves of all {runs} runs: {time.perf_counter() - start:.2f} s after a click")
            opened.ask("HeapProfiler.collectGarbage")
            print(f"memory of the page: {opened.value('performance.memory.usedJSHeapSize') / 1e6:.0f} MB of JavaScript")
            print("complaints:", opened.complaints())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
