"""`ddrl bench train`: a real run end to end, beside the roofline of the same settings measured around it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from ddrl import checks
from ddrl.bench.benchmark import Benchmark, TakesTrainOptions
from ddrl.bench.roofline import measure_roofline, times
from ddrl.bench.runs import LINE_SECONDS, mean_parts, run_for
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.options import config_files
from ddrl.options.early_options import Parser
from ddrl.options.train_options import parse
from ddrl.placement.resources import this_machine

CHANGED = 1.2  # ratio of the two rooflines from which on the machine's speed has changed too much
WARM_UP_LINES = 3  # first lines of metrics.jsonl, left out: the simulators start together and the queues fill
RATES = ("agent_steps_per_s", "datapoints_per_s", "updates_per_s")
MEANS = ("effective_batch", "lag_mean", "exchange_ms")


@dataclasses.dataclass(frozen=True)
class EndToEndArguments(TakesTrainOptions):
    """Train in a directory that is removed afterward, without an evaluator unless --evaluator is given.

    Measures achieved agent steps/s, the roofline of the same settings before and after, their ratio, and each role's
    time split. A warning says when the two rooflines differ, as the machine was then not the same throughout. The
    preset is laptop unless one is given. --resume RUN measures a new run with the settings of that one."""

    seconds: float = 60.0
    """Length of the run, in seconds."""
    roofline_seconds: float = 4.0
    """Seconds for each part of the roofline."""

    def __post_init__(self) -> None:
        checks.at_least(self, 20, "seconds", why="the first lines are left out")
        checks.above(self, 0.0, "roofline_seconds")


def config_of(options: Sequence[str]) -> TrainConfig:
    """The settings to train with, by options of `ddrl train`."""
    peek = Parser(prog="ddrl bench")
    for name in ("--preset", "--resume", "--config"):
        peek.add_argument(name)
    first, _ = peek.parse_known_args(list(options))
    given = first.preset or first.resume or (first.config and config_files.read(first.config).text("preset"))
    preset = [] if given else ["--preset", "laptop"]
    config = parse([*preset, *options], this_machine()).config
    without = {"evaluator": False, "target_score": None, "stop_at_target": True}  # a run to resume may have a target
    return config if "--evaluator" in options else config.changed(evaluation=without)


def measure(config: TrainConfig, seconds: float, roofline_seconds: float) -> dict[str, Any]:
    """Measures the roofline, a run, and the roofline again; the run is compared with the mean, as the speed drifts.

    Raises:
        UsageError: the run failed.
    """
    cores = this_machine().cores
    before = measure_roofline(config, roofline_seconds, cores)
    achieved = _run(config, seconds)
    after = measure_roofline(config, roofline_seconds, cores)
    roofline = (before["roofline"] + after["roofline"]) / 2
    return {
        **_doubt(before["roofline"], after["roofline"]),
        "agent_steps_per_s": achieved["agent_steps_per_s"],
        "roofline": roofline,
        "ratio": achieved["agent_steps_per_s"] / roofline,
        "roofline_before": before["roofline"],
        "roofline_after": after["roofline"],
        **{name: (before[name] + after[name]) / 2 for name in times(config)},
        **{name: before[name] for name in ("inference_batch", "gradient_batch", "network", "dtype", "game")},
        **{name: value for name, value in achieved.items() if name != "agent_steps_per_s"},
        "workers": config.exchange.workers,
        "parameter_servers": config.exchange.servers,
        "simulators": config.sampling.simulators,
    }


def _doubt(before: float, after: float) -> dict[str, str]:
    """A warning if the machine's speed changed much during the run, so that the ratio says little; else empty."""
    factor = max(before, after) / min(before, after)
    if factor < CHANGED:
        return {}
    became = "slower" if after < before else "faster"
    text = f"the machine became {became} by a factor of {factor:.2f} during the measurement (roofline {before:,.0f}, "
    return {"warning": f"{text}then {after:,.0f}), so the ratio says little; measure again when nothing else runs"}


def _run(config: TrainConfig, seconds: float) -> dict[str, Any]:
    """Trains for `seconds` and returns the means over the records after the warm-up."""
    lines = [line for line in run_for(config, seconds) if line["update"]][WARM_UP_LINES:-1]
    if not all(any(name in line for line in lines) for name in (*RATES, *MEANS)):
        raise UsageError(f"--seconds {seconds:g}: too few updates to measure; give more, or use shorter rollouts")
    # A line lacks the rate of what nobody did in its interval, such as acting while a rollout is learned from.
    timed = [line for line in lines if "updates_per_s" in line]
    means = {name: statistics.mean(line.get(name, 0.0) for line in timed) for name in RATES}
    means |= {name: statistics.mean(line[name] for line in lines if name in line) for name in MEANS}
    if config.has_replay:  # acting comes in bursts; the ratio to updates is fixed
        gradients = means["datapoints_per_s"] / config.batch_size
        means["agent_steps_per_s"] = gradients * config.replay_data.steps_per_update
    splits = [line["time_split"] for line in lines if "time_split" in line]
    means["worker_time_split"] = mean_parts([split.get("worker", {}) for split in splits])
    means["exchange_share"] = sum(means["worker_time_split"].get(name, 0.0) for name in ("push", "pull"))
    means["server_busy_share"] = statistics.mean(sum(split.get("parameter_server", {}).values()) for split in splits)
    means["cpu_cores"] = mean_parts([line["cpu_cores"] for line in lines])
    means["resident_mb"] = lines[-1]["resident_mb"]
    means["seconds_measured"] = LINE_SECONDS * len(lines)
    return means


main = Benchmark(
    name="train",
    arguments=EndToEndArguments,
    measure=lambda arguments: measure(
        config_of(arguments.train_options), arguments.seconds, arguments.roofline_seconds
    ),
    title="end to end",
)
