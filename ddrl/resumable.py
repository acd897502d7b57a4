"""Which settings a resume may change, and whether those of a run are the ones that its checkpoint was made with.

| settings | at a resume | why |
|---|---|---|
| FIXED, the algorithm | as in the checkpoint | its parameters, optimizer slots and replay fit no other |
| FREE | any | they say how long, where and how watchfully a run trains, not what is learned |
| all others | changed on the command line, and told | a run may go on with another learning rate or more workers |

What was changed on a command line is known from config.json and the config-N.json beside it, which bear checksums.
Settings that differ from the checkpoint's otherwise are of another run, or were edited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddrl import checks, rundir
from ddrl.checkpoint import Checkpoint
from ddrl.config import TrainConfig
from ddrl.errors import UsageError
from ddrl.option_values import setting_as_typed, value_as_typed

# A checkpoint fits only its own network, game and optimizer.
FIXED = {
    "environment": ("game", "game_options", "wrappers"),
    "network": (
        "network", "fc_neurons", "hidden_layers", "activation", "layer_norm", "policy_layers", "critic_layers",
    ),
    "optimizer": ("optimizer",),
}  # fmt: skip
# A saved replay fits only these settings, too.
REPLAYED = {"algorithm": ("n_step",), "replay": ("replay_capacity", "priority_exponent")}
FIXED_REPLAY = REPLAYED | {"sampling": ("simulators",)}
# A saved replay of shards fits any number of simulators, which actors may change.
FIXED_SHARDS = REPLAYED | {"apex": ("replay_shards", "segment_length", "eviction_exponent")}
FREE = {
    "evaluation": (),  # the whole group
    "run": (
        "minutes", "agent_steps", "max_updates", "run_dir", "checkpoint_every_minutes", "checkpoint_every_updates",
        "checkpoints_kept", "stall_seconds", "start_seconds", "max_refused_steps", "max_restarts", "log_every_seconds",
        "norms_every_updates", "video", "plugins", "loggers", "callbacks",
    ),
    "exchange": ("parameter_servers", "chief", "on_worker_loss", "on_server_loss"),
    "environment": ("pin_simulators", "simulator_processes"),
    "sampling": ("simulator_threads",),
    "apex": ("segments_in_flight", "prefetch"),
}  # fmt: skip
AGENT = ("environment", "network")  # groups of settings on which an evaluation depends


def check_resumable(before: TrainConfig, now: TrainConfig) -> None:
    """Checks that a resumed run keeps the settings on which its checkpoint depends.

    Raises:
        UsageError: a setting does not fit the checkpoint.
    """
    if bool(now.apex.actors) != bool(before.apex.actors):
        why = f"the run to resume has {before.apex.actors}, and its replay cannot move to other ranks"
        checks.refuse(now.apex, "actors", f"{why}; leave the option out, or start a new run")
    for group, name in _fixed(before):
        old, new = getattr(getattr(before, group), name), getattr(getattr(now, group), name)
        if old != new:
            raise UsageError(
                f"{setting_as_typed(name, new)}: the run to resume has {value_as_typed(name, old)}, and its checkpoint "
                "fits no other; leave the option out, or start a new run"
            )
    if now.run.run_dir != before.run.run_dir:
        raise UsageError(f"--run-dir {now.run.run_dir}: a resumed run stays in {before.run.run_dir}; leave it out")


def with_schedules_of(parts: Sequence[TrainConfig], now: TrainConfig) -> TrainConfig:
    """`now` with schedules over agent steps that go on where they are.

    If batch, epochs or workers have changed, an update stands for another number of agent steps than before, so the
    length of a schedule is stretched in that proportion.

    Args:
        parts: settings of earlier parts of the run, beginning with the last one. A length that equals that of one of
            them is the schedule of that part; any other is a new one, and stays.
    """
    new, stretched = now.agent_steps_per_update, {}
    for group, name in (("optimizer", "learning_rate_agent_steps"), ("replay", "importance_agent_steps")):
        steps = getattr(getattr(now, group), name)
        old = next((part.agent_steps_per_update for part in parts if getattr(getattr(part, group), name) == steps), 0.0)
        if steps and old and new and old != new:
            stretched[group] = {name: max(1, round(steps * new / old))}
    return now.changed(**stretched)


def check_settings(
    checkpoint: Checkpoint, config: TrainConfig, run_dir: Path, groups: tuple[str, ...] | None = None
) -> str:
    """Compares the settings of a run with those that are sealed in its checkpoint.

    Args:
        groups: groups of settings to compare, beside the algorithm (None: all).

    Returns:
        What was changed on the command line since the checkpoint, such as '--discount 0.99, now 0.9'; else empty.

    Raises:
        UsageError: the checkpoint is that of another algorithm, game or network, or of a run with other settings.
    """
    where = f"{run_dir / rundir.CONFIG}: the checkpoint of update {checkpoint.version}"
    # A checkpoint may come from somebody else: config.json alone, which can be read, names what is imported.
    sealed = rundir.config_from_dict(checkpoint.config, f"the checkpoint of update {checkpoint.version}", load=False)
    if _family(sealed) != _family(config):
        raise UsageError(
            f"{where} is a checkpoint of {sealed.title}, not of {config.title}: "
            f"restore {rundir.CONFIG} and checkpoints of the same run"
        )
    changes = list(_differences(sealed, config, groups))
    if fixed := [text for group, name, text in changes if (group, name) in _fixed(sealed)]:
        raise UsageError(
            f"{where} has {'; '.join(fixed)} here: restore {rundir.CONFIG} and checkpoints of the same run"
        )
    if not changes:
        return ""
    earlier = (each for _, each in rundir.earlier_configs(run_dir))
    if not any(_family(sealed) == _family(each) and not any(_differences(sealed, each, groups)) for each in earlier):
        texts = "; ".join(text for *_, text in changes)
        raise UsageError(
            f"{where} has {texts} here, and no resume recorded that change: restore {rundir.CONFIG} from a copy, or "
            f"give the checkpoint's settings after --resume {run_dir} to go on with those"
        )
    return "; ".join(text for *_, text in changes)


def _fixed(config: TrainConfig) -> list[tuple[str, str]]:
    """Group and name of each setting that must be as in the checkpoint of a run with these settings."""
    replay = FIXED_SHARDS if config.apex.actors else FIXED_REPLAY
    fixed = FIXED | (replay if config.has_replay else {})
    return [(group, name) for group, names in fixed.items() for name in names]


def _family(config: TrainConfig) -> tuple[str, bool]:
    """The name of the algorithm, and whether it has the actors of Ape-X."""
    return config.algorithm.name, bool(config.apex.actors)


def _differences(
    sealed: TrainConfig, now: TrainConfig, groups: tuple[str, ...] | None
) -> Iterator[tuple[str, str, str]]:
    """Yields group, name and both values, as a text, of each setting that differs and is not FREE.

    Both configurations have the same algorithm.
    """
    for field in dataclasses.fields(TrainConfig):
        group = field.name
        if (groups is not None and group not in groups) or FREE.get(group) == ():
            continue
        old, new = getattr(sealed, group), getattr(now, group)
        for setting in dataclasses.fields(old):
            name = setting.name
            before, after = getattr(old, name), getattr(new, name)
            if before != after and name not in FREE.get(group, ()):
                yield group, name, f"{setting_as_typed(name, before)}, now {value_as_typed(name, after)}"
