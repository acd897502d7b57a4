"""Progress on a recorded console: fits 80 columns, shows what is known, plain lines without a terminal."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from ddrl import checkpoint
from ddrl.algorithms.ba3c import BA3CConfig
from ddrl.config import RunConfig, TrainConfig
from ddrl.launch.local import summarise
from ddrl.reporting.metrics import MetricsWriter, evaluation_record
from ddrl.reporting.progress import (
    Progress,
    RunState,
    _evaluated,
    _evaluation,
    duration,
    evaluation_line,
    panel,
    plain_console,
    sparkline,
)

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


def drawn(state: RunState, elapsed: float = 200.0, width: int = 80, unicode: bool = True) -> list[str]:
    console, file = recorded(width)
    console.print(panel(state, elapsed, width, unicode))
    return text_of(file).splitlines()


def state_of(*records: dict, **settings) -> RunState:
    state = RunState(TrainConfig(algorithm=BA3CConfig(), **settings))
    for record in records:
        state.add(record)
    return state


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("width", [80, 60, 40])
def test_panel_fits_its_width(width):
    scores = [{**TRAIN, "online_score_mean": float(score)} for score in range(500)]
    state = state_of(*scores, evaluation(55.5), LOST, LOST, LOST, LOST)
    lines = drawn(state, width=width)
    assert {len(line) for line in lines} == {width}
    assert width < 80 or len(lines) <= 24


def test_panel_shows_everything_at_80_columns():
    lines = drawn(state_of(TRAIN, evaluation(60.25, 900), evaluation(55.5), LOST))
    text = " ".join(" ".join(line.strip("\u2502 ") for line in lines).split())
    for part in (
        "3:20 of 10:00, 6:40 left",
        "1,234 updates",
        "98,765,432 agent steps",
        "321 episodes",
        "12,210 agent steps",
        "48,841 frames",
        "12,200 data-points",
        "8.61 updates/s",
        "batch 256",
        "rate 0.001",
        "2 workers live",
        "mean 42.4 max 93",
        "last 100 training episodes",
        "mean 55.5 max 111 (version 1,000 at 1:05)",
        "best mean 60.2",
        "0.01234",
        "policy -0.0112",
        "value 0.431",
        "entropy 1.23",
        "|g| 0.7",
        "mean 1.4 max 4 updates",
        "3 gradients dropped",
        "1 step refused",
        "2 evaluations skipped",
        "1 worker lost",
        "gradient 82% acting 61%",
        "wait 96%",
        "worker lost: worker 1 [host n03] ended",
        "1 parameter server",
    ):
        assert part in text, part


def test_panel_before_the_first_record_says_what_it_waits_for():
    text = "\n".join(drawn(state_of()))
    assert "starting 4 ranks; TensorFlow loads in about" in text


def test_panel_leaves_out_what_is_not_known():
    lines = drawn(state_of({"kind": "train", "wall_seconds": 1.0, "update": 0}))
    text = "\n".join(lines)
    assert "no finished episode yet" in text and "none yet" in text
    assert "loss" not in text and "trouble" not in text and "lag" not in text


def test_unknown_records_are_passed_over():
    assert not state_of({"kind": "later"}, {}).train


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (RunConfig(minutes=0), "3:20 elapsed, no budget"),
        (RunConfig(minutes=0, agent_steps=200_000_000), "3:20, 98,765,432 of 200,000,000 agent steps"),
        (RunConfig(minutes=0, max_updates=5000), "3:20, 1,234 of 5,000 updates"),
        (RunConfig(minutes=1), "3:20 of 1:00, 0:00 left"),
    ],
)
def test_budget_of_each_kind(run, text):
    assert text in "\n".join(drawn(state_of(TRAIN, run=run)))


def test_terminal_without_unicode_gets_ascii_only_sparks():
    console, file = recorded(encoding="ascii")
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, Clock()) as progress:
        progress.update([TRAIN, {**TRAIN, "online_score_mean": 50.0}])
    assert "_@" in text_of(file)


def test_terminal_shows_a_live_panel_that_goes_away():
    console, file = recorded()
    clock = Clock()
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, clock) as progress:
        clock.now += 5
        progress.tick()
        assert "0:05 of 10:00" in text_of(file)
        progress.update([TRAIN])
        assert "1,234 updates" in text_of(file)
    assert text_of(file).endswith("\x1b[2K")


def test_an_evaluation_that_was_cut_off_is_said_to_be_and_is_not_the_best():
    whole, cut = evaluation(5.0), evaluation(9.0) | {"timed_out": 3}
    assert state_of(TRAIN, whole, cut).best == whole
    assert evaluation_line(cut).endswith("at 1:05, 3 games cut off by time")
    assert "best" not in _evaluation(state_of(TRAIN, cut))
    assert _evaluated([whole, cut]) == (
        "first 5.0, best 5.0, last 5.0 (mean of 50 games); best game 18; 1 evaluation cut off by time, not among them"
    )
    assert (_evaluated([cut]), _evaluated([])) == ("1 evaluation cut off by time", "none")


def test_without_terminal_a_line_every_10_seconds_and_evaluations_at_once():
    console, file = recorded(terminal=False)
    clock = Clock()
    with Progress(TrainConfig(algorithm=BA3CConfig()), console, clock) as progress:
        progress.update([TRAIN])
        progress.update([evaluation(55.5), LOST])
        clock.now += 9.9
        progress.tick()
        clock.now += 0.2
        progress.tick()
        progress.tick()
    assert text_of(file).splitlines() == [
        "starting 4 ranks; TensorFlow loads in about 6 s ...",
        "evaluation: mean 55.5, max 111 over 50 games, version 1,000 at 1:05",
        "1:17 worker lost: worker 1 [host n03] ended (signal 9)",
        "1:23  update 1,234  98,765,432 agent steps  12,210/s  score 42.4  loss 0.01234  entropy 1.234  lag 1.4",
    ]


def test_an_error_ends_the_panel_and_goes_on_up():
    console, _ = recorded()
    with pytest.raises(KeyboardInterrupt), Progress(TrainConfig(algorithm=BA3CConfig()), console, Clock()):
        raise KeyboardInterrupt
    console.print("usable again")


def test_sparkline():
    assert sparkline([], 10) == ""
    assert sparkline([3.0], 10) == sparkline([-7.0], 10) == "\u2581"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "".join(chr(0x2581 + level) for level in range(8))
    assert sparkline([0.0] * 50 + [1.0] * 50, 4, unicode=False) == "__@@"
    assert len(sparkline(list(range(1000)), 60)) == 60


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0:00"), (7.9, "0:07"), (754, "12:34"), (3599, "59:59"), (12345, "3:25:45")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def summarised(run_dir) -> str:
    console, file = recorded(60, terminal=False)
    summarise(TrainConfig(algorithm=BA3CConfig()), run_dir, console)
    return text_of(file)


def test_names_that_look_like_markup_are_printed_as_they_are(capsys):
    plain_console().print("run directory [/x] :dog: [bold]")
    assert capsys.readouterr().out == "run directory [/x] :dog: [bold]\n"


def test_summary_says_what_was_learned_and_how_to_go_on(tmp_path):
    writer = MetricsWriter(tmp_path)
    for index, (score, update) in enumerate([(2.0, 400), (50.0, 1234), (40.0, 1234)]):
        now = {"wall_seconds": 100.0 * (index + 1), "update": update, "agent_steps": 60_000, "online_score_mean": score}
        writer.write(TRAIN | now)
        writer.write(evaluation(score + 1, wall_seconds=100.0 * (index + 1)))
    writer.event("target_reached", "mean 51.0 at 3:20", 200.0)
    writer.close()
    parameters = np.zeros(2, np.float32)
    saved = checkpoint.Checkpoint(8, 8, 9, 1.0, parameters, {}, 8, (("w", (2,)),))
    path = checkpoint.save(tmp_path, saved, keep=1)
    (tmp_path / "learning_curve.png").touch()
    (tmp_path / "video.mp4").touch()
    text = summarised(tmp_path)
    for part in (
        "first 2.0, best 50.0, last 40.0 (mean of last 100 episodes)",
        "first 3.0, best 51.0, last 41.0 (mean of 50 games); best game 102",
        "60,000 agent steps, 1,234 updates in 3:20, 300 agent steps/s",  # the last evaluation takes the rest
        "target reached: mean 51.0",
        path.name,
        "learning_curve.png",
        "video.mp4",
        "ddrl train --resume",
    ):
        assert part in text, part


def test_summary_of_a_run_that_did_nothing(tmp_path):
    text = summarised(tmp_path)
    assert "no finished episode" in text and "--resume" not in text
