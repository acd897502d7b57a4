"""Progress on a recorded console: a panel that follows the window, and plain lines without a terminal."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest
from rich.console import Console

from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import TrainConfig
from ddrl.reporting.metrics import evaluation_record
from ddrl.reporting.phases import DRAWING
from ddrl.reporting.progress import Progress, plain_console
from ddrl.reporting.run_state import RunState
from ddrl.reporting.texts import duration, evaluation_line

TRAIN = {
    "kind": "train", "wall_seconds": 83.0, "update": 1234, "agent_steps": 98_765_432, "episodes": 321,
    "agent_steps_per_s": 12210.4, "frames_per_s": 48841.2, "datapoints_per_s": 12200.0, "updates_per_s": 8.61,
    "effective_batch": 256.0, "online_score_mean": 42.44, "online_score_max": 93.0, "loss": 0.01234,
    "policy_loss": -0.0112, "value_loss": 0.431, "entropy": 1.2345, "gradient_norm": 0.7, "lag_mean": 1.44,
    "lag_max": 4.0, "gradients_dropped": 3, "steps_refused": 1, "evaluations_skipped": 2, "live_workers": 2,
    "learning_rate": 0.001, "resident_mb": {"worker-0": 900.0},
    "time_split": {"worker": {"acting": 0.61, "gradient": 0.82}, "parameter_server": {"wait": 0.96}},
}  # fmt: skip
LOST = {
    "kind": "event", "wall_seconds": 77.0, "name": "worker_lost",
    "text": "worker 1 [host n03] ended (signal 9)",
}  # fmt: skip
DRAWS = {
    "kind": "event", "wall_seconds": 90.0, "name": "phase", "phase": DRAWING, "text": "drawing the learning curve",
}  # fmt: skip


def evaluation(mean: float, version: int = 1000, wall_seconds: float = 65.0) -> dict:
    return evaluation_record(
        mean=mean,
        maximum=mean * 2,
        games=50,
        unfinished=0,
        version=version,
        agent_steps=77,
        wall_seconds=wall_seconds,
        seconds=3.0,
        protocol="nature",
    )


def recorded(width: int = 80, terminal: bool = True, encoding: str = "utf-8") -> tuple[Console, io.TextIOWrapper]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(
        file=file,
        width=width,
        height=40,
        force_terminal=terminal,
        color_system=None,
        legacy_windows=False,
        _environ={"TERM": "xterm"},
    )
    return console, file


def text_of(file: io.TextIOWrapper) -> str:
    return file.buffer.getvalue().decode(file.encoding)


CLEARED = "\x1b[H\x1b[2J"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_terminal_without_unicode_gets_ascii_only_sparks():
    console, file = recorded(encoding="ascii")
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, Clock()) as progress:
        progress.update([TRAIN, {**TRAIN, "online_score_mean": 50.0}])
    assert "####" in text_of(file) and "[1mstarting" not in text_of(file)


def test_terminal_shows_a_live_panel_that_goes_away():
    console, file = recorded()
    clock = Clock()
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, clock) as progress:
        clock.now += 5
        progress.update([])
        assert "0:05 so far" in text_of(file) and "of 10:00" not in text_of(file)
        progress.update([TRAIN])
        assert "1,234 updates" in text_of(file)
    assert text_of(file).endswith("\x1b[2K")


def test_an_evaluation_that_was_cut_off_is_said_to_be_and_is_not_the_best():
    whole, cut = evaluation(5.0), evaluation(9.0) | {"timed_out": 3}
    state = RunState(TrainConfig(algorithm=BA3CConfig()))
    for record in (whole, cut):
        state.add(record, 0.0)
    assert state.best == whole and state.evaluations == [(65.0, 5.0)]
    assert evaluation_line(cut).endswith("at 1:05, 3 cut off by time and left out")


@pytest.mark.parametrize(("count", "told"), [(1, "1 action"), (2000, "2,000 actions")])
def test_actions_that_the_protocol_forced_are_counted(count, told):
    line = evaluation_line(evaluation(5.0) | {"forced_actions": count})
    assert line.endswith(f", {told} forced by the protocol's rule against repetition")


def test_a_resume_takes_evaluations_back_and_with_them_the_best_one():
    state = RunState(TrainConfig(algorithm=BA3CConfig()))
    early, late = evaluation(5.0, wall_seconds=65.0), evaluation(9.0, wall_seconds=130.0)
    resumed = {"kind": "event", "name": "resumed", "text": "from update 3"}
    for record in (early, late):
        state.add(record, 0.0)
    assert state.best == state.evaluation == late
    state.add(resumed | {"wall_seconds": 100.0}, 5.0)
    assert state.best == state.evaluation == early and state.evaluations == [(65.0, 5.0)]
    state.add(resumed | {"wall_seconds": 10.0}, 6.0)
    assert state.best == state.evaluation == {} and not state.evaluations


@pytest.mark.parametrize(("scores", "text"), [((0.4, 0.4), "0.4, max 0.4"), ((-150.0, -0.3), "-150.0, max -0.3")])
def test_the_best_of_scores_that_are_not_whole_is_told_like_their_mean(scores, text):
    mean, best = scores
    assert evaluation_line(evaluation(mean) | {"maximum": best}).startswith(f"evaluation: mean {text} over 50 games")


def test_without_terminal_a_line_every_10_seconds_and_evaluations_at_once():
    console, file = recorded(terminal=False)
    clock = Clock()
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, clock) as progress:
        progress.update([TRAIN])
        progress.update([evaluation(55.5), LOST])
        clock.now += 9.9
        progress.update([])
        clock.now += 0.2
        progress.update([])
        progress.update([])
    assert text_of(file).splitlines() == [
        "starting 4 processes; TensorFlow loads in about 6 s ...",
        "evaluation: mean 55.5, max 111 over 50 games, update 1,000 at 1:05",
        "1:17 worker lost: worker 1 [host n03] ended (signal 9)",
        "1:23  update 1,234  98,765,432 agent steps  12,210/s  score 42.4  loss 0.01234  entropy 1.234  lag 1.4",
    ]


def test_without_terminal_no_line_is_printed_again_while_nothing_new_comes():
    console, file = recorded(terminal=False)
    clock = Clock()
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, clock) as progress:
        progress.update([TRAIN])
        progress.update([DRAWS])
        for _ in range(3):
            clock.now += 10.5
            progress.update([])
    _, said, line, *others = text_of(file).splitlines()
    assert said == "1:30 phase: drawing the learning curve"
    assert line.startswith("1:23  update 1,234 ") and others == ["0:21 drawing ...", "0:31 drawing ..."]


def test_without_terminal_a_long_start_is_announced_once():
    console, file = recorded(terminal=False)
    clock = Clock()
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, clock) as progress:
        for _ in range(2):
            clock.now += 10.5
            progress.update([])
    first, *others = text_of(file).splitlines()
    assert first.startswith("starting 4 processes;") and others == ["0:10 starting ...", "0:21 starting ..."]


def test_an_error_ends_the_panel_and_goes_on_up():
    console, _ = recorded()
    with pytest.raises(KeyboardInterrupt), Progress(TrainConfig(algorithm=BA3CConfig()), console, Clock()):
        raise KeyboardInterrupt
    console.print("usable again")


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0:00"), (7.9, "0:07"), (754, "12:34"), (3599, "59:59"), (12345, "3:25:45")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_names_that_look_like_markup_are_printed_as_they_are(capsys):
    plain_console().print("run directory [/x] :dog: [bold]")
    assert capsys.readouterr().out == "run directory [/x] :dog: [bold]\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_texts_of_others_come_without_control_characters(terminal):
    """Such as those of a run of somebody else; the console's own, which draw the panel, stay."""
    file = io.StringIO()
    console = plain_console(file=file, force_terminal=terminal, width=100, height=40)
    event = LOST | {"text": "gone\x1b]0;owned\x07\x9bK"}
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, Clock()) as progress:
        progress.update([TRAIN, event])
    console.print("a\x1b[2Jb\tc\nd")
    said = file.getvalue()
    assert "gone?]0;owned" in said and "a?[2Jb" in said and not {"\x07", "\x9b"} & set(said)
    assert "\x1b[2J" not in said and "\x1b]" not in said and ("\x1b[2K" in said) == terminal


def test_a_pipe_that_nobody_reads_any_more_ends_no_program(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        console = plain_console()
        with Progress(TrainConfig(algorithm=BA3CConfig()), console, Clock()) as progress:
            progress.update([LOST])
    assert console.quiet


@pytest.mark.parametrize("options", [{}, {"force_terminal": None}])
def test_a_file_gets_plain_lines_though_colors_are_asked_for(options, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(TrainConfig(algorithm=BA3CConfig()), plain_console(**options), Clock()) as progress:
        progress.update([TRAIN])
    assert capsys.readouterr().out == "starting 4 processes; TensorFlow loads in about 6 s ...\n"


def test_another_size_of_the_window_clears_it_and_fills_it():
    """Terminals wrap and shift the lines of a frame when they get another size, so none of it may stay."""
    console, file = recorded(100)
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, Clock()) as progress:
        progress.update([TRAIN])
        assert CLEARED not in text_of(file)
        for width, height in ((80, 24), (120, 24), (120, 15), (120, 40)):
            console.size = (width, height)
            progress.update([])
            before, _, frame = text_of(file).rpartition(CLEARED)
            lines = [line for line in re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r", "", frame).splitlines() if line.strip()]
            assert before and {len(line) for line in lines} == {width} and len(lines) < height
        progress.update([])
        assert text_of(file).count(CLEARED) == 4  # once for each size


def test_no_clock_of_training_before_it_begins_and_none_after_it():
    clock, state = Clock(), RunState(TrainConfig(algorithm=BA3CConfig()), Clock.now)
    assert state.trained_seconds(clock.now + 30.0) == 0.0
    state.add(TRAIN | {"wall_seconds": 1.0}, clock.now + 40.0)
    assert state.trained_seconds(clock.now + 45.0) == 6.0
    state.add(
        {"kind": "event", "name": "phase", "phase": "evaluating", "text": "50 games", "wall_seconds": 9.0}, 1048.0
    )
    assert (state.phase, state.trained_seconds(1100.0)) == ("evaluating", 1.0)


def test_a_resumed_run_counts_the_time_of_this_command():
    state = RunState(TrainConfig(algorithm=BA3CConfig()))
    state.add({"kind": "event", "name": "resumed", "text": "from update 3", "wall_seconds": 600.0}, 5.0)
    state.add(TRAIN | {"wall_seconds": 605.0}, 10.0)
    assert state.trained_seconds(10.0) == 5.0


def test_minutes_that_were_spent_before_count_to_the_budget():
    state = RunState(TrainConfig(algorithm=BA3CConfig()).changed(run={"minutes": 20.0}))
    resumed = {"kind": "event", "name": "resumed", "text": "from update 3", "wall_seconds": 700.0}
    state.add(resumed | {"spent_seconds": 600.0}, 5.0)
    state.add(TRAIN | {"wall_seconds": 705.0, "phase": "training"}, 10.0)
    assert state.budget(10.0) == (605.0, 1200.0, "") and state.training_left(10.0) == 595.0
    state.add(resumed | {"name": "restarted"}, 20.0)
    state.add(resumed | {"spent_seconds": 615.0}, 25.0)
    state.add(TRAIN | {"wall_seconds": 702.0}, 30.0)
    assert state.trained_seconds(30.0) == 617.0


def test_the_steps_of_earlier_parts_took_no_time_of_this_command():
    """Nine million steps in two seconds would leave the last million a fifth of a second."""
    state = RunState(TrainConfig(algorithm=BA3CConfig()).changed(run={"minutes": 0.0, "agent_steps": 10_000_000}))
    now = {"phase": "training", "agent_steps": 9_000_000}
    state.add(TRAIN | now | {"wall_seconds": 600.0}, 610.0)
    assert state.training_left(610.0) == pytest.approx(600.0 / 9)
    state.add({"kind": "event", "name": "resumed", "text": "from update 3", "wall_seconds": 600.0}, 620.0)
    state.add(TRAIN | now | {"wall_seconds": 602.0}, 630.0)
    assert state.trained_seconds(630.0) == 2.0 and state.training_left(630.0) is None


def test_a_run_that_is_started_again_counts_the_time_behind_its_checkpoint():
    """As the chief does: what came after it is trained again."""
    state = RunState(TrainConfig(algorithm=BA3CConfig()))
    resumed, restarted = ({"kind": "event", "name": name, "text": "from update 3"} for name in ("resumed", "restarted"))
    state.add(TRAIN | {"wall_seconds": 130.0}, 140.0)
    state.add(restarted | {"wall_seconds": 130.0}, 145.0)
    assert (state.phase, state.trained_seconds(150.0)) == ("starting", 130.0)
    state.add(resumed | {"wall_seconds": 100.0, "spent_seconds": 100.0}, 155.0)
    assert state.trained_seconds(160.0) == 100.0
    state.add({"kind": "event", "name": "phase", "phase": "training", "text": "", "wall_seconds": 103.0}, 158.0)
    assert state.trained_seconds(160.0) == 105.0
    state.add(TRAIN | {"wall_seconds": 106.0}, 161.0)
    assert state.trained_seconds(162.0) == 107.0
    state.add(restarted | {"wall_seconds": 106.0}, 170.0)
    state.add(resumed | {"wall_seconds": 0.0}, 175.0)  # without a checkpoint, from the beginning
    state.add(TRAIN | {"wall_seconds": 2.0}, 180.0)
    assert state.trained_seconds(180.0) == 2.0


def test_the_time_left_is_that_of_the_command():
    state = RunState(TrainConfig(algorithm=BA3CConfig()))
    assert state.time_left(0.0) is None
    state.add(TRAIN | {"seconds_left": 90.0}, 100.0)
    assert (state.time_left(130.0), state.time_left(900.0)) == (60.0, 0.0)
