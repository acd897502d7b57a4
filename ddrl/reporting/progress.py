"""Shows a person how a run goes: in a live panel on a terminal, in plain lines elsewhere.

The process that started the ranks feeds `Progress` with the new records of metrics.jsonl. In `ddrl.reporting`, only
what draws on a terminal imports Rich; the ranks do not.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from ddrl.config import TrainConfig
from ddrl.reporting.panel import panel
from ddrl.reporting.run_state import RunState
from ddrl.reporting.texts import duration, evaluation_line, event_line, present
from ddrl.terminal import printable

PLAIN_SECONDS = 10.0
"""Seconds between lines where there is no terminal."""
PANEL_SECONDS = 0.5
"""Seconds between frames of the panel where nothing new has come."""


class Progress:
    """Context manager that shows how a run goes.

    Args:
        config: settings of the run.
        console: where to show it.
        clock: returns the time in seconds; for tests.
        tell: called with each record, too.
    """

    def __init__(
        self,
        config: TrainConfig,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[Mapping[str, Any]], None] = lambda record: None,
    ) -> None:
        self._console, self._clock, self._tell = console, clock, tell
        self._said = self._drawn = clock()
        self.state = RunState(config, clock())
        self._told = self.state.train  # the newest record that has a plain line
        self._panel = self._console.is_terminal and not self._console.is_dumb_terminal
        self._size = self._console.size
        self._live = Live(
            console=self._console, get_renderable=self._render, auto_refresh=False, transient=True,
            vertical_overflow="crop",
        )  # fmt: skip

    def __enter__(self) -> Progress:
        if self._panel:
            self._live.start(refresh=True)
        else:
            self._print(self.state.waiting)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Takes in new records of metrics.jsonl, and shows them and the time; to be called every half second or so."""
        for record in records:
            self.state.add(record, self._clock())
            self._tell(record)
            if not self._panel:
                self._say(record)
        now = self._clock()
        if not self._panel:
            if now - self._said >= PLAIN_SECONDS:
                known, self._said, self._told = self._told, now, self.state.train
                waits = f"{duration(self.state.phase_seconds(now))} {self.state.phase} ..."
                self._print(waits if self.state.train is known else plain_line(self.state))
        elif records or self._console.size != self._size or now - self._drawn >= PANEL_SECONDS:
            self._drawn = now
            self._clear_if_resized()
            self._live.refresh()

    def _clear_if_resized(self) -> None:
        """Clears a terminal that was resized: it has wrapped and shifted the lines of the last frame in its own way."""
        if (size := self._console.size) != self._size:
            self._size = size
            self._console.control(Control.home(), Control.clear())

    def _say(self, record: Mapping[str, Any]) -> None:
        """Prints evaluations and events at once; `train` records wait for `PLAIN_SECONDS`."""
        if record.get("kind") == "evaluation":
            self._print(evaluation_line(record))
        elif record.get("kind") == "event":
            self._print(event_line(record))

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _render(self) -> RenderableType:
        unicode = self._console.encoding.lower().startswith("utf")
        width, height = self._console.size
        return panel(self.state, self._clock(), width, height - 1, unicode)


class _Console(Console):
    """A console that falls silent when nobody reads its output any more, as in a pipe to head.

    The text of others, such as an event's or a log's, comes without control characters, which a terminal obeys.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):  # Rich would end the program, and with it the run
            super().on_broken_pipe()


def plain_console(**options: Any) -> Console:
    """A console that prints texts as they are: names of files may look like markup.

    Args:
        options: of rich.console.Console.
    """
    if options.get("force_terminal") is None and (sys.stdout is None or not sys.stdout.isatty()):
        options["force_terminal"] = False  # with FORCE_COLOR, Rich takes a file for a terminal, and draws panels there
    return _Console(highlight=False, markup=False, emoji=False, soft_wrap=True, **options)


def plain_line(state: RunState) -> str:
    """Time, progress, rate and scores in one line."""
    train = state.train
    numbers = present(
        train, ("agent_steps", "{:,} agent steps"), ("agent_steps_per_s", "{:,.0f}/s"),
        ("online_score_mean", "score {:.1f}"), ("loss", "loss {:.4g}"), ("entropy", "entropy {:.3f}"),
        ("lag_mean", "lag {:.1f}"), ("epsilon", "epsilon {:.2f}"), ("replay_size", "replay {:,.0f}"),
        ("samples_per_insert", "samples per insert {:.2f}"),
    )  # fmt: skip
    return "  ".join([duration(train["wall_seconds"]), f"update {train['update']:,}", *numbers])
