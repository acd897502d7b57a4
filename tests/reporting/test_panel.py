"""Frames of the live panel, as text, for windows of several sizes.

`python -m tests.reporting.test_panel` writes the frames anew; read what it changed.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import RunConfig, TrainConfig
from ddrl.options.train_options import parse
from ddrl.reporting.panel import BLUE, ORANGE, panel
from ddrl.reporting.phases import DRAWING, EVALUATING, TRAINING
from ddrl.reporting.run_state import RunState
from ddrl.types import Machine
from tests.reporting.test_progress import LOST, TRAIN, evaluation, recorded, text_of

FRAMES = Path(__file__).parent / "frames"
SIZES = ((50, 15), (80, 24), (100, 30), (120, 40), (200, 50))
ESCAPE = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")


def state_of(*records: dict, now: float = 300.0, **settings) -> RunState:
    state = RunState(TrainConfig(algorithm=BA3CConfig(), **settings))
    for record in records:
        state.add(record, now)
    return state


def learning() -> RunState:
    """Five minutes of a run of ten, with three evaluations and the loss of a worker."""
    state = RunState(TrainConfig(algorithm=BA3CConfig()))
    for i in range(1, 61):
        score = 2 + 40 * (1 - math.exp(-i / 25)) + 2 * math.sin(i / 3)
        now = {"wall_seconds": 5.0 * i, "online_score_mean": score, "phase": TRAINING, "seconds_left": 695.0 - 5.0 * i}
        state.add(TRAIN | now, 12 + 5.0 * i)
        if i % 20 == 0:
            state.add(evaluation(1 + 38 * (1 - math.exp(-i / 25)), i, 5.0 * i - 4), 12 + 5.0 * i)
    state.add(LOST, 312.0)
    return state


def evaluating() -> RunState:
    state = learning()
    games = {"phase": EVALUATING, "evaluation_games": 50, "evaluation_games_over": 20, "seconds_left": 40.0}
    state.add(TRAIN | games | {"wall_seconds": 610.0}, 640.0)
    return state


def drawing() -> RunState:
    state = learning()
    state.enter(DRAWING, 700.0)
    return state


STATES = {
    "starting": (RunState(TrainConfig(algorithm=BA3CConfig())), 6.0),
    "training": (learning(), 314.0),
    "evaluating": (evaluating(), 645.0),
    "drawing": (drawing(), 703.0),
}


def drawn(state: RunState, now: float = 300.0, size=(80, 24), unicode: bool = True, **console) -> list[str]:
    recording, file = recorded(size[0], **console)
    recording.print(panel(state, now, size[0], size[1] - 1, unicode))
    return text_of(file).splitlines()


def frame(name: str, size) -> str:
    return "\n".join(drawn(*STATES[name], size)) + "\n"


def path(name: str, size) -> Path:
    return FRAMES / f"{name}-{size[0]}x{size[1]}.txt"


CASES = [(name, size) for name in STATES for size in SIZES if name == "training" or size == (80, 24)]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_the_frame_is_as_it_was_when_it_was_looked_at(name, size):
    assert frame(name, size) == path(name, size).read_text()


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("size", [*SIZES, (40, 12), (60, 20), (79, 24), (139, 30), (145, 16), (30, 8)])
def test_it_fits_its_window_and_nothing_is_cut_off(name, size):
    lines = drawn(*STATES[name], size)
    assert {len(line) for line in lines} == {size[0]} and len(lines) < size[1]
    assert all(line[0] + line[-1] in ("\u256d\u256e", "\u2502\u2502", "\u2570\u256f") for line in lines)
    assert size[0] < 50 or "\u2026" not in "".join(lines)


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("size", [(16, 12), (12, 8)])
def test_a_window_that_is_too_narrow_for_anything_ends_no_run(name, size):
    assert max(map(len, drawn(*STATES[name], size))) <= size[0]


def test_the_best_game_is_not_below_the_mean():
    state = state_of(TRAIN | {"online_score_max": 0.4}, evaluation(0.4) | {"maximum": 0.4})
    lines = drawn(state, 300.0, (80, 40))
    text = " ".join(" ".join(line.strip("\u2502 ") for line in lines).split())
    assert "highest 0.4" in text and "0.4, mean of 50 games at 1:05, best game 0.4" in text


def test_everything_is_there_at_80_columns():
    state = state_of(TRAIN, evaluation(60.25, 900), evaluation(55.5), LOST)
    lines = drawn(state, 300.0, (80, 40))
    text = " ".join(" ".join(line.strip("\u2502 ") for line in lines).split())
    for part in (
        "1:23 of 10:00",
        "1,234 updates", "98,765,432 agent steps", "321 episodes",
        "12,210 agent steps/s", "48,841 frames/s", "12,200 data-points/s", "8.61 updates/s",
        "batch 256", "learning rate 0.001", "2 workers live",
        "42.4, mean of the last 100 training episodes, highest 93",
        "55.5, mean of 50 games at 1:05, best game 111, best so far 60.2",
        "loss 0.01234", "policy -0.0112", "value 0.431", "entropy 1.23", "gradient norm 0.7",
        "mean 1.4, max 4 updates",
        "3 gradients dropped", "1 step refused", "2 evaluations skipped", "1 worker lost",
        "gradient 82%, acting 61%", "wait 96%",
        "worker lost: worker 1 [host n03] ended",
        "1 parameter server",
        "random play 1.7, a person 30.5",
    ):  # fmt: skip
        assert part in text, part


def test_the_curve_is_higher_where_there_is_room():
    heights = [sum("\u2588" in line for line in drawn(learning(), 314.0, (width, 40))) for width in (80, 120)]
    low = sum("\u2588" in line for line in drawn(learning(), 314.0, (80, 24)))
    assert low >= 4 and min(heights) > 2 * low


def test_what_is_not_known_is_left_out():
    text = "\n".join(drawn(state_of({"kind": "train", "wall_seconds": 1.0, "update": 0})))
    assert "no finished episode yet" in text and "none yet" in text
    assert "loss" not in text and "trouble" not in text and "lag" not in text


def test_unknown_records_are_passed_over():
    assert not state_of({"kind": "later"}, {}).train


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (RunConfig(minutes=0), "1:33 trained, without a budget"),
        (
            RunConfig(minutes=0, agent_steps=200_000_000),
            "98,765,432 of 200,000,000 agent steps, training ends in about 1:",
        ),
        (RunConfig(minutes=0, max_updates=5000), "1,234 of 5,000 updates, training ends in about 4:43"),
        (RunConfig(minutes=1), "1:00 of 1:00"),
        (RunConfig(minutes=3), "1:33 of 3:00, training ends in about 1:27"),
    ],
)
def test_budget_of_each_kind(run, text):
    assert text in "\n".join(drawn(state_of(TRAIN, run=run), 310.0, (100, 24)))


def test_the_time_left_is_said_in_every_phase():
    for seconds, name in ((393, "training"), (35, "evaluating")):
        assert f"ends in about {seconds // 60}:{seconds % 60:02d}" in frame(name, (80, 24))
    assert "20 of 50 games" in frame("evaluating", (80, 24))
    assert "of 10:00" not in frame("starting", (80, 24)) + frame("evaluating", (80, 24))


def test_actors_are_counted_where_they_act():
    config = parse(["apex-dqn", "--preset", "smoke", "--actors", "3"], Machine(8, 1 << 40)).config
    assert "3 actors, 1 replay shard" in drawn(RunState(config))[0]


def test_ascii_alone_where_the_terminal_has_no_more():
    inside = "".join(line[1:-1] for line in drawn(learning(), 314.0, unicode=False)[1:-1])
    assert inside.replace("\u2501", "").replace("\u2578", "").isascii()


def contrast(color: str, background: int) -> float:
    """WCAG 2's ratio to a background that is black (0) or white (1)."""
    values = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return max((light + 0.05) / (background + 0.05), (background + 0.05) / (light + 0.05))


@pytest.mark.parametrize("color", [BLUE, ORANGE])
def test_colors_are_seen_on_dark_and_on_light(color):
    assert min(contrast(color, 0), contrast(color, 1)) > 3.0  # what WCAG asks of graphics


def test_no_color_where_the_user_wants_none(monkeypatch):
    def escapes(**environ):
        console, file = recorded(80)
        colored = type(console)(
            file=console.file, width=80, height=24, force_terminal=True, color_system="truecolor", _environ=environ
        )
        colored.print(panel(learning(), 314.0, 80, 23))
        return set(ESCAPE.findall(text_of(file)))

    assert any("38;2" in code for code in escapes(TERM="xterm"))
    assert escapes(TERM="xterm", NO_COLOR="1") <= {"\x1b[1m", "\x1b[2m", "\x1b[0m"}


if __name__ == "__main__":
    FRAMES.mkdir(exist_ok=True)
    for name, size in CASES:
        path(name, size).write_text(frame(name, size))
