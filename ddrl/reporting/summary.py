"""The end of a run in a few lines: what it learned, in how much time, where things are, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ddrl import rundir
from ddrl.algorithms import printed_name
from ddrl.checkpoint import list_checkpoints, load
from ddrl.config import TrainConfig
from ddrl.docstrings import flowing
from ddrl.errors import UsageError
from ddrl.reporting.atari_scores import Reference, reference_of
from ddrl.reporting.metrics import (
    ONLINE_EPISODES,
    best_online,
    evaluation_remarks,
    read_metrics,
    while_training,
    whole,
    without_undone,
)
from ddrl.reporting.plots import LEARNING_CURVE
from ddrl.reporting.texts import duration, event_line, raw_score
from ddrl.reporting.time_report import pace
from ddrl.wording import counted

LABEL_WIDTH = 10
LEAST_WIDTH, MOST_WIDTH = 40, 100
MOST_EVENTS = 5
_MILESTONES = (
    "target_reached", "worker_lost", "evaluator_lost", "evaluation_failed", "evaluation_unfinished", "restarted",
    "replay_shard_lost", "actor_lost", "replay_not_loaded", "priorities_not_sent", "checkpoint_left_out",
    "settings_changed",
)  # fmt: skip

Records = Sequence[Mapping[str, Any]]


def summary(run_dir: str | Path, config: TrainConfig, width: int = 80) -> RenderableType:
    """What the run learned, how fast, where its files are and how to go on.

    Args:
        run_dir: the directory of the run.
        config: the settings of the run.
        width: columns at which sentences are wrapped. Paths and commands are not, since one that is cut in two cannot
            be copied.
    """
    run_dir = Path(run_dir)
    records = without_undone(read_metrics(run_dir))
    room = min(max(width, LEAST_WIDTH), MOST_WIDTH) - LABEL_WIDTH
    sections = [
        ("learned", _wrapped(_learned(records, config.environment.game), room)),
        ("trained", _wrapped(_trained(records, run_dir, config), room)),
        ("events", _wrapped(_events(records), room)),
        ("files", _files(run_dir)),
        ("next", _next(run_dir, config)),
    ]
    lines = [
        Text.assemble((name.ljust(LABEL_WIDTH) if place == 0 else " " * LABEL_WIDTH, "dim"), line, overflow="ignore")
        for name, section in sections
        for place, line in enumerate(section)
    ]
    for line in lines:
        line.no_wrap = True
    return Group(Text(f"{printed_name(config.title)} on {config.environment.game}", style="bold"), *lines)


def _wrapped(sentences: Sequence[str], width: int) -> list[str]:
    return [line for sentence in sentences for line in flowing(sentence, width)]


def _learned(records: Records, game: str) -> list[str]:
    """Sentences about the score of the last evaluation, beside random play, people and the scores in training.

    If time cut that evaluation off, the score is that of the last training games, since an earlier evaluation is one of
    a younger agent.
    """
    train = while_training(records)
    online = [record["online_score_mean"] for record in train if "online_score_mean" in record]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    complete = whole(evaluations)
    if not complete and not online:
        if any(record.get("scores_not_finite") for record in train):
            return ["no episode has had a finite score: fix the rewards of the environment"]
        unending = "a game whose episodes never end needs a time limit"
        return [f"no episode has ended, so there is no score yet: train for longer; {unending}"]
    newest = bool(complete) and (complete[-1] is evaluations[-1] or not online)
    score = complete[-1]["mean"] if newest else online[-1]
    sentences = [f"score {_of_games(complete[-1])}" if newest else f"score {score:.1f}, mean of {_episodes(train)}"]
    if reference := reference_of(game):
        sentences.append(compared(score, reference))
    if len(online) > 1:
        what = f" (mean of {_episodes(train)})" if newest else ""
        span = f"in training from {online[0]:.1f} to {online[-1]:.1f}, at best {best_online(train):.1f}"
        sentences.append(span + what)
    if complete and not newest:
        sentences.append(f"evaluation at {duration(complete[-1]['wall_seconds'])}: {_of_games(complete[-1])}")
    if cut := len(evaluations) - len(complete):
        sentences.append(f"not counted: {counted(cut, 'evaluation')} cut off by time")
    return sentences


def _of_games(evaluation: Mapping[str, Any]) -> str:
    mean = f"{evaluation['mean']:.1f}, mean of {counted(evaluation['games'], 'evaluation game')}"
    return ", ".join([mean, f"best {raw_score(evaluation['maximum'])}", *evaluation_remarks(evaluation)])


def _episodes(train: Records) -> str:
    episodes = min(ONLINE_EPISODES, train[-1].get("episodes", ONLINE_EPISODES))
    return f"the last {counted(episodes, 'training episode')}"


def compared(score: float, reference: Reference) -> str:
    """A sentence that compares a raw score with random play and people."""
    percent = reference.normalized(score)
    if percent < 0.5:
        verdict = "no better than random play"
    elif percent > 100:
        verdict = "above the tester"
    else:
        verdict = f"{percent:.0f}% of the way from the one to the other"
    return f"random play scores {reference.random:g}, a professional games tester {reference.human:g}: {verdict}"


def _trained(records: Records, run_dir: Path, config: TrainConfig) -> list[str]:
    train = while_training(records)
    if not train:
        return ["nothing: the run ended before its first update"]
    seconds, steps = train[-1]["wall_seconds"], train[-1].get("agent_steps", 0)
    rate = f", {steps / seconds:,.0f} agent steps/s" if seconds > 0 and steps else ""
    last = {"agent_steps": steps, "update": train[-1]["update"]} | _final_counts(run_dir)
    trained = f"{counted(last['agent_steps'], 'agent step')}, {counted(last['update'], 'update')}"
    text = f"{trained} in {duration(seconds)}{rate}"
    return [text, *pace(records, config, _parameters(run_dir))]


def _final_counts(run_dir: Path) -> dict[str, int]:
    """Agent steps and updates from the result of a run that has ended: `train` records lack the ranks' last reports."""
    counts = rundir.read_json(run_dir / rundir.RESULT) or {}
    return {name: counts[name] for name in ("agent_steps", "update") if type(counts.get(name)) is int}


def _parameters(run_dir: Path) -> int:
    """Number of parameters of the network; 0 if there is no checkpoint yet, or a damaged one."""
    try:
        return int(load(list_checkpoints(run_dir)[-1]).parameters.size)
    except (IndexError, UsageError):
        return 0


def _events(records: Records) -> list[str]:
    """The newest of the events that a person should know of."""
    events = [event_line(record) for record in records if record.get("name") in _MILESTONES]
    more = [f"{len(events) - MOST_EVENTS} earlier, in metrics.jsonl"] if len(events) > MOST_EVENTS else []
    return more + events[-MOST_EVENTS:]


def _files(run_dir: Path) -> list[str]:
    """Lines with the paths of the run's files, and what they are."""
    checkpoints = list_checkpoints(run_dir)
    named = [(run_dir / LEARNING_CURVE, "the score over time")] if (run_dir / LEARNING_CURVE).exists() else []
    named += [(path, "a game of the agent") for path in sorted([*run_dir.glob("*.mp4"), *run_dir.glob("*.gif")])]
    named += [(checkpoints[-1], "the newest checkpoint")] if checkpoints else []
    return _beside([(str(path), what) for path, what in named or [(run_dir, "all of it; no checkpoint was saved")]])


def _next(run_dir: Path, config: TrainConfig) -> list[str]:
    """Lines with commands for what to do next, and what they do."""
    if not list_checkpoints(run_dir):
        return []
    run = shlex.quote(str(run_dir))
    options, what = _longer(run_dir, config)
    return _beside([
        (f"ddrl play {run}", "films another game"),
        (f"ddrl evaluate {run}", "plays the whole evaluation protocol"),
        (f"ddrl train --resume {run} {options}", what),
    ])  # fmt: skip


def _longer(run_dir: Path, config: TrainConfig) -> tuple[str, str]:
    """Options with which a resume trains longer, and what it does.

    With --resume, minutes count from now. Agent steps and updates are those of all parts, so a budget of them
    that is used up has to grow, and a target that is reached would be reached again.
    """
    counts, result = _final_counts(run_dir), rundir.read_json(run_dir / rundir.RESULT) or {}
    budgets = {"agent_steps": config.run.agent_steps, "update": config.run.max_updates}
    options = {"agent_steps": "--agent-steps", "update": "--max-updates"}
    words = [
        f"{options[name]} {2 * (budget if counts[name] < 2 * budget else counts[name])}"
        for name, budget in budgets.items()
        if budget and counts.get(name, 0) >= budget
    ]
    what = "trains as long again" if words else "trains for another hour"
    words = words or ["--minutes 60"]
    if result.get("status") == "target":
        words.insert(0, "--no-stop-at-target")
    return " ".join(words), what


def _beside(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Lines with the pairs in two columns."""
    width = max(len(left) for left, _ in pairs)
    return [f"{left.ljust(width)}  {right}" for left, right in pairs]
